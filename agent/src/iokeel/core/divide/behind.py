"""Finds drives that have far less of a storage than their parts by weight.

A storage's target is no reason to hold guests back that nobody has promised anything, while all
that wait have about their parts: all would wait at their throttles for nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

from iokeel.core.correct.held_up import LEAST_QUEUE
from iokeel.core.divide.divide import divide
from iokeel.core.measure.storage import device_latency_s
from iokeel.core.values.claimant import Claimant
from iokeel.core.values.state import DriveState
from iokeel.core.values.storage import StorageActivity

# A drive is behind if the most that it did of late is less than this part of its due: in a second,
# equal guests differ by a third.
_BEHIND_RATIO = 0.7


def raise_behind(claimants: Sequence[Claimant], activity: StorageActivity | None) -> bool:
    """Return whether a drive waits for its storage, and does far less than its part by weight.

    Then it helps that drive to hold the others back, and it demands its part. That is of what all
    do, and it counts with the most that it did of late. activity: of the storage. A drive whose
    rate isn't known may be behind, and one whose latency isn't known may wait.
    """
    rates = [claimant.known.measured.rate for claimant in claimants]
    waits = [waits_for_storage(claimant.known, activity) for claimant in claimants]
    claims = [
        c.claim._replace(wants=c.most if waiting else rate or 0.0)
        for c, rate, waiting in zip(claimants, rates, waits, strict=True)
    ]
    parts = divide(fsum(rate or 0.0 for rate in rates), claims).amounts
    found = None in rates
    for claimant, part, waiting in zip(claimants, parts, waits, strict=True):
        if waiting and claimant.known.demand.rate < _BEHIND_RATIO * part:
            claimant.wants, found = max(claimant.wants, part), True
    return found


def waits_for_storage(known: DriveState, activity: StorageActivity | None) -> bool:
    """Return whether a drive's rate may depend on its storage's latency. activity: of that."""
    did = known.measured.rates
    if did is None or did.idle or known.demand.backlogged:
        return False
    latency_s = device_latency_s(known, activity)
    return latency_s is None or latency_s * (did.read.raw_iops + did.write.raw_iops) >= LEAST_QUEUE
