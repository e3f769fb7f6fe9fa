"""The rate that limits in force hold a drive to, when it isn't known what they were made for.

They may be an earlier agent's, or somebody else's. A price of a byte p >= 0 gives a bound on the
cost of any traffic under them (envelope.py). The least of these bounds is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import fsum, inf

from iokeel.core.enforce.envelope import OVERSHOOT_RATIO, ROUNDING, dearer_curve, gains_by_price
from iokeel.core.values.curve import CostCurve, CostModel
from iokeel.core.values.limits import ThrottleLimits


@lru_cache(maxsize=4096)
def rate_in_force(limits: ThrottleLimits, model: CostModel) -> float:
    """Return the normalized rate that limits hold any traffic to; inf if there is no end.

    It is that of reads and writes together, with the burst. For stock limits it is less than the
    dearest traffic by OVERSHOOT_RATIO, which limits of ours may be above their rate.
    """
    if limits.cost_read is not None:
        return fsum(_most(limits, f"iops_{way}") for way in _ways(limits, "iops"))
    size = limits.iops_size
    read, write = model.read, model.write
    bps = [_most(limits, f"bps_{way}") for way in _ways(limits, "bps")]
    iops = [_most(limits, f"iops_{way}") for way in _ways(limits, "iops")]
    if len(bps) == 2 and len(iops) == 2:
        cost = _cost(bps[0], iops[:1], (read,), size) + _cost(bps[1], iops[1:], (write,), size)
    else:
        curves = (dearer_curve(model),) if len(iops) == 1 else (read, write)
        cost = _cost(fsum(bps), iops, curves, size)
    return cost / (1 + OVERSHOOT_RATIO)


def _ways(limits: ThrottleLimits, unit: str) -> tuple[str, ...]:
    """Return how a bound is split: in total, or for reads and for writes."""
    split = getattr(limits, f"{unit}_read") or getattr(limits, f"{unit}_write")
    return ("read", "write") if split else ("total",)


def _most(limits: ThrottleLimits, name: str) -> float:
    average, burst = getattr(limits, name), getattr(limits, f"{name}_max")
    return inf if average is None else float(max(average, burst or 0))


def _cost(
    bps: float, iops: Sequence[float], curves: tuple[CostCurve, ...], size: int | None
) -> float:
    """Return the most that traffic costs within a bound of bytes, and one of requests a curve."""
    least = inf
    for price, gains, _ in gains_by_price(curves, size):
        by_bytes = price * bps if price else 0.0
        # At the dearest price of a byte there is nothing left for requests to add.
        by_requests = [
            0.0 if gain < ROUNDING else units * gain
            for units, gain in zip(iops, gains, strict=True)
        ]
        least = min(least, by_bytes + fsum(by_requests))
    return least
