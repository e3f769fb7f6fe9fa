"""Tells which drives did more than their limits let through: these may not be in force any more.

Somebody may set limits past libvirt, or over another monitor, and nobody is told of it. A drive
that does no more than its limits allow can wait for the next regular reading of them. One that does
more can't.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from iokeel.core.measure.rates import is_absurd
from iokeel.core.values.counters import NS_PER_S, DriveId, Rates
from iokeel.core.values.limits import BUCKET_S, ThrottleLimits
from iokeel.core.values.mix import bounds_on
from iokeel.core.values.observation import DriveSeen
from iokeel.core.values.state import NEW, DriveState

# Requests count when they end: what was let through in an earlier interval may end in this one.
_MORE_RATIO = 1.25


def beyond_limits(
    before: Mapping[DriveId, DriveState],
    now: Mapping[DriveId, DriveState],
    seen: Mapping[DriveId, DriveSeen],
) -> list[DriveId]:
    """Return the drives that did more in the last interval than our limits let through.

    before: the drives before a look at `seen`; now: after it. Limits that were new in the interval
    tell nothing, nor do those that are charged by a curve: such a QEMU tells them at each tick.
    """
    found = []
    for drive, there in seen.items():
        known, measured = before.get(drive), now[drive].measured
        did, last = measured.rates, measured.counters
        if known is None or did is None or last is None or there.counters is None:
            continue
        limits = known.sent.limits
        if limits is None or limits.cost_read is not None or there.in_force != limits:
            continue
        began_ns = last.at_ns - round(did.elapsed_s * NS_PER_S)
        if known.sent.at_ns <= began_ns and _is_beyond(limits, did):
            found.append(drive)
    return found


def beyond_belief(
    before: Mapping[DriveId, DriveState],
    now: Mapping[DriveId, DriveState],
    seen: Iterable[DriveId],
) -> list[DriveId]:
    """Return the drives whose new counters tell more than any drive can do: they count for nothing.

    before: the drives before a look at `seen`; now: after it.
    """
    found = []
    for drive in seen:
        measured = now[drive].measured
        if measured.rates is None and measured.counters is not None:
            last = before.get(drive, NEW).measured.counters
            if last is not None and is_absurd(last, measured.counters):
                found.append(drive)
    return found


def _is_beyond(limits: ThrottleLimits, did: Rates) -> bool:
    """Return whether an interval had more than limits let through, their bursts included."""
    for way, most_bps, most_iops, _, requests, bps in bounds_on(did, limits):
        if most_bps and bps * did.elapsed_s > _most(limits, f"bps_{way}", most_bps, did.elapsed_s):
            return True
        if limits.iops_size:
            requests = max(requests, bps / limits.iops_size)
        if most_iops and requests * did.elapsed_s > _most(
            limits, f"iops_{way}", most_iops, did.elapsed_s
        ):
            return True
    return False


def _most(limits: ThrottleLimits, bound: str, average: float, elapsed_s: float) -> float:
    """Return the most that a bound lets through in a time, with some more for requests' ends."""
    burst, length_s = getattr(limits, f"{bound}_max"), getattr(limits, f"{bound}_max_length")
    if not burst:
        most = average * (elapsed_s + BUCKET_S)
    elif (length_s or 1) == 1:  # all of it at once (docs/throttle.txt)
        most = burst + average * elapsed_s
    else:
        most = burst * (elapsed_s + BUCKET_S)
    return _MORE_RATIO * float(most)
