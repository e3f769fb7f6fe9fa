"""The hypervisor's own devices, mounts and processes."""
