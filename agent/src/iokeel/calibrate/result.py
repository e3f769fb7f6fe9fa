"""A calibration's result: capacity, cost curves, a latency target, and warnings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from iokeel.calibrate.measurement import Series
from iokeel.core.fitting import MOST_DEPTH, TOLERANCE_RATIO, Fit, fit, open_latency_s
from iokeel.core.values.curve import SMALLEST_REQUEST_BYTES
from iokeel.core.values.storage import allowance_s
from iokeel.words.units import percent, rate

# A fit that is further off is warned of.
_FIT_ERROR_RATIO = 0.1
# Random and sequential rates that are further apart are warned of.
_ORDER_RATIO = 1.5
# From this part of a processor on, fio's busiest thread may have limited the rate.
_BUSY_RATIO = 0.95
# From this part of zeros on, an SSD or a server may have answered most reads without reading.
_ZERO_RATIO = 0.5
_CURVE_IS_OF_RANDOM = "the curve describes random requests only"
# Rates that are spread widely don't deserve a closer fit than their spread, up to this error.
_MOST_TOLERANCE_RATIO = 0.06
# The latency target is at least this many times the latency of one request alone. Were it nearer,
# the control law could never find free capacity again: it asks for less than 0.7 of the target
# (CALM_RATIO in core/correct/capacity.py).
_ALONE_FACTOR = 2


def series_warnings(series: Sequence[Series], fitted: Fit) -> Iterator[str]:
    """Yield warnings about the measured rates, and about the fit."""
    for one in series:
        yield from _rate_warnings(one)
    for one in series:
        if one.job.sequential:
            continue
        error = fitted.error_ratio(one.job.size_bytes, one.raw_iops, write=one.job.write)
        if abs(error) > _FIT_ERROR_RATIO:
            side = "above" if error > 0 else "below"
            yield f"the fitted rate of {one.job} is {percent(abs(error))} {side} the measured one"
    yield from _order_warnings(series)


def data_warnings(zero_ratio: float | None, cache: tuple[str, str] | None) -> Iterator[str]:
    """Yield a warning if much of the storage reads as zeros, or if memory may have answered.

    cache: that memory, and how to go around it. None: unknown.
    """
    if cache is not None:
        name, mend = cache
        yield f"reads may have come from memory, {name}, instead of the storage; {mend}"
    if zero_ratio is not None and zero_ratio >= _ZERO_RATIO:
        yield (
            f"{percent(zero_ratio)} of the storage reads as zeros, which an SSD or a server may"
            " return without reading; if its data may be destroyed, give --destroy-data --fill"
        )


def _rate_warnings(one: Series) -> Iterator[str]:
    job, steadiness, iops = one.job, one.steadiness, rate(one.raw_iops)
    if steadiness.modes is not None:
        low, high = map(rate, steadiness.modes)
        yield (
            f"{job} are bistable: {high}/s, but {low}/s for {percent(steadiness.lower_share)} of"
            f" the time; the slowest run counts, {iops}/s"
        )
    elif not steadiness.steady:
        spread = f"with a spread of {percent(steadiness.spread_ratio)}"
        slowest = "; the slowest run counts" if one.slowest_counts else ""
        yield f"{job} are unsteady: {iops}/s, {spread}{slowest}"
    if one.unsaturated:
        # Else the search ended because a deeper queue wouldn't turn over often enough in a run.
        deepest = job.depth == MOST_DEPTH
        mend = "the storage may do more" if deepest else "give longer runs (--seconds)"
        yield f"{job} were still gaining at a depth of {job.depth}: {mend}"
    busy = max(run.busy_ratio for run in one.saturated)
    if busy > _BUSY_RATIO:
        yield (
            f"{job} kept fio's processor {percent(busy)} busy: the storage may do more; give"
            " --threads 2 or more"
        )


def _order_warnings(series: Sequence[Series]) -> Iterator[str]:
    """Yield warnings if sequential requests are much faster or slower than random ones."""
    random_iops = {
        (s.job.write, s.job.size_bytes): s.raw_iops for s in series if not s.job.sequential
    }
    for write in (False, True):
        ratios = [
            (s.raw_iops / random_iops[write, s.job.size_bytes], str(s.job))
            for s in series
            if s.job.sequential
            and s.job.write is write
            and (write, s.job.size_bytes) in random_iops
        ]
        if not ratios:
            continue
        ratio, kind = max(ratios)
        if ratio > _ORDER_RATIO:
            yield f"{kind} are {ratio:.1f} times as fast as random ones; {_CURVE_IS_OF_RANDOM}"
        ratio, kind = min(ratios)
        if ratio < 1 / _ORDER_RATIO:
            yield f"{kind} are {1 / ratio:.1f} times as slow as random ones; {_CURVE_IS_OF_RANDOM}"


@dataclass(frozen=True)
class Calibration:
    """Everything found by a calibration.

    latencies_s: the mean latency at 80 % of saturation, for each series searched from depth 1.
    latency_target_ms: the latency of 4 KiB reads there, or of 4 KiB writes if that is longer; at
    least twice the latency of one request alone.
    """

    series: Sequence[Series]
    fit: Fit
    latencies_s: Mapping[str, float]
    latency_target_ms: float
    warnings: Sequence[str]

    def cost(self, series: Series) -> float:
        """Return the fitted cost of a series' requests."""
        return self.fit.cost(series.job.size_bytes, write=series.job.write)

    def fit_error_ratio(self, series: Series) -> float | None:
        """Return how far the fitted rate is above a series' rate; None if it is sequential.

        The curves describe random requests only.
        """
        job = series.job
        if job.sequential:
            return None
        return self.fit.error_ratio(job.size_bytes, series.raw_iops, write=job.write)


def evaluate(
    series: Sequence[Series], zero_ratio: float | None, cache: tuple[str, str] | None = None
) -> Calibration:
    """Fit a calibration to series, which must include random 4 KiB reads.

    zero_ratio: the part of the storage that reads as zeros; None if unknown. cache: the memory that
    may have answered reads, and how to go around it.
    """
    rates: dict[bool, dict[int, float]] = {False: {}, True: {}}
    for one in series:
        if not one.job.sequential:
            rates[one.job.write][one.job.size_bytes] = one.raw_iops
    spread = sum(s.steadiness.spread_ratio for s in series) / len(series) / 2
    tolerance = max(TOLERANCE_RATIO, min(spread, _MOST_TOLERANCE_RATIO))
    fitted = fit(rates[False], rates[True], tolerance)
    warnings = [*series_warnings(series, fitted), *data_warnings(zero_ratio, cache)]
    if fitted.write is None:
        warnings.append("writes were not measured, so they are priced like reads")
    return Calibration(
        series,
        fitted,
        {str(s.job): open_latency_s(s.rates) for s in series if s.searched_from_one},
        _rounded_up(1e3 * _latency_target_s(series, fitted)),
        warnings,
    )


def _latency_target_s(series: Sequence[Series], fitted: Fit) -> float:
    """Return the longer of the targets that 4 KiB reads and 4 KiB writes ask for.

    The control law adds an allowance to a target for requests dearer than a 4 KiB read. It is
    subtracted here.
    """

    def target_s(one: Series) -> float:
        alone_s = 1 / one.rates[1]
        cost = fitted.cost(one.job.size_bytes, write=one.job.write)
        allowed_s = allowance_s(cost, cost, fitted.capacity)
        return max(open_latency_s(one.rates), _ALONE_FACTOR * alone_s) - allowed_s

    smallest = (s for s in series if s.job.size_bytes == SMALLEST_REQUEST_BYTES)
    return max(target_s(one) for one in smallest if one.searched_from_one)


def _rounded_up(value: float) -> float:
    """Round up to two significant digits."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / step - 1e-9) * step:.3g}")
