"""What a drive wants that its own limits don't hold.

It may do all it wants, or all that its storage lets it do beside others. The counters don't tell,
but what comes after does: a drive that its storage holds does more as soon as others make way. So
one that does more than lately is taken to go on growing, and to want what it is owed, until it
stops. That costs the others what it doesn't use, for a tick or two.
"""

from __future__ import annotations

from iokeel.core.abilities import STOCK, Abilities

# How many intervals, besides the last, tell what a drive wants. When limits of others on stock QEMU
# change, that disturbs it for one, and it needs one to come back. Neither is a change of what it
# wants; but what it really leaves is idle for as long.
STOCK_INTERVALS = 2
EXACT_INTERVALS = 1
# By how much it has to do more than in all of them, and how often that is added to what it does.
GROWING_RATIO = 1.1
GROWTH = 2.0
# What an active drive may want of a storage that is too slow for its latency target, as a multiple
# of what it does there: nothing grows on a storage that is full.
HIDDEN = 2.0


def demand_after(
    lately: tuple[float, ...], rate: float, reservation: float, abilities: Abilities = STOCK
) -> tuple[tuple[float, ...], float]:
    """Return what a drive did in the last intervals, newest first, and what it wants.

    lately: what this returned an interval before. rate: what it did in the one just ended. All in
    normalized I/O operations a second.
    """
    intervals = EXACT_INTERVALS if abilities.keeps_levels else STOCK_INTERVALS
    most = max(lately, default=rate)
    demand = max(rate, most)
    if rate > GROWING_RATIO * most:
        demand = max(rate + GROWTH * (rate - most), float(reservation))
    return (rate, *lately[: intervals - 1]), demand


def hidden_demand(demand: float, busy_ratio: float) -> float:
    """Return what an active drive may want of a storage that is too slow.

    busy_ratio: the part of the interval in which the storage had something to do, above 0.
    """
    return HIDDEN * demand / busy_ratio
