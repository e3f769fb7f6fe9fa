"""The limits that libvirt itself keeps of a drive whose QEMU charges by a curve.

libvirt knows no curve, and puts its own limits in force in each new QEMU: when a guest is restored,
or when it arrives by migration. So its own have to hold the drive without a curve.
"""

from __future__ import annotations

from typing import NamedTuple

from iokeel.core.drive.exact import FALLBACK_LEAST_RATIO, fallback_of, rate_of
from iokeel.core.limits import ThrottleLimits


class Fallback(NamedTuple):
    """Limits for stock QEMU, and the limits with a curve that they stand in for."""

    limits: ThrottleLimits
    exact: ThrottleLimits


def fallback_for(exact: ThrottleLimits, before: Fallback | None) -> Fallback:
    """Return the fallback of limits with a curve; the one before if it is still good.

    One for somewhat less is: telling libvirt anew at each small change would empty QEMU's buckets
    each time. No request size gets more by it than by `exact`.
    """
    if before is not None and _is_good(before.exact, exact):
        return before
    return Fallback(fallback_of(exact), exact)


def _is_good(before: ThrottleLimits, exact: ThrottleLimits) -> bool:
    """Return whether a fallback that was made for other limits is good for these, too."""
    alike, rate = _shape(before) == _shape(exact), rate_of(exact)
    return alike and FALLBACK_LEAST_RATIO * rate <= rate_of(before) <= rate


def _shape(exact: ThrottleLimits) -> tuple[object, ...]:
    return exact.cost_read, exact.cost_write, exact.iops_total is None
