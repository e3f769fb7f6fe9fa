"""Divides a capacity: reservations first, then the rest by weight, nothing wasted.

A claim has a reservation r, a weight w and a demand D. It is owed o = min(r, D). If more is owed
in all than the capacity C, everything owed is scaled down together, by `kept`. Else each gets

    o + min(w * level, D - o)

with the one level at which the sum is C. The level is infinite if the sum of all demands fits.
This is max-min fairness over the amounts on top of the reservations. One pass over the claims
finds it, in the order in which they are satisfied: O(n log n).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import fsum, inf

from iokeel.core.values.claimant import Claim, Division


def divide(capacity: float, claims: Sequence[Claim]) -> Division:
    """Divide a capacity (>= 0) among claims. Never gives more than it, nor more than they want."""
    owed = [min(claim.reservation, claim.wants) for claim in claims]
    total = fsum(owed)
    if total > capacity:
        kept = capacity / total
        return Division(tuple(kept * o for o in owed), 0.0, kept)
    rest = capacity - total
    extra = [claim.wants - o for claim, o in zip(claims, owed, strict=True)]
    amounts = [0.0] * len(claims)
    order = sorted(range(len(claims)), key=lambda i: extra[i] / claims[i].weight)
    # Summed from the end, so that a small weight isn't lost beside one that is served before it.
    weights = [*accumulate(claims[i].weight for i in reversed(order))][::-1]
    for place, (i, weight) in enumerate(zip(order, weights, strict=True)):
        if extra[i] * weight > rest * claims[i].weight:  # it and all after it want more
            level = rest / weight
            for j in order[place:]:
                amounts[j] = owed[j] + level * claims[j].weight
            return Division(tuple(amounts), level, 1.0)
        amounts[i] = claims[i].wants
        rest = max(0.0, rest - extra[i])
    return Division(tuple(amounts), inf, 1.0)


def cut_by_weight(budget: float, claims: Sequence[Claim], amounts: Sequence[float]) -> list[float]:
    """Cut amounts down to a budget, lowest weight first, never below the amounts owed.

    Claims of one weight give up the same part of their amounts on top of those owed. Returns the
    amounts left; they exceed the budget if only amounts owed are left.
    """
    excess = fsum(amounts) - budget
    left = list(amounts)
    order = sorted(range(len(claims)), key=lambda i: claims[i].weight)
    start = 0
    while excess > 0 and start < len(order):
        end = start
        while end < len(order) and claims[order[end]].weight == claims[order[start]].weight:
            end += 1
        floors = {i: min(claims[i].reservation, left[i]) for i in order[start:end]}
        above = fsum(left[i] - floor for i, floor in floors.items())
        part = min(1.0, excess / above) if above > 0 else 0.0
        for i, floor in floors.items():
            left[i] = floor if part == 1 else left[i] - part * (left[i] - floor)
        excess -= part * above
        start = end
    return left
