"""Simulated disks, as this kernel's block devices and NBD's exports."""
