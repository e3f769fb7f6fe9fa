"""The table of `iokeel stats --storage`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from iokeel.cli.cells import NONE, PlainTable, layouts, ms_cell, name_cell, rate_cell
from iokeel.cli.columns import Column, cells
from iokeel.report.records import StorageReport
from iokeel.words.quoting import few
from iokeel.words.units import iops, percent, percent_kept

STORAGE_COLUMNS: tuple[Column[StorageReport], ...] = (
    Column("storage", "storage", lambda s: s.storage, lambda s: name_cell(s.storage)),
    Column("drives", "drives", lambda s: s.drives, lambda s: str(s.drives)),
    Column(
        "rate", "norm. iops", lambda s: s.normalized_iops, lambda s: rate_cell(s.normalized_iops)
    ),
    Column("usable", "usable", lambda s: s.usable_iops, lambda s: rate_cell(s.usable_iops)),
    Column("capacity", "capacity", lambda s: s.capacity_iops, lambda s: _capacity(s)),
    Column("reserved", "reserved", lambda s: s.reserved_iops, lambda s: rate_cell(s.reserved_iops)),
    Column("latency", "ms / target", lambda s: s.latency_s, lambda s: _latency(s)),
    Column(
        "queue", "queue", lambda s: s.queue, lambda s: NONE if s.queue is None else f"{s.queue:.1f}"
    ),
    Column(
        "room",
        "room",
        lambda s: s.room_ratio,
        lambda s: NONE if s.room_ratio is None else percent(s.room_ratio),
    ),
)
COLUMNS = tuple(column.heading for column in STORAGE_COLUMNS)
_LAYOUTS = layouts("drives", "capacity", "reserved", "room", "queue")


def storage_table(reports: Sequence[StorageReport]) -> PlainTable:
    """Return a row for each storage."""
    rows = [cells(report, STORAGE_COLUMNS) for report in reports]
    return PlainTable(COLUMNS, rows, _LAYOUTS)


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
