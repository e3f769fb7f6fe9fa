"""Keeps headroom for drives with a latency target, and learns how far that helps them.

On a storage with such *protected* drives, the other drives have the *room*: a part of the capacity
(capacity.py says how it follows latency). The rest is headroom. Protected drives have it as soon as
they wake: the others' shares don't change then, so no limits have to, and stock QEMU lets nothing
through for free just when it hurts. If the others' shares exceed the room, they are cut, lowest
weight first, but never below the amounts owed (divide/room.py).

What the others do is counted in *levels*, a third of a halving apart, and each remembers the
drive's latency at that time. The latency with the others cut as far as possible is the lowest that
cuts can make it. If that misses the target by a quarter, cuts below a level were in vain unless
they lowered the latency by a fifth.

The load may change. If the latency falls a fifth below the lowest, or after FORGET_S, all is
forgotten, and cuts are tried again.

Large reads of the others are each paced on their own, but still meet by chance, and a small request
that comes then waits for all of them. If QEMU supports it, they wait for their throttle in pieces,
which are as good for the disk as the whole (CostModel.split_size). This depends on policies alone:
reads of drives without a promise wait so for drives with a latency target or a reservation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import floor, fsum, inf, log2

from iokeel.core.correct.capacity import FIRST_ROOM_RATIO, follow
from iokeel.core.measure.storage import device_latency_s, drive_strain
from iokeel.core.values.claimant import Claimant
from iokeel.core.values.counters import DriveId
from iokeel.core.values.curve import CostModel
from iokeel.core.values.limits import Abilities
from iokeel.core.values.policy import DrivePolicy
from iokeel.core.values.state import Lessons, StorageState
from iokeel.core.values.storage import StorageActivity

GAIN = 0.8
FORGET_S = 300.0
# Levels to a halving.
_HALVING = 3
# A little above the lower edge of a level: a drive at its limit does a little less.
_NEXT = 1.05
# A quarter: two halvings of a learnt capacity.
_DEEP = 2 * _HALVING
# How much a new reading counts: a guest's mean of a second is noisy.
_NEW_RATIO = 0.2
# The least part of a storage that the others keep, apart from the amounts owed.
LEAST_ROOM = 0.05
# The room is at its least if it is at most this times that: the amounts owed vary.
_LOWEST = 1.05
_NO_LESSONS = Lessons()


def lessons_after(
    before: Lessons,
    used: float | None,
    latency_s: float | None,
    elapsed_s: float,
    *,
    exhausted: bool,
) -> Lessons:
    """Return a drive's lessons after an interval.

    used: the rate of the others in normalized I/O operations a second; None if unknown. latency_s:
    of the drive; None if it was idle. exhausted: the others were cut as far as possible.
    """
    age_s = before.age_s + elapsed_s if before.latencies else 0.0
    if age_s > FORGET_S:
        before, age_s = Lessons(), 0.0
    if used is None or latency_s is None:
        return replace(before, age_s=age_s)
    level = _level(used)
    learned = _mean(before.latencies.get(level), latency_s)
    lowest_s = before.lowest_s
    if exhausted:
        lowest_s = _mean(lowest_s, latency_s)
    elif lowest_s is not None and learned < GAIN * lowest_s:
        return Lessons({level: latency_s})
    return Lessons({**before.latencies, level: learned}, lowest_s, age_s)


def is_deep(lessons: Lessons, used: float | None) -> bool:
    """Return whether the others do at most a quarter of the most that is remembered of them."""
    if used is None or not lessons.latencies:
        return False
    return _level(used) <= max(lessons.latencies) - _DEEP


def least_useful(lessons: Lessons, target_s: float) -> float:
    """Return the others' rate below which cuts are in vain; 0 if that isn't known.

    In normalized I/O operations a second. If no higher rate was seen since, it is the next one up,
    to see whether cuts below that are in vain, too. target_s: the drive's latency target.
    """
    lowest_s = lessons.lowest_s
    if lowest_s is None or GAIN * lowest_s <= target_s:
        return 0.0
    vain = [lv for lv, latency_s in lessons.latencies.items() if lowest_s > GAIN * latency_s]
    if not vain:
        return 0.0
    highest = max(vain)
    if highest == max(lessons.latencies):
        return float(2 ** ((highest + 1) / _HALVING)) * _NEXT
    return float(2 ** (highest / _HALVING))


def _level(rate: float) -> int:
    return floor(log2(max(1.0, rate)) * _HALVING)


def _mean(before: float | None, new: float) -> float:
    return new if before is None else before + _NEW_RATIO * (new - before)


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
