"""A mean that no single word moves."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from math import fsum

# Of all weight: sums of weights are rounded, and a tie is one anyway.
_HALF = 0.5 * (1 - 1e-9)


def weighted_median(pairs: Iterable[tuple[float, float]]) -> float | None:
    """Return the least value that has half of all weight at or below it; None without any weight.

    pairs: values and their weights, >= 0. No value weighs more than all others together. So of two
    values, the lower one counts.
    """
    known = sorted((value, weight) for value, weight in pairs if weight > 0)
    if not known:
        return None
    weights = [weight for _, weight in known]
    heaviest = weights.index(max(weights))
    weights[heaviest] = min(weights[heaviest], fsum(weights[:heaviest] + weights[heaviest + 1 :]))
    below = [*accumulate(weights)]
    return known[bisect_left(below, _HALF * below[-1])][0]
