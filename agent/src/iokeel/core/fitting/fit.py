"""A storage's capacity and cost curves, fitted to its measured rates."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations

from iokeel.core.curve import CostCurve, CostModel, Point

# A curve with fewer points is preferred up to this error: a device's rates vary by as much anyway.
TOLERANCE_RATIO = 0.03
# Few enough points for people to read and to change.
_MOST_KNOTS = 6
# Significant digits: 3 round a capacity by 0.5 % at most, 4 a cost by 0.05 %.
_CAPACITY_DIGITS = 3
_COST_DIGITS = 4


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
