"""A mean that no single word moves."""

from __future__ import annotations

from collections.abc import Iterable

# A value with less than this part of the heaviest one's weight says nothing: else the idlest of two
# could outvote the other.
_COUNTS_RATIO = 0.05


def weighted_median(pairs: Iterable[tuple[float, float]]) -> float | None:
    """Return the value that has as much weight below it as above; None if nothing has weight.

    pairs: values and their weights, >= 0. No value decides alone: the heaviest weighs as much as
    all others together at most. Between two in the middle it is their mean, but if one of these has
    half of all weight by itself, it is the lower one. So of two values, the lower one counts.
    """
    known = sorted((value, weight) for value, weight in pairs if weight > 0)
    heaviest = max((weight for _, weight in known), default=0.0)
    known = [(value, weight) for value, weight in known if weight >= _COUNTS_RATIO * heaviest]
    if not known:
        return None
    total = sum(weight for _, weight in known)
    others = total - heaviest
    if others <= heaviest:
        return _by_one(known, heaviest)
    below = 0.0
    for number, (value, weight) in enumerate(known):
        below += weight
        if 2 * below == total:
            return (value + known[number + 1][0]) / 2
        if 2 * below > total:
            return value
    return known[-1][0]  # by rounding


def _by_one(known: list[tuple[float, float]], heaviest: float) -> float:
    """Return the median of sorted values of which one weighs as much as all others together."""
    place = next(number for number, (_, weight) in enumerate(known) if weight == heaviest)
    return known[place if place < len(known) - 1 else max(0, place - 1)][0]
