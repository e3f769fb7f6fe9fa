"""The kernel's list of mounted filesystems."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from iokeel.host.kernel_files import number_of, read_text, unescaped


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
