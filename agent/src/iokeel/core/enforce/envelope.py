"""Limits for stock QEMU that hold a drive to a normalized rate under a cost curve.

Stock QEMU knows two linear prices: a byte costs one (bps), and a request costs one, or
size / iops_size if it is larger (iops). A cost curve lies between them. So two bounds together hold
a drive to `limit` normalized I/O operations a second:

- **bps**, tight. A mix of b bytes a second costs k a second, so B = limit * b / k bytes a second
  cost exactly `limit`. Bytes add up whatever the sizes are, so the mean size is enough.
- **iops**, loose. Small requests cost more a byte. B alone would let a shift to small requests
  through at up to 1.7 times the limit (the published curve, 1 MiB to 4 KiB). S requests a second
  bound that: any mix costs at most (1 + r) * limit until the next retune, with
  r = OVERSHOOT_RATIO, as long as the measured mix itself fits in S.

The dearest traffic within both bounds is a linear program. Its dual gives a bound for every price
of a byte p >= 0:

    cost <= p * B + S * g(p),     g(p) = max over sizes x of (cost(x) - p * x) / units(x)

with units(x) = max(1, x / iops_size). So S = max over p of ((1 + r) * limit - p * B) / g(p) is the
largest S that keeps the promise. The iops_size is the candidate that serves its worst size
best. Without a mix there is no B (p = 0). The envelope remains: the iops_size and S whose worst
error over all sizes is least. If all requests cost the same, S is `limit` over that cost, and there
is no B.

Reads and writes under one budget share bps_total. They share iops_total if they cost the same. If
their curves differ, each has its own iops bound, and the sum over both replaces S * g. Two budgets
are two such problems with one iops_size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import fsum, inf
from typing import TypeAlias

from iokeel.core.values.counters import NO_MIX, Flow, Mix, Rates
from iokeel.core.values.curve import SMALLEST_REQUEST_BYTES, CostCurve, CostModel, is_one_size
from iokeel.core.values.limits import AVERAGES, MOST, UNLIMITED, ThrottleLimits
from iokeel.core.values.mix import bounds_on, flow_cost

# How far above its limit a drive may be between a shift and the next retune, or for good if the
# agent dies. QEMU adds a tenth of a second at each change of limits, and another after idleness.
# All of that together stays below 1.25 of a limit (docs/design/measurements.md).
OVERSHOOT_RATIO = 0.08
# The iops bound keeps at least this distance from the measured mix, so that bps alone decides.
_CLEARANCE_RATIO = 1.05
# The part of the budget that a direction may use at once after it was idle.
_IDLE_SHARE = 0.02
# How finely iops_size is searched, in steps to a doubling. With a mix, at each change of limits:
# two steps serve the worst size 0.4 % of the limit better on average, 2.4 % at most, in 1.7 times
# the time (the published curve, 400 mixes). Without one it is computed once for each limit; 8 to 64
# steps are the same to 0.1 %.
_STEPS_WITH_MIX = 1
_STEPS_WITHOUT_MIX = 16
# How many prices of a byte are tried for S. Twice as many serve the worst size 0.2 % of the limit
# better on average, half as many 2 % worse.
_BYTE_PRICES = 24
# The least of them but 0, as a ratio of the cheapest byte's cost: below 1, so that requests of any
# size have a gain left at it.
_CHEAPEST_RATIO = 0.9
# The least gain of a request, in normalized operations: S is a quotient by gains, and at the
# dearest price of a byte there is none left.
_LEAST_GAIN = 1e-9
# The sizes to judge limits by: the powers of two up to the largest request (backstop.py).
_POWERS = tuple(SMALLEST_REQUEST_BYTES << i for i in range(14))
#: Figures are rounded. So a gain below this is none, and traffic costs more than it may only if it
#: does by more than this part of the limit.
ROUNDING = 1e-6
# An iops bound has room for the mix from this part of its need on.
_ROOM_RATIO = 0.999


def limits_for(
    model: CostModel, limit: float, mix: Mix | None = None, *, separate: bool = False
) -> ThrottleLimits:
    """Return the stock limits that hold a drive to a normalized rate.

    limit: normalized I/O operations a second, > 0; with `separate`, for reads and for writes
    each. mix: the drive's; None if unknown. Then no size from 4 KiB to 32 MiB gets more than
    OVERSHOOT_RATIO above its limit, and the worst gets as much of it as one iops_size can give. The
    same holds for smaller requests, unless the limit is below the cost of one.
    """
    most_ratio = 1 + OVERSHOOT_RATIO
    if mix is None:
        return _envelope(model, limit, separate, most_ratio)
    budgets = _budgets(model, limit, mix, separate, most_ratio)
    return _best(model, budgets, _STEPS_WITH_MIX)


def limits_for_any_size(
    model: CostModel, limit: float, *, separate: bool = False
) -> ThrottleLimits:
    """Return the same for an unknown mix, but so that no size gets more than its limit."""
    return _envelope(model, limit, separate, 1.0)


def scaled(limits: ThrottleLimits, ratio: float) -> ThrottleLimits:
    """Return limits that hold any mix to `ratio` times the rate that these hold it to."""
    alone = _iops_alone(limits)
    rates = {
        name: whole(value * ratio, alone=name in alone)
        for name in AVERAGES
        if (value := getattr(limits, name))
    }
    return UNLIMITED.with_fields({**rates, "iops_size": limits.iops_size})


def held_rates(limits: ThrottleLimits, mix: Mix | Rates, cost: float) -> tuple[float, float] | None:
    """Return the least and the highest normalized rate of a mix under limits, in endless demand.

    cost: of the mix, a second. None if nothing in the limits bounds the mix. The two rates differ
    if an iops bound holds requests of which only the mean size is known.
    """
    least = most = inf
    for _, most_bps, most_iops, flows, requests, sent in bounds_on(mix, limits):
        if not requests:
            continue
        if most_bps and sent:
            least, most = min(least, most_bps / sent), min(most, most_bps / sent)
        if most_iops:
            least = min(least, most_iops / _units(flows, limits.iops_size))
            units = sent / limits.iops_size if limits.iops_size else 0.0
            most = min(most, most_iops / max(requests, units))
    return (least * cost, most * cost) if least < inf else None


def _iops_alone(limits: ThrottleLimits) -> dict[str, int]:
    """Return the iops bounds beside which no bps bound holds the same requests, by field."""
    return {
        f"iops_{way}": iops
        for way in ("total", "read", "write")
        if (iops := getattr(limits, f"iops_{way}"))
        and not (limits.bps_total or getattr(limits, f"bps_{way}"))
    }


@lru_cache(maxsize=1024)
def _envelope(model: CostModel, limit: float, separate: bool, most_ratio: float) -> ThrottleLimits:
    budgets = _budgets(model, limit, NO_MIX, separate, most_ratio)
    return _best(model, budgets, _STEPS_WITHOUT_MIX)


def _best(model: CostModel, budgets: Sequence[_Budget], steps_to_a_doubling: int) -> ThrottleLimits:
    best = max(
        _iops_sizes(model, steps_to_a_doubling),
        key=lambda iops_size: min(budget.worst_service(iops_size) for budget in budgets),
    )
    values = {"iops_size": best}
    for budget in budgets:
        values |= budget.values(best)
    return UNLIMITED.with_fields(values)


#: A price of a byte p, g(p) of each curve, and the sum of these.
_Price: TypeAlias = tuple[float, tuple[float, ...], float]


@dataclass(frozen=True, slots=True)
class _Bound:
    """One iops bound of a budget: the curve that prices its requests, and the mix's flows."""

    field: str
    curve: CostCurve
    flows: tuple[Flow, ...]


@dataclass(frozen=True, slots=True)
class _Budget:
    """One limit and the bounds that together hold it.

    most: the highest cost of any traffic until the next retune. bps: the tight bound in bytes a
    second, 0 if no mix is known. scale: the factor from the mix to the limit. flat: all requests
    cost the same, so that iops is the tight bound.
    """

    limit: float
    most: float
    field: str
    bps: float
    bounds: tuple[_Bound, ...]
    scale: float
    flat: bool = False

    def values(self, iops_size: int | None) -> dict[str, int]:
        """Return the budget's fields of ThrottleLimits."""
        iops = self._iops(iops_size)
        values = {
            bound.field: units
            for bound, units in zip(self.bounds, self._rounded(iops, iops_size), strict=True)
        }
        if self.bps:
            values[self.field] = whole(self.bps)
        elif min(iops) < 1:  # less than a request a second: only bytes can hold it
            values[self.field] = whole(self.most * self._bytes_of_one(iops_size), alone=True)
        return values

    def _iops(self, iops_size: int | None) -> list[float]:
        """Return each bound's S: the mix's own need, and the largest spare on top."""
        if self.flat:
            return [self.limit / self.bounds[0].curve.points[0][1]]
        clearance = self.scale * _CLEARANCE_RATIO
        needs = [clearance * _units(bound.flows, iops_size) for bound in self.bounds]
        spare = max(
            [
                (self.most - price * self.bps - _dot(needs, gains)) / total
                for price, gains, total in self._prices(iops_size)
            ]
        )
        # Beside bytes, this bucket is full when the smallest requests come.
        most = self.limit if self.bps else self.most
        return [
            min(
                need or _IDLE_SHARE * self.limit / bound.curve.cost(iops_size or 1),
                most / bound.curve.points[0][1],
            )
            if spare <= 0
            else min(need + spare, most / bound.curve.points[0][1])
            for need, bound in zip(needs, self.bounds, strict=True)
        ]

    def _rounded(self, iops: Sequence[float], iops_size: int | None) -> list[int]:
        """Return the bounds as QEMU takes them: rounded down, unless the mix needs more."""
        if self.flat:
            return [whole(units) for units in iops]
        down = [whole(units, alone=True) for units in iops]
        needs = [_ROOM_RATIO * self.scale * _units(bound.flows, iops_size) for bound in self.bounds]
        return [max(s, math.ceil(need)) for s, need in zip(down, needs, strict=True)]

    def worst_service(self, iops_size: int | None) -> float:
        """Return the least that requests all of one size get, as a ratio of the limit.

        It is negative if some traffic could cost more than `most`, by as much as that.
        """
        iops = self._rounded(self._iops(iops_size), iops_size)
        dearest = min(
            [price * self.bps + _dot(iops, gains) for price, gains, _ in self._prices(iops_size)]
        )
        excess = (dearest - self.most) / self.limit
        if excess > ROUNDING:
            return -excess
        bps, limit = self.bps, self.limit
        return min(
            [
                (min(units / charge, bps / size) if bps else units / charge) * cost / limit
                for bound, units in zip(self.bounds, iops, strict=True)
                for size, cost, charge in _sizes(bound.curve, iops_size)
            ]
        )

    def _bytes_of_one(self, iops_size: int | None) -> float:
        """Return how many bytes of the dearest ones cost one normalized operation."""
        sizes = [entry for bound in self.bounds for entry in _sizes(bound.curve, iops_size)]
        return min(size / cost for size, cost, _ in sizes)

    def _prices(self, iops_size: int | None) -> Sequence[_Price]:
        table = gains_by_price(tuple(bound.curve for bound in self.bounds), iops_size)
        return table if self.bps else table[:1]


def _budgets(
    model: CostModel, limit: float, mix: Mix, separate: bool, most_ratio: float
) -> tuple[_Budget, ...]:
    read = _Bound("iops_read", model.read, (mix.read,))
    write = _Bound("iops_write", model.write, (mix.write,))
    if separate:
        # One iops_size is for both: it charges all by their size if it has to do so for one.
        exact = _iops_is_exact(model.read, limit) and _iops_is_exact(model.write, limit)
        return (
            _budget(limit, most_ratio, "bps_read", (read,), exact=exact),
            _budget(limit, most_ratio, "bps_write", (write,), exact=exact),
        )
    if model.same:
        bounds: tuple[_Bound, ...] = (_Bound("iops_total", model.read, (mix.read, mix.write)),)
    elif mix == NO_MIX:
        bounds = (_Bound("iops_total", dearer_curve(model), ()),)
    else:
        bounds = (read, write)
    exact = len(bounds) == 1 and _iops_is_exact(bounds[0].curve, limit)
    return (_budget(limit, most_ratio, "bps_total", bounds, exact=exact),)


def _budget(
    limit: float, most_ratio: float, field: str, bounds: tuple[_Bound, ...], *, exact: bool
) -> _Budget:
    """Return a budget of these bounds. exact: their iops alone hold them to it."""
    if exact:
        return _Budget(limit, limit, field, 0.0, bounds, 0.0)
    most = most_ratio * limit
    cost = fsum(flow_cost(bound.curve, flow) for bound in bounds for flow in bound.flows)
    if cost <= 0:
        return _Budget(limit, most, field, 0.0, bounds, 0.0)
    scale = limit / cost
    bps = scale * fsum(flow.bps for bound in bounds for flow in bound.flows)
    size, least = bounds[0].curve.points[0]
    requests = scale * fsum(flow.raw_iops for bound in bounds for flow in bound.flows)
    is_flat = least * requests >= (1 - ROUNDING) * limit  # and not only small in the mean
    if is_flat and len(bounds) == 1 and bps < size * requests:
        return _Budget(limit, most, field, size * limit / least, bounds, scale, flat=True)
    return _Budget(limit, most, field, bps, bounds, scale)


def _iops_is_exact(curve: CostCurve, limit: float) -> bool:
    """Return whether a whole number of requests a second costs the limit, of whatever size."""
    costs, units = {cost for _, cost in curve.points}, limit / curve.points[0][1]
    return len(costs) == 1 and whole(units, alone=True) >= _ROOM_RATIO * units >= 1


def whole(rate: float, *, alone: bool = False) -> int:
    """Return a bound as QEMU takes it. It is rounded down if it holds a drive alone."""
    units = math.floor(rate * (1 + ROUNDING)) if alone else round(rate)
    return min(max(1, units), MOST)


def _units_of(size_bytes: float, iops_size: int | None) -> float:
    return max(1.0, size_bytes / iops_size) if iops_size else 1.0


def _units(flows: Iterable[Flow], iops_size: int | None) -> float:
    """Return the most that the iops bounds charge flows a second.

    Requests of different sizes are charged more than requests that all have their mean size,
    because a small one is charged 1 however small it is. The difference is at most 1.
    """
    total = 0.0
    for flow in flows:
        if flow.raw_iops > 0:
            mean = flow.bps / flow.raw_iops
            if iops_size is None or is_one_size(mean, flow.seen_bytes):
                units = _units_of(mean, iops_size)
            else:
                units = 1 + mean / iops_size
            total += flow.raw_iops * units
    return total


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    if len(a) == 1:  # as nearly always, and in the innermost loop
        return a[0] * b[0]
    return fsum(x * y for x, y in zip(a, b, strict=True))


@lru_cache(maxsize=4096)
def _sizes(curve: CostCurve, iops_size: int | None) -> tuple[tuple[int, float, float], ...]:
    """Return (size, cost, units charged) of each size at which a curve's worst case can lie."""
    sizes = {size for size, _ in curve.points}.union(_POWERS)
    if iops_size:
        sizes.add(iops_size)
    return tuple((s, curve.cost(s), _units_of(s, iops_size)) for s in sorted(sizes))


@lru_cache(maxsize=64)
def _iops_sizes(model: CostModel, to_a_doubling: int) -> tuple[int | None, ...]:
    """Candidates for iops_size: none, and a geometric grid over the curves' range."""
    sizes = [size for curve in (model.read, model.write) for size, _ in curve.points]
    low, high = min(SMALLEST_REQUEST_BYTES, *sizes), max(SMALLEST_REQUEST_BYTES, *sizes)
    low = 1 << low.bit_length() - 1
    steps = math.ceil(math.log2(high / low) * to_a_doubling)
    return (None, *(round(low * 2 ** (i / to_a_doubling)) for i in range(steps + 1)))


@lru_cache(maxsize=64)
def dearer_curve(model: CostModel) -> CostCurve:
    """Return a curve that is nowhere below either of a model's."""
    curves = (model.read, model.write)
    sizes = sorted({size for curve in curves for size, _ in curve.points})
    points = [(s, max(curve.cost(s) for curve in curves)) for s in sizes]
    # If they cross between two points, the line between these is above both. Beyond the last, both
    # go on, and the steeper one may be the lower one there.
    last, cost = points[-1]
    rise = max(curve.cost(2 * last) - curve.cost(last) for curve in curves)
    return CostCurve((*points, (2 * last, cost + rise)), checked=False)


@lru_cache(maxsize=4096)
def gains_by_price(curves: tuple[CostCurve, ...], iops_size: int | None) -> tuple[_Price, ...]:
    """Return prices of a byte from 0 to the dearest there is."""
    tables = [_sizes(curve, iops_size) for curve in curves]
    by_byte = [cost / size for table in tables for size, cost, _ in table]
    cheapest, dearest = _CHEAPEST_RATIO * min(by_byte), max(by_byte)
    step = (dearest / cheapest) ** (1 / (_BYTE_PRICES - 1))
    prices = [0.0, *(cheapest * step**i for i in range(_BYTE_PRICES))]
    found = []
    for p in prices:
        gains = tuple(max(_LEAST_GAIN, *((c - p * s) / units for s, c, units in t)) for t in tables)
        found.append((p, gains, fsum(gains)))
    return tuple(found)
