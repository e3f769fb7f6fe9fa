"""Keeps headroom for drives with a latency target.

On a storage with such *protected* drives, the other drives have the *room*: a part of the capacity
(capacity.py says how it follows latency). The rest is headroom. Protected drives have it as soon as
they wake: the others' shares don't change then, so no limits have to, and stock QEMU lets nothing
through for free just when it hurts. If the others' shares exceed the room, they are cut, lowest
weight first, but never below the amounts owed (divide/room.py).

Large reads of the others are each paced on their own, but still meet by chance, and a small request
that comes then waits for all of them. If QEMU supports it, they wait for their throttle in pieces,
which are as good for the disk as the whole (CostModel.split_size). This depends on policies alone:
reads of drives without a promise wait so for drives with a latency target or a reservation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum, inf

from iokeel.core.correct.capacity import FIRST_ROOM_RATIO, follow
from iokeel.core.correct.lessons import GAIN, SLACK, is_deep, least_useful, lessons_after
from iokeel.core.measure.storage import device_latency_s, drive_strain
from iokeel.core.values.claimant import FOOTHOLD_RATIO, Claimant
from iokeel.core.values.counters import DriveId
from iokeel.core.values.curve import CostModel
from iokeel.core.values.limits import Abilities
from iokeel.core.values.policy import DrivePolicy
from iokeel.core.values.state import Lessons, StorageState
from iokeel.core.values.storage import StorageActivity

# The least part of a storage that the others keep, apart from the amounts owed.
LEAST_ROOM = FOOTHOLD_RATIO
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
    exhausted = (
        before.division.usable is not None and before.feedback.room <= SLACK * least
    )  # owed amounts vary
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
