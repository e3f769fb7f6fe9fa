"""The tables of `iokeel recommend`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from iokeel.cli.cells import NONE, Column, PlainTable, column, layouts, name_cell, rate_cell, table
from iokeel.report.records import DriveUse, RecommendReport, StorageUse
from iokeel.words.units import duration, percent, rate

_STORAGE_COLUMNS: tuple[Column[StorageUse], ...] = (
    column("storage", lambda s: s.storage, name_cell),
    column("p50", lambda s: s.p50_iops, rate_cell),
    column("p95", lambda s: s.p95_iops, rate_cell),
    column("p99", lambda s: s.p99_iops, rate_cell),
    column("peak", lambda s: s.peak_iops, rate_cell),
    column("usable", lambda s: s.usable_iops, rate_cell),
    column("reserved", lambda s: s.reserved_iops, rate_cell),
    column("more", lambda s: s.more_iops, rate_cell),
    column(
        "missed", lambda s: s.missed_s, lambda missed_s: duration(missed_s) if missed_s else NONE
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
    return table(storages, _STORAGE_COLUMNS, "p50", "peak", "reserved", "missed")


def _part(ratio: float) -> str:
    """Return a part of the time; below a tenth, with a digit more."""
    return percent(ratio) if ratio >= 0.0995 or not ratio else f"{100 * ratio:.1f} %"


def _until(drive: DriveUse) -> str:
    """Return when a drive was seen last, in local time; "" if it is here still."""
    if drive.until_s is None:
        return ""
    return time.strftime("%b %d %H:%M", time.localtime(drive.until_s))
