"""The most that a drive's QEMU may be held to now, whatever has been decided since.

It is the highest rate in force or on its way. A drive that can't be read keeps its last one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf

from iokeel.core.enforce.in_force import rate_in_force
from iokeel.core.values.claimant import own_most
from iokeel.core.values.counters import DriveId
from iokeel.core.values.curve import CostModel
from iokeel.core.values.observation import DriveSeen, SetLimits
from iokeel.core.values.policy import DrivePolicy
from iokeel.core.values.state import DriveState, State


def held_by(known: DriveState, seen: DriveSeen | None, model: CostModel) -> float:
    """Return the most that a drive's QEMU may be held to now, over both budgets."""
    sent, ours = known.sent, rate_of_ours(known)
    in_force = None if seen is None else seen.in_force
    if in_force is None:
        if known.held is not None:
            return known.held
        # The last orders may not have been carried out.
        return max((rate_in_force(limits, model) for limits in sent.ours), default=inf)
    if ours is None and known.abilities is None and sent.limits is not None:
        # An earlier agent's may still be in force, with a curve that libvirt doesn't tell.
        return max(rate_in_force(limits, model) for limits in (in_force, *sent.ours))
    if ours is None:
        return rate_in_force(in_force, model)
    # Until the last order is seen in force, it may be on its way.
    return ours if in_force == sent.limits else max(ours, rate_in_force(in_force, model))


def held_unread(known: DriveState, model: CostModel) -> float:
    """Return the most that limits of ours let a drive do that can't be read now."""
    ours, policy = rate_of_ours(known), known.policy or DrivePolicy()
    held = held_by(known, None, model) if ours is None else ours
    return min(held, own_most(policy, policy.limit))


def rate_of_ours(known: DriveState) -> float | None:
    """Return the rate of a drive's last order, over both budgets; None if that isn't known.

    It has the budgets of the policy that it was made for, which may be another one now.
    """
    rate, limits = known.pricing.rate, known.sent.limits
    return None if rate is None or limits is None else rate * limits.budgets


def with_order(after: DriveState) -> DriveState:
    """Return a drive's state after an order: it may be held to the old or the new limits."""
    if after.held is None:
        return after
    ours = rate_of_ours(after)
    return after._replace(held=max(after.held, inf if ours is None else ours))


def with_outcomes(state: State, orders: Iterable[SetLimits]) -> State:
    """Return the state once QEMUs have said that limits are in force, unless others were sent.

    So room that a drive has made can be used in the next look. orders: each the last one that was
    on its way to its drive.
    """
    found: dict[DriveId, DriveState] = {}
    for order in orders:
        known = state.drives.get(order.drive)
        if known is None or known.held is None or known.sent.limits != order.limits:
            continue
        if (ours := rate_of_ours(known)) is not None:
            found[order.drive] = known._replace(held=ours)
    return replace(state, drives={**state.drives, **found}) if found else state
