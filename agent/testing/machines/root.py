"""The root that a test machine starts from: a Debian hypervisor that has nothing of ours."""

from pathlib import Path

from testing.lab.roots import debian

CONTAINED = (
    "systemd-sysv", "dbus", "udev", "iproute2", "procps", "openssh-server",
    "python3", "libvirt-daemon-system", "libvirt-clients", "qemu-system-x86",
    "qemu-utils", "fio", "python3-libvirt", "python3-venv", "socat",
)  # fmt: skip
"""Packages of a machine that boots as a container."""
PACKAGES = (*CONTAINED, "linux-image-cloud-amd64", "initramfs-tools")


def hypervisor(codename: str) -> Path:
    """Return the root of a Debian hypervisor, made at first use; write nothing into it."""
    return debian.root(codename, PACKAGES)
