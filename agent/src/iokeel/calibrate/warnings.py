"""Warnings about a calibration, one line each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from iokeel.calibrate.measurement import Series
from iokeel.core.fitting.fit import Fit
from iokeel.core.fitting.saturation import MOST_DEPTH
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
