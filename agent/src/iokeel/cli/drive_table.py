"""The table of `iokeel stats`: drives by VM, or one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from iokeel.cli.cells import Layout, PlainTable, flow_cell, name_cell, rate_cell
from iokeel.cli.drive_columns import DRIVE_COLUMNS, total
from iokeel.report.records import DriveReport, VmReport
from iokeel.words.quoting import few
from iokeel.words.units import percent

COLUMNS = tuple(column.heading for column in DRIVE_COLUMNS)
_FREE = frozenset({"flushes/s", "discards/s"})
_HALF = _FREE | {"used", "waiting"}
_LAYOUTS = (
    Layout(2, frozenset(), 60),
    Layout(1, frozenset(), 60),
    Layout(1, _FREE, 60),
    Layout(1, _HALF, 60),
    Layout(1, _HALF, 24),
    Layout(1, _HALF, 16),
    Layout(1, _HALF | {"credit"}, 16),
    Layout(1, _HALF | {"credit"}, 12),
    Layout(1, _HALF | {"credit", "ms r / w"}, 12),
    Layout(1, _HALF | {"credit", "ms r / w", "reads/s", "writes/s"}, 10),
)


class _Rows:
    """Rows as a table.

    empty: what is printed if there is no row. rows: the cells by heading, and the row's style.
    """

    empty = "no drives"

    def __init__(self, rows: Sequence[tuple[dict[str, str], str]], drives: Sequence[DriveReport]):
        self._rows = rows
        shown = {
            "waiting": any(drive.read for drive in drives),
            "flushes/s": any(drive.raw_flush_iops for drive in drives),
            "discards/s": any(drive.raw_discard_iops for drive in drives),
        }
        self._left_out = frozenset(name for name, there in shown.items() if not there)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table for a console's width."""
        if not self._rows:
            yield Text(self.empty)
            return
        yield PlainTable(
            COLUMNS,
            [[cells[name] for name in COLUMNS] for cells, _ in self._rows],
            [each._replace(left_out=each.left_out | self._left_out) for each in _LAYOUTS],
            [style for _, style in self._rows],
        )


class DrivesOneByOne(_Rows):
    """A row for each of some drives, in their order."""

    def __init__(self, drives: Sequence[DriveReport]) -> None:
        super().__init__([(_cells(drive), "") for drive in drives], drives)


class DrivesByVm(_Rows):
    """A row for each drive, and one for the sums of each VM that has several, or its own limit."""

    empty = "no running VMs"

    def __init__(self, reports: Sequence[VmReport]) -> None:
        rows = [row for report in reports for row in _rows_of(report)]
        super().__init__(rows, [drive for report in reports for drive in report.drives])


def drive_complaints(
    reports: Sequence[VmReport], drives: Sequence[DriveReport] | None = None
) -> Iterator[str]:
    """Yield what is wrong with policies and drives, a line each.

    drives: only these, and their VMs; None: all.
    """
    if drives is None:
        drives = [drive for report in reports for drive in report.drives]
    else:
        named = {drive.domain for drive in drives}
        reports = [report for report in reports if report.domain in named]
    for report in reports:
        if report.policy_error is not None:
            yield f"policy error: {report.policy_error.error()}"
    # Drives of one tenant or storage have the same error.
    for error in {drive.error.error(): None for drive in drives if drive.error}:
        yield f"error: {error}"


def without_policy(reports: Sequence[VmReport]) -> Iterator[str]:
    """Yield a line that says how many drives have no policy, and in which VMs; none if all do."""
    drives = [drive for report in reports for drive in report.drives]
    bare = [drive.domain for drive in drives if not drive.has_policy]
    if bare:
        yield f"no policy: {len(bare)} of {len(drives)} drives, in {few([*dict.fromkeys(bare)])}"


def _cells(drive: DriveReport) -> dict[str, str]:
    return {column.heading: column.cell(drive) for column in DRIVE_COLUMNS}


def _rows_of(report: VmReport) -> Iterator[tuple[dict[str, str], str]]:
    empty = dict.fromkeys(COLUMNS, "")
    for i, drive in enumerate(report.drives):
        yield _cells(drive) | ({"VM": ""} if i else {}), ""
    if not report.drives:
        yield empty | {"VM": name_cell(report.domain), "drive": "none"}, ""
    if len(report.drives) > 1 or report.limit_iops is not None:
        yield empty | _sums(report) | {"drive": "sum"}, "dim"


def _sums(report: VmReport) -> dict[str, str]:
    """Return the sums of what is known, and the VM's own limit and credit.

    Without such a limit, what is allowed has a sum only if every drive is limited.
    """
    drives = report.drives
    reads = total(drive.raw_read_iops for drive in drives)
    writes = total(drive.raw_write_iops for drive in drives)
    read_bps = total(drive.read_bps for drive in drives) or 0.0
    write_bps = total(drive.write_bps for drive in drives) or 0.0
    rate = total(drive.normalized_iops for drive in drives)
    allowed: float | None = report.allowed_iops
    if report.limit_iops is None and all(drive.allowed_iops is not None for drive in drives):
        allowed = total(drive.allowed_iops for drive in drives)
    return {
        "norm. iops": rate_cell(rate),
        "allowed": rate_cell(allowed) + (" burst" if report.burst_open else ""),
        "used": percent(rate / allowed) if report.limit_iops and rate and allowed else "",
        "credit": f"{report.credit_s:.0f} s" if report.credit_s else "",
        "reads/s": flow_cell(reads, read_bps / reads if reads else None),
        "writes/s": flow_cell(writes, write_bps / writes if writes else None),
    }
