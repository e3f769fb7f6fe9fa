"""Keeps headroom for drives with a latency target.

On a storage with such *protected* drives, the other drives have the *room*: a part of the capacity
(capacity.py says how it follows latency). The rest is headroom. Protected drives have it as soon as
they wake: the others' shares don't change then, so no limits have to, and stock QEMU lets nothing
through for free just when it hurts. If the others' shares exceed the room, they are cut, lowest
weight first, but never below the amounts owed.

Large reads of the others are each paced on their own, but still meet by chance, and a small request
that comes then waits for all of them. If QEMU supports it, they wait for their throttle in pieces,
which are as good for the disk as the whole (CostModel.split_size). This depends on policies alone:
reads of drives without a promise wait so for drives with a latency target or a reservation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum, inf

from iokeel.core.abilities import Abilities
from iokeel.core.counters import DriveId
from iokeel.core.curve import CostModel
from iokeel.core.observation import StorageSeen
from iokeel.core.policy import DrivePolicy
from iokeel.core.sharing.capacity import FIRST_ROOM_RATIO, follow
from iokeel.core.sharing.claimant import Claimant
from iokeel.core.sharing.divide import cut_by_weight
from iokeel.core.sharing.latency import device_latency_s, drive_strain
from iokeel.core.sharing.lessons import GAIN, is_deep, least_useful, lessons_after
from iokeel.core.state import Lessons, StorageState
from iokeel.core.storage import StorageActivity

# The least part of a storage that the others keep, apart from the amounts owed.
LEAST_ROOM = 0.05
# The room is at its least if it is at most this times that: the amounts owed vary.
_LOWEST = 1.05
_NO_LESSONS = Lessons()


def worst_strain(
    protected: Sequence[Claimant], activity: StorageActivity | None
) -> tuple[float | None, list[DriveId]]:
    """Return the worst latency over its target, and the drives above their targets."""
    strains = [(strain, c.drive) for c in protected if (strain := drive_strain(c.known, activity))]
    worst = max((strain for strain, _ in strains), default=None)
    return worst, [drive for strain, drive in strains if strain > 1]


def rate_of(others: Sequence[Claimant]) -> float | None:
    """Return what drives did together in the last interval; None if it isn't known."""
    rates = [c.known.measured.rate for c in others]
    return None if None in rates else fsum(rate or 0.0 for rate in rates)


def can_be_cut(before: StorageState, done: float | None) -> bool:
    """Return whether a smaller room takes anything from the others.

    done: their rate; None if unknown.
    """
    usable = before.division.usable
    return not usable or done is None or done > LEAST_ROOM * usable or before.division.cut > 0


def room_after(
    before: StorageState, worst: float | None, done: float | None, elapsed_s: float
) -> float:
    """Return the room after an interval in which `worst` was the protected drives' strain.

    done: the rate of the others; None if unknown.
    """
    room, usable = before.feedback.room, before.division.usable
    used = done / usable if usable and done is not None else room
    return follow(
        room,
        worst,
        used=used,
        short=before.division.short,
        loaded=can_be_cut(before, done),
        elapsed_s=elapsed_s,
    )


def least_room(usable: float, owed: float) -> float:
    """Return the least room that leaves the others the amounts owed."""
    return min(1.0, max(owed / usable, LEAST_ROOM)) if usable else 1.0


def lessons_of(
    before: StorageState,
    activity: StorageActivity | None,
    protected: Sequence[Claimant],
    owed: float,
    done: float | None,
    elapsed_s: float,
    *,
    learnt: bool,
    shrinks: bool,
) -> dict[DriveId, Lessons]:
    """Return what an interval taught of each protected drive.

    owed: to the others. done: their rate; None if unknown. learnt: the capacity is. It may be far
    too high, so LEAST_ROOM is no deep cut by itself. shrinks: it does now; then nothing is
    forgotten before a deep cut has been seen, or none could ever be found to be in vain.
    """
    after = {}
    least = least_room(before.division.usable or 0.0, owed)
    exhausted = before.division.usable is not None and before.feedback.room <= _LOWEST * least
    for claimant in protected:
        known = before.feedback.lessons.get(claimant.drive, _NO_LESSONS)
        goes_by_depth = learnt and least <= LEAST_ROOM
        deep = is_deep(known, done)
        after[claimant.drive] = lessons_after(
            known,
            done,
            device_latency_s(claimant.known, activity),
            0.0 if learnt and shrinks and not deep else elapsed_s,
            exhausted=exhausted and (deep or not goes_by_depth),
        )
    return after


def least_useful_room(
    usable: float, protected: Sequence[Claimant], lessons: Mapping[DriveId, Lessons]
) -> float:
    """Return the room below which it helps none of the protected drives that others are cut."""
    least = inf
    for claimant in protected:
        known = lessons.get(claimant.drive, _NO_LESSONS)
        target_s = (claimant.policy.latency_target_ms or 0.0) / 1000
        # Nobody is cut for one that was idle, or well within its target whatever the others did.
        if max(known.latencies.values(), default=0.0) > GAIN * target_s:
            least = min(least, least_useful(known, target_s))
    return min(FIRST_ROOM_RATIO, least / usable) if usable and least < inf else 0.0


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


def split_size_of(
    policy: DrivePolicy | None,
    abilities: Abilities | None,
    model: CostModel,
    storage: StorageState | None,
) -> int | None:
    """Return the size of a drive's pieces of large reads in bytes; None if they wait whole."""
    if abilities is None or not abilities.splits:
        return None
    if policy is None or policy.latency_target_ms is not None or policy.reservation:
        return None
    return model.split_size if storage is not None and storage.protected else None
