"""The types of metrics: of the agent, of each storage, of each drive, of its reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

from iokeel.report.records import (
    BudgetInFleet,
    DriveReport,
    FleetSnapshot,
    StorageReport,
    ThrottleReport,
)
from iokeel.report.snapshot import Snapshot, VmSnapshot

BudgetKind: TypeAlias = Literal["tenant", "storage"]
Labels: TypeAlias = tuple[str, ...]
Sample: TypeAlias = tuple[Labels, float | None]
"""The labels' values and the metric's; None makes no sample."""


class Kind(Enum):
    """The types of metrics that Prometheus knows."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Description:
    """A metric. name: as Prometheus shows it, a counter's _total included."""

    name: str
    kind: Kind
    unit: str
    help: str
    labels: Labels = ()


@dataclass(frozen=True, slots=True)
class Metric:
    """A counter or gauge whose samples come from a snapshot."""

    description: Description
    samples: Callable[[Snapshot], Iterable[Sample]]


DRIVE_LABELS = ("domain", "target_device")
DIRECTION_LABELS = (*DRIVE_LABELS, "direction")


def of_agent(
    name: str, kind: Kind, unit: str, text: str, value: Callable[[Snapshot], float]
) -> Metric:
    """Return a metric of the agent itself."""
    return Metric(Description(f"iokeel_{name}", kind, unit, text), lambda s: [((), value(s))])


def of_domain(
    name: str, unit: str, text: str, value: Callable[[VmSnapshot], float | None]
) -> Metric:
    """Return a gauge with a sample for each VM."""

    def samples(snapshot: Snapshot) -> Iterator[Sample]:
        return (((name,), value(vm)) for name, vm in snapshot.vms.items())

    described = Description(f"iokeel_domain_{name}", Kind.GAUGE, unit, text, ("domain",))
    return Metric(described, samples)


def of_fleet(
    name: str, kind: Kind, unit: str, text: str, value: Callable[[FleetSnapshot], float]
) -> Metric:
    """Return a metric of the agent's part in the fleet; without [fleet] it has no sample."""

    def samples(snapshot: Snapshot) -> list[Sample]:
        return [((), value(snapshot.fleet))] if snapshot.fleet is not None else []

    return Metric(Description(f"iokeel_fleet_{name}", kind, unit, text), samples)


def of_budget(
    kind: BudgetKind,
    name: str,
    unit: str,
    text: str,
    value: Callable[[BudgetInFleet], float | None],
) -> Metric:
    """Return a gauge with a sample for each of the fleet's tenants, or storages, on this host."""

    def samples(snapshot: Snapshot) -> Iterator[Sample]:
        fleet = snapshot.fleet
        if fleet is None:
            return iter(())
        budgets = fleet.tenants if kind == "tenant" else fleet.storages
        return (((budget,), value(known)) for budget, known in budgets.items())

    described = Description(f"iokeel_fleet_{kind}_{name}", Kind.GAUGE, unit, text, (kind,))
    return Metric(described, samples)


def of_storage(
    name: str, unit: str, text: str, value: Callable[[StorageReport], float | None]
) -> Metric:
    """Return a gauge with a sample for each storage."""

    def samples(snapshot: Snapshot) -> Iterator[Sample]:
        return (((name,), value(storage.report)) for name, storage in snapshot.storages.items())

    described = Description(f"iokeel_storage_{name}", Kind.GAUGE, unit, text, ("storage",))
    return Metric(described, samples)


def of_drive(
    name: str, kind: Kind, unit: str, text: str, value: Callable[[DriveReport], float | None]
) -> Metric:
    """Return a metric with a sample for each drive."""

    def samples(snapshot: Snapshot) -> Iterator[Sample]:
        return ((name, value(drive)) for name, drive in snapshot.drives.items())

    return Metric(Description(f"iokeel_drive_{name}", kind, unit, text, DRIVE_LABELS), samples)


def of_direction(
    name: str,
    kind: Kind,
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

    return Metric(Description(f"iokeel_drive_{name}", kind, unit, text, DIRECTION_LABELS), samples)


def of_throttle(
    name: str, kind: Kind, unit: str, text: str, value: Callable[[ThrottleReport], float]
) -> Metric:
    """Return a metric of the throttle groups, with a sample for each direction that QEMU counts."""

    def samples(snapshot: Snapshot) -> Iterator[Sample]:
        return ((labels, value(throttle)) for labels, throttle in throttles(snapshot))

    name = f"iokeel_drive_throttle_{name}"
    return Metric(Description(name, kind, unit, text, DIRECTION_LABELS), samples)


def throttles(snapshot: Snapshot) -> Iterator[tuple[Labels, ThrottleReport]]:
    """Yield the labels and statistics of each direction that QEMU counts."""
    for name, drive in snapshot.drives.items():
        if drive.read is not None:
            yield (*name, "read"), drive.read
        if drive.write is not None:
            yield (*name, "write"), drive.write
