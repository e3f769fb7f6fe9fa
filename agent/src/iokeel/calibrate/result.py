"""A calibration's result: capacity, cost curves, a latency target, and warnings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from iokeel.calibrate.measurement import Series
from iokeel.calibrate.warnings import data_warnings, series_warnings
from iokeel.core.curve import SMALLEST_REQUEST_BYTES
from iokeel.core.fitting.fit import TOLERANCE_RATIO, Fit, fit
from iokeel.core.fitting.saturation import open_latency_s
from iokeel.core.storage import allowance_s

# Rates that are spread widely don't deserve a closer fit than their spread, up to this error.
_MOST_TOLERANCE_RATIO = 0.06
# The latency target is at least this many times the latency of one request alone. Were it nearer,
# the control law could never find free capacity again: it asks for less than 0.7 of the target
# (CALM_RATIO in core/sharing/capacity.py).
_ALONE_FACTOR = 2


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
