"""A scenario: its question, a simulated disk, the drives on it, their policies and their load.

A file in scenarios/ begins with its question. benchmarks/README.md says what each key means.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import msgspec

from benchmarks.bench.errors import BenchError
from benchmarks.bench.scenario_file import (
    CaseTable,
    PublishedTable,
    ScenarioDrive,
    ScenarioTable,
    Value,
)
from benchmarks.result_file import BENCHMARKS
from iokeel.core.values.curve import DEFAULT_MODEL, CostCurve, CostModel
from iokeel.errors import ConfigError
from iokeel.words.quoting import did_you_mean
from iokeel.words.units import parse_size
from testing.lab.disks.disksim import DEVICES
from testing.lab.disks.storage_daemon import CONNECTION_DEPTH
from testing.lab.fio import Job

SCENARIOS = BENCHMARKS / "scenarios"
COSTS = BENCHMARKS / "disksim/costs.toml"
CALIBRATED = BENCHMARKS / "disksim/calibrated.toml"
Policy = Mapping[str, int | float]


@dataclass(frozen=True)
class Stream:
    """A part of a drive's load: a fio job, and when it runs.

    start_s, end_s: from the start of all jobs; end_s None: until the scenario ends.
    """

    name: str
    job: Job
    start_s: float = 0.0
    end_s: float | None = None


@dataclass(frozen=True)
class Drive:
    """A drive of a scenario: its policy, as in [vm.drives.NAME], and its load.

    vm: drives with the same one are in one virtual machine. guest: it is a real guest's, whose
    QEMU counts what it does; else an export of a storage daemon. alone: it runs alone too.
    file_bytes: the length of the file that it reads over and over, if it does. credit_s: how long
    its burst may last once figures begin. caps: QEMU's limits by the setting in which it has them.
    """

    name: str
    vm: str
    policy: Policy
    streams: tuple[Stream, ...]
    guest: bool = False
    alone: bool = False
    file_bytes: int | None = None
    credit_s: float | None = None
    caps: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def has_target(self) -> bool:
        """Whether it has a latency target."""
        return "latency_target_ms" in self.policy

    @property
    def weight(self) -> int:
        """Its weight, or the default one."""
        return int(self.policy.get("weight", 100))

    @property
    def limit(self) -> float | None:
        """Its limit; None: it has none."""
        return self.policy.get("limit")

    @property
    def reservation(self) -> float:
        """Its reservation; 0 without one."""
        return self.policy.get("reservation", 0)


@dataclass(frozen=True)
class Scenario:
    """A case of a scenario: what runs on which disk.

    name: of the scenario; case: "" if it has only one. digest: of what all cases run. device: the
    simulated disk, or the path of a real one. capacity, latency_target_ms: of the disk at this
    slowdown. disk: parameters of it that differ from the device's own. begin_s: when figures begin.
    tenant_limit: of all drives together, if any. booted: all drives are processes of a host that
    boots with cgroup v2. repeat: how often it ran before.
    """

    name: str
    case: str
    question: str
    digest: str
    device: str
    slowdown: float
    seconds: float
    begin_s: float
    capacity: float
    latency_target_ms: float
    tenant_limit: int | None
    model: CostModel
    metrics: tuple[str, ...]
    drives: tuple[Drive, ...]
    booted: bool = False
    disk: Mapping[str, str | float] = field(default_factory=dict)
    repeat: int = 0

    @property
    def is_real(self) -> bool:
        """Whether it runs on a real device."""
        return self.device.startswith("/")

    def owed(self, drive: Drive) -> float:
        """Return what a drive is owed, in normalized operations a second.

        Its limit if it has one, else its part by weight of the tenant's limit or the capacity, and
        what is reserved for it at least.
        """
        if drive.limit is not None:
            return float(drive.limit)
        return self.fair_weight(drive) * self._a_weight[0]

    def fair_weight(self, drive: Drive) -> float:
        """Return the weight whose part is what is reserved for a drive, or its own if that is more.

        It is for those who know of weights only.
        """
        a_weight, by_weight = self._a_weight
        return drive.weight if drive.name in by_weight else drive.reservation / a_weight

    @cached_property
    def _a_weight(self) -> tuple[float, set[str]]:
        """What each unit of weight gets, and the drives that get as much by weight or more."""
        rest, left = float(self.tenant_limit or self.capacity), [*self.drives]
        while True:
            a_weight = rest / sum(drive.weight for drive in left)
            reserved = [drive for drive in left if drive.reservation > a_weight * drive.weight]
            if len(reserved) in (0, len(left)):
                return a_weight, {drive.name for drive in left}
            left = [drive for drive in left if drive not in reserved]
            rest -= sum(drive.reservation for drive in reserved)

    def only(self, drives: tuple[Drive, ...]) -> Scenario:
        """Return the scenario with some of its drives."""
        return replace(self, drives=drives)


@dataclass(frozen=True)
class Suite:
    """A file: a question, its cases, and the published figures beside which ours stand.

    pair: the name of the scenario that asks the same of iokeel, if this one can't. caveat: what is
    wrong with the committed result. settle_s: as in the file.
    """

    name: str
    title: str
    question: str
    cases: tuple[Scenario, ...]
    published: PublishedTable | None
    controllers: tuple[str, ...]
    pair: str | None = None
    caveat: str | None = None
    settle_s: float = 0.0

    @property
    def settled(self) -> Suite:
        """The suite as virtual time runs it: everything has settled when figures begin."""
        cases = tuple(
            replace(
                each, seconds=each.seconds + self.settle_s, begin_s=each.begin_s + self.settle_s
            )
            for each in self.cases
        )
        return replace(self, cases=cases)


def names() -> list[str]:
    """Return the names of all scenarios."""
    return sorted(path.stem for path in SCENARIOS.glob("*.toml"))


def load(name: str, shorten: float = 1.0, folder: Path = SCENARIOS) -> Suite:
    """Return a scenario. shorten: a factor by which all its times are shorter.

    Raises BenchError if there is none of this name, or its file can't be used.
    """
    path, content = _found(name, folder)
    try:
        table = msgspec.toml.decode(content, type=ScenarioTable)
        told = _told(path, table)
        question = _question(path, content.decode())
        digest = _digest(table, told)
        cases = [
            _case(path, table, case, told, question, digest, shorten)
            for case in table.cases or [CaseTable("")]
        ]
    except (msgspec.DecodeError, ValueError, ConfigError) as error:
        raise BenchError(str(path), str(error), "correct the file") from error
    return Suite(
        name,
        table.title,
        question,
        tuple(cases),
        table.published,
        tuple(table.controllers),
        table.pair,
        table.caveat,
        table.settle_s or 0.0,
    )


def read(name: str) -> ScenarioTable:
    """Return a scenario as it is written. Raises BenchError if it can't be read."""
    path, content = _found(name, SCENARIOS)
    try:
        return msgspec.toml.decode(content, type=ScenarioTable)
    except (msgspec.DecodeError, ValueError) as error:
        raise BenchError(str(path), str(error), "correct the file") from error


def _found(name: str, folder: Path) -> tuple[Path, bytes]:
    """Return a scenario's file and what is in it. Raises BenchError if there is none."""
    path = folder / f"{name}.toml"
    if not path.is_file():
        known = did_you_mean(name, (each.stem for each in folder.glob("*.toml")))
        raise BenchError(f"scenario {name}", "there is none of this name", known)
    return path, path.read_bytes()


def _digest(table: ScenarioTable, told: _Told) -> str:
    """Return a digest of what runs: without what is only shown, or what figures are computed of.

    Nor is it of caps: a setting's name says them, and only that controller knows of them.
    """
    drives = [msgspec.structs.replace(d, file=None, credit_s=None, caps={}) for d in table.drives]
    runs = msgspec.structs.replace(
        table,
        drives=drives,
        capacity=told.capacity,
        latency_target_ms=told.latency_target_ms,
        title="",
        metrics=[],
        pair=None,
        caveat=None,
        controllers=[],
        published=None,
        settle_s=None,
    )
    content = msgspec.json.encode(runs, order="deterministic") + str(told.model).encode()
    return hashlib.sha256(content).hexdigest()[:16]


def _question(path: Path, text: str) -> str:
    lines: list[str] = []
    for line in text.splitlines():
        if not line.startswith("# "):
            break
        lines.append(line[2:].strip())
    question = " ".join(lines)
    if "?" not in question:
        raise BenchError(str(path), "it doesn't begin with its question", "add it as a comment")
    return question[: question.index("?") + 1]


def _case(
    path: Path,
    table: ScenarioTable,
    case: CaseTable,
    told: _Told,
    question: str,
    digest: str,
    shorten: float,
) -> Scenario:
    """Return one case of a file."""
    drives = tuple(drive for each in table.drives for drive in _drives(each, told, case, shorten))
    if unknown := case.jobs.keys() - {each.name for each in table.drives}:
        mend = did_you_mean(min(unknown), [each.name for each in table.drives])
        raise BenchError(f"{path}: case {case.name}", f"no drive {min(unknown)}", mend)
    if not table.booted:
        _check_depths(drives)
    return Scenario(
        path.stem,
        case.name,
        question,
        digest,
        table.device,
        table.slowdown,
        table.seconds / shorten,
        table.begin_s / shorten,
        told.capacity,
        told.latency_target_ms,
        table.tenant_limit,
        told.model,
        tuple(table.metrics),
        drives,
        table.booted,
        {**table.disk, **case.disk},
    )


def _drives(table: ScenarioDrive, told: _Told, case: CaseTable, shorten: float) -> list[Drive]:
    """Return the drives of a table [[drives]]."""
    policy = dict(table.policy)
    if "reservation_ratio" in policy:
        policy["reservation"] = round(policy.pop("reservation_ratio") * told.capacity)
    changed = case.jobs.get(table.name, {})
    streams = [
        Stream(
            stream.name,
            _shortened({**table.job, **stream.job, **changed}, shorten),
            stream.start_s / shorten,
            None if stream.end_s is None else stream.end_s / shorten,
        )
        for stream in table.all_streams()
    ]
    found = [table.name]
    if table.count is not None:
        found = [f"{table.name}{i}" for i in range(table.count)]
    length = None if table.file is None else parse_size(table.file)
    credit_s = None if table.credit_s is None else table.credit_s / shorten
    return [
        Drive(
            name,
            table.vm or name,
            policy,
            tuple(streams),
            table.guest,
            table.alone,
            length,
            credit_s,
            {name: dict(limits.items()) for name, limits in table.caps.items()},
        )
        for name in found
    ]


def _check_depths(drives: Sequence[Drive]) -> None:
    """Raise ValueError if an export's job has more requests at once than its connection carries."""
    for drive in drives:
        depth = max(int(str(stream.job.get("iodepth", 1))) for stream in drive.streams)
        if depth > CONNECTION_DEPTH and not drive.guest:
            jobs = -(-depth // CONNECTION_DEPTH)
            raise ValueError(
                f"drive {drive.name}: a connection to QEMU's NBD server carries {CONNECTION_DEPTH} "
                f"requests at once; write iodepth = {-(-depth // jobs)} and numjobs = {jobs}"
            )


def _shortened(job: dict[str, Value], shorten: float) -> Job:
    """Return a job whose amount, if it has one, is that much smaller."""
    if "io_size" in job:
        job["io_size"] = round(parse_size(str(job["io_size"])) / shorten)
    return job


@dataclass(frozen=True)
class _Told:
    """What controllers are told of the disk: its capacity, latency target, and requests' costs."""

    capacity: float
    latency_target_ms: float
    model: CostModel


def _told(path: Path, table: ScenarioTable) -> _Told:
    """Return what calibrate finds, but for what the file names and for the published curve."""
    if table.device not in DEVICES:
        mend = did_you_mean(table.device, DEVICES)
        raise BenchError(f"{path}: device", f"there is no disk {table.device}", mend)
    own = table.capacity, table.latency_target_ms
    mend = "run python -m benchmarks.bench.virtual.calibrate"
    if None not in own:
        file, found = COSTS, tomllib.loads(COSTS.read_text()).get(table.device)
        mend = "remove capacity and latency_target_ms: calibrate found them"
    elif own == (None, None):
        disks = tomllib.loads(CALIBRATED.read_text())
        file, found = CALIBRATED, disks.get(table.device, {}).get(f"{table.slowdown:g}")
    else:
        what = "it has only one of capacity and latency_target_ms"
        raise BenchError(str(path), what, "add the other, or remove both: calibrate found them")
    if found is None:
        what = f"{file.name} has no figures of {table.device} at {table.slowdown:g}"
        raise BenchError(f"{path}: device", what, mend)
    model = DEFAULT_MODEL
    if table.curve == "disk":
        model = CostModel(_curve(found["curve_read"]), _curve(found["curve_write"]))
    return _Told(
        float(table.capacity or found["capacity"]),
        float(table.latency_target_ms or found["latency_target_ms"]),
        model,
    )


def _curve(points: list[tuple[str, float]]) -> CostCurve:
    return CostCurve(tuple((parse_size(size), float(cost)) for size, cost in points))
