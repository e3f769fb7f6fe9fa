"""Puts a policy's other bounds into limits: bytes a second, and lower limits of reads or of writes.

The division and the pricing don't know these: they go by the limit. The bounds come into limits
last, so they hold whatever the drive's share is, and lift nothing. QEMU takes no bound on all bytes
beside one on those of reads or of writes. So with separate budgets max_bytes is for each of them.
While zeroes are held apart (zeroes.py), each has half of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor

from iokeel.core.enforce.envelope import whole
from iokeel.core.values.limits import UNLIMITED, ThrottleLimits
from iokeel.core.values.policy import DrivePolicy


def bytes_alone(policy: DrivePolicy) -> ThrottleLimits:
    """Return the limits of a drive that has no limit: none, or those of its bytes."""
    if policy.max_bytes is None:
        return UNLIMITED
    return _with_bytes(UNLIMITED, policy.max_bytes, separate=policy.separate_budgets)


def with_bounds(
    limits: ThrottleLimits, policy: DrivePolicy, rate: float, allowed: float, *, burst: bool = False
) -> ThrottleLimits:
    """Return limits with a policy's bounds.

    rate, allowed: what they hold each budget to, without and with a burst. burst: whether the
    drive's own is open, which lower limits of one direction have in proportion.
    """
    more = policy.burst / policy.limit if burst and policy.burst and policy.limit else 1.0
    for way, own in (("read", policy.limit_read), ("write", policy.limit_write)):
        if own is not None:
            limits = with_part(limits, way, min(1.0, own / rate), min(1.0, more * own / allowed))
    if policy.max_bytes is None:
        return limits
    return _with_bytes(limits, policy.max_bytes, separate=policy.separate_budgets)


def with_part(
    limits: ThrottleLimits, way: str, part: float, burst_part: float = 1.0
) -> ThrottleLimits:
    """Return limits that let one direction have a part of what it had, and of its burst.

    way: "read" or "write". part, burst_part: more than 0, at most 1.
    """
    changed: dict[str, int | None] = {}
    for name in (f"bps_{way}", f"iops_{way}"):
        if average := getattr(limits, name):
            changed[name] = least = whole(part * average, alone=True)
            if burst := getattr(limits, f"{name}_max"):
                changed[f"{name}_max"] = max(least, whole(burst_part * burst, alone=True))
    units, size = part * (getattr(limits, f"iops_{way}") or 1), limits.iops_size
    made = limits.with_fields(changed)
    if units < 1 and size:  # less than a request a second: only bytes can hold it
        made = at_most(made, {f"bps_{way}": max(1, floor(units * size))})
    return made


def _with_bytes(limits: ThrottleLimits, most: int, *, separate: bool) -> ThrottleLimits:
    """Return limits with a bound on bytes a second; with `separate`, on those of each direction."""
    if separate or limits.bps_read or limits.bps_write:
        each = most if separate else max(1, most // 2)
        return at_most(limits, {"bps_read": each, "bps_write": each})
    return at_most(limits, {"bps_total": most})


def at_most(limits: ThrottleLimits, bounds: Mapping[str, int]) -> ThrottleLimits:
    """Return limits of which some averages, and their bursts, are no higher than bounds.

    bounds: by the average's name.
    """
    changed: dict[str, int | None] = {}
    for name, bound in bounds.items():
        average, burst = getattr(limits, name) or bound, getattr(limits, f"{name}_max")
        changed[name] = min(average, bound)
        if burst is not None:
            changed[f"{name}_max"] = min(burst, bound) if average < bound else None
            if average >= bound:
                changed[f"{name}_max_length"] = None
    return limits.with_fields(changed)
