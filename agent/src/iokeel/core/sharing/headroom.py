"""Keeps headroom for drives with a latency target.

On a storage with such *protected* drives, the other drives have the *room*: a part of the capacity
(capacity.py says how it follows latency). The rest is headroom. Protected drives have it as soon as
they wake: the others' shares don't change then, so no limits have to, and stock QEMU
lets nothing through for free just when it hurts. If the others' shares exceed the room, they are
cut, lowest weight first, but never below the amounts owed.

Large reads of the others are each paced on their own, but still meet by chance, and a small request
that comes then waits for all of them. If QEMU supports it, they wait for their throttle in pieces,
which are as good for the disk as the whole (CostModel.split_size). This depends on policies alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from iokeel.core.abilities import Abilities
from iokeel.core.counters import DriveId
from iokeel.core.curve import CostModel
from iokeel.core.observation import StorageSeen
from iokeel.core.policy import DrivePolicy
from iokeel.core.sharing.capacity import follow
from iokeel.core.sharing.claimant import Claimant
from iokeel.core.sharing.divide import cut_by_weight
from iokeel.core.sharing.latency import drive_strain
from iokeel.core.state import StorageState

# The least part of a storage that the others keep, apart from the amounts owed.
_LEAST_ROOM = 0.05


def worst_strain(protected: Sequence[Claimant]) -> tuple[float | None, list[DriveId]]:
    """Return the worst latency over its target, and the drives above their targets."""
    strains = [(strain, c.drive) for c in protected if (strain := drive_strain(c.known))]
    worst = max((strain for strain, _ in strains), default=None)
    return worst, [drive for strain, drive in strains if strain > 1]


def room_after(
    before: StorageState, worst: float | None, others: Sequence[Claimant], elapsed_s: float
) -> float:
    """Return the room after an interval in which `worst` was the protected drives' strain."""
    room, usable = before.feedback.room, before.division.usable
    rates = [c.known.measured.rate for c in others]
    used = room
    if usable and None not in rates:
        used = sum(rate or 0.0 for rate in rates) / usable
    return follow(
        room, worst, used=used, short=before.division.short, loaded=True, elapsed_s=elapsed_s
    )


def least_room(usable: float, others: Sequence[Claimant]) -> float:
    """Return the least room that leaves the others the amounts owed."""
    owed = sum(min(float(c.policy.reservation), c.wants) for c in others)
    return min(1.0, max(owed / usable, _LEAST_ROOM)) if usable else 1.0


def claim_headroom(headroom: float, protected: Sequence[Claimant]) -> None:
    """Let protected drives claim the headroom, so that the others never count on it."""
    weight = sum(c.policy.weight for c in protected)
    for claimant in protected:
        part = headroom * claimant.policy.weight / weight
        claimant.wants = max(claimant.wants, min(claimant.most, part))


def cut_to_room(budget: float, others: Sequence[Claimant], amounts: dict[DriveId, float]) -> float:
    """Cut the others' amounts and shares down to a budget, and return by how much."""
    claims = [c.claim for c in others]
    before = [amounts[c.drive] for c in others]
    after = cut_by_weight(budget, claims, before)
    slack = max(0.0, budget - sum(after))
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
            cut = max(0.0, min(share.most, claimant.most) - most)
            claimant.share = replace(share, most=most, cut=cut)
    return sum(before) - sum(after)


def give_rest(usable: float, protected: Sequence[Claimant], amounts: dict[DriveId, float]) -> None:
    """Let protected drives have all that the others leave: no throttle should slow them."""
    rest = max(0.0, usable - sum(amounts.values()))
    for claimant in protected:
        share = claimant.share
        if share is not None and share.storage is not None:
            most = max(share.most, amounts[claimant.drive] + rest)
            claimant.share = replace(share, most=most)


def protected_drives(seen: StorageSeen, protected: Sequence[Claimant]) -> tuple[DriveId, ...]:
    """Return the drives for whose targets the others' reads wait in pieces.

    There are none if the storage has no counters. Its latency is then that of its guests' requests,
    and the waits between a request's pieces would be part of it.
    """
    return () if seen.counters is None else tuple(c.drive for c in protected)


def split_size_of(
    policy: DrivePolicy | None,
    abilities: Abilities | None,
    model: CostModel,
    storage: StorageState | None,
) -> int | None:
    """Return the size of a drive's pieces of large reads in bytes; None if they wait whole."""
    if abilities is None or not abilities.splits:
        return None
    if policy is None or policy.latency_target_ms is not None:
        return None
    return model.split_size if storage is not None and storage.protected else None
