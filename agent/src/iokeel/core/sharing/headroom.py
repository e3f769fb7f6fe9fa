"""The room that drives without a latency target have beside those with one.

The others' room is a part of what a storage can do (capacity.py says how it follows latency). What
is left is there for the protected drives as soon as they wake: the others' shares don't
change then, so no limits have to, and stock QEMU gives nothing away just when it hurts. What
the others have beyond the room is taken from the lowest weight first, and never from what they
are owed.

Large reads of the others that are each paced on their own still meet by chance, and whoever comes
then waits for all of them. So, where QEMU can, they wait for their throttle in parts that are as
good for the disk as the whole (CostModel.split_size). A sync that comes right after its write makes
the disk write at once, and holds up whoever comes then. So, where QEMU can, syncs wait for each
other, for half of what their drive's next write will at most, while the disk writes by itself. Both
depend on policies alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from iokeel.core.counters import DriveId
from iokeel.core.curve import CostModel
from iokeel.core.policy import DrivePolicy
from iokeel.core.sharing.capacity import follow
from iokeel.core.sharing.claimant import Party
from iokeel.core.sharing.divide import cut_by_weight
from iokeel.core.sharing.latency import drive_strain
from iokeel.core.state import StorageSeen, StorageState

# The least part of a storage that the others keep, what they are owed aside.
_LEAST_ROOM = 0.05


def strain_of(protected: Sequence[Party]) -> tuple[float | None, list[DriveId]]:
    """Return the worst latency over its target, and the drives that are above theirs."""
    strains = [(strain, p.drive) for p in protected if (strain := drive_strain(p.known))]
    worst = max((strain for strain, _ in strains), default=None)
    return worst, [drive for strain, drive in strains if strain > 1]


def room_after(
    was: StorageState, worst: float | None, others: Sequence[Party], elapsed_s: float
) -> float:
    """Return the room after an interval in which `worst` was the protected drives' strain."""
    used = was.room
    if was.usable and all(p.known.rate is not None for p in others):
        used = sum(p.known.rate or 0.0 for p in others) / was.usable
    return follow(was.room, worst, used=used, short=was.short, loaded=True, elapsed_s=elapsed_s)


def least_room(usable: float, others: Sequence[Party]) -> float:
    """Return the least room that leaves the others what they are owed."""
    owed = sum(min(float(p.policy.reservation), p.wants) for p in others)
    return min(1.0, max(owed / usable, _LEAST_ROOM)) if usable else 1.0


def claim_headroom(headroom: float, protected: Sequence[Party]) -> None:
    """Let protected drives want what is left for them, so that the others never count on it."""
    weight = sum(p.policy.weight for p in protected)
    for party in protected:
        mine = headroom * party.policy.weight / weight
        party.wants = max(party.wants, min(party.ceiling, mine))


def split_for(now: StorageSeen, protected: Sequence[Party]) -> tuple[DriveId, ...]:
    """Return the drives for whose latency targets the others' reads wait in parts, and syncs wait.

    None where a storage's latency is that of its guests' requests (load_of): what those wait for
    between their parts would be part of it.
    """
    return () if now.counters is None else tuple(p.drive for p in protected)


def split_size(
    policy: DrivePolicy | None, model: CostModel, storage: StorageState | None
) -> int | None:
    """Return in parts of how many bytes a drive's reads wait; None: whole, and syncs don't wait."""
    if policy is None or policy.latency_target_ms is not None:
        return None
    return model.split_size if storage is not None and storage.split_for else None


def make_room(budget: float, others: Sequence[Party], got: dict[DriveId, float]) -> float:
    """Take from others what they have beyond a budget, and return how much that is."""
    claims = [p.claim for p in others]
    amounts = [got[p.drive] for p in others]
    left = cut_by_weight(budget, claims, amounts)
    slack = max(0.0, budget - sum(left))
    weight = sum(claim.weight for claim in claims)
    for party, claim, amount, less in zip(others, claims, amounts, left, strict=True):
        share = party.share
        assert share is not None
        got[party.drive] = less
        most = less
        if slack:
            most = max(less + slack, share.owed)
        elif less == amount:  # it may be idle, and has what an equal part comes to when it wakes
            most = max(less, share.owed, budget * claim.weight / weight)
        if most < share.most:
            cut = max(0.0, min(share.most, party.ceiling) - most)
            party.share = replace(share, most=most, cut=cut)
    return sum(amounts) - sum(left)


def give_rest(usable: float, protected: Sequence[Party], got: dict[DriveId, float]) -> None:
    """Let protected drives do all that the others leave: no throttle of theirs shall slow them."""
    rest = max(0.0, usable - sum(got.values()))
    for party in protected:
        share = party.share
        if share is not None and share.storage is not None:
            party.share = replace(share, most=max(share.most, got[party.drive] + rest))
