"""The control law: from a snapshot of all drives to the limits to set.

Here's how it works. `decide` looks at every drive once a tick:

1. *Measure* (measure/drive.py): two readings of its counters give its rates, its mix of request
   sizes, and its normalized rate R.
2. *Demand and credit* (measure/demand.py, measure/burst.py): did its limits hold
   it? That tells its demand, and the burst credit that it saves or spends.
3. *Divide* (divide/everything.py): VMs' and tenants' limits, what the fleet
   grants, and storages' capacities are divided among all drives.
4. *Allowed*: the rate L that the drive may have is its policy's limit (its burst while it
   has credit), and no more than its parts of limits over several drives, and its share.
5. *Reasons* (enforce/look.py): is there one to set limits? Its policy may have changed, its limits
   may not fit its mix any more (enforce/retune.py), its burst may open or close, its share may
   have moved, or somebody may have changed the limits by hand.
6. *Limits* (enforce/pricing.py): if there is a reason, limits are made that hold the drive to L.

Most looks find no reason: a QEMU holds its limits by itself, and on stock QEMU each change lets a
tenth of a second through for nothing.

A drive that validly has no policy is left alone. One that loses its policy gets back the limits
that it had before (enforce/look.py), unless others hold its throttle group
(enforce/shared_group.py). One whose policy can't be told keeps the last good one. When the agent
stops, it leaves limits that hold without it (enforce/at_a_stop.py).

docs/design/control-law.md has the whole law with its symbols.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from iokeel.core.correct.headroom import split_size_of
from iokeel.core.divide.everything import divide_all
from iokeel.core.divide.held import with_order
from iokeel.core.enforce.look import before_ours, look
from iokeel.core.enforce.retune import is_starved
from iokeel.core.enforce.shared_group import with_first, with_moves, without_release
from iokeel.core.measure.burst import credit_after_use, with_start_credit
from iokeel.core.measure.demand import HELD, NO_USE, demand_after, full_beside, use_of
from iokeel.core.measure.drive import larger_rate, measure
from iokeel.core.measure.settled import has_settled, is_unmoved, tells_nothing_new, woken
from iokeel.core.values.counters import NS_PER_S, DriveId
from iokeel.core.values.curve import CostModel
from iokeel.core.values.limits import Abilities, ThrottleLimits
from iokeel.core.values.observation import DriveSeen, Observation, Reason, SetLimits, StorageSeen
from iokeel.core.values.policy import UNKNOWN, DrivePolicy, VmPolicy
from iokeel.core.values.state import (
    NEW,
    NOT_DIVIDED,
    DriveState,
    Measured,
    Sent,
    Settled,
    Share,
    State,
    StorageState,
    Verdict,
    VmPart,
)


def decide(state: State, seen: Observation, now_ns: int) -> tuple[State, list[SetLimits]]:
    """Look at drives once, and return which limits to change.

    now_ns: the monotonic clock. The same input gives the same output; the same observation twice
    sends nothing the second time. Drives that are neither seen nor unread are forgotten, and if the
    observation is partial, those that are gone. A drive or storage on which the law fails is set
    aside: limits there stay, the others are served, and State.failures has the error.
    """
    if seen.restarted:
        drives = {
            drive: _promised(known, seen.drives.get(drive))
            if drive.domain in seen.restarted
            else known
            for drive, known in state.drives.items()
        }
        state = replace(state, drives=drives)
    models = _models(state.model, state.storages if seen.partial else seen.storages)
    failures: dict[DriveId | str | None, Exception] = {}
    if seen.partial:
        there = state.failures.keys() - seen.drives.keys() - {*seen.gone}
        failures.update((drive, state.failures[drive]) for drive in there)
    settled = {**state.settled}
    now, started = _read(state, seen, models, settled, failures), state.started
    if seen.booted:
        now, started = with_start_credit(now, seen.booted, started, now_ns)
    storages, shares = divide_all(state, seen, models, now, failures)
    orders, suspects = _look_at_all(
        state, seen, models, now, storages, shares, settled, failures, now_ns
    )
    last_seen = {**state.seen, **seen.drives} if seen.partial else seen.drives
    tenants = state.tenants
    after = State(
        state.model, now, tenants, storages, suspects, failures, settled, last_seen, started
    )
    return after, orders


def _promised(known: DriveState, seen: DriveSeen | None) -> DriveState:
    """Return the part of a drive's state that is true of another QEMU of its VM, too.

    The limits that this QEMU began with aren't those of a later policy (enforce/look.py).
    """
    found = None if seen is None else before_ours(seen)
    found = known.sent.found if found is None else found
    return NEW._replace(
        policy=known.policy,
        storage=known.storage,
        tenant=known.tenant,
        sent=Sent(found=found),
        vm=None if known.vm is None else VmPart(known.vm.policy),
    )


def _read(
    state: State,
    seen: Observation,
    models: Mapping[str | None, CostModel],
    settled: dict[DriveId, Settled],
    failures: dict[DriveId | str | None, Exception],
) -> dict[DriveId, DriveState]:
    """Return the drives that are still known, with their new readings.

    settled: those whose reading tells something new are removed.
    """
    drives = dict(state.drives)
    if seen.partial:
        for drive in seen.gone:  # or another one of its name would be taken for it
            drives.pop(drive, None)
    else:
        drives = {drive: drives[drive] for drive in seen.unread if drive in drives}
        for drive in settled.keys() - seen.drives.keys():
            idle = settled.pop(drive)
            if drive in drives:
                drives[drive] = woken(idle, drives[drive], state.seen.get(drive))
    for drive, now in seen.drives.items():
        before = state.drives.get(drive, NEW)
        try:
            if (last := settled.get(drive)) is not None:
                was = state.seen.get(drive)
                if was is not None and tells_nothing_new(last, before, was, now):
                    drives[drive] = before
                    continue
                del settled[drive]
                before = woken(last, before, was)
            drives[drive] = _with_reading(before, now, models)
        except Exception as error:
            settled.pop(drive, None)
            drives[drive], failures[drive] = before, error
    drives.update(with_moves(state.drives, drives, seen.drives, failures))
    return drives


def _look_at_all(
    state: State,
    seen: Observation,
    models: Mapping[str | None, CostModel],
    drives: dict[DriveId, DriveState],
    storages: Mapping[str, StorageState],
    shares: Mapping[DriveId, Share] | None,
    settled: dict[DriveId, Settled],
    failures: dict[DriveId | str | None, Exception],
    now_ns: int,
) -> tuple[list[SetLimits], tuple[DriveId, ...]]:
    """Look at each drive, and return the orders and the drives that need a second look.

    Also those that wait until others' limits have made room for theirs. settled: those with nothing
    new, which are looked at only if the division has; those that have settled since are added.
    """
    orders: list[SetLimits] = []
    suspects: list[DriveId] = []
    for drive, now in seen.drives.items():
        if drive in failures:
            continue
        before, known = state.drives.get(drive, NEW), drives[drive]
        share = known.share if shares is None else shares.get(drive)
        model, storage = models[known.storage], storages.get(known.storage or "")
        if share is None and _is_untold(known.storage, state.storages, storages):
            share = NOT_DIVIDED
        if storage is None and seen.partial:  # its storage may not be known yet
            split_size = before.sent.limits.split_size if before.sent.limits else None
        else:
            split_size = split_size_of(known.policy, known.abilities, model, storage)
        last = settled.get(drive)
        if last is not None:
            if is_unmoved(last, known, share, model, split_size, storage):
                drives[drive] = last.known
                continue
            del settled[drive]
            known = woken(last, known, now)
        try:
            after, order = look(before, known, share, now, model, split_size, storage, now_ns)
        except Exception as error:
            failures[drive] = error
            continue
        if order is None and has_settled(before, after, storage, now_ns):
            settled[drive] = Settled(after, model, split_size)
        if order is not None:
            after = with_order(after)
            orders.append(SetLimits(drive, *order))
        drives[drive] = after
        if after.finding.verdict is Verdict.SUSPECT:
            suspects.append(drive)
    drives.update(with_first(state.drives, drives, seen.drives))
    kept = without_release(drives, seen.drives, orders)
    if kept:
        drives.update(kept)
        orders = [order for order in orders if order.drive not in kept]
    if orders:
        there = [drive for drive in seen.drives if drive not in failures]
        suspects += [drive for drive in there if drives[drive].waits_for_room]
    return orders, tuple(suspects)


def _is_untold(
    name: str | None, before: Mapping[str, StorageState], after: Mapping[str, StorageState]
) -> bool:
    """Whether a storage is new, so that only its next reading tells whether it is full.

    An earlier agent may have known, and its limits may be all that holds drives to their shares.
    """
    now = after.get(name or "")
    if now is None or name in before:
        return False
    return now.policy.capacity is not None and now.division.usable is None


def _models(
    default: CostModel, storages: Mapping[str, StorageSeen] | Mapping[str, StorageState]
) -> Mapping[str | None, CostModel]:
    """Return the cost model of each storage that has one of its own; the default for others."""
    own: dict[str | None, CostModel] = {
        name: s.policy.model for name, s in storages.items() if s.policy.model is not None
    }
    return defaultdict(lambda: default, own)


def _held_rate(before: DriveState, *, bounded: bool) -> float | None:
    """Return the rate that limits hold a drive to; None if the first were new in its last interval.

    bounded: its policy has bounds beside the limit. If the rate has just fallen, what the drive did
    at the old one counts as a debt too. It gets limits for no mix later then, and nothing else.
    """
    sent, did, last = before.sent, before.measured.rates, before.measured.counters
    if sent.replaced is None and did is not None and last is not None:
        began_ns = last.at_ns - round(did.elapsed_s * NS_PER_S)
        if began_ns <= sent.at_ns:  # its first limits weren't in force yet
            return None
    rate, policy = before.pricing.rate, before.policy
    if rate is None or policy is None or not bounded:
        return rate
    return _least_rate(rate, policy, before.measured)


def _least_rate(rate: float, policy: DrivePolicy, measured: Measured) -> float:
    """Return the least rate that a drive's last requests may be paid at, with all its bounds."""
    rate, did, done = rate * min(policy.parts), measured.rates, measured.budget_rate
    bps = 0.0 if did is None else did.read.bps + did.write.bps
    if policy.max_bytes is None or not bps or not done:
        return rate
    return min(rate, done * policy.max_bytes / bps)


def _in_force_lately(before: DriveState) -> tuple[ThrottleLimits, ...]:
    """Return the limits that held a drive since its last reading, as far as they are ours."""
    sent, last = before.sent, before.measured.counters
    if sent.limits is None or sent.reason is Reason.RELEASED or last is None:
        return ()
    if sent.at_ns < last.at_ns:
        return (sent.limits,)
    # Of the first ones, it isn't known what held it before.
    return () if sent.replaced is None else (sent.replaced, sent.limits)


def _with_reading(
    before: DriveState, seen: DriveSeen, models: Mapping[str | None, CostModel]
) -> DriveState:
    """Return a drive's state with its policy, rates, demand and credit brought up to a reading.

    If its policy or its storage is unknown, the last known one stays; so do its QEMU's abilities as
    long as our limits are in force. From here on the law only reads that.
    """
    policy, tenant, vm = seen.policy, seen.tenant, seen.vm
    if policy is UNKNOWN:
        policy, tenant, vm = _last_promises(before, seen)
    storage = before.storage if seen.storage is None else seen.storage
    abilities = seen.abilities
    if abilities is None:
        abilities = _last_abilities(before, seen)
    limits, was = before.sent.limits, before.policy
    by_curve = limits is not None and limits.cost_read is not None
    bounded = was is not None and was.has_bounds
    judged = before.pricing.base if bounded else limits  # without the bounds beside the limit
    measured = measure(
        before.measured,
        seen.counters,
        models[storage],
        limit=_held_rate(before, bounded=bounded),
        starved=is_starved(before.finding),
        charged=by_curve,
        separate=policy is not None and policy.separate_budgets,
        in_force=() if by_curve else _in_force_lately(before),
        sent_ns=before.sent.at_ns,
    )
    did, rate = measured.rates, measured.budget_rate
    demand, credit = before.demand, before.credit
    if did is not None and rate is not None and measured.counters is not None:
        charged = before.abilities is not None and before.abilities.cost_curve
        use = NO_USE
        if rate:
            use = use_of(judged, before.pricing.rate, did, rate, charged=charged)
            if was is not None and bounded and limits is not None:
                by_rate = rate if charged else None
                beside = full_beside(limits, judged, was, did, by_rate)
                use = use._replace(beside=bool(beside))
        elif (
            limits is not None
            and not bounded
            and did.throttled is not None
            and did.throttled.something_waits
        ):
            use = HELD
        reservation = policy.reservation if policy else 0
        paid_rate = None
        if limits and by_curve and not bounded:
            paid_rate = limits.iops_total or limits.iops_read
        demand = demand_after(demand, measured, use, reservation, abilities, paid_rate)
        waits = charged and demand.held_s > 0 and before.demand.held_s > 0
        if policy is not None and policy.separate_budgets and policy.has_bounds:
            rate = larger_rate(did, models[storage], charged=by_curve, parts=policy.parts)
        credit = credit_after_use(
            credit, policy, rate, did.elapsed_s, use, before.pricing, waits=waits
        )
    return DriveState(
        policy,
        storage,
        tenant,
        abilities,
        measured,
        demand,
        credit,
        before.share,
        before.pricing,
        before.finding,
        before.sent,
        None if vm is None else before.vm._replace(policy=vm) if before.vm else VmPart(vm),
        before.part,
        before.storage_part,
        before.held,
    )


def _last_promises(
    before: DriveState, seen: DriveSeen
) -> tuple[DrivePolicy | None, str | None, VmPolicy | None]:
    """Return the last known policy of a drive, and its tenant and the promise to its VM.

    These two may be known now: a policy can be read, and only not tell what it is to the drive. One
    that never had a policy takes the default. Without one, it has its part of what all have.
    """
    if before.policy is None and seen.default is not None:
        return seen.default, seen.tenant, seen.vm
    if before.policy is None and (seen.tenant is not None or seen.vm is not None):
        return DrivePolicy(), seen.tenant, seen.vm
    vm = seen.vm or (before.vm and before.vm.policy)
    return before.policy, seen.tenant or before.tenant, vm


def _last_abilities(before: DriveState, seen: DriveSeen) -> Abilities | None:
    """Return the last known abilities of a drive's QEMU; None unless our limits are in force."""
    in_force = seen.in_force
    return before.abilities if in_force is None or in_force in before.sent.ours else None
