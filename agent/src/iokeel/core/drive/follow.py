"""Decides when a drive's limits follow its share.

A share moves as neighbours come and go. On stock QEMU a change of limits is a gift of BUCKET_S of
the rate. So limits follow once the error, summed over its time in force, comes to that: a large
move at once, and a small one later. A QEMU that keeps its buckets' levels hands out no gifts, so
limits follow each move of SHARE_RATIO at once. A drive below BUSY_RATIO of its rate only needs a
coarse limit, so its limits follow moves of LOOSE_RATIO. But a smaller part of a VM's limit is
followed at once, so that the limits of the VM's drives never add up to more.
"""

from __future__ import annotations

from iokeel.core.counters import NS_PER_S
from iokeel.core.drive.retune import is_due
from iokeel.core.limits import BUCKET_S
from iokeel.core.state import DriveState, VmPart

SHARE_RATIO = 0.01
LOOSE_RATIO = 0.25
BUSY_RATIO = 0.5


def share_has_moved(known: DriveState, allowed: float, now_ns: int) -> bool:
    """Return True if the drive's share differs enough from its limit to be worth a change.

    allowed: the rate that policy and share allow now.
    """
    held, at_ns = known.pricing.rate, known.sent.at_ns
    if held is None:
        return False
    if known.vm is not None and _has_too_much(known, known.vm, held):
        return True
    off = abs(allowed / held - 1)
    if off < SHARE_RATIO:
        return False
    rate = known.measured.rate or 0.0
    if not known.demand.backlogged and rate < BUSY_RATIO * min(allowed, held):
        return off > LOOSE_RATIO
    if known.abilities.keeps_levels:
        return True
    return is_due(at_ns, now_ns) and off * (now_ns - at_ns) > BUCKET_S * NS_PER_S


def _has_too_much(known: DriveState, vm: VmPart, held: float) -> bool:
    """Return whether a drive is held to more than its part of its VM's limit."""
    if vm.most is None or vm.sustained is None:
        return False
    base = known.pricing.base_rate or held
    return held > known.each_budget(vm.most) or base > known.each_budget(vm.sustained)
