"""Tells whether the promises to a drive were kept in an interval.

An interval without a request tells nothing. Otherwise a drive's

- *reservation* is missed if the drive did less than 95 % of it, and of its demand. If its limits
  held it, it wanted more. If its storage may have held it up, its demand is that of
  correct/held_up.py, or unknown. Otherwise it wanted no more than it did;
- *limit*, or its burst while that is open, is missed if the drive did more than 105 % of what the
  limit and its bucket let through;
- *latency target* is missed if the drive counts as suffering (measure/storage.py).

A request counts as a whole when it ends. So one more or less is no miss.
"""

from __future__ import annotations

from math import inf

from iokeel.core.divide.behind import waits_for_storage
from iokeel.core.measure.demand import BAND_RATIO, FULL_RATIO
from iokeel.core.measure.storage import drive_strain
from iokeel.core.values.counters import DriveId
from iokeel.core.values.limits import BUCKET_S
from iokeel.core.values.policy import DrivePolicy
from iokeel.core.values.state import DriveState, StorageState

RESERVATION, LIMIT, LATENCY_TARGET = "reservation", "limit", "latency_target"


def promises_of(policy: DrivePolicy | None) -> list[str]:
    """Return what a policy promises."""
    if policy is None:
        return []
    made = (policy.reservation or None, policy.limit, policy.latency_target_ms)
    names = (RESERVATION, LIMIT, LATENCY_TARGET)
    return [name for name, figure in zip(names, made, strict=True) if figure is not None]


def kept(
    drive: DriveId, before: DriveState, known: DriveState, storage: StorageState | None
) -> list[tuple[str, bool]]:
    """Return which promises a drive's last interval tells of, and whether each was kept.

    before: its state before the reading that ends the interval, with the policy of then. storage:
    its own; None if that isn't known.
    """
    policy, did, rate = before.policy, known.measured.rates, known.measured.rate
    if policy is None or did is None or not rate:
        return []
    found: list[tuple[str, bool]] = []
    one = rate / max(1.0, (did.read.raw_iops + did.write.raw_iops) * did.elapsed_s)
    if policy.reservation:
        owed = policy.reservation
        if rate + one < FULL_RATIO * owed:
            demand = _demand(drive, known, storage)
            if demand is not None:
                found.append((RESERVATION, rate + one >= FULL_RATIO * min(owed, demand)))
        else:
            found.append((RESERVATION, True))
    ceiling, budget_rate = before.ceiling, known.measured.budget_rate
    if ceiling is not None and budget_rate is not None:
        most = (1 + BAND_RATIO) * ceiling * (1 + BUCKET_S / did.elapsed_s)
        found.append((LIMIT, budget_rate - one <= most))
    if policy.latency_target_ms is not None:
        strain = drive_strain(known, None if storage is None else storage.activity)
        if strain is not None:
            found.append((LATENCY_TARGET, strain <= 1))
    return found


def _demand(drive: DriveId, known: DriveState, storage: StorageState | None) -> float | None:
    """Return the demand of a drive that did less than is reserved for it; None if unknown."""
    if known.demand.backlogged:
        return inf
    if storage is not None and drive in storage.held_up:
        return storage.held_up[drive]
    activity = None if storage is None else storage.activity
    return None if waits_for_storage(known, activity) else 0.0
