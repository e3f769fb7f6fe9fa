"""Whether a storage's rate is one figure, or two, or none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

# What differs by more is not one figure.
SPREAD_RATIO = 0.15
# A mode is what a storage is in for a part of the time, not once.
_LEAST_SHARE = 0.15
_LEAST_SAMPLES = 3
# Modes have more empty space between them than within.
_LEAST_GAP_RATIO = 0.5
# A rate is not counted from fewer requests: chance alone would spread it.
_LEAST_REQUESTS = 400


@dataclass(frozen=True, slots=True)
class Steadiness:
    """How rates are spread.

    spread_ratio: from the lowest tenth to the highest tenth, over the median. modes: the mean
    rates of the two sets that they fall into, lower first; None where there are no two.
    lower_share: the part of the rates in the lower set, 0 to 1.
    """

    spread_ratio: float
    modes: tuple[float, float] | None = None
    lower_share: float = 0.0

    @property
    def steady(self) -> bool:
        """Whether one figure tells the rate."""
        return self.modes is None and self.spread_ratio <= SPREAD_RATIO


def steadiness(rates: Sequence[float]) -> Steadiness:
    """Return how rates, at least one and none negative, are spread."""
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


def pooled(runs: Sequence[Sequence[float]], window_s: float) -> list[float]:
    """Return rates over spans long enough to be counted, from runs' rates by window.

    Windows of a run are joined until a span has some hundred requests on average; a span never
    has windows of two runs, and a run that is too short for one is one.
    """
    mean = fmean(rate for run in runs for rate in run)
    wanted = math.ceil(_LEAST_REQUESTS / (mean * window_s)) if mean else 1
    rates = []
    for run in runs:
        joined = min(len(run), wanted)
        rates += [fmean(run[i : i + joined]) for i in range(0, len(run) - joined + 1, joined)]
    return rates
