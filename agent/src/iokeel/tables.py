"""The command's tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table

from iokeel.policy import DomainPolicy, DrivePolicy
from iokeel.report import DriveReport, VmReport
from iokeel.units import duration, percent, rate, size

_NONE = "-"


def drives(reports: Sequence[VmReport]) -> Table:
    """Return a row for each drive, and one for the sums of each VM that has several."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("VM")
    table.add_column("drive")
    for heading in ("norm. iops", "allowed", "used", "reads", "writes", "latency r/w", "credit"):
        table.add_column(heading, justify="right")
    table.add_column("binds now")
    for report in reports:
        for i, drive in enumerate(report.drives):
            table.add_row(report.domain if i == 0 else "", drive.target, *_cells(drive))
        if len(report.drives) > 1:
            table.add_row("", "sum", *_sums(report.drives), style="dim")
    if not reports:
        table.add_row("no running VMs")
    return table


def complaints(reports: Sequence[VmReport]) -> Iterator[str]:
    """Yield what is wrong, a line each."""
    for report in reports:
        if report.policy_error is not None:
            yield f"policy: {report.policy_error}"
        for drive in report.drives:
            if drive.error is not None:
                yield f"error: {drive.error}"


def policy(checked: DomainPolicy, targets: Sequence[str]) -> Table:
    """Return what a policy promises each drive it covers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("drive", "reservation", "limit", "burst", "credit", "weight", "latency target"):
        table.add_column(heading, justify="left" if heading == "drive" else "right")
    for target, drive in _covered(checked, targets):
        table.add_row(
            target,
            _rate(drive.reservation),
            _rate(drive.limit),
            _rate(drive.burst),
            f"{drive.burst_seconds} s",
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
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    names = [name for name in ("min", "max", "burst") if rows[0][f"{name}_iops"] is not None]
    for heading in ("size", "cost", *names, *(f"{name} throughput" for name in names)):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            size(row["size_bytes"]),
            f"{row['cost']:g}",
            *(f"{row[f'{name}_iops']}" for name in names),
            *(f"{size(row[f'{name}_bps'])}/s" for name in names),
        )
    return table


def _covered(checked: DomainPolicy, targets: Sequence[str]) -> Iterator[tuple[str, DrivePolicy]]:
    for target in targets or sorted(checked.drives):
        drive = checked.for_drive(target)
        if drive is not None:
            yield target, drive
    if not targets and checked.default is not None:
        yield "every other", checked.default


def _cells(drive: DriveReport) -> list[str]:
    used = None
    if drive.normalized_iops is not None and drive.allowed_iops:
        used = percent(drive.normalized_iops / drive.allowed_iops)
    return [
        _rate(drive.normalized_iops),
        _rate(drive.allowed_iops) + (" burst" if drive.burst_open else ""),
        used or _NONE,
        _flow(drive.raw_read_iops, drive.mean_read_bytes),
        _flow(drive.raw_write_iops, drive.mean_write_bytes),
        f"{_time(drive.read_latency_s)} / {_time(drive.write_latency_s)}",
        f"{drive.credit_s:.0f} s" if drive.limit_iops else _NONE,
        ", ".join(drive.binding) or ("policy error" if drive.error else _NONE),
    ]


def _sums(reports: Sequence[DriveReport]) -> list[str]:
    def total(key: str) -> float | None:
        values = [getattr(drive, key) for drive in reports]
        return sum(v for v in values if v is not None) if any(values) else None

    reads, writes = total("raw_read_iops"), total("raw_write_iops")
    return [
        _rate(total("normalized_iops")),
        _rate(total("allowed_iops")),
        "",
        _flow(reads, (total("read_bps") or 0) / reads if reads else None),
        _flow(writes, (total("write_bps") or 0) / writes if writes else None),
        "",
        "",
        "",
    ]


def _rate(value: float | None) -> str:
    return _NONE if value is None else rate(value)


def _flow(iops: float | None, mean: float | None) -> str:
    return f"{rate(iops)}/s x {size(mean)}" if iops and mean else _NONE


def _time(seconds: float | None) -> str:
    return _NONE if seconds is None else duration(seconds)
