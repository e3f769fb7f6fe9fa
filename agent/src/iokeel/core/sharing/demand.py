"""Estimates a drive's demand: the rate that it would have if its own limits didn't hold it.

Its storage may hold it too. The counters don't tell, but the next ones do: a drive that its storage
holds does more as soon as others make way. So a drive that does more than lately is taken to go on
growing, and to want its reservation or some times its rate, until it stops growing. That costs the
others the part that it doesn't use, for a tick or two.

All rates are normalized I/O operations a second.
"""

from __future__ import annotations

from math import inf

from iokeel.core.abilities import Abilities
from iokeel.core.drive.binding import Use
from iokeel.core.state import Demand, Measured

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
        return (did.elapsed_s if use.full else 0.0), 0.0
    most_s, left = inf, 0.0
    if paid_rate and rate is not None:
        charges = unpaid + rate * did.elapsed_s
        most_s, left = charges / paid_rate, max(0.0, charges - paid_rate * did.elapsed_s)
    if did.throttled.nothing_waited:
        return 0.0, left
    reads_s = did.throttled.held_s(write=False, most_s=most_s)
    return max(reads_s, did.throttled.held_s(write=True, most_s=most_s)), left
