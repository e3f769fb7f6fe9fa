"""The storages below a drive's file, device or URL, down to the one it shares with most others.

Local ones are followed by the kernel's own account: a file to the device under its filesystem
(/proc/self/mountinfo if the filesystem has no device number of its own), a partition to its disk,
and a device made of one other (dm, loop) to that device (/sys/dev/block). A device made of several
(a RAID, a multipath, a volume over two disks) is the last one. A path is a process's, because it
may be another file in a container.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from iokeel.core.values.storage import Place
from iokeel.host.foreign_paths import open_path
from iokeel.host.kernel import device_number, mount_of, mounts, read_text, unescaped
from iokeel.host.network_storage import network_place
from iokeel.host.process import Process

_DELETED = " (deleted)"
_FDINFO = Path("/proc/self/fdinfo")


class StoragePaths:
    """Finds the storages below paths and URLs. Make another one to look again.

    Its calls may block for as long as a filesystem doesn't answer.
    """

    def __init__(self, sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> None:
        self._sys = sys
        self._proc = proc
        self._mounts = list(mounts(proc))
        self._known: dict[str, tuple[Place, ...]] = {}

    def places(self, path: str, by: Process | None = None) -> tuple[Place, ...]:
        """Return the storages that hold a drive's data, from the top down; none if not found.

        path: an absolute path, or a URL as `network_place` takes it. by: the process whose path it
        is; None for this one. The drive shares the last storage with the most others.
        """
        if not path.startswith("/"):
            place = network_place(path)
            return () if place is None else (place,)
        return self._of_path(path, (), by)

    def mount_point(self, path: str) -> str:
        """Return the mount point that a path is under by its name alone; never blocks."""
        mount = mount_of(path, self._mounts)
        return "/" if mount is None else mount.point

    def of_device(self, number: str, above: tuple[str, ...] = ()) -> tuple[Place, ...]:
        """Return a block device (of a partition, its disk) and the devices below it.

        number: its MAJOR:MINOR. above: the numbers of the devices that led to it.
        """
        if number not in self._known:
            self._known[number] = tuple(self._down(number, above))
        return self._known[number]

    def _of_path(
        self, path: str, above: tuple[str, ...], by: Process | None = None
    ) -> tuple[Place, ...]:
        try:
            handle, by = open_path(path, by, self._proc)
            try:
                status = os.fstat(handle)
                if stat.S_ISBLK(status.st_mode):
                    return self.of_device(device_number(status.st_rdev), above)
                if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
                    return ()
                on_device = self.of_device(device_number(status.st_dev), above)
                return on_device or self._of_mount(_mount_id(handle), above, by)
            finally:
                os.close(handle)
        except (OSError, ValueError):  # it is gone, or there is a NUL in the path
            return ()

    def _of_mount(
        self, mount_id: int | None, above: tuple[str, ...], by: Process | None
    ) -> tuple[Place, ...]:
        """Return the storages below a filesystem without a device number of its own."""
        among = self._mounts if by is None else mounts(self._proc, str(by.pid))
        mount = next((m for m in among if m.id == mount_id), None)
        if mount is None:
            return ()
        if mount.kind in ("nfs", "nfs4"):
            return (_named(f"nfs:{mount.mounted}"),)
        if mount.kind == "zfs":
            return (_named(f"zfs:{mount.mounted.partition('/')[0]}"),)
        below: tuple[Place, ...] = ()
        if mount.kind == "overlay":  # writes go to its upper folder
            upper = re.search(r"(?:^|,)upperdir=([^,]+)", mount.options)
            below = self._of_path(unescaped(upper[1]), above) if upper else ()
        elif mount.kind == "btrfs":
            devices = self._devices_of_btrfs(mount.mounted)
            below = self.of_device(devices[0], above) if len(devices) == 1 else ()
        # A filesystem that is mounted in several places is named by the first here.
        first = next((m for m in self._mounts if m.number == mount.number), mount)
        return below or (_named(first.point),)

    def _devices_of_btrfs(self, mounted: str) -> list[str]:
        """Return the numbers of all devices of a filesystem, by the one that is mounted."""
        try:
            own = device_number(os.stat(mounted).st_rdev)
        except OSError:
            return []
        for folder in self._sys.glob("fs/btrfs/*/devices"):
            numbers = _numbers(folder)
            if own in numbers:
                return numbers
        return [own]

    def _down(self, number: str, above: tuple[str, ...]) -> Iterator[Place]:
        folder = self._sys / "dev/block" / number
        if not folder.exists():
            return
        folder = folder.resolve()
        if (folder / "partition").exists():
            folder = folder.parent
        number = read_text(folder / "dev") or number
        if number in above:  # a loop device, mounted over the folder that its own file is in
            return
        yield Place(folder.name.replace("!", "/"), number)
        above = (*above, number)
        if folder.name.startswith("rbd") and (pool := read_text(folder / "device/pool")):
            yield _named(f"rbd:{pool}")
            return
        backing = read_text(folder / "loop/backing_file")
        if backing is not None and not backing.endswith(_DELETED):
            below = self._of_path(backing, above)
            # A storage that is no device has no counters: then the loop device says more.
            yield from below if below and below[-1].number else ()
            return
        ends = [self.of_device(slave, above) for slave in _numbers(folder / "slaves")]
        # Two partitions of one disk are one device.
        if ends and all(ends) and len({end[-1] for end in ends}) == 1:
            yield from (place for place in ends[0] if all(place in end for end in ends))


def _named(name: str) -> Place:
    """Return a place of a name whose bytes needn't be UTF-8, as a text that can be written."""
    return Place(name.encode(errors="surrogateescape").decode(errors="backslashreplace"))


def _mount_id(handle: int) -> int | None:
    found = re.search(r"^mnt_id:\s*(\d+)$", read_text(_FDINFO / str(handle)) or "", re.MULTILINE)
    return int(found[1]) if found else None


def _numbers(folder: Path) -> list[str]:
    """Return the numbers of the devices that a folder of sysfs links to, by name."""
    links = sorted(folder.iterdir()) if folder.is_dir() else []
    return [number for link in links if (number := read_text(link / "dev"))]
