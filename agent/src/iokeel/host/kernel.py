"""The kernel's files: numbers and names in them, mounts, a device's scheduler, direct I/O."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from iokeel.words.quoting import shown_path

_MOST_DIGITS = 20  # of 2^64
_ESCAPE = re.compile(r"\\([0-7]{3})")
SYS = Path("/sys")


def read_text(file: Path) -> str | None:
    """Return the text of such a file, stripped; None if it can't be read."""
    with contextlib.suppress(OSError):
        return file.read_bytes().decode(errors="surrogateescape").strip()
    return None


def number_of(text: str) -> int | None:
    """Return a number as the kernel writes it, from 0 to 2^64; None for any other text."""
    return int(text) if len(text) <= _MOST_DIGITS and text.isascii() and text.isdigit() else None


def unescaped(text: str) -> str:
    """Return a name in mountinfo or swaps as it is: a blank is \\040 there."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), text) if "\\" in text else text


def device_number(device: int) -> str:
    """Return st_dev or st_rdev as the kernel writes it: MAJOR:MINOR."""
    return f"{os.major(device)}:{os.minor(device)}"


@dataclass(frozen=True, slots=True)
class Mount:
    """A line of mountinfo.

    number: the device's MAJOR:MINOR. root: the folder of the filesystem that is mounted. point:
    the mount point. kind: the filesystem's type. mounted: the device or share. options: the
    filesystem's own (super options).
    """

    id: int
    number: str
    root: str
    point: str
    kind: str
    mounted: str
    options: str


def mount_of(path: str, among: Iterable[Mount]) -> Mount | None:
    """Return the mount that a path is under by its name alone; of several the last one."""
    under = [mount for mount in among if is_under(path, mount.point)]
    return max(reversed(under), key=lambda mount: len(mount.point), default=None)


def is_under(path: str, folder: str) -> bool:
    """Return whether a path is a folder or below it, by its name alone."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def mounts(proc: Path = Path("/proc"), who: str = "self") -> Iterator[Mount]:
    """Yield the mounts that a process sees, in the order of mounting. who: its pid, or "self"."""
    for line in (read_text(proc / who / "mountinfo") or "").split("\n"):
        # 36 35 98:0 /root /point rw,noatime master:1 - ext3 /dev/root rw (proc(5))
        before, dash, after = line.partition(" - ")
        if not dash:
            continue
        fields, more = before.split(" "), after.split(" ")
        number = number_of(fields[0])
        if number is not None and len(fields) >= 6 and len(more) >= 3:
            root, point, mounted = unescaped(fields[3]), unescaped(fields[4]), unescaped(more[1])
            yield Mount(number, fields[2], root, point, more[0], mounted, more[2])


def has_bfq(device: str, sys: Path = SYS) -> bool | None:
    """Return whether BFQ schedules a device (MAJOR:MINOR); None if that can't be told."""
    schedulers = read_text(_queue(device, sys) / "scheduler")
    return None if schedulers is None else "[bfq]" in schedulers


def is_hard_disk_with_bfq(device: str, sys: Path = SYS) -> bool | None:
    """Return whether a device is a hard disk that BFQ schedules; None if that can't be told."""
    bfq, rotational = has_bfq(device, sys), read_text(_queue(device, sys) / "rotational")
    return None if bfq is None or rotational is None else bfq and rotational == "1"


def _queue(device: str, sys: Path) -> Path:
    return sys / "dev/block" / device / "queue"


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
