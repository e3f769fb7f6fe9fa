"""What a calibration found: capacity, curves, a latency target, and what is to be minded."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from iokeel.calibrate.fio import Job
from iokeel.calibrate.measurement import Series
from iokeel.core.curve import KIB, SMALLEST_REQUEST_BYTES, CostCurve
from iokeel.core.fitting.fit import TOLERANCE_RATIO, Fit, fit
from iokeel.core.fitting.saturation import open_latency_s
from iokeel.core.fitting.steadiness import SPREAD_RATIO
from iokeel.core.sharing.latency import allowance_s
from iokeel.words.units import duration, percent, rate

# Rates that are spread don't deserve a truer fit, but no worse one than this.
_NOISE_RATIO = 0.06
# A latency target is so many times that of one request alone, at least. Nearer to it the control
# law, for which 0.7 of the target is calm (CALM_RATIO), could never find that there is room again.
_ALONE_FACTOR = 2
# Beyond this, a fit's error is worth a word.
_ERROR_RATIO = 0.1
# Beyond this, random and sequential requests don't cost the same.
_ORDER_RATIO = 1.5
_BUSY_RATIO = 0.95
_ZERO_RATIO = 0.5


@dataclass(frozen=True)
class Calibration:
    """All that was found.

    latencies_s: at 80 % of saturation, for each kind whose depths were all tried.
    latency_target_ms: that of 4 KiB reads, or of 4 KiB writes where it has to be longer; twice that
    of one alone at least.
    """

    series: Sequence[Series]
    fit: Fit
    latencies_s: Mapping[str, float]
    latency_target_ms: float
    warnings: Sequence[str]


def found(series: Sequence[Series], zero_ratio: float | None) -> Calibration:
    """Return what comes of series, which have random reads of 4 KiB among them."""
    reads = {s.job.size_bytes: s.raw_iops for s in _random(series, write=False)}
    writes = {s.job.size_bytes: s.raw_iops for s in _random(series, write=True)}
    noise = sum(s.steadiness.spread_ratio for s in series) / len(series) / 2
    fitted = fit(reads, writes, max(TOLERANCE_RATIO, min(noise, _NOISE_RATIO)))
    latencies = {s.job: open_latency_s(s.rates) for s in series if s.searched}
    target_s = max(
        max(latencies[s.job], _ALONE_FACTOR / s.rates[1]) - _allowance_s(fitted, s.job)
        for s in series
        if s.searched and s.job.size_bytes == SMALLEST_REQUEST_BYTES
    )
    warnings = [*_warnings(series, fitted), *_about_data(zero_ratio)]
    if not writes:
        warnings.append("writes were not measured: they are taken to cost what reads do")
    named = {str(job): latency_s for job, latency_s in latencies.items()}
    return Calibration(series, fitted, named, _rounded_up(1e3 * target_s), warnings)


def _allowance_s(fitted: Fit, job: Job) -> float:
    """Return what the control law adds to a target for requests dearer than a 4 KiB read."""
    curve = fitted.model.write if job.write else fitted.model.read
    cost = curve.cost(job.size_bytes)
    return allowance_s(cost, cost, fitted.capacity)


def _random(series: Sequence[Series], *, write: bool) -> Iterator[Series]:
    return (s for s in series if s.job.write is write and not s.job.sequential)


def _rounded_up(value: float) -> float:
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / step - 1e-9) * step:.3g}")


# What is to be minded


def _warnings(series: Sequence[Series], fitted: Fit) -> Iterator[str]:
    for s in series:
        steady = s.steadiness
        if steady.modes is not None:
            low, high = map(rate, steady.modes)
            share = percent(steady.lower_share)
            yield f"{s.job} are bistable: {high}/s, and {low}/s for {share} of the time; " + (
                f"the lowest run's {rate(s.raw_iops)}/s counts"
            )
        elif steady.spread_ratio > SPREAD_RATIO:
            share = percent(steady.spread_ratio)
            yield f"{s.job} are unsteady: {rate(s.raw_iops)}/s, spread over {share}"
        if s.unsaturated:
            yield f"{s.job} still gain at a depth of {s.job.depth}: the storage may do more"
        busy = max(run.busy_ratio for run in s.saturated)
        if busy > _BUSY_RATIO:
            what = f"{s.job} keep fio's processor busy ({percent(busy)})"
            yield f"{what}: the storage may do more; give --threads 2 or more"
    for s in series:
        if not s.job.sequential:
            error = fitted.error_ratio(s.job.size_bytes, s.raw_iops, write=s.job.write)
            if abs(error) > _ERROR_RATIO:
                yield f"the fit is {100 * error:+.0f} % off at {s.job}"
    yield from _order(series)


def _order(series: Sequence[Series]) -> Iterator[str]:
    """Yield where the order of requests matters, which the curves know nothing of."""
    for write in (False, True):
        rates = {s.job.size_bytes: s.raw_iops for s in _random(series, write=write)}
        ratios = [
            (s.raw_iops / rates[s.job.size_bytes], str(s.job))
            for s in series
            if s.job.sequential and s.job.write is write and s.job.size_bytes in rates
        ]
        if not ratios:
            continue
        most, kind = max(ratios)
        if most > _ORDER_RATIO:
            yield f"{kind} are {most:.1f} times as fast as random ones, which the curve is of"
        least, kind = min(ratios)
        if least < 1 / _ORDER_RATIO:
            yield f"{kind} are {1 / least:.1f} times as slow as random ones, which the curve is of"


def _about_data(zero_ratio: float | None) -> Iterator[str]:
    if zero_ratio is not None and zero_ratio >= _ZERO_RATIO:
        yield (
            f"{percent(zero_ratio)} of it reads as zeros, which an SSD may answer without reading;"
            " where its data may go, give --destroy-data --fill"
        )


# To paste, and for programs


def toml(name: str, key: str, value: str, calibration: Calibration) -> str:
    """Return the storage's table, for the agent's configuration."""
    fitted = calibration.fit
    lines = [
        f"[storage.{name}]",
        f"{key} = {json.dumps(value, ensure_ascii=False)}",
        f"capacity = {fitted.capacity}",
        f"latency_target_ms = {calibration.latency_target_ms}",
        f"curve_read = {_points(fitted.read)}",
    ]
    if fitted.write is not None:
        lines.append(f"curve_write = {_points(fitted.write)}")
    return "\n".join(lines) + "\n"


def _points(curve: CostCurve) -> str:
    return json.dumps([[_size(size), cost] for size, cost in curve.points])


def _size(size_bytes: int) -> str:
    return f"{size_bytes // KIB**2}m" if size_bytes % KIB**2 == 0 else f"{size_bytes // KIB}k"


def values(calibration: Calibration) -> dict[str, Any]:
    """Return everything as JSON-able values, every run included."""
    fitted = calibration.fit
    return {
        "capacity": fitted.capacity,
        "latency_target_ms": calibration.latency_target_ms,
        "latency_at_load_ms": {kind: 1e3 * s for kind, s in calibration.latencies_s.items()},
        "curve_read": fitted.read.points,
        "curve_write": fitted.write and fitted.write.points,
        "warnings": list(calibration.warnings),
        "series": [_series(s, fitted) for s in calibration.series],
    }


def _series(series: Series, fitted: Fit) -> dict[str, Any]:
    job = series.job
    curve = fitted.model.write if job.write else fitted.model.read
    error = fitted.error_ratio(job.size_bytes, series.raw_iops, write=job.write)
    return {
        "kind": "write" if job.write else "read",
        "order": "sequential" if job.sequential else "random",
        "size_bytes": job.size_bytes,
        "saturation_depth": job.depth,
        "depth": series.saturated[0].job.depth,
        "raw_iops": series.raw_iops,
        "latency_p99_s": series.latency_p99_s,
        "cost": curve.cost(job.size_bytes),
        "fit_error_ratio": None if job.sequential else error,
        "steadiness": asdict(series.steadiness),
        "runs": [
            {key: value for key, value in asdict(run).items() if key != "job"}
            | {"depth": run.job.depth}
            for run in (*series.search, *series.saturated[1:])
        ],
    }


def latency(calibration: Calibration) -> str:
    """Return the latencies at 80 % of saturation, in words."""
    parts = (f"{duration(s)} for {kind}" for kind, s in calibration.latencies_s.items())
    return "latency at 80 % of saturation: " + ", ".join(parts)
