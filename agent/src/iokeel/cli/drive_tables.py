"""The columns of a drive, and the table of `iokeel stats`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from iokeel.cli.cells import (
    NONE,
    Column,
    Layout,
    PlainTable,
    column,
    flow_cell,
    ms_cell,
    name_cell,
    number_cell,
    part_cell,
    rate_cell,
)
from iokeel.report.records import DriveReport, VmReport
from iokeel.words.quoting import few
from iokeel.words.units import percent


def total(values: Iterable[float | None]) -> float | None:
    """Return the sum of the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def part_used(rate: float | None, allowed: float | None) -> float | None:
    """Return the part of an allowed rate that is used; None: not known, or no limit."""
    return None if rate is None or not allowed else rate / allowed


def used(drive: DriveReport) -> float | None:
    """Return the part of its allowed rate that a drive uses; None: not known, or no limit."""
    return part_used(drive.normalized_iops, drive.allowed_iops)


def latency_s(drive: DriveReport) -> float | None:
    """Return the mean latency over reads and writes; None: not known."""
    return _mean(drive, drive.read_latency_s, drive.write_latency_s)


def wait_s(drive: DriveReport) -> float | None:
    """Return the mean wait for the throttle over reads and writes; None: QEMU doesn't count."""
    read = _less(drive.read_latency_s, drive.read_device_latency_s)
    write = _less(drive.write_latency_s, drive.write_device_latency_s)
    return _mean(drive, read, write)


def waiting(drive: DriveReport) -> int | None:
    """Return how many requests wait for the throttle now; None: QEMU doesn't count."""
    if drive.read is None or drive.write is None:
        return None
    return drive.read.waiting + drive.write.waiting


def _mean(drive: DriveReport, read: float | None, write: float | None) -> float | None:
    parts = ((drive.raw_read_iops, read), (drive.raw_write_iops, write))
    known = [(raw_iops, value) for raw_iops, value in parts if raw_iops and value is not None]
    if not known:
        return None
    return sum(raw_iops * value for raw_iops, value in known) / sum(raw for raw, _ in known)


def _less(whole: float | None, part: float | None) -> float | None:
    return None if whole is None or part is None else whole - part


def _allowed_cell(drive: DriveReport) -> str:
    return rate_cell(drive.allowed_iops) + (" burst" if drive.burst_open else "")


def _latency_cell(drive: DriveReport) -> str:
    latencies = (drive.read_latency_s, drive.write_latency_s)
    return " / ".join(ms_cell(s) for s in latencies) if any(latencies) else NONE


def _discards_cell(drive: DriveReport) -> str:
    raw_iops, bps = drive.raw_discard_iops, drive.discard_bps
    return flow_cell(raw_iops, bps / raw_iops if raw_iops and bps else None)


def _credit(drive: DriveReport) -> float | None:
    return drive.credit_s if drive.limit_iops and (drive.credit_s or drive.burst_open) else None


def bound_by(drive: DriveReport) -> str | None:
    """Return the limits that a drive uses up, and "error" if it has one; None if neither."""
    words = [name.removesuffix("_total") for name in drive.binding]
    if drive.error is not None:
        words.append("error")
    return ", ".join(words) or None


VM: Column[DriveReport] = column("VM", lambda d: d.domain, name_cell, "vm")
DRIVE: Column[DriveReport] = column("drive", lambda d: d.target, name_cell)
RATE: Column[DriveReport] = column("norm. iops", lambda d: d.normalized_iops, rate_cell, "rate")
ALLOWED = Column[DriveReport]("allowed", "allowed", lambda d: d.allowed_iops, _allowed_cell)
USED = column("used", used, part_cell)
READS = Column[DriveReport](
    "reads",
    "reads/s",
    lambda d: d.raw_read_iops,
    lambda d: flow_cell(d.raw_read_iops, d.mean_read_bytes),
)
WRITES = Column[DriveReport](
    "writes",
    "writes/s",
    lambda d: d.raw_write_iops,
    lambda d: flow_cell(d.raw_write_iops, d.mean_write_bytes),
)
FLUSHES: Column[DriveReport] = column("flushes/s", lambda d: d.raw_flush_iops, rate_cell, "flushes")
DISCARDS = Column[DriveReport](
    "discards", "discards/s", lambda d: d.raw_discard_iops, _discards_cell
)
LATENCY = Column[DriveReport]("latency", "ms r / w", latency_s, _latency_cell)
WAITING = column("waiting", waiting, number_cell)
CREDIT = column("credit", _credit, lambda credit: NONE if credit is None else f"{credit:.0f} s")
BOUND = Column[DriveReport]("bound", "bound by", bound_by, lambda d: bound_by(d) or NONE)
TENANT: Column[DriveReport] = column("tenant", lambda d: d.tenant, name_cell)
STORAGE: Column[DriveReport] = column("storage", lambda d: d.storage, name_cell)
MEAN_LATENCY = column("ms", latency_s, ms_cell, "latency")
WAIT = column("ms wait", wait_s, ms_cell, "wait")

DRIVE_COLUMNS = (
    VM, DRIVE, RATE, ALLOWED, USED, READS, WRITES, FLUSHES, DISCARDS, LATENCY, WAITING, CREDIT,
    BOUND,
)  # fmt: skip
"""The columns of `iokeel stats`, in its order."""

SORTS = (*DRIVE_COLUMNS, WAIT, TENANT, STORAGE)
"""What `iokeel stats --sort` sorts drives by."""


HEADINGS = tuple(column.heading for column in DRIVE_COLUMNS)
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
            HEADINGS,
            [[cells[name] for name in HEADINGS] for cells, _ in self._rows],
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
    """Yield what isn't held, and in which VMs: drives without a policy, and VMs only observed."""
    drives = [drive for report in reports for drive in report.drives]
    bare = [drive.domain for drive in drives if not drive.has_policy]
    if bare:
        yield f"no policy: {len(bare)} of {len(drives)} drives, in {few([*dict.fromkeys(bare)])}"
    seen = [report.domain for report in reports if report.observed]
    if seen:
        yield f"only observed, so no limits of theirs are set: {few(seen)}"


def _cells(drive: DriveReport) -> dict[str, str]:
    return {column.heading: column.cell(drive) for column in DRIVE_COLUMNS}


def _rows_of(report: VmReport) -> Iterator[tuple[dict[str, str], str]]:
    empty = dict.fromkeys(HEADINGS, "")
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
