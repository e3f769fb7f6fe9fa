"""A storage's capacity and cost curves, fitted to the rates that it was measured to serve."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations

from iokeel.core.curve import CostCurve, CostModel, Point

# A knot fewer is worth this much error: a real device's rates are no truer than that.
TOLERANCE_RATIO = 0.03
# A curve is for people to read and to change.
_MOST_KNOTS = 6
_CAPACITY_DIGITS = 3
_COST_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Fit:
    """What a storage serves: capacity in normalized I/O operations a second, and its curves.

    write: None where no writes were measured.
    """

    capacity: int
    read: CostCurve
    write: CostCurve | None

    @property
    def model(self) -> CostModel:
        """The curves; writes cost what reads do where nothing else is known."""
        return CostModel(self.read, self.write or self.read)

    def error_ratio(self, size_bytes: int, raw_iops: float, *, write: bool = False) -> float:
        """Return by how much the rate that the fit foretells for a size is above a measured one."""
        curve = self.model.write if write else self.model.read
        return self.capacity / curve.cost(size_bytes) / raw_iops - 1


def fit(
    reads: Mapping[int, float],
    writes: Mapping[int, float],
    tolerance_ratio: float = TOLERANCE_RATIO,
) -> Fit:
    """Fit a capacity and cost curves to raw rates at saturation.

    reads, writes: raw I/O operations a second, > 0, by request size in bytes. The least size of
    reads, 4 KiB, is the unit: it costs 1, and its fitted rate is the capacity. writes: empty
    where none were measured. tolerance_ratio: the error up to which fewer points are better.
    """
    served = _knots({size: 1 / rate for size, rate in reads.items()}, tolerance_ratio)
    capacity = max(1, round(_rounded(1 / served[0][1], _CAPACITY_DIGITS)))
    unit_s = served[0][1]
    read = CostCurve(tuple((size, _cost(time_s / unit_s)) for size, time_s in served))
    if not writes:
        return Fit(capacity, read, None)
    served = _knots({size: 1 / rate for size, rate in writes.items()}, tolerance_ratio)
    return Fit(capacity, read, CostCurve(tuple((s, _cost(t / unit_s)) for s, t in served)))


def _knots(times: Mapping[int, float], tolerance_ratio: float) -> list[Point]:
    """Return the fewest points between which lines are within a tolerance of times by size.

    The best that a handful can do where no handful is that near.
    """
    points = _rising(sorted(times.items()))
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
    """Return points that never fall, as near as can be in ratio (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []  # mean logarithm, count
    for _, y in points:
        pools.append((math.log(y), 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (b, m), (a, n) = pools.pop(), pools.pop()
            pools.append(((a * n + b * m) / (n + m), n + m))
    levels = [math.exp(level) for level, count in pools for _ in range(count)]
    return [(size, level) for (size, _), level in zip(points, levels, strict=True)]


def _least_squares(points: Sequence[Point], knots: Sequence[int]) -> list[Point]:
    """Return the values at knots that make the least sum of squared relative errors.

    A point weighs on the two knots beside it alone, so the equations have three diagonals.
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
    # Squares can overshoot below zero, and below a neighbour, where times jump.
    floor = min(y for _, y in points)
    return list(zip(knots, accumulate((max(v, floor) for v in values), max), strict=True))


def _worst(knots: Sequence[Point], points: Sequence[Point]) -> float:
    """Return the largest error of lines between knots, as a ratio."""
    curve = CostCurve(tuple(knots))
    return max(abs(curve.cost(x) / y - 1) for x, y in points)


def _cost(cost: float) -> float:
    return _rounded(cost, _COST_DIGITS)


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")
