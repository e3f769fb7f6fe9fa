"""What a storage can serve now: its capacity, corrected by the latency that it shows.

Two feedbacks, both of one kind: down fast, up slowly, within bounds.

- The *ratio* corrects what was configured or calibrated. With l the mean latency of the
  storage's own requests in the last interval of t seconds, and T its target:

      l > T, while it is loaded:              ratio *= max(DOWN_MOST, (T / l)**DOWN_POWER)**t
      l < CALM_RATIO * T, demand unmet:       ratio *= (1 + UP_RATIO * (1 - l / T))**t

  so it stays where it is while nobody wants more, and while the latency lies just below T.
- The *room* is the part of the capacity that drives without a latency target may use while
  others on the storage have one. It begins at HEADROOM_RATIO, so that a burst of a drive that was
  idle finds a device that isn't full, and follows the worst of l / T over the drives that have a
  target and were active, by the same law. While those are idle it stays where it is.
"""

from __future__ import annotations

DOWN_POWER = 0.5
DOWN_MOST = 0.7
UP_RATIO = 0.08
CALM_RATIO = 0.9
HEADROOM_RATIO = 0.85
# A reading after a gap is one reading: it moves nothing by more than so many seconds' worth.
LONGEST_S = 2.0


def follow(
    ratio: float, strain: float | None, *, short: bool, loaded: bool, elapsed_s: float
) -> float:
    """Return a ratio after one interval.

    strain: latency over its target, > 0; None where it isn't known, which changes nothing.
    short: whether somebody wants more than the ratio lets him have. loaded: whether the strain can
    be due to load at all.
    """
    if strain is None:
        return ratio
    elapsed_s = min(elapsed_s, LONGEST_S)
    if strain > 1 and loaded:
        return float(ratio * max(DOWN_MOST, strain**-DOWN_POWER) ** elapsed_s)
    if strain < CALM_RATIO and short:
        return float(ratio * (1 + UP_RATIO * (1 - strain)) ** elapsed_s)
    return ratio
