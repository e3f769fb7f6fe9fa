"""The tables of `iokeel recommend`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from iokeel.cli.cells import NONE, Column, PlainTable, cells, layouts, name_cell, rate_cell
from iokeel.report.records import DriveUse, RecommendReport, StorageUse
from iokeel.words.units import duration, percent, rate

_STORAGE_COLUMNS: tuple[Column[StorageUse], ...] = (
    Column("storage", "storage", lambda s: s.storage, lambda s: name_cell(s.storage)),
    Column("p50", "p50", lambda s: s.p50_iops, lambda s: rate_cell(s.p50_iops)),
    Column("p95", "p95", lambda s: s.p95_iops, lambda s: rate_cell(s.p95_iops)),
    Column("p99", "p99", lambda s: s.p99_iops, lambda s: rate_cell(s.p99_iops)),
    Column("peak", "peak", lambda s: s.peak_iops, lambda s: rate_cell(s.peak_iops)),
    Column("usable", "usable", lambda s: s.usable_iops, lambda s: rate_cell(s.usable_iops)),
    Column("reserved", "reserved", lambda s: s.reserved_iops, lambda s: rate_cell(s.reserved_iops)),
    Column("more", "more", lambda s: s.more_iops, lambda s: rate_cell(s.more_iops)),
    Column(
        "missed",
        "missed",
        lambda s: s.missed_s,
        lambda s: duration(s.missed_s) if s.missed_s else NONE,
    ),
)


def drive_use_table(found: RecommendReport) -> PlainTable:
    """Return a row for each drive, with a column for each limit."""
    tried = [f"{name} {rate(limit)}" for name, limit in found.limits.items()]
    if [*found.limits] == [str(limit) for limit in found.limits.values()]:
        tried = [f"{rate(limit)} iops" for limit in found.limits.values()]
    is_gone = any(drive.until_s is not None for drive in found.drives)
    fixed = ("VM", "drive", "p50", "p95", "p99", "peak", "limit", "held")
    rows = [
        [
            name_cell(drive.domain),
            name_cell(drive.target),
            *map(rate_cell, (drive.p50_iops, drive.p95_iops, drive.p99_iops, drive.peak_iops)),
            rate_cell(drive.limit_iops),
            _part(drive.held_ratio) if drive.limit_iops is not None else NONE,
            *(_part(drive.would_hold[name]) for name in found.limits),
            *([_until(drive)] if is_gone else []),
        ]
        for drive in found.drives
    ]
    headings = (*fixed, *tried, *(["until"] if is_gone else []))
    least = ("p50", "until", "limit", "peak", *reversed(tried[3:]), "p95", *reversed(tried[1:3]))
    return PlainTable(headings, rows, layouts(*least, "p99"))


def storage_use_table(storages: Sequence[StorageUse]) -> PlainTable:
    """Return a row for each storage."""
    headings = tuple(column.heading for column in _STORAGE_COLUMNS)
    rows = [cells(storage, _STORAGE_COLUMNS) for storage in storages]
    return PlainTable(headings, rows, layouts("p50", "peak", "reserved", "missed"))


def _part(ratio: float) -> str:
    """Return a part of the time; below a tenth, with a digit more."""
    return percent(ratio) if ratio >= 0.0995 or not ratio else f"{100 * ratio:.1f} %"


def _until(drive: DriveUse) -> str:
    """Return when a drive was seen last, in local time; "" if it is here still."""
    if drive.until_s is None:
        return ""
    return time.strftime("%b %d %H:%M", time.localtime(drive.until_s))
