"""How a storage's rate varies over time: one figure, two figures, or neither."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

# Rates that differ by more than this are not one figure.
SPREAD_RATIO = 0.15
# A set of rates is a mode if it has this part of them.
_LEAST_SHARE = 0.15
# It also has at least so many. Of fewer than 17 rates, that part is two at most, and one hiccup on
# the edge of two windows lowers both.
_LEAST_SAMPLES = 3
# The gap between two modes takes up at least this part of the distance between their means.
_LEAST_GAP_RATIO = 0.5
# Fewer requests than this don't make a rate: chance alone would spread it.
_LEAST_REQUESTS = 400


@dataclass(frozen=True, slots=True)
class Steadiness:
    """How rates are spread.

    spread_ratio: the distance from the lowest tenth to the highest tenth, over the median. modes:
    the mean rates of the two sets that the rates form, lower first; None if they form no two sets.
    lower_share: the part of the rates in the lower set, 0 to 1.
    """

    spread_ratio: float
    modes: tuple[float, float] | None = None
    lower_share: float = 0.0

    @property
    def steady(self) -> bool:
        """Whether one figure describes the rate."""
        return self.modes is None and self.spread_ratio <= SPREAD_RATIO


def steadiness(rates: Sequence[float]) -> Steadiness:
    """Return how rates are spread. Give at least one; none may be negative."""
    ranked = sorted(rates)
    middle = median(ranked)
    if not middle:
        return Steadiness(0.0 if not ranked[-1] else 1.0)
    tenth = len(ranked) // 10
    spread = (ranked[-1 - tenth] - ranked[tenth]) / middle
    least = max(_LEAST_SAMPLES, round(_LEAST_SHARE * len(ranked)))
    splits = range(least, len(ranked) - least + 1)
    if not splits:
        return Steadiness(spread)
    cut = max(splits, key=lambda i: ranked[i] - ranked[i - 1])
    low, high = fmean(ranked[:cut]), fmean(ranked[cut:])
    apart = high > (1 + SPREAD_RATIO) * low
    if not apart or ranked[cut] - ranked[cut - 1] < _LEAST_GAP_RATIO * (high - low):
        return Steadiness(spread)
    return Steadiness(spread, (low, high), cut / len(ranked))


def joined_windows(runs: Sequence[Sequence[float]], window_s: float) -> list[float]:
    """Return the runs' rates over spans that have enough requests to be counted.

    runs: each run's rates, one per window of `window_s`. Windows are joined until a span has some
    400 requests on average. No span crosses from one run to the next; a run too short for a span
    counts as one.
    """
    mean = fmean(rate for run in runs for rate in run)
    wanted = math.ceil(_LEAST_REQUESTS / (mean * window_s)) if mean else 1
    rates = []
    for run in runs:
        joined = min(len(run), wanted)
        rates += [fmean(run[i : i + joined]) for i in range(0, len(run) - joined + 1, joined)]
    return rates
