"""How a capacity is divided: reservations first, then the rest by weight, nothing wasted.

A claim has a reservation r, a weight w and what it wants at most, x. It is owed o = min(r, x).
Where the sum of what is owed is more than the capacity C, all of it is scaled down together, by
`kept`. Else each gets

    o + min(w * level, x - o)

with the one level at which the sum is C, or with no level at all (infinite) where the sum of
what is wanted fits. That is max-min fairness over what comes on top of the reservations, found
in one pass over the claims in the order in which they are satisfied: O(n log n).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import NamedTuple


class Claim(NamedTuple):
    """What one drive or tenant asks of a capacity, in its unit.

    reservation: >= 0. weight: > 0. wants: the most it can use, >= 0, inf where there is no end.
    """

    reservation: float
    weight: float
    wants: float = inf


@dataclass(frozen=True, slots=True)
class Division:
    """A capacity divided. amounts: what each claim gets, in their order.

    level: what a unit of weight gets on top of what is owed; inf where all wants fit. kept: the
    part of the reservations that fits, 0 to 1.
    """

    amounts: tuple[float, ...]
    level: float
    kept: float

    def entitled(self, claim: Claim) -> float:
        """Return what a claim would get at this level if it wanted more, inf for all it wants."""
        return self.kept * claim.reservation + claim.weight * self.level


def divide(capacity: float, claims: Sequence[Claim]) -> Division:
    """Divide a capacity (>= 0) among claims. Never gives out more than it, nor than is wanted."""
    owed = [min(claim.reservation, claim.wants) for claim in claims]
    total = sum(owed)
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
    """Take what amounts exceed a budget by, lowest weight first, never below what is owed.

    claims of one weight give up the same part of what they have on top of what they are owed.
    Returns the amounts left; they are above the budget where only what is owed is left.
    """
    excess = sum(amounts) - budget
    left = list(amounts)
    order = sorted(range(len(claims)), key=lambda i: claims[i].weight)
    start = 0
    while excess > 0 and start < len(order):
        end = start
        while end < len(order) and claims[order[end]].weight == claims[order[start]].weight:
            end += 1
        floors = {i: min(claims[i].reservation, left[i]) for i in order[start:end]}
        above = sum(left[i] - floor for i, floor in floors.items())
        part = min(1.0, excess / above) if above > 0 else 0.0
        for i, floor in floors.items():
            left[i] = floor if part == 1 else left[i] - part * (left[i] - floor)
        excess -= part * above
        start = end
    return left
