"""The three views: their rows and columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from iokeel.cli import drive_columns
from iokeel.cli.cells import rate_cell
from iokeel.cli.columns import Column
from iokeel.cli.storage_table import STORAGE_COLUMNS
from iokeel.cli.tenant_table import TENANT_COLUMNS, TenantSums
from iokeel.cli.top.picture import STATES, Picture
from iokeel.cli.top.trends import Key, drive_key, storage_key, tenant_key
from iokeel.report.records import DriveReport, StorageReport

T = TypeVar("T")
RATE = "iops"
STATE = "state"
TREND = "2 min"


@dataclass(frozen=True, slots=True)
class Row(Generic[T]):
    """A row.

    state: its own, or its drives' worst. most: the rate that it may have; 0: not known. words: what
    a filter looks in. drives: its drives.
    """

    key: Key
    record: T
    state: str
    most: float
    words: str
    drives: Sequence[DriveReport]


@dataclass(frozen=True)
class View(Generic[T]):
    """A view. columns: without state and trend, by heading. order: all headings as they are shown.
    telling: the same, those that a narrow terminal keeps longest first.
    """

    name: str
    columns: dict[str, Column[T]]
    order: Sequence[str]
    telling: Sequence[str]
    rows: Callable[[Picture], Iterator[Row[T]]]

    def sort_column(self, heading: str) -> Column[Row[T]]:
        """Return a column as one of rows, to sort them by."""
        if heading == STATE:
            return Column(STATE, STATE, lambda row: -STATES.index(row.state), lambda row: row.state)
        column = self.columns[RATE if heading == TREND else heading]
        return Column(
            column.word,
            heading,
            lambda row: column.value(row.record),
            lambda row: column.cell(row.record),
        )


def _drives(now: Picture) -> Iterator[Row[DriveReport]]:
    for drive in now.drives:
        names = (drive.domain, drive.target, drive.tenant or "", drive.storage or "")
        yield Row(
            drive_key(drive.domain, drive.target),
            drive,
            now.state(drive),
            drive.allowed_iops or 0.0,
            "\n".join(names).lower(),
            (drive,),
        )


def _storages(now: Picture) -> Iterator[Row[StorageReport]]:
    found = _by(now, lambda drive: drive.storage)
    for storage in now.storages:
        name = storage.storage
        drives = found.get(name, [])
        yield Row(
            storage_key(name),
            storage,
            now.worst(drives),
            storage.usable_iops or 0.0,
            name.lower(),
            drives,
        )


def _tenants(now: Picture) -> Iterator[Row[TenantSums]]:
    found = _by(now, lambda drive: drive.tenant)
    for tenant in now.tenants:
        drives = found.get(tenant.tenant, [])
        yield Row(
            tenant_key(tenant.tenant),
            tenant,
            now.worst(drives),
            tenant.allowed_iops or 0.0,
            (tenant.tenant or "-").lower(),
            drives,
        )


def _by(
    now: Picture, name: Callable[[DriveReport], str | None]
) -> dict[str | None, list[DriveReport]]:
    """Return the drives by a name."""
    found: dict[str | None, list[DriveReport]] = {}
    for drive in now.drives:
        found.setdefault(name(drive), []).append(drive)
    return found


def _named(columns: Sequence[Column[T]]) -> dict[str, Column[T]]:
    """Return columns by heading; the rate has a short one here."""
    short = {"norm. iops": RATE}
    return {short.get(column.heading, column.heading): column for column in columns}


_of_drive = _named((*drive_columns.SORTS, drive_columns.MEAN_LATENCY)) | {
    # The state says that it is a burst.
    "allowed": Column[DriveReport](
        "allowed", "allowed", lambda d: d.allowed_iops, lambda d: rate_cell(d.allowed_iops)
    )
}
DRIVES = View(
    "drives",
    _of_drive,
    ("VM", "drive", STATE, RATE, "allowed", "used", TREND, "ms", "ms wait", "waiting", "credit",
     "bound by", "tenant", "storage", "reads/s", "writes/s"),
    ("VM", RATE, STATE, "drive", "used", TREND, "allowed", "ms", "credit", "ms wait", "bound by",
     "tenant", "storage", "waiting", "reads/s", "writes/s"),
    _drives,
)  # fmt: skip
STORAGES = View(
    "storages",
    _named(STORAGE_COLUMNS),
    ("storage", "drives", STATE, RATE, "usable", TREND, "ms / target", "queue", "capacity",
     "reserved", "room"),
    ("storage", RATE, STATE, "usable", TREND, "ms / target", "queue", "drives", "reserved",
     "capacity", "room"),
    _storages,
)  # fmt: skip
TENANTS = View(
    "tenants",
    _named(TENANT_COLUMNS),
    ("tenant", "VMs", "drives", STATE, RATE, "allowed", "used", TREND, "held", "errors"),
    ("tenant", RATE, STATE, "used", TREND, "allowed", "drives", "held", "errors", "VMs"),
    _tenants,
)  # fmt: skip
VIEWS: tuple[View[Any], ...] = (DRIVES, STORAGES, TENANTS)
