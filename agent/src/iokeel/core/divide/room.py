"""Cuts a storage's drives to the room that its protected drives leave them.

Protected drives have a latency target, and claim the headroom as if they wanted it all
(correct/headroom.py). So they have it as soon as they wake. The others' shares don't change then,
and no limits have to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum

from iokeel.core.divide.divide import cut_by_weight
from iokeel.core.values.claimant import Claimant
from iokeel.core.values.counters import DriveId
from iokeel.core.values.observation import StorageSeen


def claim_headroom(headroom: float, protected: Sequence[Claimant]) -> None:
    """Let protected drives claim the headroom, so that the others never count on it."""
    weight = sum(c.policy.weight for c in protected)
    for claimant in protected:
        part = headroom * claimant.policy.weight / weight
        claimant.wants = max(claimant.wants, min(claimant.most, part))


def cut_to_room(budget: float, others: Sequence[Claimant], amounts: dict[DriveId, float]) -> float:
    """Cut the others' amounts and shares down to a budget, and return by how much."""
    claims = [c.claim._replace(reservation=c.owed) for c in others]
    before = [amounts[c.drive] for c in others]
    after = cut_by_weight(budget, claims, before)
    slack = max(0.0, budget - fsum(after))
    weight = sum(claim.weight for claim in claims)
    for claimant, claim, had, has in zip(others, claims, before, after, strict=True):
        share = claimant.share
        assert share is not None
        amounts[claimant.drive] = has
        most = has
        if slack:
            most = max(has + slack, share.owed)
        elif has == had:  # it may be idle, and gets an equal part when it wakes
            most = max(has, share.owed, budget * claim.weight / weight)
        if most < share.most:
            by_weight = min(share.by_weight, share.most - share.owed)
            claimant.share = share._replace(most=most, by_weight=by_weight, cut=share.most - most)
    return fsum(before) - fsum(after)


def give_rest(usable: float, protected: Sequence[Claimant], amounts: dict[DriveId, float]) -> None:
    """Let protected drives have all that the others leave: no throttle should slow them."""
    rest = max(0.0, usable - fsum(amounts.values()))
    for claimant in protected:
        share = claimant.share
        if share is not None and share.storage is not None:
            most = max(share.most, min(claimant.most, amounts[claimant.drive] + rest))
            by_weight = share.by_weight + most - share.most
            claimant.share = share._replace(most=most, by_weight=by_weight)


def protected_drives(
    seen: StorageSeen, claimants: Sequence[Claimant], reserved: Mapping[DriveId, float]
) -> tuple[DriveId, ...]:
    """Return the drives for whose targets or reservations the others' reads wait in pieces.

    There are none if the storage has no counters. Its latency is then that of its guests' requests,
    and the waits between a request's pieces would be part of it. reserved: for each drive, by its
    own policy, its VM's and its tenant's.
    """
    if seen.counters is None:
        return ()
    return tuple(
        c.drive for c in claimants if c.policy.latency_target_ms is not None or reserved[c.drive]
    )
