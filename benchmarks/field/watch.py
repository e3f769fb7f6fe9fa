"""What the harness measures while a part runs, beside fio's log and QEMU's limits.

None of it is the agent's but its own account, which is only read for words.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.field.guests import Guest
from testing.agents import Agent
from testing.lab.processors import Processors
from testing.sampler import Sampler

_INTERVAL_S = 0.5
_SECTOR_FIELDS = 11
_FILES = ("read_iops", "write_iops", "read_bps", "write_bps")


class Device(NamedTuple):
    """The kernel's counters of the storage's device. ms, queue_ms: as in diskstats."""

    requests: int
    ms: int
    busy_ms: int
    queue_ms: int


class Moment(NamedTuple):
    """One look. used, bounds: of each guest's cgroup on the device, by file; None: no bound."""

    at_s: float
    processors: Processors
    nice: int
    device: Device
    used: Mapping[str, Mapping[str, int]]
    bounds: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Said:
    """What the agent said of a drive. sentences: those of `iokeel why`."""

    at_s: float
    allowed_iops: float | None
    binding: Sequence[str]
    sentences: Sequence[str]


class Watch(Sampler):
    """Looks twice a second. moments, said: what it saw."""

    def __init__(self, device: Path, number: str, guests: Sequence[Guest]) -> None:
        super().__init__()
        self.moments: list[Moment] = []
        self._device, self._number = device.name, number
        self._groups = {guest.name: guest.group for guest in guests if guest.group is not None}

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due = max(due + _INTERVAL_S, time.monotonic())
            self.moments.append(self._look())

    def _look(self) -> Moment:
        at_s = time.time()
        used, bounds = {}, {}
        for name, group in self._groups.items():
            used[name] = _used(group, self._number)
            bounds[name] = _bounds(group, self._number)
        return Moment(at_s, Processors.now(), _nice(), _device(self._device), used, bounds)


class Account(Sampler):
    """Asks the agent each second about the drives that it holds. said: by guest."""

    def __init__(self, agent: Agent, guests: Sequence[Guest]) -> None:
        super().__init__()
        self._agent = agent
        self._drives = [guest.drive for guest in guests if guest.drive.limit is not None]
        self.said: dict[str, list[Said]] = {guest.name: [] for guest in guests}

    def _run(self) -> None:
        while not self._stop.wait(1.0):
            for drive in self._drives:
                try:
                    record: dict[str, Any] = self._agent.drive(drive.name, drive.target)
                    why = self._agent.why(drive.name, drive.target).splitlines()
                except (OSError, AssertionError, ValueError):  # it says so in its log
                    continue
                said = Said(time.time(), record["allowed_iops"], record["binding"], why)
                self.said[drive.name].append(said)


def _nice() -> int:
    return int(Path("/proc/stat").read_text().split("\n")[0].split()[2])


def _device(name: str) -> Device:
    fields = (Path("/sys/class/block") / name / "stat").read_text().split()
    reads, _, _, reads_ms, writes, _, _, writes_ms, _, busy_ms, queue_ms = map(
        int, fields[:_SECTOR_FIELDS]
    )
    return Device(reads + writes, reads_ms + writes_ms, busy_ms, queue_ms)


def _used(group: Path, number: str) -> dict[str, int]:
    """Return the requests and bytes that the kernel has counted of a group on a device."""
    found = {}
    for what, unit in (("io_serviced", "iops"), ("io_service_bytes", "bps")):
        for line in (group / f"blkio.throttle.{what}").read_text().splitlines():
            words = line.split()
            if words[0] == number and words[1] in ("Read", "Write"):
                found[f"{words[1].lower()}_{unit}"] = int(words[2])
    return found


def _bounds(group: Path, number: str) -> dict[str, int]:
    found = {}
    for file in _FILES:
        for line in (group / f"blkio.throttle.{file}_device").read_text().splitlines():
            device, value = line.split()
            if device == number:
                found[file] = int(value)
    return found
