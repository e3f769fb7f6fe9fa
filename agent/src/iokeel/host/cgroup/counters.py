"""The kernel's counts of a group's I/O, by device: io.stat in cgroup v2, blkio.throttle in v1."""

from __future__ import annotations

from pathlib import Path

from iokeel.core.backstop import Io
from iokeel.host.cgroup.place import Hierarchy
from iokeel.host.kernel_files import number_of, read_text

_V2_FILE = "io.stat"
_V1_BYTES, _V1_REQUESTS = "blkio.throttle.io_service_bytes", "blkio.throttle.io_serviced"


def counter_files(hierarchy: Hierarchy) -> tuple[str, ...]:
    """Return the names of the files that count a group's I/O."""
    return (_V2_FILE,) if hierarchy.version == 2 else (_V1_BYTES, _V1_REQUESTS)


def read_counters(group: Path, hierarchy: Hierarchy) -> dict[str, Io] | None:
    """Return what a group has read and written so far, by device (MAJOR:MINOR).

    None if it can't be read, or makes no sense. A device that the group hasn't come to is left out.
    """
    texts = [read_text(group / name) for name in counter_files(hierarchy)]
    if None in texts:
        return None
    try:
        if hierarchy.version == 2:
            return _v2(texts[0] or "")
        return _v1(texts[0] or "", texts[1] or "")
    except ValueError:
        return None


def _v2(text: str) -> dict[str, Io]:
    """Return the counts in an io.stat: "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0"."""
    found = {}
    for line in filter(None, text.split("\n")):
        device, *parts = line.split(" ")
        counts = dict(part.partition("=")[::2] for part in parts)
        if "rbytes" in counts:  # else it only has a line for other controllers
            names = ("rbytes", "wbytes", "rios", "wios")
            found[device] = Io(*(_count(counts.get(name, "")) for name in names))
    return found


def _v1(moved: str, requests: str) -> dict[str, Io]:
    """Return the counts in v1's two files, whose lines are "8:0 Read 1" and "8:0 Write 2"."""
    sent, made = _by_direction(moved), _by_direction(requests)
    return {
        device: Io(
            *sent.get(device, (0.0, 0.0)),
            *made.get(device, (0.0, 0.0)),
        )
        for device in sent.keys() | made.keys()
    }


def _by_direction(text: str) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for line in filter(None, text.split("\n")):
        device, *rest = line.split(" ")
        if len(rest) == 2 and rest[0] in ("Read", "Write"):
            read, written = found.get(device, (0.0, 0.0))
            count = _count(rest[1])
            found[device] = (count, written) if rest[0] == "Read" else (read, count)
    return found


def _count(text: str) -> float:
    number = number_of(text)
    if number is None:
        raise ValueError(f"{text} is no count")
    return float(number)
