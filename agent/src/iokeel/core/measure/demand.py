"""Tells which of its limits hold a drive, and what it would do if they didn't: its demand.

A drive's storage may hold it, too. The counters don't tell, but the next ones do: a drive that its
storage holds does more as soon as others make way. So a drive that does more than lately is taken
to go on growing, and to want its reservation or some times its rate, until it stops growing. That
costs the others the part that it doesn't use, for a tick or two.

All rates are normalized I/O operations a second.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from iokeel.core.values.counters import Rates, Throttled
from iokeel.core.values.limits import Abilities, ThrottleLimits
from iokeel.core.values.mix import bounds_on
from iokeel.core.values.policy import DrivePolicy
from iokeel.core.values.state import Demand, DriveState, Measured

#: A drive at its limit measures a few percent to either side of it. So a bound counts as full from
#: this much below it, and the drive as bursting from this much above it; in between, it neither
#: saves nor spends credit. A QEMU that counts waits tells directly: a bound holds a drive if
#: requests wait for it for this part of the time.
BAND_RATIO = 0.05
FULL_RATIO = 1 - BAND_RATIO
# How many intervals before the last one count. If others' limits change on stock QEMU, the gift
# disturbs a drive for one interval, and it needs one to come back; neither is a change of its
# demand. But a demand that has really gone is remembered for as long, and leaves its storage idle.
INTERVALS_WITH_GIFTS = 2
# The same without gifts: one interval may be a dip.
_INTERVALS = 1
# A drive grows if it does this much more than in all of them.
GROWING_RATIO = 1.1
# This many times the increase is then added to its rate. So the next increase may be twice as large
# before the drive's share holds it.
GROWTH = 2.0
# It wants its reservation, but no more than so many times its rate: a few requests of a guest's own
# are no sign that it is about to want all of it.
WAKING = 8.0


class Use(NamedTuple):
    """The use of a drive's limits in an interval.

    full: a bound was used up. bursting: the drive did more than its limits without their burst.
    held: its limits, or their burst, held it. beside: a bound of its policy's beside the limit was
    used up (enforce/bounds.py). It wants no more than it did then.
    """

    full: bool = False
    bursting: bool = False
    held: bool = False
    beside: bool = False


NO_USE = Use()
# Of a drive whose requests all wait.
HELD = Use(held=True)


def use_of(
    limits: ThrottleLimits | None,
    rate_limit: float | None,
    did: Rates,
    rate: float,
    *,
    charged: bool,
) -> Use:
    """Return the use of limits in an interval.

    limits: those in force; None if there are none of ours. rate_limit: the normalized rate that
    they and their burst hold the drive to. rate: the normalized rate of the interval, the larger
    one of two budgets. charged: QEMU charges iops bounds by our curve.
    """
    if limits is None or not _full(limits, did, rate if charged else None, FULL_RATIO):
        return NO_USE
    at_limit = rate >= FULL_RATIO * (rate_limit or 0.0)
    bursting = at_limit or bool(_full(limits, did, rate if charged else None, 1 + BAND_RATIO))
    return Use(True, bursting, held=not bursting or at_limit)


def full_bounds(known: DriveState) -> list[str]:
    """Return the fields of the limits in force that the last interval used up.

    Or the attributes of the policy's bounds beside the limit.
    """
    limits, did = known.sent.limits, known.measured.rates
    if limits is None or did is None:
        return []
    policy, base = known.policy, known.pricing.base
    if policy is not None and policy.has_bounds:
        abilities = known.abilities
        charged = known.measured.budget_rate if abilities and abilities.cost_curve else None
        full = [] if base is None else _full(base, did, charged, FULL_RATIO)
        return [*full, *full_beside(limits, base, policy, did, charged)]
    if did.throttled is not None:
        return _waited_for(limits, did.throttled, known.demand.held_s)
    abilities = known.abilities
    charged = known.measured.budget_rate if abilities is not None and abilities.cost_curve else None
    return _full(limits, did, charged, FULL_RATIO)


def full_beside(
    limits: ThrottleLimits,
    base: ThrottleLimits | None,
    policy: DrivePolicy,
    did: Rates,
    charged: float | None,
    ratio: float = FULL_RATIO,
) -> list[str]:
    """Return the attributes of a policy's bounds beside the limit that an interval used up.

    limits: those in force. base: the same without these bounds; None without a limit. charged,
    ratio: as for `_full`.
    """
    inner = [] if base is None else _full(base, did, charged, ratio)
    found = dict[str, None]()
    for field in _full(limits, did, charged, ratio):
        if field in inner:
            continue
        most, unit, way = policy.max_bytes, *field.split("_")
        is_bytes = most and unit == "bps" and getattr(limits, field) in (most, max(1, most // 2))
        found["max-bytes" if is_bytes else f"limit-{way}"] = None
    return [*found]


def _waited_for(limits: ThrottleLimits, did: Throttled, most_s: float) -> list[str]:
    """Return the iops fields for which requests have waited.

    most_s: for how long they did, for any of them.
    """
    held_s = {
        way: min(most_s, did.held_s(write)) for way, write in (("read", False), ("write", True))
    }
    held_s["total"] = max(held_s.values())
    return [
        f"iops_{suffix}"
        for suffix in ("total", "read", "write")
        if getattr(limits, f"iops_{suffix}") and held_s[suffix] >= BAND_RATIO * did.elapsed_s
    ]


def _full(limits: ThrottleLimits, did: Rates, charged: float | None, ratio: float) -> list[str]:
    """Return the fields of which at least `ratio` is used, bursts not counted.

    charged: QEMU's charge a second by a cost curve, the larger one of two budgets; None if it
    charges by the request.
    """
    full = []
    for way, most_bps, most_iops, _, requests, bps in bounds_on(did, limits):
        if most_bps and bps >= ratio * most_bps:
            full.append(f"bps_{way}")
        if most_iops:
            if charged is not None:
                requests = charged
                if way != "total" and did.throttled is not None:
                    requests = did.throttled.rate_of(write=way == "write")
            elif limits.iops_size:
                requests = max(requests, bps / limits.iops_size)
            if requests >= ratio * most_iops:
                full.append(f"iops_{way}")
    return full


def demand_after(
    before: Demand,
    measured: Measured,
    use: Use,
    reservation: int,
    abilities: Abilities | None,
    paid_rate: int | None,
) -> Demand:
    """Return a drive's demand after an interval whose rates are known.

    use: of its limits. reservation: of its policy. paid_rate: the iops limit, without its burst, by
    which charges by the curve are paid; None if QEMU doesn't charge by it.
    """
    assert measured.rates is not None
    assert measured.rate is not None
    assert measured.counters is not None
    held_s, unpaid = _held(before.unpaid, measured, use, paid_rate)
    recent, rate = demand_rate(before.recent, measured.rate, reservation, abilities)
    return Demand(
        recent,
        rate,
        backlogged=use.held,
        backlogged_ns=measured.counters.at_ns if use.held else before.backlogged_ns,
        at_limit=not use.bursting if use.full and use.held else before.at_limit,
        throttled_s=before.throttled_s + held_s,
        held_s=held_s,
        unpaid=unpaid,
    )


def demand_rate(
    recent: tuple[float, ...], rate: float, reservation: float, abilities: Abilities | None
) -> tuple[tuple[float, ...], float]:
    """Return a drive's rates in the last intervals, newest first, and its demand.

    recent: as this returned it an interval before. rate: of the interval just ended.
    """
    has_gifts = abilities is None or not abilities.keeps_levels
    intervals = INTERVALS_WITH_GIFTS if has_gifts else _INTERVALS
    most = max(recent) if recent else rate
    demand = max(rate, most)
    if rate > GROWING_RATIO * most:
        demand = max(rate + GROWTH * (rate - most), min(float(reservation), WAKING * rate))
    return (rate, *recent[: intervals - 1]), demand


def _held(
    unpaid: float, measured: Measured, use: Use, paid_rate: int | None
) -> tuple[float, float]:
    """Return how long a drive was throttled in an interval, in seconds, and what is unpaid then.

    The waits of requests that wait side by side add up to more than that. But a request only waits
    while earlier charges are unpaid, and these are paid at the rate of the limits.
    """
    did, rate = measured.rates, measured.budget_rate
    assert did is not None
    if did.throttled is None:
        return (did.elapsed_s if use.full or use.beside else 0.0), 0.0
    most_s, left = inf, 0.0
    if paid_rate and rate is not None:
        charges = unpaid + rate * did.elapsed_s
        most_s, left = charges / paid_rate, max(0.0, charges - paid_rate * did.elapsed_s)
    if did.throttled.nothing_waited:
        return 0.0, left
    reads_s = did.throttled.held_s(write=False, most_s=most_s)
    return max(reads_s, did.throttled.held_s(write=True, most_s=most_s)), left
