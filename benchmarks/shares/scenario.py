"""A scenario: a simulated disk, its drives with their policies, and the fio job of each."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from benchmarks.result_file import BENCHMARKS
from iokeel.core.curve import CostCurve, CostModel
from iokeel.words.units import parse_size
from testing.lab.fio import Job

SCENARIOS = BENCHMARKS / "scenarios"
DISKS = SCENARIOS / "disks.toml"
PREFIX = "shares-"
_NEVER_MS = 60_000.0  # the highest target there is
Policy = Mapping[str, int | float]


@dataclass(frozen=True)
class Drive:
    """A drive of a scenario: its policy, as in [vm.drives.NAME], and its fio job's options.

    guest: it is a real guest's, whose QEMU counts its latency too; else an export of a storage
    daemon.
    """

    name: str
    policy: Policy
    job: Job
    guest: bool = False

    @property
    def has_target(self) -> bool:
        """Whether it has a latency target."""
        return "latency_target_ms" in self.policy

    @property
    def weight(self) -> int:
        """Its weight, or the default one."""
        return int(self.policy.get("weight", 100))

    @property
    def policy_xml(self) -> str:
        """Its policy as a domain's metadata."""
        values = " ".join(f'{key.replace("_", "-")}="{v}"' for key, v in self.policy.items())
        urn = "urn:iokeel:policy:1"
        return f'<i:policy xmlns:i="{urn}"><i:drive target="vda" {values}/></i:policy>'


@dataclass(frozen=True)
class Scenario:
    """What runs on which disk. capacity, latency_target_ms: at this slowdown."""

    name: str
    device: str
    slowdown: float
    seconds: int
    begin_s: float
    capacity: float
    latency_target_ms: float
    model: CostModel
    drives: tuple[Drive, ...]

    @property
    def has_target(self) -> bool:
        """Whether any drive has a latency target."""
        return any(drive.has_target for drive in self.drives)

    @property
    def syncs(self) -> bool:
        """Whether any drive syncs."""
        return any("fsync" in drive.job for drive in self.drives)


@dataclass(frozen=True)
class _Drives:
    """A table [[drives]]. count: so many alike; None: one, whose name has no number."""

    name: str
    job: dict[str, object]
    policy: dict[str, int | float] = field(default_factory=dict)
    count: int | None = None
    guest: bool = False


@dataclass(frozen=True)
class _File:
    """A scenario's file. seconds: how long it runs; begin_s: when figures begin."""

    device: str
    slowdown: float
    capacity: float
    latency_target_ms: float
    seconds: int
    begin_s: float
    drives: list[_Drives]


@dataclass(frozen=True)
class _Curves:
    """A disk's costs: [size, cost] pairs."""

    curve_read: list[tuple[str, float]]
    curve_write: list[tuple[str, float]]


def read_scenario(path: Path, seconds: int | None = None) -> Scenario:
    """Read a scenario, and the cost curves of its disk. seconds: instead of the file's."""
    file = msgspec.toml.decode(path.read_bytes(), type=_File)
    curves = msgspec.convert(tomllib.loads(DISKS.read_text())[file.device], _Curves)
    drives = []
    for table in file.drives:
        policy = table.policy
        if "reservation_ratio" in policy:
            policy["reservation"] = round(policy.pop("reservation_ratio") * file.capacity)
        names = [table.name]
        if table.count is not None:
            names = [f"{table.name}{i}" for i in range(table.count)]
        drives += [Drive(name, policy, table.job, table.guest) for name in names]
    return Scenario(
        path.stem.removeprefix(PREFIX),
        file.device,
        file.slowdown,
        seconds or file.seconds,
        file.begin_s,
        file.capacity,
        file.latency_target_ms,
        CostModel(_curve(curves.curve_read), _curve(curves.curve_write)),
        tuple(drives),
    )


def _curve(points: list[tuple[str, float]]) -> CostCurve:
    return CostCurve(tuple((parse_size(size), cost) for size, cost in points))


def paced(scenario: Scenario, rate: float, syncs: bool = True) -> Scenario:
    """Return a scenario whose drives without a latency target share a fixed rate.

    Drives with a target keep one that is always met, so that the others' requests still wait in
    parts, and nothing is cut. syncs: whether writers sync.
    """
    others = sum(not drive.has_target for drive in scenario.drives)
    drives = []
    for drive in scenario.drives:
        policy: Policy = {"limit": max(1, round(rate / others))}
        if drive.has_target:
            policy = {"latency_target_ms": _NEVER_MS}
        job = {key: value for key, value in drive.job.items() if syncs or key != "fsync"}
        drives.append(replace(drive, policy=policy, job=job))
    return replace(scenario, capacity=100 * rate, latency_target_ms=_NEVER_MS, drives=tuple(drives))
