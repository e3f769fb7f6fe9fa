"""The control law: from what drives did to the limits that QEMU shall hold them to.

Here's how it works. `decide` looks at every drive once a tick. What it may do, L normalized I/O
operations a second, is its policy's limit (its burst while it has credit), and no more than its
share of its storage and of its tenant's limit (allot.py). For each drive that has an L it computes

    R   the normalized rate of the interval just ended: what the requests cost a second
    P   the rate at which the limits in force would hold the interval's mix if its demand had no
        end (envelope.held_rates)
    e   the pricing error, P / L - 1

A drive is *mispriced* where e is beyond a deadband, and the limits matter to it, which is where
R > BINDING_RATIO * P. Limits are then made anew for the mix (envelope.limits_for), but not at
once, for two reasons. The interval in which a shift falls shows a blend of two workloads, and
each change of limits empties QEMU's buckets and so hands out a tenth of a second of L for
nothing. So

- a drive has to be mispriced the same way in two looks in a row, and the second one is what
  counts: all of it lies after the shift. `State.look_again` asks for that look LOOK_AGAIN_S after
  the first;
- the deadband is SHIFT_RATIO while the mean request size has just changed by more than
  SIZE_RATIO and then stayed for a look, since a gift right after a shift does no harm. Later it is
  DEADBAND_RATIO, and more where a mix of few and different requests varies from look to look
  anyway (NOISE_FACTOR times its mean change);
- between two changes there is MIN_INTERVAL_S at least, and between the moment a drive wakes up
  (with an empty bucket, so the same tenth of a second) and the first change too: new prices
  never make two such gifts in a second;
- while the mix is steady, its estimate gets better with each look (a mean that decays with
  MIX_HALF_LIFE_S, and begins anew at a shift). A correction beyond DRIFT_RATIO is worth its gift
  once the error times how long it has been in force comes to DRIFT_COST_S, ten gifts;
- a drive that has been idle for IDLE_S goes back to limits for no mix in particular, so that
  whatever it does next is served alike. That is free: its bucket is empty anyway.

L moves as neighbours come and go. Limits follow it once the error times how long it has been in
force comes to the gift (GIFT_S), so a large move at once and a small one later; where QEMU
charges by the curve itself and hands out no gifts, every move of SHARE_RATIO at once; and for a
drive that does far less than it may, only moves of LOOSE_RATIO.

That the mispricing in between stays small, and never lets more than OVERSHOOT_RATIO too much
through, is the envelope's work.

Burst credit lives here, not in QEMU (credit.py). While a drive has credit, its limits carry
QEMU's own *_max with a length that lets through what the credit is worth, so that the burst ends
even where nobody is there to end it.

Limits that somebody else changed are put back. A drive without a policy is left alone; one that
loses its policy gets back what it had before.

How the constants were chosen, and what each costs, is measured in docs/control-law.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from iokeel.core.counters import NS_PER_S, DriveId, Rates, Throttled, rates
from iokeel.core.curve import CostModel
from iokeel.core.drive.burst import NO_CREDIT, REOPEN_S, Credit
from iokeel.core.drive.envelope import NO_MIX, Mix, exact_limits, limits_for, mix_cost, scaled
from iokeel.core.drive.mix import has_shifted, mean_mix, with_seen
from iokeel.core.drive.retune import base_rate, judge, share_moved
from iokeel.core.limits import AVERAGES, UNLIMITED, ThrottleLimits
from iokeel.core.policy import DrivePolicy
from iokeel.core.sharing.allocate import allot
from iokeel.core.sharing.demand import demand_after
from iokeel.core.sharing.headroom import split_size
from iokeel.core.state import (
    NEW,
    DriveSeen,
    DriveState,
    Observation,
    Reason,
    SetLimits,
    Share,
    State,
    StorageSeen,
    StorageState,
    Verdict,
)

# A bound that is used to this much is what holds the drive, and more than so much is a burst.
_FULL_RATIO = 0.95
_BURSTING_RATIO = 1.05
# Where QEMU tells how long requests waited: one that they waited for at least so much of the time.
_HELD_RATIO = 0.05
# Credit that has grown by less is not worth new limits.
_GROWN_RATIO = 1.5
# The rate that limits are computed for before they are scaled to a drive's own: so large that
# rounding is nothing.
_UNIT_RATE = 1_000_000.0


def decide(state: State, seen: Observation, now_ns: int) -> tuple[State, list[SetLimits]]:
    """Look at drives once, and say which limits to change.

    now_ns: the monotonic clock. Decides the same for the same input; the same observation twice
    sends nothing the second time. Drives that are not seen are forgotten, unless the
    observation is partial or says to keep them.
    """
    models = _models(state.model, state.storages if seen.partial else seen.storages)
    drives = dict(state.drives) if seen.partial or seen.keep else {}
    for drive, now in seen.drives.items():
        model = models[now.storage]
        drives[drive] = _count(state.drives.get(drive, NEW), now, model)
    storages, shares = state.storages, None
    if not seen.partial:
        storages, shares = allot(seen.drives, drives, seen.storages, state.storages, state.tenants)
    orders: list[SetLimits] = []
    again: list[DriveId] = []
    for drive, now in seen.drives.items():
        before, known = state.drives.get(drive, NEW), drives[drive]
        share = known.share if shares is None else shares.get(drive)
        model = models[now.storage]
        storage = storages.get(now.storage or "")
        if storage is None and seen.partial:  # what it is on may not be known yet
            split = before.sent.split_size if before.sent else None
        else:
            split = split_size(now.policy, model, storage)
        after, order = _look(before, known, share, now, model, split, now_ns)
        drives[drive] = after
        if order is not None:
            assert after.reason is not None
            orders.append(SetLimits(drive, order, after.reason))
        if after.verdict is Verdict.SUSPECT:
            again.append(drive)
    return State(state.model, drives, state.tenants, storages, tuple(again)), orders


def _models(
    default: CostModel, storages: Mapping[str, StorageSeen | StorageState]
) -> Mapping[str | None, CostModel]:
    """Return the cost model of each storage that has one of its own; the default for others."""
    own: dict[str | None, CostModel] = {
        name: s.policy.model for name, s in storages.items() if s.policy.model is not None
    }
    return defaultdict(lambda: default, own)


def static_limits(state: State) -> list[SetLimits]:
    """Return what holds every drive to its limit, about, where no agent is there to retune.

    No size gets more than its limit; the worst gets what one iops_size can give it.
    """
    orders = []
    models = _models(state.model, state.storages)
    for drive, known in state.drives.items():
        policy, model = known.policy, models[known.storage]
        if policy is None or known.sent is None or (policy.limit is None and known.held is None):
            continue
        if policy.limit is None:  # its share held it, which is nobody's once the agent is gone
            orders.append(SetLimits(drive, known.found or UNLIMITED, Reason.STOPPING))
            continue
        if known.abilities.cost_curve:
            split = split_size(policy, model, state.storages.get(known.storage or ""))
            limits = exact_limits(
                model, policy.limit, separate=policy.separate_budgets, split_size=split
            )
            orders.append(SetLimits(drive, limits, Reason.STOPPING))
            continue
        limits = limits_for(
            model, policy.limit, separate=policy.separate_budgets, overshoot_ratio=0.0
        )
        orders.append(SetLimits(drive, limits, Reason.STOPPING))
    return orders


def full_bounds(known: DriveState) -> list[str]:
    """Return the fields of the limits in force that the last interval used up."""
    if known.sent is None or known.rates is None:
        return []
    if known.rates.throttled is not None:
        return _holding(known.sent, known.rates.throttled)
    return _full(known.sent, known.rates, known.rate if known.abilities.cost_curve else None)


def _holding(limits: ThrottleLimits, did: Throttled) -> list[str]:
    """Return the fields of exact limits that requests have waited for."""
    held_s = {"read": did.held_s(write=False), "write": did.held_s(write=True)}
    held_s["total"] = max(held_s.values())
    return [
        f"iops_{suffix}"
        for suffix in ("total", "read", "write")
        if getattr(limits, f"iops_{suffix}") and held_s[suffix] >= _HELD_RATIO * did.elapsed_s
    ]


def _full(
    limits: ThrottleLimits | None, did: Rates, charged: float | None, ratio: float = _FULL_RATIO
) -> list[str]:
    """Return full bounds. charged: what QEMU charged a second, where that is by a cost curve.

    ratio: how full they are at least, bursts not counted.
    """
    if limits is None:
        return []
    full = []
    read, write = did.read, did.write
    for bps_name, iops_name, bps, requests in (
        ("bps_total", "iops_total", read.bps + write.bps, read.raw_iops + write.raw_iops),
        ("bps_read", "iops_read", read.bps, read.raw_iops),
        ("bps_write", "iops_write", write.bps, write.raw_iops),
    ):
        if (bound := getattr(limits, bps_name)) and bps >= ratio * bound:
            full.append(bps_name)
        if bound := getattr(limits, iops_name):
            if charged is not None:
                requests = charged
            elif limits.iops_size:
                requests = max(requests, bps / limits.iops_size)
            if requests >= ratio * bound:
                full.append(iops_name)
    return full


def _look(
    before: DriveState,
    known: DriveState,
    share: Share | None,
    seen: DriveSeen,
    model: CostModel,
    split: int | None,
    now_ns: int,
) -> tuple[DriveState, ThrottleLimits | None]:
    """Return a drive's state after one look at it, and the limits to set, if any.

    known: its state with the new reading counted. split: the split_size of its limits, if exact.
    """
    policy, ceiling = seen.policy, known.ceiling
    allowed = float(ceiling) if ceiling is not None else None
    if share is not None and (allowed is None or share.most < allowed):
        allowed = max(1.0, share.most)
    if policy is None or allowed is None:
        return _release(known, seen)
    verdict, reason, suspect, error = Verdict.EXACT, None, 0, None
    if share is not None and _found_again(before, known, seen):
        return known._replace(share=share, verdict=Verdict.UNKNOWN), None
    exact = seen.abilities.cost_curve
    if not exact:
        verdict, reason, suspect, error = judge(known, model, policy, now_ns)
    mix = None if exact else known.priced_for
    if known.base is None or policy != before.policy or seen.abilities != before.abilities:
        reason = Reason.POLICY
    elif exact and (known.base.cost_read, known.base.cost_write) != (model.read, model.write):
        reason = Reason.CURVE
    elif exact and known.base.split_size != split:
        reason = Reason.SPLIT
    elif reason is not None:
        mix = None if reason is Reason.IDLE else known.mix
    elif known.credit.open != before.credit.open:
        reason = Reason.BURST_OPENS if known.credit.open else Reason.BURST_CLOSES
    elif share_moved(known, allowed, now_ns):
        reason = Reason.SHARE
    elif not suspect and _credit_grew(before, known, policy, now_ns):  # else both at once, soon
        reason = Reason.CREDIT_GREW
    elif seen.failed:
        reason = Reason.RETRY
    elif seen.in_force is not None and seen.in_force != known.sent:
        reason = Reason.OVERWRITTEN
    new: dict[str, Any] = {
        "share": share,
        "verdict": verdict,
        "suspect": suspect,
        "error_ratio": error,
        "abilities": seen.abilities,
    }
    if reason is None:
        same = (known.share, known.verdict, known.suspect, known.error_ratio, known.abilities)
        unchanged = same == (share, verdict, suspect, error, seen.abilities)
        return known if unchanged else known._replace(**new), None
    rate = base_rate(policy, allowed)
    unit = known.unit
    if exact:
        base = exact_limits(model, rate, separate=policy.separate_budgets, split_size=split)
    else:
        if unit is None or mix is not known.priced_for or reason is Reason.POLICY:
            unit = limits_for(model, _UNIT_RATE, mix, separate=policy.separate_budgets)
        base = scaled(unit, rate / _UNIT_RATE)
    granted_s = known.credit.seconds if known.credit.open else 0.0
    limits = _with_burst(base, allowed / rate, granted_s)
    new |= {
        "unit": unit,
        "base": base,
        "held": allowed,
        "priced_for": mix,
        "granted_s": granted_s,
    }
    if limits == known.sent and reason not in (
        Reason.OVERWRITTEN,
        Reason.RETRY,
        Reason.CREDIT_GREW,
    ):
        return known._replace(**new), None
    if (
        limits == seen.in_force and reason is not Reason.CREDIT_GREW
    ):  # as after a restart of the agent: nothing to do, no gift
        return known._replace(**new, sent=limits, reason=reason), None
    new |= {
        "found": seen.in_force if before.sent is None else known.found,
        "sent": limits,
        "replaced": known.sent,
        "sent_ns": now_ns,
        "reason": reason,
        "suspect": 0,
        "retunes": known.retunes + (before.sent is not None),
        "overwritten": known.overwritten + (reason is Reason.OVERWRITTEN),
    }
    return known._replace(**new), limits


def _found_again(before: DriveState, known: DriveState, seen: DriveSeen) -> bool:
    """Whether an agent that was started again sees its own limits, and what they do in a tick."""
    first = before.counters is None and known.counters is not None
    return first and known.base is None and known.sent is not None and seen.in_force == known.sent


def _release(known: DriveState, seen: DriveSeen) -> tuple[DriveState, ThrottleLimits | None]:
    """Give a drive whose policy or limit is gone what it had before."""
    verdict = Verdict.NO_POLICY if known.policy is None else Verdict.NO_LIMIT
    bare = DriveState(
        policy=known.policy,
        storage=known.storage,
        tenant=known.tenant,
        counters=known.counters,
        rates=known.rates,
        rate=known.rate,
        mix=known.mix,
        verdict=verdict,
        retunes=known.retunes,
        overwritten=known.overwritten,
        throttled_s=known.throttled_s,
        abilities=seen.abilities,
        lately=known.lately,
        demand=known.demand,
    )
    if known.sent is None:
        return bare, None
    back = known.found or UNLIMITED
    released = bare._replace(sent=back, replaced=known.sent, found=back, reason=Reason.RELEASED)
    if known.reason is Reason.RELEASED and not seen.failed:
        return (released if seen.in_force is None else bare), None
    ours = (None, known.sent, known.replaced)  # a crash may have kept the last from being done
    if known.reason is not Reason.RELEASED and seen.in_force not in ours:
        return bare, None
    return released, back


def _count(before: DriveState, seen: DriveSeen, model: CostModel) -> DriveState:
    """Return a drive's state with its rates, cost, credit and mix brought up to a reading."""
    policy, counters = seen.policy, seen.counters
    if (policy, seen.storage, seen.tenant) != (before.policy, before.storage, before.tenant):
        before = before._replace(policy=policy, storage=seen.storage, tenant=seen.tenant)
    last = before.counters
    if last is None or counters is None or (did := rates(last, counters)) is None:
        return before._replace(counters=counters or last, rates=None, rate=None, active_ns=None)
    seen_mix = before.mix or NO_MIX
    did = Rates(
        did.elapsed_s,
        with_seen(did.read, seen_mix.read),
        with_seen(did.write, seen_mix.write),
        did.read_latency_s,
        did.write_latency_s,
        did.throttled,
    )
    if did.throttled is not None and before.sent is not None and before.sent.cost_read is not None:
        rate = did.throttled.rate  # what QEMU charged by our curve, not an estimate
    else:
        rate = mix_cost(model, Mix(did.read, did.write))
    owed = policy.reservation if policy else 0
    lately, demand = demand_after(before.lately, rate, owed, seen.abilities)
    if did.idle:
        return before._replace(
            counters=counters,
            rates=did,
            rate=rate,
            lately=lately,
            demand=demand,
            backlogged=False,
            throttled_s=before.throttled_s + _held_s(before, did, full=False),
            credit=_credit(before, policy, rate, did),
            active_ns=None,
            idle_ns=before.idle_ns or last.at_ns,
        )
    bps = did.read.bps + did.write.bps
    size = before.size.after(bps / (did.read.raw_iops + did.write.raw_iops))
    shifted = has_shifted(before.mix, size)
    charged = rate if before.abilities.cost_curve else None
    full = bool(_full(before.sent, did, charged))
    credit = _credit(before, policy, rate, did)
    bursting = full and (
        rate >= _FULL_RATIO * (before.held or 0.0)
        or bool(_full(before.sent, did, charged, _BURSTING_RATIO))
    )
    if (
        full
        and not bursting
        and (before.abilities.cost_curve or not _grant_s(credit.seconds, policy))
    ):
        credit = NO_CREDIT  # QEMU has counted the burst as used up, a little earlier than we did
    held = full and (not bursting or rate >= _FULL_RATIO * (before.held or 0.0))
    return before._replace(
        counters=counters,
        rates=did,
        rate=rate,
        lately=lately,
        demand=demand,
        backlogged=held,
        bound_ns=counters.at_ns if held else before.bound_ns,
        throttled_s=before.throttled_s + _held_s(before, did, full),
        credit=credit,
        mix=mean_mix(None if shifted else before.mix, did),
        looks=1 if shifted else before.looks + 1,
        size=size,
        price=before.price.after(bps / rate) if rate else before.price,
        active_ns=before.active_ns or counters.at_ns,  # it woke up some time before
        idle_ns=None,
    )


def _held_s(before: DriveState, did: Rates, full: bool) -> float:
    """Return for how long limits held a drive, of which it is known whether it filled them."""
    if did.throttled is not None:
        return max(did.throttled.held_s(write=False), did.throttled.held_s(write=True))
    return did.elapsed_s if full else 0.0


def _credit(before: DriveState, policy: DrivePolicy | None, rate: float, did: Rates) -> Credit:
    return before.credit.after(policy, rate, did.elapsed_s) if policy else NO_CREDIT


def _credit_grew(before: DriveState, known: DriveState, policy: DrivePolicy, now_ns: int) -> bool:
    """Whether limits should carry more credit than they do.

    That is where a drive has begun to spend it, or is held to its limit although it has credit: a
    drive that does nearly as much as its limit earns credit by our count, and hardly any by QEMU's.
    While it only saves credit, what its limits carry lasts until the next look.
    """
    if not known.credit.open or known.rate is None or policy.limit is None:
        return False
    if known.backlogged and known.held and known.rate < _FULL_RATIO * known.held:
        return before.backlogged and now_ns - known.sent_ns >= REOPEN_S * NS_PER_S
    if known.credit.seconds < _GROWN_RATIO * known.granted_s:
        return False
    if known.rate > policy.limit:
        return True
    return _grant_s(known.granted_s, policy) == 0 < _grant_s(known.credit.seconds, policy)


def _grant_s(credit_s: float, policy: DrivePolicy | None) -> int:
    """Return the length of QEMU's burst that lets through what credit is worth; 0: none does."""
    if policy is None or policy.limit is None or policy.burst is None:
        return 0
    return _length_s(credit_s, policy.burst / policy.limit)


def _length_s(credit_s: float, ratio: float) -> int:
    # QEMU's bucket of max * length fills at max - average while a drive bursts. It doesn't hold
    # a burst of 1 s to its rate.
    length = int(credit_s * (ratio - 1) / ratio)
    return length if length >= 2 else 0


def _with_burst(base: ThrottleLimits, ratio: float, credit_s: float) -> ThrottleLimits:
    """Return limits that let a drive burst for as long as its credit lasts, and no longer.

    ratio: the burst over the limits' own rate.
    """
    length = _length_s(credit_s, ratio) if ratio > 1 else 0
    if not length:
        return base
    bursts: dict[str, Any] = {}
    for name in AVERAGES:
        average = getattr(base, name)
        if average is not None:
            bursts[f"{name}_max"] = max(average, round(average * ratio))
            bursts[f"{name}_max_length"] = length
    return base._replace(**bursts)
