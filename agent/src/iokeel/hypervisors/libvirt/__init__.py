"""VMs that libvirt runs."""
