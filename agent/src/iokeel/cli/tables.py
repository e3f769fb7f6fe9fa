"""The command's tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.table import Table
from rich.text import Text

from iokeel.core.policy import DomainPolicy, DrivePolicy
from iokeel.report.records import DriveReport, StorageReport, VmReport
from iokeel.words.units import percent, rate, size

_NONE = "-"
_COLUMNS = (
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
_LEFT = ("VM", "drive", "bound by", "storage")
# What to try, one after another, until the table is narrow enough: the space between columns,
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


class DriveTable:
    """A row for each drive, and one for the sums of each VM that has several.

    What there is no room for is left out, so that no cell is broken: the least telling columns,
    and the middle of long names.
    """

    def __init__(self, reports: Sequence[VmReport]) -> None:
        self._reports = reports
        drives = [drive for report in reports for drive in report.drives]
        untold = not any(drive.read for drive in drives)
        self._untold = frozenset({"waiting"}) if untold else frozenset[str]()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table for a console's width."""
        if not self._reports:
            yield Text("no running VMs")
            return
        for gap, left_out, longest in _LAYOUTS:
            table = self._table(gap, left_out | self._untold, longest)
            needed = console.measure(table, options=options.update(width=_UNBOUNDED))
            if needed.maximum <= options.max_width:
                break
        yield table

    def _table(self, gap: int, left_out: frozenset[str], longest: int) -> Table:
        columns = [column for column in _COLUMNS if column not in left_out]
        table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False)
        for heading in columns:
            justify: JustifyMethod = "left" if heading in _LEFT else "right"
            table.add_column(heading, justify=justify, no_wrap=True)
        for report in self._reports:
            name = _cut(report.domain, longest)
            for i, drive in enumerate(report.drives):
                cells = _cells(drive) | {"VM": "" if i else name}
                cells["drive"] = _cut(drive.target, longest)
                table.add_row(*(cells[column] for column in columns))
            if not report.drives:
                cells = dict.fromkeys(columns, "") | {"VM": name, "drive": "none"}
                table.add_row(*(cells[column] for column in columns))
            if len(report.drives) > 1:
                cells = dict.fromkeys(columns, "") | _sums(report.drives) | {"drive": "sum"}
                table.add_row(*(cells[column] for column in columns), style="dim")
        return table


def complaints(reports: Sequence[VmReport]) -> Iterator[str]:
    """Yield what is wrong, a line each."""
    for report in reports:
        if report.policy_error is not None:
            yield f"policy error: {report.policy_error}"
        for drive in report.drives:
            if drive.error is not None:
                yield f"error: {drive.error}"


def storages(reports: Sequence[StorageReport]) -> Table:
    """Return a row for each storage."""
    table = _plain(
        "storage", "drives", "norm. iops", "usable", "capacity", "reserved", "ms / target",
        "queue", "room",
    )  # fmt: skip
    for report in reports:
        target = f" / {_ms(report.latency_target_s)}" if report.latency_target_s else ""
        table.add_row(
            _cut(report.storage, 40),
            str(report.drives),
            _rate(report.normalized_iops),
            _rate(report.usable_iops),
            _rate(report.capacity_iops) if report.capacity_iops else "unknown",
            _rate(report.reserved_iops),
            _ms(report.latency_s) + target,
            _NONE if report.queue is None else f"{report.queue:.1f}",
            _NONE if report.room_ratio is None else percent(report.room_ratio),
        )
    return table


def storage_complaints(reports: Sequence[StorageReport]) -> Iterator[str]:
    """Yield which promises can't be kept, a line each."""
    for report in reports:
        if report.oversold and report.capacity_iops:
            yield (
                f"{report.storage}: {rate(report.reserved_iops)} iops are reserved of a capacity of"
                f" {rate(report.capacity_iops)}; lower reservations or move a drive"
            )
        elif report.reserved_iops and report.usable_iops is None:
            yield (
                f"{report.storage}: reservations are not guaranteed, its capacity is not known;"
                " see `iokeel calibrate --help`"
            )
        if report.reservations_kept < 1:
            yield (
                f"{report.storage}: serves {percent(report.reservations_kept)} of what is reserved"
                " and asked for now"
            )
        if report.exhausted:
            drives = ", ".join(report.suffering)
            yield f"{report.storage}: {drives} above the latency target, nothing more can be taken"


def policy(checked: DomainPolicy, targets: Sequence[str]) -> Table:
    """Return what a policy promises each drive it covers."""
    table = _plain("drive", "reservation", "limit", "burst", "credit", "weight", "latency target")
    for target, drive in _covered(checked, targets):
        table.add_row(
            target,
            _rate(drive.reservation),
            _rate(drive.limit),
            _rate(drive.burst),
            f"{drive.burst_seconds} s" if drive.burst is not None else _NONE,
            str(drive.weight),
            _NONE if drive.latency_target_ms is None else f"{drive.latency_target_ms:g} ms",
        )
    return table


def policy_values(checked: DomainPolicy, targets: Sequence[str]) -> dict[str, Any]:
    """Return the same as JSON-able values."""
    covered = {target: asdict(drive) for target, drive in _covered(checked, targets)}
    return {"tenant": checked.tenant, "drives": covered}


def curve(rows: Sequence[dict[str, Any]]) -> Table:
    """Return a cost table's rows, rates that were not asked for left out."""
    names = [name for name in ("min", "max", "burst") if rows[0][f"{name}_iops"] is not None]
    table = _plain("size", "cost", *(f"{n} iops" for n in names), *(f"{n} rate" for n in names))
    for row in rows:
        table.add_row(
            size(row["size_bytes"]),
            f"{row['cost']:g}",
            *(f"{row[f'{name}_iops']}" for name in names),
            *(f"{size(row[f'{name}_bps'])}/s" for name in names),
        )
    return table


def _plain(*headings: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for heading in headings:
        justify: JustifyMethod = "left" if heading in _LEFT else "right"
        table.add_column(heading, justify=justify, no_wrap=True)
    return table


def _covered(checked: DomainPolicy, targets: Sequence[str]) -> Iterator[tuple[str, DrivePolicy]]:
    for target in targets or sorted(checked.drives):
        drive = checked.for_drive(target)
        if drive is not None:
            yield target, drive
    if not targets and checked.default is not None:
        yield "every other", checked.default


def _cells(drive: DriveReport) -> dict[str, str]:
    used = _NONE
    if drive.normalized_iops is not None and drive.allowed_iops:
        used = percent(drive.normalized_iops / drive.allowed_iops)
    credit = _NONE
    if drive.limit_iops and (drive.credit_s or drive.burst_open):
        credit = f"{drive.credit_s:.0f} s"
    latencies = (drive.read_latency_s, drive.write_latency_s)
    waiting = _NONE
    if drive.read is not None and drive.write is not None:
        waiting = str(drive.read.waiting + drive.write.waiting)
    return {
        "norm. iops": _rate(drive.normalized_iops),
        "allowed": _rate(drive.allowed_iops) + (" burst" if drive.burst_open else ""),
        "used": used,
        "reads/s": _flow(drive.raw_read_iops, drive.mean_read_bytes),
        "writes/s": _flow(drive.raw_write_iops, drive.mean_write_bytes),
        "ms r / w": " / ".join(_ms(s) for s in latencies) if any(latencies) else _NONE,
        "waiting": waiting,
        "credit": credit,
        "bound by": "error" if drive.error else ", ".join(map(_short, drive.binding)) or _NONE,
    }


def _sums(reports: Sequence[DriveReport]) -> dict[str, str]:
    """Return the sums of what is known; of what is allowed only where every drive is limited."""

    def total(key: str) -> float | None:
        values = [value for drive in reports if (value := getattr(drive, key)) is not None]
        return sum(values) if values else None

    reads, writes = total("raw_read_iops"), total("raw_write_iops")
    limited = all(drive.allowed_iops is not None for drive in reports)
    return {
        "norm. iops": _rate(total("normalized_iops")),
        "allowed": _rate(total("allowed_iops") if limited else None),
        "reads/s": _flow(reads, (total("read_bps") or 0) / reads if reads else None),
        "writes/s": _flow(writes, (total("write_bps") or 0) / writes if writes else None),
    }


def _rate(value: float | None) -> str:
    return _NONE if value is None else rate(value)


def _flow(iops: float | None, mean: float | None) -> str:
    if not iops or not mean:
        return _NONE
    return f"{rate(iops)} x {size(mean).removesuffix('iB').replace(' ', '')}"


def _ms(seconds: float | None) -> str:
    """Return a time in ms with two or three digits that count."""
    if seconds is None:
        return _NONE
    ms = 1e3 * seconds
    return f"{ms:.2f}" if ms < 1 else f"{ms:.1f}" if ms < 10 else f"{ms:.0f}"


def _short(bound: str) -> str:
    return bound.removesuffix("_total")


def _cut(name: str, longest: int) -> str:
    """Return a name, its middle left out where it is too long: the ends tell names apart."""
    if len(name) <= longest:
        return name
    head = (longest - 1) // 2
    return f"{name[:head]}..{name[head + 2 - longest :]}"
