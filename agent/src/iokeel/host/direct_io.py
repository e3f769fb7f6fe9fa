"""Whether direct I/O on a storage may be answered from this host's memory all the same."""

from __future__ import annotations

from pathlib import Path

from iokeel.host.kernel_files import device_number, read_text
from iokeel.host.mounts import mounts
from iokeel.words.quoting import shown_path


def memory_cache(
    device: int, sys: Path = Path("/sys"), proc: Path = Path("/proc")
) -> tuple[str, str] | None:
    """Return the cache that direct I/O meets, and how to go around it; None if none is known.

    device: a block device's number (st_rdev), or that of a folder's filesystem (st_dev).
    """
    number = device_number(device)
    disk = (sys / "dev/block" / number).resolve()
    if (disk / "partition").exists():
        disk = disk.parent
    if read_text(disk / "loop/dio") == "0":
        return f"the page cache below {disk.name}", f"use losetup --direct-io=on /dev/{disk.name}"
    # Before OpenZFS 2.3, O_DIRECT is only a hint. Later ones have a switch.
    if read_text(sys / "module/zfs/parameters/zfs_dio_enabled") == "1":
        return None
    for mount in mounts(proc):
        if mount.number == number and mount.kind == "zfs":
            setting = f"primarycache=metadata {shown_path(mount.mounted)}"
            return "ZFS's ARC", f"calibrate the pool's device, or zfs set {setting} meanwhile"
    return None
