"""Hosts on one simulated array, first without control and then under latency targets."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from benchmarks.fleet.array.disk_load import (
    Drive,
    Part,
    Reading,
    Requests,
    busy_ratio,
    parts,
    reading,
    taken_over_s,
)
from iokeel.core.fleet.claims import Budget, Shared
from iokeel.core.values.curve import CostCurve
from iokeel.words.units import parse_size
from testing.fleet.etcd import Etcd, running
from testing.fleet.shared_storage import Disk, Fleet, fleet
from testing.lab.disks.shared_disk import SharedDisk
from testing.waiting import eventually

WINDOWS = 3
WINDOW_S = 6.0
_GROUP = "g0"
# Until rates without control are steady, and until the capacity has followed the latency.
_WARM_S = 4.0
_SETTLE_S = 20.0
_PATIENCE_S = 60.0
_GIVEN_RATIO = 0.8  # of the capacity, before loads start


class Options(TypedDict, total=False):
    """How a simulated device differs from its file."""

    slowdown: float
    units: int
    read_us: int


@dataclass(frozen=True)
class Device:
    """A simulated device.

    name, options: of its file, and what differs from that. capacity: in 4 KiB reads a second.
    costs: of a read, by its size as fio writes it.
    """

    name: str
    options: Options
    capacity: int
    costs: Mapping[str, float]

    def of_host(self, path: Path) -> Disk:
        """Return it as a host has it, by a block device of its own."""
        disk = Disk.by_device(path)
        curve = CostCurve(tuple((parse_size(size), cost) for size, cost in self.costs.items()))
        points = [[size, cost] for size, cost in self.costs.items()]
        return disk._replace(table=f"{disk.table}curve_read = {points}\n", curve=curve)

    def budget(self, target_ms: float) -> Budget:
        """Return its budget in the fleet, with a latency target."""
        return Budget(self.capacity, shared=Shared(latency_target_ms=target_ms))


@dataclass(frozen=True)
class Experiment:
    """Hosts on a device, without control and under targets, one after the other.

    drives: each host's. stopping: hosts that stop under the last target.
    """

    title: str
    device: Device
    drives: Mapping[str, Drive]
    targets_ms: Sequence[float] = (30.0,)
    stopping: Collection[str] = ()


@dataclass(frozen=True)
class Phase:
    """What hosts did under one control.

    target_ms: None without control. stopped: hosts that had stopped before. hosts: the others by
    name, and "all". busy_ratio: of the processors. worst_ratio: the highest sum of limits since
    iokeel's first phase, over the capacity that they were of. taken_over_s: see disk_load. Both are
    None if there was nothing to see.
    """

    experiment: str
    target_ms: float | None
    stopped: Sequence[str]
    hosts: Mapping[str, Part]
    busy_ratio: float
    worst_ratio: float | None
    taken_over_s: float | None


def run(experiment: Experiment, folder: Path, daemon: Path) -> Iterator[Phase]:
    """Yield what each control gave. folder: an empty one. daemon: qemu-storage-daemon."""
    device, drives = experiment.device, experiment.drives
    policies = {
        name: {_GROUP: f"weight = {drive.weight}\nreservation = {drive.reservation}"}
        for name, drive in drives.items()
    }
    with (
        SharedDisk(device.name, drives=0, paths=len(drives), **device.options) as disk,
        running(Etcd(folder / "etcd")) as etcd,
    ):
        paths = dict(zip(drives, disk.devices, strict=True))
        ways = {name: device.of_host(path) for name, path in paths.items()}
        with fleet(folder, daemon, etcd.urls, ways, policies, None) as there:
            loads = _Loads(experiment, there, paths)
            loads.start()
            time.sleep(_WARM_S)
            loads.measure(None)
            yield from loads.end()
            there.set_capacity(device.budget(experiment.targets_ms[0]))
            given = _GIVEN_RATIO * device.capacity
            eventually(lambda: there.monitor.seen > given, _PATIENCE_S)
            loads.start()
            for target_ms in experiment.targets_ms:
                there.set_capacity(device.budget(target_ms))
                time.sleep(_SETTLE_S)
                loads.measure(target_ms)
            if experiment.stopping:
                loads.stop(experiment.stopping)
                time.sleep(_SETTLE_S)
                loads.measure(target_ms)
            yield from loads.end()


@dataclass
class _Mark:
    target_ms: float | None
    stopped: Sequence[str]
    readings: Sequence[Reading]
    worst_ratio: float | None


@dataclass
class _Loads:
    """The hosts' loads, and the phases measured since they began."""

    experiment: Experiment
    there: Fleet
    paths: Mapping[str, Path]
    done: dict[str, Requests] = field(default_factory=dict)
    marks: list[_Mark] = field(default_factory=list)
    since_s: float | None = None
    stopped_s: float = 0.0

    def start(self) -> None:
        self.done, self.marks = {}, []
        for name, drive in self.experiment.drives.items():
            self.there.hosts[name].load(_GROUP, depth=drive.depth, bs=drive.bs)

    def measure(self, target_ms: float | None) -> None:
        readings = [reading(self.paths)]
        for _ in range(WINDOWS):
            time.sleep(WINDOW_S)
            readings.append(reading(self.paths))
        worst = None
        if target_ms is not None:
            self.since_s = self.since_s or readings[0].at_s
            worst = self.there.worst_ratio(self.since_s)
        self.marks.append(_Mark(target_ms, [*self.done], readings, worst))

    def stop(self, names: Collection[str]) -> None:
        """End hosts' loads at once."""
        self.stopped_s = time.monotonic()
        with ThreadPoolExecutor() as pool:
            ended = pool.map(lambda name: self.there.hosts[name].idle(), names)
            self.done.update(zip(names, map(sorted, ended), strict=True))

    def end(self) -> Iterator[Phase]:
        """End the loads, and yield their phases."""
        stopped_s = self.stopped_s
        self.stop([name for name in self.experiment.drives if name not in self.done])
        device = self.experiment.device
        for mark in self.marks:
            drives = {n: d for n, d in self.experiment.drives.items() if n not in mark.stopped}
            done = {name: self.done[name] for name in drives}
            hosts = parts(mark.readings, done, drives, device.costs)
            took_s = None
            if mark.stopped:
                every = sorted(request for requests in done.values() for request in requests)
                rate = hosts["all"].iops.median
                took_s = taken_over_s(stopped_s, every, rate, mark.readings[-1].at_s)
            yield Phase(
                self.experiment.title, mark.target_ms, mark.stopped, hosts,
                busy_ratio(mark.readings), mark.worst_ratio, took_s,
            )  # fmt: skip
