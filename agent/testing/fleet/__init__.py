"""Real etcd, and what hosts of a fleet share."""
