"""Finds who uses a block device or a filesystem."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from iokeel.host.block_devices import StoragePaths
from iokeel.host.kernel import device_number, mounts, read_text, unescaped
from iokeel.words.quoting import shown_path

# Programs that run guests or serve their disks: qemu-system-x86_64, qemu-kvm,
# qemu-storage-daemon, kvm.
_GUESTS = ("qemu", "kvm")


class InUse:
    """Looks for users under /sys and /proc. Other users' processes stay unseen."""

    def __init__(self, sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> None:
        self._sys = sys
        self._proc = proc

    def users_of_device(self, device: int) -> Iterator[str]:
        """Yield the uses of a block device, of its partitions, and of the disk that it is part of.

        device: its number, as st_rdev. A use is such as "mounted at /srv".
        """
        family = set(self._family(device))
        for mount in mounts(self._proc):
            if mount.number in family or _number(mount.mounted) in family:
                yield f"mounted at {shown_path(mount.point)}"
        for line in (read_text(self._proc / "swaps") or "").split("\n")[1:]:
            if _number(unescaped(line.partition(" ")[0])) in family:
                yield "used for swap"
        for number in sorted(family):
            for holder in sorted((self._sys / "dev/block" / number / "holders").glob("*")):
                yield f"part of {holder.name}"
        yield from self._open(
            lambda _, s: stat.S_ISBLK(s.st_mode) and device_number(s.st_rdev) in family
        )

    def guests_on_filesystem(self, folder: str) -> Iterator[str]:
        """Yield the QEMU programs that have a file of a folder's filesystem open.

        Each subvolume of btrfs has another st_dev, and so has each of a ZFS pool's filesystems.
        """
        paths, device = StoragePaths(self._sys, self._proc), os.stat(folder).st_dev
        place = () if os.major(device) else paths.places(folder)[-1:]

        def is_there(link: Path, status: os.stat_result) -> bool:
            if not stat.S_ISREG(status.st_mode):
                return False
            if status.st_dev == device or os.major(status.st_dev) or not place:
                return status.st_dev == device
            return paths.places(str(link))[-1:] == place

        yield from self._open(is_there, lambda name: name.startswith(_GUESTS))

    def _family(self, device: int) -> Iterator[str]:
        number = device_number(device)
        yield number
        folder = (self._sys / "dev/block" / number).resolve()
        if (folder / "partition").exists():
            if (disk := read_text(folder.parent / "dev")) is not None:
                yield disk
        for partition in folder.glob("*/partition"):
            if (part := read_text(partition.parent / "dev")) is not None:
                yield part

    def _open(
        self,
        is_it: Callable[[Path, os.stat_result], bool],
        may_be: Callable[[str], bool] = lambda name: True,
    ) -> Iterator[str]:
        """Yield the programs, except this one, that have something open.

        is_it: tells an open file by its link in /proc and its status. may_be: tells a program by
        its name.
        """
        for process in sorted(self._proc.glob("[0-9]*"), key=lambda folder: int(folder.name)):
            name = read_text(process / "comm")  # None if it has ended
            if name is None:
                continue
            with contextlib.suppress(OSError):  # it is another user's
                if int(process.name) == os.getpid() or not may_be(name):
                    continue
                if any(is_it(link, status) for link, status in _statuses(process / "fd")):
                    yield f"open by {shown_path(name)} (process {process.name})"


def _statuses(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for link in folder.iterdir():
        with contextlib.suppress(OSError):
            yield link, link.stat()


def _number(path: str) -> str | None:
    """Return the number of the block device that a path names; None if it names none."""
    if path.startswith("/"):
        with contextlib.suppress(OSError, ValueError):
            status = os.stat(path)
            return device_number(status.st_rdev) if stat.S_ISBLK(status.st_mode) else None
    return None
