"""Divides one storage among its drives, or leaves it to a scheduler that goes by VMs' weights.

1. *Feedback*: the last interval's latency corrects the capacity and the room (capacity.py), unless
   something disturbed it. Until it has shown that the storage is full, nothing is divided; nor
   while that would help nobody (behind.py).
2. *Usable* is the corrected capacity, less what strangers do (measure/storage.py), but never less
   than drives are owed: strangers have no promise.
3. It is divided among drives and those that have a promise together (groups.py).
4. If drives have a latency target, the others are cut to the room (headroom.py).

If the fleet shares the storage, *usable* is what it grants to this host, and step 1 corrects only
the room: the coordinator corrects the capacity by the loads of all hosts (core/fleet/capacity.py).

BFQ lets a stream of reads go on where the arm is, and divides time. Rates can't: a stream that is
held to a rate costs the disk a seek for each request. So the disk's capacity isn't divided, and its
mean latency, which contains the time in the scheduler's queue, isn't followed. The storage counts
as one whose capacity is unknown: drives without a latency target are cut only while one with a
target suffers, from what they do.

Nor are they cut if they only read. What a disk has taken into its buffer, and syncs, are out of the
scheduler's hands, and there limits help. Among reads they cost much and gain nothing.

Weights hold no reservation. So a storage with one is divided as any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import fsum, inf

import iokeel.core.correct.capacity as capacity_law
from iokeel.core.correct.capacity import (
    Unmet,
    feedback_after,
    gift,
    is_calm,
    is_full,
    peak_after,
    room_while_idle,
    with_vain,
)
from iokeel.core.correct.headroom import (
    LEAST_ROOM,
    can_be_cut,
    least_room,
    least_useful_room,
    lessons_of,
    rate_of,
    room_after,
    worst_strain,
)
from iokeel.core.correct.held_up import HeldUp, done_by
from iokeel.core.divide.behind import raise_behind
from iokeel.core.divide.divide import divide
from iokeel.core.divide.groups import (
    Group,
    Member,
    divide_members,
    drives_of,
    owed_to_unprotected,
    promised,
    promised_together,
    reserved_for_each,
)
from iokeel.core.divide.pool import SPARE_RATIO
from iokeel.core.divide.room import claim_headroom, cut_to_room, give_rest, protected_drives
from iokeel.core.measure.storage import is_loaded
from iokeel.core.values.claimant import FOOTHOLD_RATIO, TRIED_REQUESTS, Claim, Claimant, next_step
from iokeel.core.values.counters import DriveId
from iokeel.core.values.observation import StorageSeen
from iokeel.core.values.policy import TenantPolicy
from iokeel.core.values.state import Division, Feedback, Share, StorageState
from iokeel.core.values.storage import Load, StorageActivity, StoragePolicy
from iokeel.core.values.wants import TenantWants, Wants, wants_of

# Drives write if their writes take this part of the capacity, were each as cheap as a 4 KiB read.
WRITES_RATIO = 0.1
# They count as writing for so many intervals: limits may leave a writer seconds without a request.
WRITING_INTERVALS = 10


@dataclass(slots=True)
class OneStorage:
    """A storage at a tick, with its claimants.

    is_shared: by the fleet. granted: what the fleet lets its drives here do; None if it isn't the
    fleet's, or that isn't known. strangers: the rate of others than the claimants
    (measure/storage.py). members: the claimants, in the groups that have a promise together.
    complete: it may have no other drives. writing: for how many intervals its drives count as
    writing; None if it isn't left to its scheduler. unread: what drives that can't be read are
    owed.
    """

    name: str
    seen: StorageSeen
    is_shared: bool
    granted: int | None
    activity: StorageActivity | None
    claimants: Sequence[Claimant]
    strangers: float
    members: Sequence[Member]
    complete: bool = True
    writing: int | None = None
    unread: float = 0.0
    protected: list[Claimant] = field(init=False)
    others: list[Claimant] = field(init=False)

    def __post_init__(self) -> None:
        self.protected = [c for c in self.claimants if c.policy.latency_target_ms is not None]
        self.others = [c for c in self.claimants if c.policy.latency_target_ms is None]

    @property
    def keeps_headroom(self) -> bool:
        """Whether some of its drives are protected from others."""
        return bool(self.protected and self.others)

    @property
    def is_free(self) -> bool:
        """Whether nobody is to be held back for another.

        Its scheduler shares it out, and limits could do no better. Or it has a
        single drive with a policy, so there is no promise to another one.
        """
        is_sole = len(self.claimants) == 1 and self.complete and not self.unread
        return self.writing == 0 or (is_sole and not self.is_shared)


def divide_storage(one: OneStorage, before: StorageState | None) -> StorageState:
    """Give each drive of a storage its share, and return the storage's state."""
    policy = one.seen.policy
    before = _as_before(before, policy)
    worst, suffering = worst_strain(one.protected, one.activity)
    suffers = bool(suffering) and not one.is_free
    helps = _helps(one, before)
    load = _load(one, before)
    begins = (
        suffers and is_loaded(one.activity) and _others_do_a_part(one, load.strangers + load.done)
    )
    feedback, demands = before.feedback, dict[DriveId, float]()
    if helps and not one.is_free:
        held_up = _reckon_with_held_up(one, before)
        feedback = _feedback(one, before, load, worst, held_up, suffers=suffers, begins=begins)
        demands = held_up.demands if held_up else demands
    capacity = _capacity(one, before, feedback, begins=begins) if helps else None
    if one.granted is not None:
        _want_spare(one.claimants)
    wanted = fsum(c.wants for c in one.claimants)
    wants = _wants(one) if one.is_shared else None
    division = Division(exhausted=bool(suffering))
    amounts: dict[DriveId, float] = {}
    if one.granted is not None:
        _want_footholds(one.claimants, one.granted)
    if capacity is not None:
        usable = _usable(one, before, load, capacity)
        least = least_room(usable, owed_to_unprotected(one.members)) if one.protected else 1.0
        if one.keeps_headroom:
            least = max(least, least_useful_room(usable, one.protected, feedback.lessons))
            feedback = replace(feedback, room=min(1.0, max(feedback.room, least)))
        exhausted = suffers and (feedback.room <= least or _nobody_to_cut(one, before))
        division, amounts = _divide(one, usable, feedback.room, exhausted=exhausted)
        if one.granted is None:
            _bound_untried(one, usable * feedback.room if one.keeps_headroom else usable, amounts)
            _give_footholds(one, capacity)
    elif policy.capacity is not None and not one.is_free:
        _bound_untried(one, policy.capacity * load.usable_part, amounts, full=False)
    return StorageState(
        policy,
        counters=one.seen.counters or before.counters,
        activity=one.activity,
        feedback=feedback,
        division=division,
        promised=promised(one.members),
        wanted=wanted,
        wants=wants,
        suffering=tuple(suffering),
        protected=protected_drives(one.seen, one.claimants, reserved_for_each(one.members)),
        load=load._replace(short=division.short),
        amounts=amounts,
        weighted=bool(one.seen.weighted),
        writing=one.writing,
        held_up=demands,
    )


def _helps(one: OneStorage, before: StorageState) -> bool:
    """Return whether it helps anybody that a storage is divided. Once it is, it stays so.

    A drive has a latency target, a reservation, or another weight than others, or it is behind. A
    capacity without a target is a limit that somebody has set.
    """
    if one.is_shared or one.unread or not one.complete:
        return True
    if one.seen.policy.latency_target_ms is None or before.division.usable is not None:
        return True
    weights = {c.policy.weight for c in one.claimants}
    has_promise = before.feedback.passed[1] < inf or one.protected or promised(one.members)
    return bool(has_promise) or len(weights) > 1 or raise_behind(one.claimants, one.activity)


def _as_before(before: StorageState | None, policy: StoragePolicy) -> StorageState:
    """Return a storage's last state under its policy now. Another capacity begins anew."""
    if before is None or before.policy.capacity != policy.capacity:
        return StorageState(policy, feedback=Feedback(room=capacity_law.FIRST_ROOM_RATIO))
    return before if before.policy == policy else replace(before, policy=policy)


def _feedback(
    one: OneStorage,
    before: StorageState,
    load: Load,
    worst: float | None,
    held_up: HeldUp | None,
    *,
    suffers: bool,
    begins: bool,
) -> Feedback:
    """Return the feedback of the last interval.

    worst: the protected drives' worst strain. begins: see _capacity. Before that, nothing is
    divided, and the room stays: it would take nothing from anybody.
    """
    last, elapsed_s = before.feedback, _elapsed_s(one)
    creeps = all(c.known.keeps_levels for c in one.claimants)
    unmet = Unmet(held_up.strain, _least_ratio(one)) if held_up and held_up.strain else None
    after = feedback_after(before, load, worst, unmet, creeps=creeps, needed=_needed(one, load))
    if held_up is not None:
        after = replace(after, shown=held_up.shown_now)
    if not one.is_shared:
        after = with_vain(before, load, after)
    if one.granted is not None:  # all hosts' latency corrects it, by their coordinator
        after = replace(after, ratio=last.ratio, fell=False)
    room, learnt, total = after.room, one.seen.policy.capacity is None, load.strangers + load.done
    if not one.keeps_headroom:
        if one.complete:  # else a drive that can't be read now may need it
            after = replace(after, room=capacity_law.FIRST_ROOM_RATIO, lessons={})
    elif not after.doubt and (begins or _is_divided(one, before)):
        room = room_after(before, worst, rate_of(one.others), elapsed_s)
        if worst is None and one.granted is None:
            room = room_while_idle(before, elapsed_s)
    shrinks = learnt and suffers and _peak_shrinks(one, before, total, room)
    if one.keeps_headroom and not after.doubt:
        lessons = lessons_of(
            before,
            one.activity,
            one.protected,
            owed_to_unprotected(one.members),
            rate_of(one.others),
            elapsed_s,
            learnt=learnt and one.granted is None,
            shrinks=shrinks,
        )
        after = replace(after, room=room, lessons=lessons)
    if not learnt:
        return replace(after, peak=0.0)
    peak = peak_after(before, total, suffers, elapsed_s, shrinks=shrinks)
    return replace(after, peak=peak)


def _peak_shrinks(one: OneStorage, before: StorageState, total: float, room: float) -> bool:
    """Return whether the peak goes down while a protected drive suffers.

    The room does, as long as it can. If the others do next to nothing, neither would help. total:
    the rate of all drives. room: after the interval.
    """
    if not one.keeps_headroom:
        return True
    if room > LEAST_ROOM and can_be_cut(before, rate_of(one.others)):
        return False
    return _others_do_a_part(one, total)


def _nobody_to_cut(one: OneStorage, before: StorageState) -> bool:
    return not can_be_cut(before, rate_of(one.others)) if one.others else one.complete


def _others_do_a_part(one: OneStorage, total: float) -> bool:
    """Return whether the others do more than a small part of the load, if there are any.

    total: the rate of all drives.
    """
    done = rate_of(one.others) if one.others else None
    return done is None or done > LEAST_ROOM * total


def _elapsed_s(one: OneStorage) -> float:
    did = (c.known.measured.rates for c in one.claimants)
    return max((each.elapsed_s for each in did if each), default=0.0)


def _reckon_with_held_up(one: OneStorage, before: StorageState) -> HeldUp | None:
    """Raise the demands of drives that the storage holds up; None if it has no target."""
    policy = one.seen.policy
    if policy.capacity is None or policy.latency_target_ms is None:
        return None
    shown, counted = before.feedback.shown, one.seen.counters is not None
    promised = [*promised_together(one.members)]
    beyond = fsum(max(0.0, done_by(drives_of(m)) - m.claim.reservation) for m in one.members)
    return HeldUp(promised, beyond, policy, one.activity, shown, _elapsed_s(one), counted)


def _least_ratio(one: OneStorage) -> float:
    """Return the ratio that leaves what is owed, and a foothold for the rest."""
    capacity = one.seen.policy.capacity
    if capacity is None:
        return 0.0
    return (_owed(one) + one.strangers) / capacity / (1 - LEAST_ROOM)


def _needed(one: OneStorage, load: Load) -> float:
    """Return the capacity at which no drive would be short."""
    wanted = fsum(c.wants for c in one.claimants) / load.usable_part
    return max(0.0, wanted + one.strangers)


def _owed(one: OneStorage) -> float:
    return fsum([member.due for member in one.members])


def _capacity(
    one: OneStorage, before: StorageState, feedback: Feedback, *, begins: bool
) -> float | None:
    """Return the capacity that is divided; None if none is.

    One that is configured is divided once the storage itself has shown that it is full, and one
    that isn't once a protected drive has suffered. begins: one does, and load may be why.
    """
    configured = one.seen.policy.capacity
    if one.granted is not None:
        return one.granted + one.strangers
    if one.is_free:
        return None
    if configured is not None:
        full = begins or is_full(one.seen.policy, feedback, one.activity)
        return configured * feedback.ratio if full else None
    if begins:
        return feedback.peak
    if _is_divided(one, before) and (one.protected or not one.complete):
        return feedback.peak  # maybe for a drive that can't be read now
    return None


def _is_divided(one: OneStorage, before: StorageState) -> bool:
    """Return whether a storage has a capacity, or one has been learnt."""
    has_one = one.seen.policy.capacity is not None or one.granted is not None
    return has_one or before.division.usable is not None


def _load(one: OneStorage, before: StorageState) -> Load:
    """Return what the storage's drives did in the last interval."""
    rates = [c.known.measured.rate for c in one.claimants]
    counters, activity = one.seen.counters, one.activity
    return Load(
        activity,
        fsum(rate or 0.0 for rate in rates),
        # What can't be read is taken from the capacity, so it has a part in it, too.
        one.strangers + (one.unread if one.granted is None else 0.0),
        None not in rates,
        fsum(gift(c.known) for c in one.claimants),
        counters is None or activity is None or 2 * counters.in_flight < activity.queue,
        before.feedback.room if one.keeps_headroom else 1.0,
    )


def _want_spare(claimants: Sequence[Claimant]) -> None:
    """Let drives want more than they do, because they only show that with some to spare."""
    for claimant in claimants:
        claimant.wants = min(claimant.most, SPARE_RATIO * claimant.wants)


def _wants(one: OneStorage) -> Wants:
    """Return what the drives demand of the fleet."""
    claims: list[Claim] = []
    tenants: dict[str, TenantWants] = {}
    for member in one.members:
        claim = member.claim
        if isinstance(member, Group) and member.tenant is not None:
            if layers := member.layers:
                tenants[member.tenant.name] = TenantWants(member.tenant.weight, layers)
            claim = claim._replace(wants=member.due)
        claims.append(claim)
    return wants_of(claims)._replace(tenants=tenants)


def _want_footholds(claimants: Sequence[Claimant], granted: int) -> None:
    """Let each drive want the next step and a foothold, as of a VM's limit."""
    weight = sum(c.policy.weight for c in claimants)
    for claimant in claimants:
        step = SPARE_RATIO * next_step(claimant.known, claimant.policy, claimant.wants)
        foothold = FOOTHOLD_RATIO * granted * claimant.policy.weight / weight
        claimant.wants = min(claimant.most, min(claimant.wants, step) + foothold)


def _bound_untried(
    one: OneStorage, usable: float, amounts: Mapping[DriveId, float], *, full: bool = True
) -> None:
    """Bound together what drives may do whose guests have hardly begun.

    Nobody knows what they will do, and they may all begin at once, as when many guests start. So
    they divide what the others' reservations leave. A drive that got a larger amount has that,
    which includes what idle drives with a reservation leave. Drives with a latency target have the
    headroom instead. full: the storage is. Else this holds a drive until its first request only,
    and leaves it enough for that.
    """
    few, least = (TRIED_REQUESTS, 0.0) if full else (1, TRIED_REQUESTS)
    untried = {c.drive for c in one.others if c.has_made_fewer(few)}
    if not untried:
        return
    claims = []
    dividing = one.others if one.keeps_headroom else one.claimants
    reservations = reserved_for_each(one.members)
    for claimant in dividing:
        reserved, weight = reservations[claimant.drive], claimant.policy.weight
        wants = claimant.most if claimant.drive in untried else min(reserved, claimant.most)
        claims.append(Claim(reserved, weight, wants))
    division = divide(usable, claims)
    for claimant, claim, bound in zip(dividing, claims, division.amounts, strict=True):
        if claimant.drive not in untried:
            continue
        most = max(bound, amounts.get(claimant.drive, 0.0), min(claimant.most, least))
        if claimant.share is None or most < claimant.share.most:
            owed = min(most, division.kept * claim.reservation)
            claimant.share = Share(most, one.name, owed, most - owed)


def _give_footholds(one: OneStorage, capacity: float) -> None:
    """Leave each drive its part by weight of a foothold, whatever others are owed or take."""
    if not one.claimants:
        return
    foothold = FOOTHOLD_RATIO * capacity / sum(c.policy.weight for c in one.claimants)
    for claimant in one.claimants:
        share, most = claimant.share, min(claimant.most, foothold * claimant.policy.weight)
        if share is not None and share.storage is not None and share.most < most:
            owed = min(most, share.owed)
            claimant.share = share._replace(most=most, owed=owed, by_weight=most - owed)


def _usable(one: OneStorage, before: StorageState, load: Load, capacity: float) -> float:
    """Return what is there to divide of a capacity."""
    if one.granted is not None:  # the fleet's parts reckon with strangers, and with what is unread
        return max(0.0, capacity - one.strangers)
    policy, owed = one.seen.policy, min(capacity, _owed(one))
    again = 0.0  # it can do again what it has just done
    if policy.latency_target_ms is None:
        again = min(capacity, load.done)
    elif is_calm(before, load.activity):
        again = min((policy.capacity or inf) * policy.most_ratio, load.done)
    usable = max(capacity - one.strangers, owed, again)
    return min(usable, max(capacity - one.unread, owed)) if one.unread else usable


def _divide(
    one: OneStorage, usable: float, room: float, *, exhausted: bool
) -> tuple[Division, dict[DriveId, float]]:
    """Set each claimant's share of a storage, and return the division and the amounts."""
    wants = {c.drive: c.wants for c in one.claimants}
    if one.keeps_headroom:
        claim_headroom((1 - room) * usable, one.protected)
    amounts: dict[DriveId, float] = {}
    top = divide_members(one.members, usable, one.name, amounts)
    cut = cut_to_room(room * usable, one.others, amounts) if one.keeps_headroom else 0.0
    give_rest(usable, one.protected, amounts)
    given = fsum(min(amount, wants[drive]) for drive, amount in amounts.items())
    division = Division(
        usable,
        given=given,
        level=top.level,
        kept=top.kept,
        short=any(
            c.known.demand.backlogged and c.share and c.share.most < c.most for c in one.claimants
        ),
        cut=cut,
        exhausted=exhausted,
    )
    if one.keeps_headroom and one.granted is not None:
        # What is left of the grant is headroom on this host.
        rest = [Claim(0.0, c.policy.weight) for c in one.protected]
        more = divide(max(0.0, usable - fsum(amounts.values())), rest).amounts
        for claimant, extra in zip(one.protected, more, strict=True):
            amounts[claimant.drive] += extra
    return division, amounts


def is_left(
    seen: StorageSeen,
    before: StorageState | None,
    claimants: Sequence[Claimant],
    tenants: Mapping[str, TenantPolicy],
    *,
    complete: bool,
) -> bool:
    """Return whether a storage is left to its scheduler.

    complete: it may have no other drives.
    """
    if not seen.weighted or seen.policy.capacity is None:
        return False
    if not complete and (before is None or not before.by_weight):
        return False  # a drive that can't be read now may have a reservation
    return not any(_has_reservation(claimant, tenants) for claimant in claimants)


def left(seen: StorageSeen) -> StorageSeen:
    """Return a storage as the law takes it while it is left to its scheduler."""
    return replace(seen, policy=replace(seen.policy, capacity=None, latency_target_ms=None))


def writing_after(
    before: StorageState | None, capacity: int | None, claimants: Sequence[Claimant]
) -> int:
    """Return for how many intervals from now on a storage's drives count as writing.

    Those with a latency target don't count. capacity: as it was configured.
    """
    writes = 0.0
    for claimant in claimants:
        did = claimant.known.measured.rates
        if did is None or claimant.policy.latency_target_ms is not None:
            continue
        if did.write.raw_iops and claimant.known.demand.backlogged:  # it would write more
            return WRITING_INTERVALS
        writes += did.write.raw_iops
    if writes >= WRITES_RATIO * (capacity or 0):
        return WRITING_INTERVALS
    return max(0, (before.writing or 0) - 1) if before is not None else 0


def _has_reservation(claimant: Claimant, tenants: Mapping[str, TenantPolicy]) -> bool:
    vm, tenant = claimant.known.vm, tenants.get(claimant.tenant or "")
    return bool(
        claimant.policy.reservation
        or (vm is not None and vm.policy.reservation)
        or (tenant is not None and tenant.reservation)
    )
