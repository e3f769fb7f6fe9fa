"""Decides when a drive's limits follow its share.

A share moves as neighbours come and go. On stock QEMU a change of limits is a gift of BUCKET_S of
the rate. So limits follow once the error, summed over its time in force, comes to that: a large
move at once, and a small one later. A QEMU that keeps its buckets' levels hands out no gifts, so
limits follow each move of SHARE_RATIO at once. A drive below BUSY_RATIO of its rate only needs a
coarse limit, so its limits follow moves of LOOSE_RATIO. But a smaller part of a limit over several
drives is followed at once: their limits never add up to more.
"""

from __future__ import annotations

from iokeel.core.counters import NS_PER_S
from iokeel.core.drive.burst import carried
from iokeel.core.drive.retune import is_due
from iokeel.core.limits import BUCKET_S
from iokeel.core.policy import DrivePolicy
from iokeel.core.state import DriveState

SHARE_RATIO = 0.01
LOOSE_RATIO = 0.25
BUSY_RATIO = 0.5


def share_has_moved(known: DriveState, policy: DrivePolicy, allowed: float, now_ns: int) -> bool:
    """Return True if the drive's share differs enough from its limit to be worth a change.

    allowed: the rate that policy and share allow now.
    """
    held, at_ns = known.pricing.rate, known.sent.at_ns
    if held is None:
        return False
    off = abs(allowed / held - 1)
    if (most := known.parts_most) is not None and held > most:
        return True
    vm = known.vm
    if vm is not None and vm.part is not None and vm.sustained is not None:
        base = known.pricing.base_rate or held
        if vm.credit.open and base > known.each_budget(vm.sustained):
            return True
        off = max(off, carried(known, policy, allowed)[0] / base - 1)
    if off < SHARE_RATIO:
        return False
    rate = known.measured.budget_rate or 0.0
    if not known.demand.backlogged and rate < BUSY_RATIO * min(allowed, held):
        return off > LOOSE_RATIO
    if known.keeps_levels:
        return True
    return is_due(at_ns, now_ns) and off * (now_ns - at_ns) > BUCKET_S * NS_PER_S
