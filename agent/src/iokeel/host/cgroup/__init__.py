"""VMs' cgroups."""
