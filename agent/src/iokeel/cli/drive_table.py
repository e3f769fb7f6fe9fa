"""The table of `iokeel stats` and `iokeel top`: drives by VM."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from iokeel.cli.cells import NONE, cut, flow_cell, ms_cell, plain_table, rate_cell
from iokeel.report.records import DriveReport, VmReport
from iokeel.words.units import percent

COLUMNS = (
    "VM",
    "drive",
    "norm. iops",
    "allowed",
    "used",
    "reads/s",
    "writes/s",
    "ms r / w",
    "waiting",
    "credit",
    "bound by",
)
_UNBOUNDED = 10_000
# Layouts to try, one after another, until the table is narrow enough: the space between columns,
# the columns left out, and how long a name may be.
_LAYOUTS = (
    (2, frozenset[str](), 60),
    (1, frozenset[str](), 60),
    (1, frozenset({"used", "waiting"}), 60),
    (1, frozenset({"used", "waiting"}), 24),
    (1, frozenset({"used", "waiting"}), 16),
    (1, frozenset({"used", "waiting", "credit"}), 16),
    (1, frozenset({"used", "waiting", "credit"}), 12),
    (1, frozenset({"used", "waiting", "credit", "ms r / w"}), 12),
    (1, frozenset({"used", "waiting", "credit", "ms r / w", "reads/s", "writes/s"}), 10),
)


class DriveStatsTable:
    """A row for each drive, and one for the sums of each VM that has several, or its own limit.

    A narrow terminal gets fewer columns and shorter names, so no cell is broken: the least telling
    columns go first, and names lose their middle.
    """

    def __init__(self, reports: Sequence[VmReport]) -> None:
        self._reports = reports
        counted = any(drive.read for report in reports for drive in report.drives)
        self._unknown = frozenset[str]() if counted else frozenset({"waiting"})

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table for a console's width."""
        if not self._reports:
            yield Text("no running VMs")
            return
        for gap, left_out, longest in _LAYOUTS:
            table = self._table(gap, left_out | self._unknown, longest)
            needed = console.measure(table, options=options.update(width=_UNBOUNDED))
            if needed.maximum <= options.max_width:
                break
        yield table

    def _table(self, gap: int, left_out: frozenset[str], longest: int) -> Table:
        columns = [column for column in COLUMNS if column not in left_out]
        table = plain_table(*columns, gap=gap)
        for report in self._reports:
            name = cut(report.domain, longest)
            for i, drive in enumerate(report.drives):
                cells = _cells(drive) | {"VM": "" if i else name}
                cells["drive"] = cut(drive.target, longest)
                table.add_row(*(cells[column] for column in columns))
            if not report.drives:
                cells = dict.fromkeys(columns, "") | {"VM": name, "drive": "none"}
                table.add_row(*(cells[column] for column in columns))
            if len(report.drives) > 1 or report.limit_iops is not None:
                cells = dict.fromkeys(columns, "") | _sums(report) | {"drive": "sum"}
                table.add_row(*(cells[column] for column in columns), style="dim")
        return table


def drive_complaints(reports: Sequence[VmReport]) -> Iterator[str]:
    """Yield what is wrong with policies and drives, a line each."""
    for report in reports:
        if report.policy_error is not None:
            yield f"policy error: {report.policy_error.error()}"
    # Drives of one tenant or storage have the same error.
    errors = {d.error.error(): None for report in reports for d in report.drives if d.error}
    for error in errors:
        yield f"error: {error}"


def _cells(drive: DriveReport) -> dict[str, str]:
    used = NONE
    if drive.normalized_iops is not None and drive.allowed_iops:
        used = percent(drive.normalized_iops / drive.allowed_iops)
    credit = NONE
    if drive.limit_iops and (drive.credit_s or drive.burst_open):
        credit = f"{drive.credit_s:.0f} s"
    latencies = (drive.read_latency_s, drive.write_latency_s)
    waiting = NONE
    if drive.read is not None and drive.write is not None:
        waiting = str(drive.read.waiting + drive.write.waiting)
    return {
        "norm. iops": rate_cell(drive.normalized_iops),
        "allowed": rate_cell(drive.allowed_iops) + (" burst" if drive.burst_open else ""),
        "used": used,
        "reads/s": flow_cell(drive.raw_read_iops, drive.mean_read_bytes),
        "writes/s": flow_cell(drive.raw_write_iops, drive.mean_write_bytes),
        "ms r / w": " / ".join(ms_cell(s) for s in latencies) if any(latencies) else NONE,
        "waiting": waiting,
        "credit": credit,
        "bound by": _bound_by(drive),
    }


def _bound_by(drive: DriveReport) -> str:
    if drive.error is not None:
        return "error"
    return ", ".join(name.removesuffix("_total") for name in drive.binding) or NONE


def _sums(report: VmReport) -> dict[str, str]:
    """Return the sums of what is known, and the VM's own limit and credit.

    Without such a limit, what is allowed has a sum only if every drive is limited.
    """
    drives = report.drives
    reads = _sum(drive.raw_read_iops for drive in drives)
    writes = _sum(drive.raw_write_iops for drive in drives)
    read_bps = _sum(drive.read_bps for drive in drives) or 0.0
    write_bps = _sum(drive.write_bps for drive in drives) or 0.0
    rate = _sum(drive.normalized_iops for drive in drives)
    allowed: float | None = report.allowed_iops
    if report.limit_iops is None and all(drive.allowed_iops is not None for drive in drives):
        allowed = _sum(drive.allowed_iops for drive in drives)
    return {
        "norm. iops": rate_cell(rate),
        "allowed": rate_cell(allowed) + (" burst" if report.burst_open else ""),
        "used": percent(rate / allowed) if report.limit_iops and rate and allowed else "",
        "credit": f"{report.credit_s:.0f} s" if report.credit_s else "",
        "reads/s": flow_cell(reads, read_bps / reads if reads else None),
        "writes/s": flow_cell(writes, write_bps / writes if writes else None),
    }


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum of the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
