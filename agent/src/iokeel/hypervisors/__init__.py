"""The ways to reach VMs."""
