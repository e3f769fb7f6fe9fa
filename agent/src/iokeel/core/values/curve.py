"""Prices a request by its size, in normalized I/O operations, and says what that means for one.

A large request passes its limit whole, and the next one waits until it is paid. So a limit of 1
makes a guest that reads 1 MiB wait for minutes, and its driver may give up before.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from itertools import pairwise

from iokeel.errors import CurveError

KIB = 1024
# A page, the least that guests commonly send. Smaller requests exist, but are too rare for the
# bounds of a mix's cost to depend on them.
SMALLEST_REQUEST_BYTES = 4 * KIB
#: The longest that an ATA disk takes, and longer than guests' drivers make one.
LARGEST_REQUEST_BYTES = 32 * 1024 * KIB
# Hulls end in a ray: a point so far out that the last slope decides there.
_FAR_BYTES = 1 << 40
#: The highest cost of a request, in normalized I/O operations. Beyond this, sums of costs are no
#: longer sure to be finite.
LEAST_COST, MOST_COST = 1e-12, 1e12
# So much more than they are taken to cost may requests cost, as a ratio. A drive then has so much
# more than its limit for good, and another tenth in a second with a gift. In a random search of
# mixes and curves, 29 of 350 phases had over 5 % too much with 0.2, 17 with 0.1, 19 with 0.07.
TOO_CHEAP_RATIO = 0.1
# The same if the drive used sizes below and above the mean alone before. On a curve that is flat
# and then rises in proportion, the real cost of a mix of these may be half of the most.
TOO_CHEAP_IF_SEEN_RATIO = 1.0
# The most points that a QEMU throttle group takes (qemu-patches).
_MAX_POINTS = 32
# The highest cost of a byte in a part of a large request, as a multiple of that in a large one.
_SPLIT_RATIO = 1.05

Point = tuple[int, float]
#: A large request.
LARGE_BYTES = 1024 * KIB
#: From here on an operator is warned: SCSI gives up after 30 s, and some guests sooner.
LONG_S = 5.0


@dataclass(frozen=True)
class CostCurve:
    """A piecewise linear cost by request size.

    points: (size in bytes, cost in normalized I/O operations), sizes ascending and below 2^40,
    costs positive, up to 1e12 and never falling; 1 to 32 of them. Cost is linear between points,
    flat below the first and goes on with the last slope beyond the last. Raises CurveError if that
    does not hold. checked: False for points made of other curves' points. There may be more than 32
    of these, at any size and cost.
    """

    points: tuple[Point, ...]
    checked: InitVar[bool] = True
    _sizes: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _slopes: tuple[float, ...] = field(init=False, repr=False, compare=False)
    _knots: tuple[Point, ...] = field(init=False, repr=False, compare=False)
    _upper: tuple[Point, ...] = field(init=False, repr=False, compare=False)
    _lower: tuple[Point, ...] = field(init=False, repr=False, compare=False)
    _hides_little: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self, checked: bool) -> None:
        if checked:
            _check(self.points)
        slopes = [(c1 - c0) / (s1 - s0) for (s0, c0), (s1, c1) in pairwise(self.points)]
        last = slopes[-1] if slopes else 0.0
        put = object.__setattr__
        put(self, "_sizes", tuple(size for size, _ in self.points))
        put(self, "_slopes", (0.0, *slopes, last))
        size, cost = self.points[-1]
        first = min(SMALLEST_REQUEST_BYTES, self.points[0][0])
        knots = [
            *([(first, self.points[0][1])] if first < self.points[0][0] else []),
            *self.points,
            (_FAR_BYTES, cost + last * (_FAR_BYTES - size)),
        ]
        put(self, "_knots", tuple(knots))
        put(self, "_upper", _hull(knots, sign=1))
        put(self, "_lower", _hull(knots, sign=-1))
        most = max(_at(self._upper, size) / cost for size, cost in knots)
        put(self, "_hides_little", most <= 1 + TOO_CHEAP_RATIO)

    def cost(self, size_bytes: float) -> float:
        """Return the cost of one request, in normalized I/O operations.

        size_bytes: request length, > 0. Never decreases as it grows.
        Raises ValueError for a length of 0 or less.
        """
        if not size_bytes > 0:
            raise ValueError(f"a request of {size_bytes} bytes has no cost")
        i = bisect_right(self._sizes, size_bytes)
        size, cost = self.points[max(i - 1, 0)]
        return cost + self._slopes[i] * (size_bytes - size)

    def mean_cost(self, mean_size_bytes: float, seen_bytes: Sequence[float] = ()) -> float:
        """Estimate the mean cost of requests of which only the mean size is known.

        If the mean is a power of two, or was the size of all requests before, all requests are
        taken to have that size. If it is up to 4 KiB, or to the first point if that is less, all
        are taken to be as small, unless sizes below and above the mean have been seen. Else their
        mean cost may lie anywhere within `mean_cost_bounds`, and the geometric mean of the two has
        the least worst ratio: 2.2 % for the published curve, about half that if one of the sizes
        has been seen. But requests of 4 KiB and more are never taken to cost less than 1 / 1.1 of
        the most that limits made for the mean let them, or half of it if sizes below and above the
        mean have been seen.
        Raises ValueError for a size of 0 or less.
        """
        is_one = is_one_size(mean_size_bytes, seen_bytes)
        if is_one and self._hides_little:  # most often
            return self.cost(mean_size_bytes)
        dearest = _at(self._upper, mean_size_bytes)
        if is_one:
            dearest = min(dearest, self._dearest_under_limits(mean_size_bytes))
            return max(self.cost(mean_size_bytes), dearest / (1 + TOO_CHEAP_RATIO))
        are_around = bool(seen_bytes) and min(seen_bytes) < mean_size_bytes < max(seen_bytes)
        if mean_size_bytes <= self._upper[0][0] and not are_around:
            return self.cost(mean_size_bytes)
        least, most = self.mean_cost_bounds(mean_size_bytes, seen_bytes)
        cost = math.sqrt(least * most)
        if are_around:
            cost = max(cost, most / (1 + TOO_CHEAP_RATIO))
            return max(cost, dearest / (1 + TOO_CHEAP_IF_SEEN_RATIO))
        return max(cost, dearest / (1 + TOO_CHEAP_RATIO))

    def _dearest_under_limits(self, size_bytes: float) -> float:
        """Return the most that requests cost for one of a size, under limits made for that size.

        An iops-size is the power of two below or above it. Stock QEMU counts a request as one, or
        by its bytes if it is larger, so the limits let no request pass for less (envelope.py).
        """
        last, _ = self.points[-1]
        power = 2.0 ** math.floor(math.log2(min(size_bytes, last)))
        return min(
            max(1.0, size_bytes / iops_size)
            * max(
                self.cost(iops_size),
                *(cost * iops_size / size for size, cost in self._knots if size > iops_size),
            )
            for iops_size in (power, 2 * power if power < last else power)
        )

    def mean_cost_bounds(
        self, mean_size_bytes: float, seen_bytes: Sequence[float] = ()
    ) -> tuple[float, float]:
        """Return the least and the most that requests of a mean size can cost on average.

        seen_bytes: sizes that the same drive is known to use. The requests are taken to be some
        of those below the mean and some of those above; of any size if none is known, or if the
        mean is larger than any request, as only a QEMU that lies tells it.
        """
        if not seen_bytes or mean_size_bytes >= _FAR_BYTES:
            return _at(self._lower, mean_size_bytes), _at(self._upper, mean_size_bytes)
        seen = [(size, self.cost(size)) for size in seen_bytes]
        below = [p for p in seen if p[0] < mean_size_bytes]
        above = [p for p in seen if p[0] > mean_size_bytes]
        below = below or [p for p in self._knots if p[0] < mean_size_bytes]
        above = above or [p for p in self._knots if p[0] > mean_size_bytes]
        costs = [
            (c0 * (s1 - mean_size_bytes) + c1 * (mean_size_bytes - s0)) / (s1 - s0)
            for s0, c0 in below
            for s1, c1 in above
        ]
        return min(costs), max(costs)


@dataclass(frozen=True)
class CostModel:
    """The curves for reads and for writes.

    split_size: the size of the parts in which large reads are as good as whole, in bytes.
    """

    read: CostCurve
    write: CostCurve
    split_size: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Asked for each drive. mypyc would compile a cached_property as one that isn't cached.
        object.__setattr__(self, "split_size", _split_size(self.read))

    @property
    def same(self) -> bool:
        """Whether reads and writes cost the same."""
        return self.read == self.write


def _split_size(curve: CostCurve) -> int:
    """Return the smallest power of two from 4 KiB on that is a good size for parts of large reads.

    A byte in parts of it costs at most 5 % more than in reads of 1 MiB.
    """
    size = SMALLEST_REQUEST_BYTES
    while _byte_ratio(curve, size) > _SPLIT_RATIO:
        size *= 2
    return size


def _byte_ratio(curve: CostCurve, size_bytes: int) -> float:
    """Return a byte's cost in requests of a size, over its cost in large ones."""
    return (curve.cost(size_bytes) / size_bytes) / (curve.cost(LARGE_BYTES) / LARGE_BYTES)


def _check(points: Sequence[Point]) -> None:
    where = "cost curve"
    if not 1 <= len(points) <= _MAX_POINTS:
        raise CurveError(where, f"{len(points)} points", f"give 1 to {_MAX_POINTS}")
    for number, (size, cost) in enumerate(points, 1):
        if not (0 < size < _FAR_BYTES and LEAST_COST <= cost <= MOST_COST):
            mend = (
                "give a size greater than 0, below 2^40 bytes, and a cost from"
                f" {LEAST_COST:g} to {MOST_COST:g}"
            )
            raise CurveError(where, f"point {number} is out of range", mend)
    for (s0, c0), (s1, c1) in pairwise(points):
        if s1 <= s0:
            raise CurveError(where, f"size {s1} after {s0}", "give sizes in ascending order")
        if c1 < c0:
            raise CurveError(
                where, f"cost falls from {c0:g} at {s0} to {c1:g} at {s1}", "costs must not fall"
            )


def _hull(points: Sequence[Point], sign: int) -> tuple[Point, ...]:
    """Return the upper concave (sign 1) or lower convex (sign -1) hull of a graph."""
    hull: list[Point] = []
    for x, y in points:
        while len(hull) >= 2:
            (x0, y0), (x1, y1) = hull[-2], hull[-1]
            if sign * ((y1 - y0) * (x - x0) - (y - y0) * (x1 - x0)) > 0:
                break
            hull.pop()
        hull.append((x, y))
    return tuple(hull)


def _at(graph: Sequence[Point], x: float) -> float:
    i = min(max(bisect_right(graph, x, key=lambda p: p[0]), 1), len(graph) - 1)
    (x0, y0), (x1, y1) = graph[i - 1], graph[i]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


# SolidFire Element's published cost of one I/O by size, 4 KiB = 1.
DEFAULT_CURVE = CostCurve(
    (
        (4 * KIB, 1.0),
        (8 * KIB, 1.6),
        (16 * KIB, 2.7),
        (32 * KIB, 5.0),
        (64 * KIB, 10.0),
        (128 * KIB, 19.5),
        (256 * KIB, 39.0),
        (512 * KIB, 76.0),
        (1024 * KIB, 150.0),
    )
)
DEFAULT_MODEL = CostModel(DEFAULT_CURVE, DEFAULT_CURVE)


def is_uniform(mean_size_bytes: float) -> bool:
    """Return whether a mean request size tells that all requests had that size.

    The mean of many requests of different sizes is hardly ever exactly a power of two; the
    size of requests that are all alike nearly always is.
    """
    if mean_size_bytes < 1:
        return False
    size = int(mean_size_bytes + 0.5)
    return size & (size - 1) == 0 and abs(mean_size_bytes / size - 1) <= 1e-9


def is_one_size(mean_size_bytes: float, seen_bytes: Sequence[float]) -> bool:
    """Return whether all requests have one size, going also by those that were seen alone."""
    return is_uniform(mean_size_bytes) or any(
        abs(mean_size_bytes / size - 1) <= 1e-9 for size in seen_bytes
    )


def large_wait_s(
    model: CostModel, *limits: int | None, max_bytes: int | None = None
) -> float | None:
    """Return the time that one request of 1 MiB takes at the lowest of some limits, in seconds.

    The dearer one of a read and a write counts. max_bytes: the most bytes a second; None for no
    such bound. None if there is no limit.
    """
    waits = [_cost(model) / limit for limit in limits if limit is not None]
    if max_bytes is not None:
        waits.append(LARGE_BYTES / max_bytes)
    return max(waits, default=None)


def least_limit(model: CostModel) -> int:
    """Return the least limit at which one request of 1 MiB takes less than LONG_S."""
    return int(_cost(model) / LONG_S) + 1


def _cost(model: CostModel) -> float:
    return max(model.read.cost(LARGE_BYTES), model.write.cost(LARGE_BYTES))
