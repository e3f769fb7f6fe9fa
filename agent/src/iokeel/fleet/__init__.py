"""The fleet's data in etcd."""
