"""The types of metrics: of the agent, of each storage, of each drive, of its reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from iokeel.report.records import (
    BudgetInFleet,
    DriveReport,
    FleetSnapshot,
    StorageReport,
    ThrottleReport,
)
from iokeel.report.snapshot import Snapshot, VmSnapshot

T = TypeVar("T")
Labels: TypeAlias = tuple[str, ...]
Sample: TypeAlias = tuple[Labels, float | None]
"""The labels' values and the metric's; None makes no sample."""


@dataclass(frozen=True, slots=True)
class Description:
    """A metric. name: as Prometheus shows it, a counter's _total included."""

    name: str
    unit: str
    help: str
    labels: Labels = ()
    is_histogram: bool = False

    @property
    def kind(self) -> str:
        """Its type, as Prometheus calls it."""
        if self.is_histogram:
            return "histogram"
        return "counter" if self.name.endswith("_total") else "gauge"


@dataclass(frozen=True, slots=True)
class Metric:
    """A counter or gauge whose samples come from a snapshot."""

    description: Description
    samples: Callable[[Snapshot], Iterable[Sample]]


DRIVE_LABELS = ("domain", "target_device")
DIRECTION_LABELS = (*DRIVE_LABELS, "direction")
#: Makes a metric of its name, unit, help, and its value of one thing that it is a metric of.
MetricOf: TypeAlias = Callable[[str, str, str, Callable[[T], float | None]], Metric]


def _of(
    prefix: str, labels: Labels, each: Callable[[Snapshot], Iterable[tuple[Labels, T]]]
) -> MetricOf[T]:
    """Return what makes the metrics of one kind of things. each: those of a snapshot."""

    def metric(name: str, unit: str, text: str, value: Callable[[T], float | None]) -> Metric:
        described = Description(f"iokeel_{prefix}_{name}", unit, text, labels)
        return Metric(described, lambda s: ((values, value(one)) for values, one in each(s)))

    return metric


def _fleets(snapshot: Snapshot) -> list[tuple[Labels, FleetSnapshot]]:
    return [] if snapshot.fleet is None else [((), snapshot.fleet)]


def throttles(snapshot: Snapshot) -> Iterator[tuple[Labels, ThrottleReport]]:
    """Yield the labels and statistics of each direction that QEMU counts."""
    for name, drive in snapshot.drives.items():
        if drive.read is not None:
            yield (*name, "read"), drive.read
        if drive.write is not None:
            yield (*name, "write"), drive.write


of_agent: MetricOf[Snapshot] = _of("agent", (), lambda s: [((), s)])
of_domain: MetricOf[VmSnapshot] = _of(
    "domain", ("domain",), lambda s: (((name,), vm) for name, vm in s.vms.items())
)
of_storage: MetricOf[StorageReport] = _of(
    "storage", ("storage",), lambda s: (((name,), at.report) for name, at in s.storages.items())
)
of_drive: MetricOf[DriveReport] = _of("drive", DRIVE_LABELS, lambda s: s.drives.items())
of_throttle = _of("drive_throttle", DIRECTION_LABELS, throttles)
of_fleet: MetricOf[FleetSnapshot] = _of("fleet", (), _fleets)
of_tenant: MetricOf[BudgetInFleet] = _of(
    "fleet_tenant",
    ("tenant",),
    lambda s: (((name,), at) for _, fleet in _fleets(s) for name, at in fleet.tenants.items()),
)
of_shared_storage: MetricOf[BudgetInFleet] = _of(
    "fleet_storage",
    ("storage",),
    lambda s: (((name,), at) for _, fleet in _fleets(s) for name, at in fleet.storages.items()),
)


def of_direction(
    name: str,
    unit: str,
    text: str,
    read: Callable[[DriveReport], float | None],
    write: Callable[[DriveReport], float | None],
) -> Metric:
    """Return a metric with a sample for each drive's reads and one for its writes."""

    def samples(snapshot: Snapshot) -> Iterator[Sample]:
        for name, drive in snapshot.drives.items():
            yield (*name, "read"), read(drive)
            yield (*name, "write"), write(drive)

    return Metric(Description(f"iokeel_drive_{name}", unit, text, DIRECTION_LABELS), samples)
