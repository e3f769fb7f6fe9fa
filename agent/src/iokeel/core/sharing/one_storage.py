"""Divides one storage among its drives.

1. *Feedback*: the last interval's latency corrects the capacity and the room (capacity.py), unless
   something disturbed it.
2. *Usable* is the corrected capacity, less the rates of drives without a policy.
3. It is divided among drives and those that have a promise together (groups.py).
4. If drives have a latency target, the others are cut to the room (headroom.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf

import iokeel.core.sharing.capacity as capacity_law
from iokeel.core.counters import DriveId
from iokeel.core.observation import StorageSeen
from iokeel.core.sharing.capacity import gift, peak_after, ratio_after
from iokeel.core.sharing.claimant import Claimant
from iokeel.core.sharing.groups import Member, divide_members, promised
from iokeel.core.sharing.headroom import (
    claim_headroom,
    cut_to_room,
    give_rest,
    least_room,
    protected_drives,
    room_after,
    worst_strain,
)
from iokeel.core.sharing.latency import storage_strain
from iokeel.core.sharing.storage import StorageActivity
from iokeel.core.state import Division, Feedback, StorageState

# Latency says little about an interval that was disturbed: gifts were more than this part of the
# storage, or the ratio has just been cut to this part of itself or less.
_GIFT_RATIO = 0.02
_CUT_RATIO = 0.95
# A disturbance only counts if the storage did at least this part of its allocation. Its requests
# take a while, so doubt lasts for this many intervals at most.
_FULL_RATIO = 0.95
_MOST_DOUBT = 2


@dataclass(slots=True)
class OneStorage:
    """A storage at a tick, with its claimants.

    strangers: the rate of its drives without a policy. members: its claimants, in the groups that
    have a promise together.
    """

    name: str
    seen: StorageSeen
    activity: StorageActivity | None
    claimants: Sequence[Claimant]
    strangers: float
    members: Sequence[Member]
    protected: list[Claimant] = field(init=False)
    others: list[Claimant] = field(init=False)

    def __post_init__(self) -> None:
        self.protected = [c for c in self.claimants if c.policy.latency_target_ms is not None]
        self.others = [c for c in self.claimants if c.policy.latency_target_ms is None]

    @property
    def keeps_headroom(self) -> bool:
        """Whether some of its drives are protected from others."""
        return bool(self.protected and self.others)


def divide_storage(one: OneStorage, before: StorageState | None) -> StorageState:
    """Give each drive of a storage its share, and return the storage's state."""
    policy = one.seen.policy
    if before is None or before.policy != policy:
        before = StorageState(policy, feedback=Feedback(room=capacity_law.HEADROOM_RATIO))
    worst, suffering = worst_strain(one.protected)
    feedback = _feedback(one, before, worst, suffers=bool(suffering))
    capacity = policy.capacity * feedback.ratio if policy.capacity else None
    if policy.capacity is None and one.protected:
        if suffering or before.division.usable is not None:
            capacity = feedback.peak
    wanted = sum(c.wants for c in one.claimants)
    division = Division()
    if capacity is not None:
        usable = max(0.0, capacity - one.strangers)
        if one.keeps_headroom:
            room = min(1.0, max(feedback.room, least_room(usable, one.others)))
            feedback = replace(feedback, room=room)
        division = _divide(one, usable, feedback.room, suffers=bool(suffering))
    return StorageState(
        policy,
        counters=one.seen.counters or before.counters,
        activity=one.activity,
        feedback=feedback,
        division=division,
        promised=promised(one.members),
        wanted=wanted,
        suffering=tuple(suffering),
        protected=protected_drives(one.seen, one.protected),
    )


def _feedback(
    one: OneStorage, before: StorageState, worst: float | None, *, suffers: bool
) -> Feedback:
    """Return the feedback of the last interval.

    worst: the protected drives' worst strain.
    """
    last = before.feedback
    rates = [c.known.measured.rate for c in one.claimants]
    done = sum(rate or 0.0 for rate in rates)
    total = one.strangers + done
    elapsed_s = max(
        (did.elapsed_s for c in one.claimants if (did := c.known.measured.rates)), default=0.0
    )
    usable_part = last.room if one.keeps_headroom else 1.0
    ratio, room, doubt = last.ratio, last.room, 0
    if _is_doubtful(one, before, worst, done, usable_part):
        doubt = last.doubt + 1
    else:
        known_total = None if None in rates else total
        ratio = ratio_after(before, one.activity, known_total, usable_part)
        room = room_after(before, worst, one.others, elapsed_s)
    return Feedback(
        ratio,
        fell=ratio < _CUT_RATIO * last.ratio,
        doubt=doubt,
        room=room,
        peak=peak_after(before, total, suffers, elapsed_s),
    )


def _is_doubtful(
    one: OneStorage, before: StorageState, worst: float | None, done: float, usable_part: float
) -> bool:
    """Return whether a latency above its target may be due to a disturbance, not to load.

    done: the rate of drives with a policy. Disturbances are gifts; many drives that woke at once,
    under limits for the rates before; and a cut whose queue has drained, so that the reading shows
    the time before it.
    """
    strain = max(storage_strain(one.seen.policy, one.activity) or 0.0, worst or 0.0)
    most = before.division.usable or inf
    if strain <= 1 or before.feedback.doubt >= _MOST_DOUBT:
        return False
    if done < _FULL_RATIO * usable_part * most:
        return False
    return (
        (before.feedback.fell and _has_drained(one))
        or sum(gift(c.known) for c in one.claimants) > _GIFT_RATIO * most
        or done > capacity_law.SLACK * most
    )


def _has_drained(one: OneStorage) -> bool:
    counters, activity = one.seen.counters, one.activity
    return counters is None or activity is None or 2 * counters.in_flight < activity.queue


def _divide(one: OneStorage, usable: float, room: float, *, suffers: bool) -> Division:
    """Set each claimant's share of a storage, and return the division."""
    wants = {c.drive: c.wants for c in one.claimants}
    least = least_room(usable, one.others)
    if one.keeps_headroom:
        claim_headroom((1 - room) * usable, one.protected)
    amounts: dict[DriveId, float] = {}
    top = divide_members(one.members, usable, one.name, amounts)
    cut = cut_to_room(room * usable, one.others, amounts) if one.keeps_headroom else 0.0
    give_rest(usable, one.protected, amounts)
    return Division(
        usable,
        given=sum(min(amount, wants[drive]) for drive, amount in amounts.items()),
        level=top.level,
        kept=top.kept,
        short=any(
            c.known.demand.backlogged and c.share and c.share.most < c.most for c in one.claimants
        ),
        cut=cut,
        exhausted=suffers and room <= least,
    )
