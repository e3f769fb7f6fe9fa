"""The table of `iokeel stats --tenant`: sums of each tenant's drives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from iokeel.cli.cells import NONE, PlainTable, layouts, name_cell, rate_cell
from iokeel.cli.columns import Column, cells
from iokeel.cli.drive_columns import part_used, total
from iokeel.report.records import DriveReport
from iokeel.words.units import percent


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
    Column("tenant", "tenant", lambda t: t.tenant, lambda t: name_cell(t.tenant or NONE)),
    Column("vms", "VMs", lambda t: t.vms, lambda t: str(t.vms)),
    Column("drives", "drives", lambda t: t.drives, lambda t: str(t.drives)),
    Column(
        "rate", "norm. iops", lambda t: t.normalized_iops, lambda t: rate_cell(t.normalized_iops)
    ),
    Column("allowed", "allowed", lambda t: t.allowed_iops, lambda t: rate_cell(t.allowed_iops)),
    Column("used", "used", lambda t: t.used, lambda t: NONE if t.used is None else percent(t.used)),
    Column("held", "held", lambda t: t.held, lambda t: str(t.held)),
    Column("errors", "errors", lambda t: t.errors, lambda t: str(t.errors)),
)
COLUMNS = tuple(column.heading for column in TENANT_COLUMNS)
_LAYOUTS = layouts("VMs", "used", "drives", "allowed")


def tenant_table(sums: Sequence[TenantSums]) -> PlainTable:
    """Return a row for each tenant."""
    return PlainTable(COLUMNS, [cells(row, TENANT_COLUMNS) for row in sums], _LAYOUTS)
