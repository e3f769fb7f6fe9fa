"""The tables of `iokeel stats --storage` and `--tenant`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from iokeel.cli.cells import (
    NONE,
    Column,
    PlainTable,
    column,
    ms_cell,
    name_cell,
    number_cell,
    part_cell,
    rate_cell,
    table,
)
from iokeel.cli.drive_tables import part_used, total
from iokeel.report.records import DriveReport, StorageReport
from iokeel.words.quoting import few
from iokeel.words.units import iops, percent_kept

STORAGE_COLUMNS: tuple[Column[StorageReport], ...] = (
    column("storage", lambda s: s.storage, name_cell),
    column("drives", lambda s: s.drives, number_cell),
    column("norm. iops", lambda s: s.normalized_iops, rate_cell, "rate"),
    column("usable", lambda s: s.usable_iops, rate_cell),
    Column("capacity", "capacity", lambda s: s.capacity_iops, lambda s: _capacity(s)),
    column("reserved", lambda s: s.reserved_iops, rate_cell),
    Column("latency", "ms / target", lambda s: s.latency_s, lambda s: _latency(s)),
    column("queue", lambda s: s.queue, lambda queue: NONE if queue is None else f"{queue:.1f}"),
    column("room", lambda s: s.room_ratio, part_cell),
)


def storage_table(reports: Sequence[StorageReport]) -> PlainTable:
    """Return a row for each storage."""
    return table(reports, STORAGE_COLUMNS, "drives", "capacity", "reserved", "room", "queue")


def _capacity(report: StorageReport) -> str:
    if report.by_weight:
        return "by weight"
    return rate_cell(report.capacity_iops) if report.capacity_iops else "unknown"


def _latency(report: StorageReport) -> str:
    target = f" / {ms_cell(report.latency_target_s)}" if report.latency_target_s else ""
    return ms_cell(report.latency_s) + target


def storage_complaints(reports: Sequence[StorageReport]) -> Iterator[str]:
    """Yield the promises that storages can't keep, a line each."""
    for report in reports:
        name = name_cell(report.storage)
        if report.oversold and report.capacity_iops:
            yield (
                f"{name}: {iops(report.reserved_iops)} are reserved, but its capacity is"
                f" {iops(report.capacity_iops)}; lower reservations or move a drive"
            )
        elif report.reserved_iops and report.usable_iops is None:
            yield (
                f"{name}: reservations are not guaranteed, because its capacity is not known;"
                " see `iokeel calibrate --help`"
            )
        if report.reservations_kept < 1:
            yield (
                f"{name}: it can keep {percent_kept(report.reservations_kept)} of the reservations"
                " asked for now"
            )
        if report.exhausted:
            drives = few(report.suffering)
            yield (
                f"{name}: {drives} above the latency target, and cutting other drives further is"
                " not possible or does not help"
            )


@dataclass(frozen=True)
class TenantSums:
    """A tenant's drives together; tenant None: those without one.

    normalized_iops: the sum of what is known. allowed_iops: None if a drive has no limit. held:
    drives that use up a limit. errors: drives with an error.
    """

    tenant: str | None
    vms: int
    drives: int
    normalized_iops: float | None
    allowed_iops: float | None
    held: int
    errors: int

    @property
    def used(self) -> float | None:
        """The part of what is allowed that they use."""
        return part_used(self.normalized_iops, self.allowed_iops)


def tenants(drives: Iterable[DriveReport]) -> list[TenantSums]:
    """Return the sums of each tenant, by name; drives without a tenant come last."""
    found: dict[str | None, list[DriveReport]] = {}
    for drive in drives:
        found.setdefault(drive.tenant, []).append(drive)
    names = sorted(found, key=lambda name: (name is None, name or ""))
    return [_sums(name, found[name]) for name in names]


def _sums(tenant: str | None, drives: Sequence[DriveReport]) -> TenantSums:
    limited = all(drive.allowed_iops is not None for drive in drives)
    return TenantSums(
        tenant=tenant,
        vms=len({drive.domain for drive in drives}),
        drives=len(drives),
        normalized_iops=total(drive.normalized_iops for drive in drives),
        allowed_iops=total(drive.allowed_iops for drive in drives) if limited else None,
        held=sum(bool(drive.binding) for drive in drives),
        errors=sum(drive.error is not None for drive in drives),
    )


TENANT_COLUMNS: tuple[Column[TenantSums], ...] = (
    column("tenant", lambda t: t.tenant, name_cell),
    column("VMs", lambda t: t.vms, number_cell, "vms"),
    column("drives", lambda t: t.drives, number_cell),
    column("norm. iops", lambda t: t.normalized_iops, rate_cell, "rate"),
    column("allowed", lambda t: t.allowed_iops, rate_cell),
    column("used", lambda t: t.used, part_cell),
    column("held", lambda t: t.held, number_cell),
    column("errors", lambda t: t.errors, number_cell),
)


def tenant_table(sums: Sequence[TenantSums]) -> PlainTable:
    """Return a row for each tenant."""
    return table(sums, TENANT_COLUMNS, "VMs", "used", "drives", "allowed")
