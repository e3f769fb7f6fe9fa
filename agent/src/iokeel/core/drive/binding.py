"""Tells which bounds of a drive's limits hold it."""

from __future__ import annotations

from typing import NamedTuple

from iokeel.core.counters import Rates, Throttled
from iokeel.core.limits import ThrottleLimits
from iokeel.core.mix import bounds_on
from iokeel.core.state import DriveState

# A bound counts as full once this part of it is used, and the drive as bursting above that part. A
# drive at its limit measures a few percent to either side, so it neither saves nor spends credit.
FULL_RATIO = 0.95
_BURSTING_RATIO = 1.05
# A QEMU that counts waits tells directly: a bound holds a drive if requests wait for it for at
# least this part of the time.
_WAITING_RATIO = 0.05


class Use(NamedTuple):
    """The use of a drive's limits in an interval.

    full: a bound was used up. bursting: the drive did more than its limits without their burst.
    held: its limits, or their burst, held it.
    """

    full: bool = False
    bursting: bool = False
    held: bool = False


NO_USE = Use()
# Of a drive whose requests all wait.
HELD = Use(held=True)


def use_of(
    limits: ThrottleLimits | None,
    rate_limit: float | None,
    did: Rates,
    rate: float,
    *,
    charged: bool,
) -> Use:
    """Return the use of limits in an interval.

    limits: those in force; None if there are none of ours. rate_limit: the normalized rate that
    they and their burst hold the drive to. rate: the normalized rate of the interval, the larger
    one of two budgets. charged: QEMU charges iops bounds by our curve.
    """
    if limits is None or not _full(limits, did, rate if charged else None, FULL_RATIO):
        return NO_USE
    at_limit = rate >= FULL_RATIO * (rate_limit or 0.0)
    bursting = at_limit or bool(_full(limits, did, rate if charged else None, _BURSTING_RATIO))
    return Use(True, bursting, held=not bursting or at_limit)


def full_bounds(known: DriveState) -> list[str]:
    """Return the fields of the limits in force that the last interval used up."""
    limits, did = known.sent.limits, known.measured.rates
    if limits is None or did is None:
        return []
    if did.throttled is not None:
        return _waited_for(limits, did.throttled, known.demand.held_s)
    abilities = known.abilities
    charged = known.measured.budget_rate if abilities is not None and abilities.cost_curve else None
    return _full(limits, did, charged, FULL_RATIO)


def _waited_for(limits: ThrottleLimits, did: Throttled, most_s: float) -> list[str]:
    """Return the iops fields for which requests have waited.

    most_s: for how long they did, for any of them.
    """
    held_s = {
        way: min(most_s, did.held_s(write)) for way, write in (("read", False), ("write", True))
    }
    held_s["total"] = max(held_s.values())
    return [
        f"iops_{suffix}"
        for suffix in ("total", "read", "write")
        if getattr(limits, f"iops_{suffix}") and held_s[suffix] >= _WAITING_RATIO * did.elapsed_s
    ]


def _full(limits: ThrottleLimits, did: Rates, charged: float | None, ratio: float) -> list[str]:
    """Return the fields of which at least `ratio` is used, bursts not counted.

    charged: QEMU's charge a second by a cost curve, the larger one of two budgets; None if it
    charges by the request.
    """
    full = []
    for way, most_bps, most_iops, _, requests, bps in bounds_on(did, limits):
        if most_bps and bps >= ratio * most_bps:
            full.append(f"bps_{way}")
        if most_iops:
            if charged is not None:
                requests = charged
            elif limits.iops_size:
                requests = max(requests, bps / limits.iops_size)
            if requests >= ratio * most_iops:
                full.append(f"iops_{way}")
    return full
