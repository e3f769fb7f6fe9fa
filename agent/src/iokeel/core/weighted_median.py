"""A mean that no single word moves."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate


def weighted_median(pairs: Iterable[tuple[float, float]]) -> float | None:
    """Return the least value that has half of all weight at or below it; None without any weight.

    pairs: values and their weights, >= 0. No value weighs more than all others together. So of two
    values, the lower one counts.
    """
    known = sorted((value, weight) for value, weight in pairs if weight > 0)
    if not known:
        return None
    heaviest = max(range(len(known)), key=lambda i: known[i][1])
    others = sum(weight for i, (_, weight) in enumerate(known) if i != heaviest)
    below = [
        *accumulate(
            min(weight, others) if i == heaviest else weight for i, (_, weight) in enumerate(known)
        )
    ]
    return known[bisect_left(below, below[-1] / 2)][0]
