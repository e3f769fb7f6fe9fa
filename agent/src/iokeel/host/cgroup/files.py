"""The files of a cgroup that count and bound its I/O, in cgroup v2 and v1.

A setting is a file, with a device if the file has a line for each. Its value is the text after the
device, or after "default". A setting that isn't set has the value that unsets it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from iokeel.core.enforce.backstop import CgroupOrder, Io, IoMax
from iokeel.host.cgroup.place import Hierarchy
from iokeel.host.kernel import has_bfq, number_of, read_text

_V2_FILE = "io.stat"
_V1_BYTES, _V1_REQUESTS = "blkio.throttle.io_service_bytes", "blkio.throttle.io_serviced"
# v1's file for each of IoMax's bounds.
_V1_LIMITS = {
    "rbps": "blkio.throttle.read_bps_device",
    "wbps": "blkio.throttle.write_bps_device",
    "riops": "blkio.throttle.read_iops_device",
    "wiops": "blkio.throttle.write_iops_device",
}
_UNSET = {
    "io.max": "rbps=max wbps=max riops=max wiops=max",
    "io.latency": "target=max",
    **dict.fromkeys(_V1_LIMITS.values(), "0"),
}
_BFQ_WEIGHT = {2: "io.bfq.weight", 1: "blkio.bfq.weight"}
_MOST_BFQ_WEIGHT = 1000  # the kernel's BFQ_MAX_WEIGHT
_US_PER_S = 1_000_000


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


class Setting(NamedTuple):
    """A file of a group, and a device (MAJOR:MINOR); "" if the file has one value for all."""

    file: str
    device: str = ""

    @property
    def is_limit(self) -> bool:
        """Whether it is a bound; every kernel with the controller has those."""
        return self.file == "io.max" or self.file in _V1_LIMITS.values()

    @property
    def is_bfq_weight(self) -> bool:
        """Whether it is a weight for BFQ."""
        return self.file in _BFQ_WEIGHT.values()

    def __str__(self) -> str:
        return f"{self.file} {self.device}".strip()


def wanted(
    order: CgroupOrder, group: Path, hierarchy: Hierarchy, sys: Path
) -> Iterator[tuple[Setting, str]]:
    """Yield the settings and values of an order for a group, as far as the kernel has them."""
    for device, limits in order.limits.items():
        if limits is not None:
            yield from _limits(device, limits, hierarchy)
    for device, target_s in order.latency_targets_s.items():
        if (group / "io.latency").exists():
            yield Setting("io.latency", device), f"target={max(1, round(target_s * _US_PER_S))}"
    if order.weight is not None:  # one weight for all devices
        yield from _weights(order.weight, [*order.limits], group, hierarchy, sys)


def read(group: Path, setting: Setting) -> str | None:
    """Return the value of a setting; None if it can't be read."""
    text = read_text(group / setting.file)
    if text is None:
        return None
    unset = _UNSET.get(setting.file)
    for line in text.split("\n"):
        first, _, rest = line.partition(" ")
        if unset is None and (first == "default" or not rest):
            return rest or first
        if unset is not None and first == setting.device:
            return rest
    return unset


def bounded(group: Path) -> list[Path]:
    """Return the files that bound a group on any device, and those that can't be read."""
    found = []
    for name, unset in _UNSET.items():
        if os.path.exists(file := group / name):
            text = read_text(file)
            values = [line.partition(" ")[2] for line in (text or "").split("\n")]
            if text is None or any(value not in ("", unset) for value in values):
                found.append(file)
    return found


def write(group: Path, setting: Setting, value: str) -> None:
    """Write the value of a setting, in one call. Raises OSError."""
    device = setting.device or ("default" if setting.file.startswith("io.") else "")
    file = os.open(group / setting.file, os.O_WRONLY | os.O_TRUNC)
    try:
        os.write(file, f"{device} {value}".strip().encode())
    finally:
        os.close(file)


def tighter(setting: Setting, found: str, value: str) -> str:
    """Return the tighter of our value and the one found. Of weights it is always ours."""
    if setting.file == "io.max":
        ours, theirs = _bounds(value), _bounds(found)
        return " ".join(f"{name}={_least(bound, theirs[name])}" for name, bound in ours.items())
    if setting.file == "io.latency":
        return f"target={_least(value.partition('=')[2], found.partition('=')[2])}"
    if setting.file in _UNSET:
        return _least(value, found)
    return value


def _limits(device: str, limits: IoMax, hierarchy: Hierarchy) -> Iterator[tuple[Setting, str]]:
    if hierarchy.version == 2:
        bounds = (f"{name}={'max' if value is None else value}" for name, value in limits.items())
        yield Setting("io.max", device), " ".join(bounds)
    else:
        for name, value in limits.items():
            yield Setting(_V1_LIMITS[name], device), str(value or 0)


def _weights(
    weight: int, devices: list[str], group: Path, hierarchy: Hierarchy, sys: Path
) -> Iterator[tuple[Setting, str]]:
    """Yield the weights that something uses: BFQ or iocost on one of the devices."""
    if any(has_bfq(device, sys) for device in devices):
        file = _BFQ_WEIGHT[hierarchy.version]
        if (group / file).exists():
            yield Setting(file), str(min(weight, _MOST_BFQ_WEIGHT))
    if (group / "io.weight").exists():
        lines = (read_text(hierarchy.folder / "io.cost.qos") or "").split("\n")
        controlled = {line.split(" ")[0] for line in lines if " enable=1" in line}
        if controlled & {*devices}:
            yield Setting("io.weight"), str(weight)


def _bounds(value: str) -> dict[str, str]:
    """Return the bounds in a value of io.max, by name."""
    said = dict(part.split("=", 1) for part in value.split() if "=" in part)
    return {name: said.get(name, "max") for name, _ in IoMax().items()}


def _least(one: str, other: str) -> str:
    """Return the lesser of two values; "max" and "0" stand for no bound."""
    numbers = [text for text in (one, other) if number_of(text)]
    return min(numbers, key=int) if numbers else one
