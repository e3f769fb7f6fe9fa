"""The three views, their rows and columns, and the text beside the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from iokeel.cli import client
from iokeel.cli.cells import Column, column, name_cell, rate_cell
from iokeel.cli.drive_tables import MEAN_LATENCY, SORTS
from iokeel.cli.tables import STORAGE_COLUMNS, TENANT_COLUMNS, TenantSums, storage_complaints
from iokeel.cli.top.picture import STATES, Key, Picture, drive_key, storage_key, tenant_key
from iokeel.errors import ConnectionLost, IokeelError
from iokeel.report.records import DriveReport, StorageReport
from iokeel.words.quoting import escaped
from iokeel.words.units import percent

T = TypeVar("T")
RATE = "iops"
STATE = "state"
TREND = "2 min"
KEYS = (
    ("1 2 3", "drives, storages, tenants"),
    ("up down", "choose a row; Home: none, stay at the first"),
    ("left right", "sort by another column; also < >"),
    ("r", "reverse the order"),
    ("/", "filter by VM, drive, tenant or storage"),
    ("Enter", "why: explain the row, live"),
    ("J K", "scroll what is beside the table"),
    ("Escape", "close this, or end the filter"),
    ("space", "pause, and go on"),
    ("c", "copy the row and what is beside it"),
    ("?", "these keys"),
    ("q", "quit"),
)
_STATES = (
    (
        "error",
        "its limits couldn't be set, its VM's policy can't be used,"
        " or a table has gone from the configuration",
    ),
    ("suffers", "its latency is above its target"),
    ("bursts", "it does more than its limit, from its credit"),
    ("held", "it uses up a limit"),
    ("-", "none of these"),
)
# So many of a storage's or a tenant's drives are named.
_BUSIEST = 20


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
        found = self.columns[RATE if heading == TREND else heading]
        return Column(
            found.word,
            heading,
            lambda row: found.value(row.record),
            lambda row: found.cell(row.record),
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


_of_drive = _named((*SORTS, MEAN_LATENCY)) | {
    # The state says that it is a burst.
    "allowed": column("allowed", lambda d: d.allowed_iops, rate_cell)
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


def help_text() -> str:
    """Return the keys and the states."""
    keys = (f"{key:<10}  {what}" for key, what in KEYS)
    states = (f"{state:<10}  {what}" for state, what in _STATES)
    return "\n".join(("keys", *keys, "", "state", *states))


def why_text(socket: Path, row: Row[Any]) -> str:
    """Return why a drive's limits are what they are, or what a storage's or tenant's drives do.

    Raises ConnectionLost.
    """
    if not isinstance(row.record, DriveReport):
        return "\n".join(_sums(row))
    drive = row.record
    title = name_cell(f"{drive.domain}/{drive.target}")
    try:
        steps = client.why(socket, drive.domain, drive.target).get(drive.target, [])
    except ConnectionLost:
        raise
    except IokeelError as error:  # it has gone since
        return f"{title}\n{escaped(str(error))}"
    return "\n".join((title, *(f"{n}. {escaped(step)}" for n, step in enumerate(steps, 1))))


def _sums(row: Row[Any]) -> Iterator[str]:
    """Yield what is wrong with a storage, and the busiest drives of a storage or tenant."""
    yield name_cell(row.key[1] or "-")
    if isinstance(row.record, StorageReport):
        complaints = [*storage_complaints([row.record])]
        yield from complaints or ["It keeps its promises."]
    busiest = sorted(row.drives, key=lambda drive: -(drive.normalized_iops or 0.0))
    yield f"Its busiest drives, of {len(busiest)}:"
    for drive in busiest[:_BUSIEST]:
        rate, allowed = drive.normalized_iops, drive.allowed_iops
        part = f" of {rate_cell(allowed)}" if allowed else ""
        used = f", {percent(rate / allowed)}" if rate is not None and allowed else ""
        yield f"{name_cell(f'{drive.domain}/{drive.target}')}: {rate_cell(rate)}{part} iops{used}"
