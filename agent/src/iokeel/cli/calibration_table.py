"""The table of `iokeel calibrate`."""

from __future__ import annotations

from rich.table import Table

from iokeel.calibrate.result import Calibration
from iokeel.cli.cells import plain_table
from iokeel.words.units import duration, rate, size


def calibration_table(found: Calibration) -> Table:
    """Return what a storage serves by kind and size of request, and how well the curve fits."""
    table = plain_table("kind", "size", "rate", "bytes", "depth", "p99", "cost", "fit error")
    for series in found.series:
        job = series.job
        curve = found.fit.model.write if job.write else found.fit.model.read
        error = found.fit.error_ratio(job.size_bytes, series.raw_iops, write=job.write)
        table.add_row(
            f"{'sequential' if job.sequential else 'random'} {'write' if job.write else 'read'}",
            size(job.size_bytes),
            f"{rate(series.raw_iops)}/s",
            rate(series.raw_iops * job.size_bytes, "B/s"),
            str(job.depth),
            duration(series.latency_p99_s),
            "" if job.sequential else f"{curve.cost(job.size_bytes):.4g}",
            "" if job.sequential else f"{100 * error:+.1f} %",
        )
    return table
