"""Who uses a block device or a filesystem, as the kernel tells."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

# What runs guests, or serves their disks: qemu-system-x86_64, qemu-kvm, qemu-storage-daemon, kvm.
_GUESTS = ("qemu", "kvm")


class InUse:
    """Looks for users under /sys and /proc. What may not be looked at is not found."""

    def __init__(self, sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> None:
        self._sys = sys
        self._proc = proc

    def users_of_device(self, device: int) -> Iterator[str]:
        """Yield what uses a block device, one of its partitions, or the disk that it is part of.

        device: its number, as st_rdev. Such as "mounted at /srv".
        """
        family = set(self._family(device))
        for line in self._lines("self/mountinfo"):
            # 36 35 98:0 /root /point rw,noatime master:1 - ext3 /dev/root rw (proc(5))
            before, _, after = line.partition(" - ")
            fields, source = before.split(" "), after.split(" ")[1]
            if fields[2] in family or _number(_unescaped(source)) in family:
                yield f"mounted at {_unescaped(fields[4])}"
        for line in self._lines("swaps")[1:]:
            if _number(_unescaped(line.split()[0])) in family:
                yield "used for swap"
        for number in sorted(family):
            for holder in sorted((self._sys / "dev/block" / number / "holders").glob("*")):
                yield f"part of {holder.name}"
        yield from self._open(lambda s: stat.S_ISBLK(s.st_mode) and _text(s.st_rdev) in family)

    def guests_on_filesystem(self, device: int) -> Iterator[str]:
        """Yield the QEMU programs that have a file of a filesystem open.

        device: the filesystem's number, as st_dev.
        """
        yield from self._open(
            lambda s: stat.S_ISREG(s.st_mode) and s.st_dev == device,
            lambda name: name.startswith(_GUESTS),
        )

    def _family(self, device: int) -> Iterator[str]:
        number = _text(device)
        yield number
        folder = (self._sys / "dev/block" / number).resolve()
        if (folder / "partition").exists():
            with contextlib.suppress(OSError):
                yield (folder.parent / "dev").read_text().strip()
        for partition in folder.glob("*/partition"):
            with contextlib.suppress(OSError):
                yield (partition.parent / "dev").read_text().strip()

    def _open(
        self,
        is_it: Callable[[os.stat_result], bool],
        may_be: Callable[[str], bool] = lambda name: True,
    ) -> Iterator[str]:
        """Yield the programs, but for this one, that have something open."""
        for process in sorted(self._proc.glob("[0-9]*"), key=lambda folder: int(folder.name)):
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                name = (process / "comm").read_text().strip()
                if int(process.name) == os.getpid() or not may_be(name):
                    continue
                if any(is_it(status) for status in _statuses(process / "fd")):
                    yield f"open by {name} (process {process.name})"

    def _lines(self, file: str) -> list[str]:
        with contextlib.suppress(OSError):
            return (self._proc / file).read_text(errors="surrogateescape").splitlines()
        return []


def _statuses(folder: Path) -> Iterator[os.stat_result]:
    for link in folder.iterdir():
        with contextlib.suppress(OSError):
            yield link.stat()


def _number(path: str) -> str | None:
    """Return the number of the block device that a path names, None where it names none."""
    if path.startswith("/"):
        with contextlib.suppress(OSError, ValueError):
            status = os.stat(path)
            return _text(status.st_rdev) if stat.S_ISBLK(status.st_mode) else None
    return None


def _text(device: int) -> str:
    return f"{os.major(device)}:{os.minor(device)}"


def _unescaped(text: str) -> str:
    """Return a name of mountinfo as it is: blanks and the like are \\040 there."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
