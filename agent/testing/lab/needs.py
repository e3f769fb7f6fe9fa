"""The packages and rights that the lab needs of its machine."""

import os
import shutil

PACKAGES = {
    "qemu-system-x86_64": "qemu-system-x86",
    "libvirtd": "libvirt-daemon-system",
    "virsh": "libvirt-clients",
    "fio": "fio",
    "busybox": "busybox-static",
    "cpio": "cpio",
    "mmdebstrap": "mmdebstrap",
    "nbdkit": "nbdkit nbdkit-plugin-dev",
    "nbdcopy": "libnbd-bin",
    "make": "make",
    "gcc": "gcc",
}
"""Program -> the Debian package that has it."""


def missing() -> str | None:
    """Return what is missing and the mend, or None if the lab can run."""
    if os.geteuid() != 0:
        return "the lab makes namespaces and mounts: run as root"
    if lacking := sorted(package for name, package in PACKAGES.items() if not shutil.which(name)):
        return f"apt-get install {' '.join(lacking)}"
    return None
