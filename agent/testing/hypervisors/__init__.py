"""QEMU's monitors, and libvirt's limits and errors, real and made up."""
