"""Fits to measured rates what a storage serves: capacity, curves, saturation, steadiness."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, pairwise
from math import fsum
from statistics import fmean, median

from iokeel.core.values.curve import CostCurve, CostModel, Point

# A curve with fewer points is preferred up to this error: a device's rates vary by as much anyway.
TOLERANCE_RATIO = 0.03
# Few enough points for people to read and to change.
_MOST_KNOTS = 6
# Significant digits: 3 round a capacity by 0.5 % at most, 4 a cost by 0.05 %.
_CAPACITY_DIGITS = 3
_COST_DIGITS = 4
# If doubling the depth gains less than this, it adds latency and nothing else.
GROWTH_RATIO = 1.05
# The deepest queue that is tried, in requests.
MOST_DEPTH = 512
# The part of its full rate that a well-used storage serves. Latency is estimated there.
LOAD_RATIO = 0.8
# Rates that differ by more than this are not one figure.
SPREAD_RATIO = 0.15
# A set of rates is a mode if it has this part of them.
_LEAST_SHARE = 0.15
# It also has at least so many. Of fewer than 17 rates, that part is two at most, and one hiccup on
# the edge of two windows lowers both.
_LEAST_SAMPLES = 3
# The gap between two modes takes up at least this part of the distance between their means.
_LEAST_GAP_RATIO = 0.5
# Fewer requests than this don't make a rate: chance alone would spread it.
_LEAST_REQUESTS = 400


@dataclass(frozen=True, slots=True)
class Fit:
    """A storage's capacity, in normalized I/O operations a second, and its cost curves.

    write: None if no writes were measured.
    """

    capacity: int
    read: CostCurve
    write: CostCurve | None

    @property
    def model(self) -> CostModel:
        """Both curves. Writes that were not measured cost as much as reads."""
        return CostModel(self.read, self.write or self.read)

    def cost(self, size_bytes: int, *, write: bool = False) -> float:
        """Return the cost of one request, in normalized I/O operations."""
        curve = self.model.write if write else self.model.read
        return curve.cost(size_bytes)

    def error_ratio(self, size_bytes: int, raw_iops: float, *, write: bool = False) -> float:
        """Return how far the fitted rate for a size is above a measured one: 0.1 is 10 %."""
        return self.capacity / self.cost(size_bytes, write=write) / raw_iops - 1


def fit(
    reads: Mapping[int, float],
    writes: Mapping[int, float],
    tolerance_ratio: float = TOLERANCE_RATIO,
) -> Fit:
    """Fit a capacity and cost curves to raw rates at saturation.

    reads, writes: raw I/O operations a second, > 0, by request size in bytes. The smallest read,
    4 KiB, is the unit: it costs 1, and its fitted rate is the capacity. writes: empty if none were
    measured. tolerance_ratio: the error up to which a curve with fewer points is preferred.
    """
    read_times = _knots(reads, tolerance_ratio)
    unit_s = read_times[0][1]
    capacity = max(1, round(_rounded(1 / unit_s, _CAPACITY_DIGITS)))
    write_curve = _curve(_knots(writes, tolerance_ratio), unit_s) if writes else None
    return Fit(capacity, _curve(read_times, unit_s), write_curve)


def _curve(times: Sequence[Point], unit_s: float) -> CostCurve:
    """Return the curve of (size, seconds a request), with unit_s as the cost of 1."""
    return CostCurve(tuple((size, _rounded(s / unit_s, _COST_DIGITS)) for size, s in times))


def _knots(rates: Mapping[int, float], tolerance_ratio: float) -> list[Point]:
    """Return the fewest points whose connecting lines are within a tolerance of the measured times.

    A point is (size, seconds a request). If six points can't meet the tolerance, return the best
    six.
    """
    points = _rising(sorted((size, 1 / rate) for size, rate in rates.items()))
    best: list[Point] = points
    for count in range(2, min(len(points), _MOST_KNOTS) + 1):
        ends = points[0][0], points[-1][0]
        inner = [size for size, _ in points[1:-1]]
        fits = [
            _least_squares(points, (ends[0], *chosen, ends[1]))
            for chosen in combinations(inner, count - 2)
        ]
        best = min(fits, key=lambda knots: _worst(knots, points))
        if _worst(best, points) <= tolerance_ratio:
            break
    return best


def _rising(points: Sequence[Point]) -> list[Point]:
    """Return the nearest points, in ratio, that never fall (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []  # mean logarithm, count
    for _, y in points:
        pools.append((math.log(y), 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (b, m), (a, n) = pools.pop(), pools.pop()
            pools.append(((a * n + b * m) / (n + m), n + m))
    levels = [math.exp(level) for level, count in pools for _ in range(count)]
    return [(size, level) for (size, _), level in zip(points, levels, strict=True)]


def _least_squares(points: Sequence[Point], knots: Sequence[int]) -> list[Point]:
    """Return the values at knots that minimise the sum of squared relative errors.

    A point affects only the two knots beside it, so the equations are tridiagonal.
    """
    last = len(knots) - 1
    diagonal, beside, right = [0.0] * len(knots), [0.0] * len(knots), [0.0] * len(knots)
    for x, y in points:
        i = min(bisect_right(knots, x) - 1, last - 1)
        upper = (x - knots[i]) / (knots[i + 1] - knots[i]) / y
        lower = 1 / y - upper
        diagonal[i] += lower * lower
        diagonal[i + 1] += upper * upper
        beside[i] += lower * upper
        right[i] += lower
        right[i + 1] += upper
    for i in range(last):
        factor = beside[i] / diagonal[i]
        diagonal[i + 1] -= factor * beside[i]
        right[i + 1] -= factor * right[i]
    values = [right[last] / diagonal[last]]
    for i in reversed(range(last)):
        values.append((right[i] - beside[i] * values[-1]) / diagonal[i])
    values.reverse()
    # If times jump, least squares can undershoot zero, or the knot before.
    floor = min(y for _, y in points)
    return list(zip(knots, accumulate((max(v, floor) for v in values), max), strict=True))


def _worst(knots: Sequence[Point], points: Sequence[Point]) -> float:
    """Return the largest error of the lines between knots, as a ratio."""
    curve = CostCurve(tuple(knots))
    return max(abs(curve.cost(x) / y - 1) for x, y in points)


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def saturation_depth(
    rate_at: Callable[[int], float],
    start: int = 1,
    patience: int = 1,
    most_latency_s: float = math.inf,
) -> int:
    """Return the queue depth at which doubling it gains less than 5 %.

    rate_at: measures the rate at a depth. It is called with `start`, then with twice that, and so
    on up to MOST_DEPTH. patience: how many doublings in a row must gain nothing. Give 2 to a search
    from depth 1: a disk that serves one request at a time gains nothing from a second, because it
    can only reorder three or more. most_latency_s: the longest that a request may take in a queue
    that is tried. The queue must turn over several times in a run, or the run measures only the
    requests it began with.
    """
    depth, rate = start, rate_at(start)
    deeper, idle_doublings = 2 * start, 0
    while deeper <= min(MOST_DEPTH, most_latency_s * rate) and idle_doublings < patience:
        deeper_rate = rate_at(deeper)
        if deeper_rate >= GROWTH_RATIO * rate:
            depth, rate, idle_doublings = deeper, deeper_rate, 0
        else:
            idle_doublings += 1
        deeper *= 2
    return depth


def open_latency_s(rates: Mapping[int, float], load_ratio: float = LOAD_RATIO) -> float:
    """Return the mean latency of requests that arrive at random, at a part of the full rate.

    rates: requests a second by the queue depth kept up, from depth 1 to saturation. load_ratio: the
    part of the full rate, above 0 and below 1. The storage is modelled as a server that, with n
    requests in it, works at the rate measured at depth n (Norton's theorem for queues; Chandy,
    Herzog and Woo, "Parametric analysis of queuing networks", 1975). This is exact for one server,
    for several, and for networks of them.
    """
    served = _rates_by_count(rates)
    arrivals = load_ratio * served[-1]
    # The odds of n requests in the storage, from n = 0 to the deepest measured.
    logs = [0.0, *accumulate(math.log(arrivals / rate) for rate in served)]
    top = max(logs)
    odds = [math.exp(log - top) for log in logs]
    # Beyond the deepest, each is load_ratio times the one before.
    deepest, tail = len(served), load_ratio / (1 - load_ratio)
    total = fsum(odds) + odds[-1] * tail
    requests = fsum(n * p for n, p in enumerate(odds)) + odds[-1] * tail * (
        deepest + 1 / (1 - load_ratio)
    )
    return requests / total / arrivals


def _rates_by_count(rates: Mapping[int, float]) -> list[float]:
    """Return the rate with 1, 2, 3, ... requests in the storage; it never falls."""
    depths = sorted(rates)
    best = list(accumulate((rates[depth] for depth in depths), max))
    served = [best[0]]
    for (d0, r0), (d1, r1) in pairwise(zip(depths, best, strict=True)):
        power = math.log(r1 / r0) / math.log(d1 / d0)
        served += [r0 * (n / d0) ** power for n in range(d0 + 1, d1 + 1)]
    return served


@dataclass(frozen=True, slots=True)
class Steadiness:
    """How rates are spread.

    spread_ratio: the distance from the lowest tenth to the highest tenth, over the median. modes:
    the mean rates of the two sets that the rates form, lower first; None if they form no two sets.
    lower_share: the part of the rates in the lower set, 0 to 1.
    """

    spread_ratio: float
    modes: tuple[float, float] | None = None
    lower_share: float = 0.0

    @property
    def steady(self) -> bool:
        """Whether one figure describes the rate."""
        return self.modes is None and self.spread_ratio <= SPREAD_RATIO


def steadiness(rates: Sequence[float]) -> Steadiness:
    """Return how rates are spread. Give at least one; none may be negative."""
    ranked = sorted(rates)
    middle = median(ranked)
    if not middle:
        return Steadiness(0.0 if not ranked[-1] else 1.0)
    tenth = len(ranked) // 10
    spread = (ranked[-1 - tenth] - ranked[tenth]) / middle
    least = max(_LEAST_SAMPLES, round(_LEAST_SHARE * len(ranked)))
    splits = range(least, len(ranked) - least + 1)
    if not splits:
        return Steadiness(spread)
    cut = max(splits, key=lambda i: ranked[i] - ranked[i - 1])
    low, high = fmean(ranked[:cut]), fmean(ranked[cut:])
    apart = high > (1 + SPREAD_RATIO) * low
    if not apart or ranked[cut] - ranked[cut - 1] < _LEAST_GAP_RATIO * (high - low):
        return Steadiness(spread)
    return Steadiness(spread, (low, high), cut / len(ranked))


def joined_windows(runs: Sequence[Sequence[float]], window_s: float) -> list[float]:
    """Return the runs' rates over spans that have enough requests to be counted.

    runs: each run's rates, one per window of `window_s`. Windows are joined until a span has some
    400 requests on average. No span crosses from one run to the next; a run too short for a span
    counts as one.
    """
    mean = fmean(rate for run in runs for rate in run)
    wanted = math.ceil(_LEAST_REQUESTS / (mean * window_s)) if mean else 1
    rates = []
    for run in runs:
        joined = min(len(run), wanted)
        rates += [fmean(run[i : i + joined]) for i in range(0, len(run) - joined + 1, joined)]
    return rates
