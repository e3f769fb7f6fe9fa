"""The table of `iokeel stats --storage`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from iokeel.cli.cells import NONE, cut, ms_cell, plain_table, rate_cell
from iokeel.report.records import StorageReport
from iokeel.words.units import iops, percent

COLUMNS = (
    "storage",
    "drives",
    "norm. iops",
    "usable",
    "capacity",
    "reserved",
    "ms / target",
    "queue",
    "room",
)
_LONGEST_NAME = 40


def storage_table(reports: Sequence[StorageReport]) -> Table:
    """Return a row for each storage."""
    table = plain_table(*COLUMNS)
    for report in reports:
        target = f" / {ms_cell(report.latency_target_s)}" if report.latency_target_s else ""
        table.add_row(
            cut(report.storage, _LONGEST_NAME),
            str(report.drives),
            rate_cell(report.normalized_iops),
            rate_cell(report.usable_iops),
            rate_cell(report.capacity_iops) if report.capacity_iops else "unknown",
            rate_cell(report.reserved_iops),
            ms_cell(report.latency_s) + target,
            NONE if report.queue is None else f"{report.queue:.1f}",
            NONE if report.room_ratio is None else percent(report.room_ratio),
        )
    return table


def storage_complaints(reports: Sequence[StorageReport]) -> Iterator[str]:
    """Yield the promises that storages can't keep, a line each."""
    for report in reports:
        name = report.storage
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
                f"{name}: it can keep {percent(report.reservations_kept)} of the reservations"
                " asked for now"
            )
        if report.exhausted:
            drives = ", ".join(report.suffering)
            yield (
                f"{name}: {drives} above the latency target, and nothing more can be taken from"
                " other drives"
            )
