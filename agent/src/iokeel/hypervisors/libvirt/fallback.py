"""The limits that libvirt itself keeps of a drive whose QEMU charges by a curve.

libvirt knows no curve, and puts its own limits in force in each new QEMU: when a guest is restored,
or when it arrives by migration. So its own have to hold the drive without a curve.
"""

from __future__ import annotations

from typing import NamedTuple

from iokeel.core.curve import CostModel
from iokeel.core.drive.envelope import limits_for_any_size
from iokeel.core.limits import ThrottleLimits

# libvirt's own limits may be for less than those in force, down to this part of them: telling it
# anew at each small change would empty QEMU's buckets each time.
_LEAST_RATIO = 0.5


class Fallback(NamedTuple):
    """Limits for stock QEMU, and the limits with a curve that they stand in for."""

    limits: ThrottleLimits
    exact: ThrottleLimits


def fallback_for(exact: ThrottleLimits, before: Fallback | None) -> Fallback:
    """Return the fallback of limits with a curve; the one before if it is still good.

    No request size gets more by it than by `exact`.
    """
    if before is not None and _is_good(before.exact, exact):
        return before
    assert exact.cost_read is not None
    assert exact.cost_write is not None
    model, separate = CostModel(exact.cost_read, exact.cost_write), exact.iops_total is None
    limits = limits_for_any_size(model, _rate(exact), separate=separate)
    return Fallback(limits, exact)


def _is_good(before: ThrottleLimits, exact: ThrottleLimits) -> bool:
    """Return whether a fallback that was made for other limits is good for these, too."""
    alike = _shape(before) == _shape(exact)
    return alike and _LEAST_RATIO * _rate(exact) <= _rate(before) <= _rate(exact)


def _shape(exact: ThrottleLimits) -> tuple[object, ...]:
    return exact.cost_read, exact.cost_write, exact.iops_total is None


def _rate(exact: ThrottleLimits) -> int:
    """Return the normalized rate; of separate budgets, that of each."""
    return exact.iops_total or exact.iops_read or 1
