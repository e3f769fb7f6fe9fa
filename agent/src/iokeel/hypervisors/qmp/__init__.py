"""VMs that are reached by their QMP sockets."""
