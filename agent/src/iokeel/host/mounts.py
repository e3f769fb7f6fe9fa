"""What is mounted where, by the kernel's own list."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Mount:
    """A line of mountinfo.

    number: the device's MAJOR:MINOR. root: the folder of the filesystem that is mounted. point:
    where. kind: the filesystem's type. source, options: as it was mounted.
    """

    id: int
    number: str
    root: str
    point: str
    kind: str
    source: str
    options: str


def mounts(proc: Path = Path("/proc")) -> Iterator[Mount]:
    """Yield what this process sees mounted, in the order of mounting."""
    for line in (text_of(proc / "self/mountinfo") or "").splitlines():
        # 36 35 98:0 /root /point rw,noatime master:1 - ext3 /dev/root rw (proc(5))
        before, _, after = line.partition(" - ")
        fields, more = before.split(" "), after.split(" ")
        if len(fields) >= 6 and len(more) >= 3:
            root, point, source = unescaped(fields[3]), unescaped(fields[4]), unescaped(more[1])
            yield Mount(int(fields[0]), fields[2], root, point, more[0], source, more[2])


def unescaped(text: str) -> str:
    """Return a name of mountinfo as it is: blanks and the like are \\040 there."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def text_of(file: Path) -> str | None:
    """Return the text of a file of proc, sysfs or a cgroup; None where it can't be read."""
    with contextlib.suppress(OSError):
        return file.read_text(errors="surrogateescape").strip()
    return None
