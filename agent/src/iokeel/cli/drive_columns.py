"""The columns of a drive."""

from __future__ import annotations

from collections.abc import Iterable

from iokeel.cli.cells import NONE, flow_cell, ms_cell, name_cell, rate_cell
from iokeel.cli.columns import Column
from iokeel.report.records import DriveReport
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


def _used_cell(drive: DriveReport) -> str:
    part = used(drive)
    return NONE if part is None else percent(part)


def _latency_cell(drive: DriveReport) -> str:
    latencies = (drive.read_latency_s, drive.write_latency_s)
    return " / ".join(ms_cell(s) for s in latencies) if any(latencies) else NONE


def _discards_cell(drive: DriveReport) -> str:
    raw_iops, bps = drive.raw_discard_iops, drive.discard_bps
    return flow_cell(raw_iops, bps / raw_iops if raw_iops and bps else None)


def _waiting_cell(drive: DriveReport) -> str:
    count = waiting(drive)
    return NONE if count is None else str(count)


def _credit(drive: DriveReport) -> float | None:
    return drive.credit_s if drive.limit_iops and (drive.credit_s or drive.burst_open) else None


def _credit_cell(drive: DriveReport) -> str:
    credit = _credit(drive)
    return NONE if credit is None else f"{credit:.0f} s"


def bound_by(drive: DriveReport) -> str | None:
    """Return the limits that a drive uses up, and "error" if it has one; None if neither."""
    words = [name.removesuffix("_total") for name in drive.binding]
    if drive.error is not None:
        words.append("error")
    return ", ".join(words) or None


VM = Column[DriveReport]("vm", "VM", lambda d: d.domain, lambda d: name_cell(d.domain))
DRIVE = Column[DriveReport]("drive", "drive", lambda d: d.target, lambda d: name_cell(d.target))
RATE = Column[DriveReport](
    "rate", "norm. iops", lambda d: d.normalized_iops, lambda d: rate_cell(d.normalized_iops)
)
ALLOWED = Column[DriveReport]("allowed", "allowed", lambda d: d.allowed_iops, _allowed_cell)
USED = Column[DriveReport]("used", "used", used, _used_cell)
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
FLUSHES = Column[DriveReport](
    "flushes", "flushes/s", lambda d: d.raw_flush_iops, lambda d: rate_cell(d.raw_flush_iops)
)
DISCARDS = Column[DriveReport](
    "discards", "discards/s", lambda d: d.raw_discard_iops, _discards_cell
)
LATENCY = Column[DriveReport]("latency", "ms r / w", latency_s, _latency_cell)
WAITING = Column[DriveReport]("waiting", "waiting", waiting, _waiting_cell)
CREDIT = Column[DriveReport]("credit", "credit", _credit, _credit_cell)
BOUND = Column[DriveReport]("bound", "bound by", bound_by, lambda d: bound_by(d) or NONE)
TENANT = Column[DriveReport](
    "tenant", "tenant", lambda d: d.tenant, lambda d: name_cell(d.tenant or NONE)
)
STORAGE = Column[DriveReport](
    "storage", "storage", lambda d: d.storage, lambda d: name_cell(d.storage or NONE)
)
MEAN_LATENCY = Column[DriveReport]("latency", "ms", latency_s, lambda d: ms_cell(latency_s(d)))
WAIT = Column[DriveReport]("wait", "ms wait", wait_s, lambda d: ms_cell(wait_s(d)))

DRIVE_COLUMNS = (
    VM, DRIVE, RATE, ALLOWED, USED, READS, WRITES, FLUSHES, DISCARDS, LATENCY, WAITING, CREDIT,
    BOUND,
)  # fmt: skip
"""The columns of `iokeel stats`, in its order."""

SORTS = (*DRIVE_COLUMNS, WAIT, TENANT, STORAGE)
"""What `iokeel stats --sort` sorts drives by."""
