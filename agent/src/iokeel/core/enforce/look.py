"""Looks at one drive after the division: is there a reason to set limits, and which limits?"""

from __future__ import annotations

from iokeel.core.enforce import pricing
from iokeel.core.enforce.bounds import bytes_alone, with_bounds
from iokeel.core.enforce.in_flight import is_off, needs_times, with_aids
from iokeel.core.enforce.in_force import rate_in_force
from iokeel.core.enforce.pricing import may_be_fallback
from iokeel.core.enforce.retune import SHARE_RATIO, share_has_moved
from iokeel.core.measure import burst
from iokeel.core.measure.burst import with_burst
from iokeel.core.values.curve import CostModel
from iokeel.core.values.limits import UNLIMITED, ThrottleLimits
from iokeel.core.values.observation import DriveSeen, Reason
from iokeel.core.values.policy import UNKNOWN, DrivePolicy
from iokeel.core.values.state import (
    NEW,
    NOT_DIVIDED,
    DriveState,
    Finding,
    Measured,
    NotDivided,
    Sent,
    Share,
    StorageState,
    Verdict,
)

# Limits that are set for these reasons are sent even if they are the ones that were sent last.
# They may be in force, but their buckets have to be emptied.
_RENEWED = frozenset({Reason.CREDIT_GREW, Reason.ZEROES, Reason.SILENT})
_SENT_AGAIN = _RENEWED | {Reason.OVERWRITTEN, Reason.RETRY}


def look(
    before: DriveState,
    known: DriveState,
    share: Share | NotDivided | None,
    seen: DriveSeen,
    model: CostModel,
    split_size: int | None,
    storage: StorageState | None,
    now_ns: int,
) -> tuple[DriveState, tuple[ThrottleLimits, Reason] | None]:
    """Return a drive's state after a look at it, and the limits to set with their reason, if any.

    known: its state with the new reading. split_size: the part size of its large reads. storage:
    None if it isn't known.
    """
    noted = known.sent.seen(seen.in_force)
    if noted is not known.sent:
        known = known._replace(sent=noted)
    policy = known.policy
    divided = None if share is NOT_DIVIDED else share
    allowed = None if policy is None else known.allowed_by(divided)
    kept = _left_alone(before, known, share, seen, allowed, model)
    if kept is not None:
        return kept, None
    if policy is not None and allowed is None and policy.max_bytes is not None:
        return _hold_bytes(before, known, seen, policy, storage, now_ns)
    if policy is None or allowed is None:
        timed = policy is not None and needs_times(known, storage)
        return _release(before, known, seen, timed=timed)
    finding, misfit = pricing.look_at_prices(known, policy, model, split_size, now_ns)
    reason = _reason(before, known, seen, finding, misfit, allowed, now_ns)
    held = known.pricing.rate or allowed
    if reason is None and is_off(known, storage, model, held, now_ns):
        reason = Reason.LATENCY
    if reason is None:
        return _looked_at(known, divided, finding), None
    if reason is Reason.SHIFT:  # all of this look lies after the shift, and earlier ones may not
        known = known._replace(measured=known.measured.anew)
    priced = pricing.price(known, policy, model, split_size, allowed, reason)
    assert priced.base is not None
    assert priced.base_rate is not None
    _, credit_s, most_s = burst.carried(known, policy, allowed)
    credit_s = burst.carried_on(known, credit_s, most_s, seen.in_force)
    limits = with_burst(priced.base, allowed / priced.base_rate, credit_s)
    if policy.has_bounds:
        burst_open = known.credit.open
        limits = with_bounds(limits, policy, priced.base_rate, allowed, burst=burst_open)
    limits = with_aids(limits, known, storage, model, allowed)
    if limits == known.sent.limits and reason not in _SENT_AGAIN:
        reason = _not_carried_out(known, seen) or reason
    record, is_new = _sent(known.sent, limits, seen, reason, credit_s, now_ns)
    if is_new:
        finding = finding._replace(suspect=0)
    after = _looked_at(known, divided, finding)._replace(pricing=priced, sent=record)
    return after, (limits, reason) if is_new else None


def _hold_bytes(
    before: DriveState,
    known: DriveState,
    seen: DriveSeen,
    policy: DrivePolicy,
    storage: StorageState | None,
    now_ns: int,
) -> tuple[DriveState, tuple[ThrottleLimits, Reason] | None]:
    """Hold a drive that has no limit to its max_bytes."""
    limits = bytes_alone(policy)._replace(latency=needs_times(known, storage))
    sent, reason = known.sent, Reason.POLICY
    if limits == sent.limits:
        sent = sent._replace(reason=reason) if sent.reason is Reason.RELEASED else sent
        reason = _not_carried_out(known, seen) or reason
    record, is_new = _sent(sent, limits, seen, reason, 0.0, now_ns)
    if sent.limits is None and record.found is None:  # they were in force already: the platform's
        record = record._replace(found=before_ours(seen))
    after = _bare(known, Finding(Verdict.BYTES))._replace(sent=record)
    return after, (limits, reason) if is_new else None


def _left_alone(
    before: DriveState,
    known: DriveState,
    share: Share | NotDivided | None,
    seen: DriveSeen,
    allowed: float | None,
    model: CostModel,
) -> DriveState | None:
    """Return the state of a drive whose limits stay without a further look; None for any other.

    Too little is known to make others, or an earlier agent's are in force.
    """
    if seen.policy is UNKNOWN and (known.policy is None or _is_out_of_date(known, seen)):
        return known._replace(finding=Finding(Verdict.POLICY_UNKNOWN))
    if known.policy is None:
        return None
    if share is NOT_DIVIDED:
        bounded = allowed is not None or known.policy.max_bytes is not None
        if known.sent.limits is not None or not bounded:
            return known._replace(abilities=before.abilities, finding=Finding(Verdict.NOT_DIVIDED))
        share = None  # the own limit of a new drive, or of its VM, needn't wait for a division
    if allowed is None:
        if seen.policy is UNKNOWN:
            return known._replace(finding=Finding(Verdict.POLICY_UNKNOWN))
        return None
    if share is not None and known.pricing.base is None and _finds_its_own(before, known, seen):
        return known._replace(share=share, finding=Finding())
    if known.abilities is None and _stays(known, seen, model):
        return known._replace(share=share, finding=Finding(Verdict.QEMU_UNKNOWN))
    return None


def _looked_at(known: DriveState, share: Share | None, finding: Finding) -> DriveState:
    policy, storage, tenant, qemu, did, demand, credit, _, pricing, _, sent, vm, part, on, held = (
        known
    )
    return DriveState(
        policy,
        storage,
        tenant,
        qemu,
        did,
        demand,
        credit,
        share,
        pricing,
        finding,
        sent,
        vm,
        part,
        on,
        held,
    )


def _reason(
    before: DriveState,
    known: DriveState,
    seen: DriveSeen,
    finding: Finding,
    misfit: Reason | None,
    allowed: float,
    now_ns: int,
) -> Reason | None:
    """Return the most pressing reason to set limits, or None if there is none.

    misfit: the reason that the look at their prices gave.
    """
    policy, vm, was = known.policy, known.vm, before.vm
    assert policy is not None
    if known.pricing.base is None or _promise_changed(before, known):
        return Reason.POLICY
    if misfit is not None:
        return misfit
    if known.credit.open != before.credit.open:
        return Reason.BURST_OPENS if known.credit.open else Reason.BURST_CLOSES
    if vm is not None and was is not None and vm.credit.open != was.credit.open:
        return Reason.BURST_OPENS if vm.credit.open else Reason.BURST_CLOSES
    if share_has_moved(known, policy, allowed, now_ns):
        return Reason.SHARE
    # A suspect drive will soon be priced anew, with its credit.
    if not finding.suspect and burst.has_grown(before, known, policy, now_ns):
        return Reason.CREDIT_GREW
    return _not_carried_out(known, seen)


def _not_carried_out(known: DriveState, seen: DriveSeen) -> Reason | None:
    """Return the reason to send the last limits again, or None if there is none."""
    if seen.failed:
        return Reason.RETRY
    in_force, sent = seen.in_force, known.sent.limits
    if in_force is not None and in_force is not sent and in_force != sent:
        return Reason.OVERWRITTEN
    return None


def _promise_changed(before: DriveState, known: DriveState) -> bool:
    """Return whether its policy, its VM's, or its QEMU's abilities are others than before."""
    policy, was = known.policy, before.policy
    if policy is not was and policy != was:
        return True
    qemu, qemu_was = known.abilities, before.abilities
    if qemu is not qemu_was and qemu != qemu_was:
        return True
    vm, vm_was = known.vm, before.vm
    return vm is not vm_was and (vm and vm.policy) != (vm_was and vm_was.policy)


def _sent(
    before: Sent,
    limits: ThrottleLimits,
    seen: DriveSeen,
    reason: Reason,
    credit_s: float,
    now_ns: int,
) -> tuple[Sent, bool]:
    """Return the record of orders after this one, and whether it has to be sent."""
    if limits == before.limits and reason not in _SENT_AGAIN:
        return before._replace(credit_s=credit_s), False
    is_first = before.limits is None
    group = seen.group if is_first else before.group
    # libvirt doesn't tell whether a QEMU has a curve of ours in force in their place.
    hides_curve = seen.abilities is None and any(ours.cost_read for ours in before.ours)
    if limits == seen.in_force and reason not in _RENEWED and not hides_curve:
        # As after a restart of the agent: they are in force already.
        last = before._replace(limits=limits, reason=reason, credit_s=credit_s, group=group)
        return last._replace(found=seen.found) if is_first else last, False
    return Sent(
        limits=limits,
        replaced=before.limits,
        found=before_ours(seen) if is_first else before.found,
        at_ns=now_ns,
        reason=reason,
        credit_s=credit_s,
        retunes=before.retunes + (not is_first),
        overwritten=before.overwritten + (reason is Reason.OVERWRITTEN),
        carried_out=before.carried_out,
        group=group,
    ), True


def _is_new(before: DriveState) -> bool:
    """Return whether a drive is looked at for the first time since its QEMU began."""
    return before is NEW or (before.sent.limits is None and before.sent.found is not None)


def before_ours(seen: DriveSeen) -> ThrottleLimits | None:
    """Return the limits that a drive of a QEMU new to this agent had before any agent's.

    None if they aren't known. A guest that has migrated or was restored has those that it had.
    """
    return seen.in_force if seen.found is None else seen.found


def _is_out_of_date(known: DriveState, seen: DriveSeen) -> bool:
    """Return whether a restarted agent can't go by the policy that an earlier one saved.

    Other limits than those saved with it are in force: maybe a later policy's, which couldn't be
    saved. If there are none, or those from before the policy, as after a restart of its guest, an
    old policy is better than none.
    """
    sent, in_force = known.sent, seen.in_force
    ours = any(in_force in (limits, limits.stock) for limits in sent.ours)
    came_along = sent.limits is None and seen.found is not None and sent.found == seen.found
    fits = ours or came_along or in_force in (sent.found, UNLIMITED)
    return known.pricing.base is None and not (in_force is not None and fits)


def _finds_its_own(before: DriveState, known: DriveState, seen: DriveSeen) -> bool:
    """Return whether an agent that has made no limits yet sees those of its predecessor.

    It can judge them in a tick.
    """
    is_first = before.measured.counters is None and known.measured.counters is not None
    sent = known.sent.limits
    return is_first and sent is not None and seen.in_force == sent


def _stays(known: DriveState, seen: DriveSeen, model: CostModel) -> bool:
    """Return whether an earlier agent's limits stay until the QEMU has told its abilities.

    They may have a curve, which libvirt doesn't tell. Others are made only if there are none any
    more, or if they let the drive have more than its policy, its VM or its tenant may have now.
    """
    sent = known.sent.limits
    promised = known.allowed_by(None)
    if known.pricing.base is not None or sent is None or sent.unlimited:
        return False
    if seen.in_force == UNLIMITED:
        return False
    if promised is None:
        return True
    separate = known.policy is not None and known.policy.separate_budgets
    most = (2 if separate else 1) * (1 + SHARE_RATIO) * promised
    return rate_in_force(sent, model) <= most


def _release(
    before: DriveState, known: DriveState, seen: DriveSeen, *, timed: bool
) -> tuple[DriveState, tuple[ThrottleLimits, Reason] | None]:
    """Give a drive that has lost its policy or its limit the limits that it had before.

    timed: its QEMU is to time it by the throttle group, though nothing holds it.
    """
    bare = _bare(known, Finding(Verdict.NO_POLICY if known.policy is None else Verdict.NO_LIMIT))
    sent, in_force = known.sent, seen.in_force
    # A record follows its platform, but it doesn't follow a move to another group.
    found = (None if seen.group else seen.found) or sent.found or seen.found or UNLIMITED
    if sent.limits is None and seen.found not in (None, in_force) and _is_new(before):
        sent = sent._replace(limits=in_force)  # an agent's that came along with the guest
    if sent.limits is None:
        if not timed or in_force is None or in_force.latency:
            return bare, None
        found = in_force
    elif not is_ours(in_force, sent) and not (sent.reason is Reason.RELEASED and seen.failed):
        return bare, None
    back = found._replace(latency=timed or found.latency)
    if sent.reason is Reason.RELEASED and sent.limits == back and not seen.failed:
        # Until it is seen to be done. One that is timed is still to be given back.
        return (bare._replace(sent=sent) if in_force is None or back != found else bare), None
    released = bare._replace(
        sent=bare.sent._replace(
            limits=back,
            replaced=sent.limits,
            found=found,
            reason=Reason.RELEASED,
            carried_out=sent.carried_out,
            group=sent.group,
        )
    )
    return released, (back, Reason.RELEASED)


def _bare(known: DriveState, finding: Finding) -> DriveState:
    """Return the state of a drive that no rate is held to, without its orders."""
    kept = known.measured
    return DriveState(
        policy=known.policy,
        storage=known.storage,
        tenant=known.tenant,
        abilities=known.abilities,
        measured=Measured(kept.counters, kept.rates, kept.rate, kept.mix, read_rate=kept.read_rate),
        demand=known.demand._replace(backlogged=False, backlogged_ns=0),
        share=None,
        finding=finding,
        sent=Sent(retunes=known.sent.retunes, overwritten=known.sent.overwritten),
        vm=known.vm,
    )


def is_ours(in_force: ThrottleLimits | None, sent: Sent) -> bool:
    """Return whether limits in force may be ours.

    The last orders may not have been carried out. Until QEMU itself has told its limits, those in
    force are libvirt's view of them, without a curve: QEMU's, or libvirt's own of a throttle group,
    or of a QEMU that it has just started.
    """
    return in_force is None or any(
        in_force in (limits, limits.stock) or may_be_fallback(in_force, limits)
        for limits in sent.ours
    )
