"""The control law: from what drives did to the limits that QEMU shall hold them to.

Here's how it works. `decide` looks at every drive once a tick. For each with a limit L
(normalized I/O operations a second) it computes

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
  (with an empty bucket, so the same tenth of a second) and the first change too: no second holds
  two such gifts;
- while the mix is steady, its estimate gets better with each look (a mean that decays with
  MIX_HALF_LIFE_S, and begins anew at a shift). A correction beyond DRIFT_RATIO is worth its gift
  once the error times how long it has been in force comes to DRIFT_COST_S, ten gifts;
- a drive that has been idle for IDLE_S goes back to limits for no mix in particular, so that
  whatever it does next is served alike. That is free: its bucket is empty anyway.

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

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any

from iokeel.credit import NO_CREDIT, Credit
from iokeel.curve import DEFAULT_MODEL, CostModel, is_uniform
from iokeel.envelope import Mix, exact_limits, held_rates, limits_for, mix_cost
from iokeel.limits import AVERAGES, UNLIMITED, ThrottleLimits
from iokeel.policy import DrivePolicy
from iokeel.workload import NS_PER_S, Counters, DriveId, Flow, Rates, rates

SHIFT_RATIO = 0.007
SIZE_RATIO = 0.1
DEADBAND_RATIO = 0.025
NOISE_FACTOR = 2.0
DRIFT_RATIO = 0.015
DRIFT_COST_S = 1.0
LOOK_AGAIN_S = 0.4
MIN_INTERVAL_S = 1.0
MIX_HALF_LIFE_S = 4.0
BINDING_RATIO = 0.6
IDLE_S = 10.0
# How fast the noise estimate follows, and how much larger than it one change may count: a shift
# is no noise.
_NOISE_GAIN = 0.2
_NOISE_CLIP = 3.0
_SEEN_SIZES = 4
# A bound that is used to this much is what holds the drive.
_FULL_RATIO = 0.95
_NONE = Flow(0.0, 0.0)


class Reason(Enum):
    """Why limits were set."""

    POLICY = "the policy is new or has changed"
    SHIFT = "the mix of request sizes has shifted"
    DRIFT = "the mix is known better now"
    IDLE = "the drive went idle, so its next mix is unknown"
    BURST_OPENS = "it has saved credit, so it may burst"
    BURST_CLOSES = "its burst credit is used up"
    CREDIT_GREW = "it has saved more credit while it did little"
    OVERWRITTEN = "somebody else had changed the limits"
    RETRY = "the last change of limits had failed"
    RELEASED = "it has no policy or no limit any more"
    STOPPING = "the agent stops"


class Verdict(Enum):
    """What the last look at a drive found."""

    NO_POLICY = "it has no policy, so it is left alone"
    NO_LIMIT = "its policy sets no limit"
    UNKNOWN = "its rates are not known yet"
    IDLE = "it does nothing"
    UNBOUND = "it does less than its limits allow, so their price doesn't matter"
    PRICED = "its limits fit what it does"
    SUSPECT = "its limits don't fit what it does; a second look decides"
    WAITING = "its limits don't fit what it does, but the last change is too recent"
    RETUNED = "its limits didn't fit what it did, so they were set anew"
    EXACT = "QEMU prices each of its requests by the cost curve itself"


@dataclass(frozen=True, slots=True)
class DriveSeen:
    """A drive at a tick.

    counters: None where it can't be read now. in_force: its limits, None where they are not
    known. failed: whether the last order to this drive was not carried out. exact: whether QEMU
    charges by the cost curve itself.
    """

    policy: DrivePolicy | None
    counters: Counters | None
    in_force: ThrottleLimits | None
    failed: bool = False
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """One snapshot. partial: other drives exist, and are not looked at this time."""

    drives: Mapping[DriveId, DriveSeen]
    partial: bool = False


@dataclass(frozen=True, slots=True)
class SetLimits:
    """An order to the edges: put these limits in force on this drive.

    curve: what QEMU shall charge by; None: nothing, as stock QEMU does.
    """

    drive: DriveId
    limits: ThrottleLimits
    reason: Reason
    curve: CostModel | None = None


@dataclass(frozen=True, slots=True)
class Noise:
    """A figure as last seen, and by how much of itself it changes from look to look."""

    value: float | None = None
    ratio: float = 0.0

    def after(self, value: float) -> Noise:
        """Return the noise after one more look. A jump counts, but not in full."""
        if self.value is None:
            return Noise(value, self.ratio)
        change = min(abs(value / self.value - 1), max(DEADBAND_RATIO, _NOISE_CLIP * self.ratio))
        return Noise(value, self.ratio + _NOISE_GAIN * (change - self.ratio))


_NO_NOISE = Noise()


@dataclass(frozen=True, slots=True)
class DriveState:
    """What the controller knows of a drive.

    rate: R of the last interval. mix: the mean of the `looks` intervals since the last shift.
    size, price: the mean request size, and the bytes that a normalized operation moves.
    base: the limits that hold it to its policy's limit for `priced_for`, the burst not included.
    sent, replaced: what was ordered last, and before that. found: what was in force before the
    first order. suspect: the sign of e where it was beyond the deadband. error_ratio: e.
    throttled_s: seconds in which a bound was full.
    """

    policy: DrivePolicy | None = None
    counters: Counters | None = None
    rates: Rates | None = None
    rate: float | None = None
    credit: Credit = NO_CREDIT
    granted_s: float = 0.0
    mix: Mix | None = None
    looks: int = 0
    size: Noise = _NO_NOISE
    price: Noise = _NO_NOISE
    priced_for: Mix | None = None
    base: ThrottleLimits | None = None
    sent: ThrottleLimits | None = None
    replaced: ThrottleLimits | None = None
    found: ThrottleLimits | None = None
    sent_ns: int = 0
    reason: Reason | None = None
    active_ns: int | None = None
    idle_ns: int | None = None
    suspect: int = 0
    error_ratio: float | None = None
    verdict: Verdict = Verdict.UNKNOWN
    exact: bool = False
    retunes: int = 0
    overwritten: int = 0
    throttled_s: float = 0.0

    @property
    def allowed(self) -> int | None:
        """What the drive may do now, normalized: its burst while that is open, else its limit."""
        if self.policy is None:
            return None
        return self.policy.burst if self.credit.open else self.policy.limit


@dataclass(frozen=True, slots=True)
class State:
    """The controller's memory. look_again: drives that want a look LOOK_AGAIN_S from now."""

    model: CostModel = DEFAULT_MODEL
    drives: Mapping[DriveId, DriveState] = field(default_factory=dict)
    look_again: tuple[DriveId, ...] = ()


def decide(state: State, seen: Observation, now_ns: int) -> tuple[State, list[SetLimits]]:
    """Look at drives once, and say which limits to change.

    now_ns: the monotonic clock. Decides the same for the same input; the same observation twice
    sends nothing the second time. Drives that are not seen are forgotten, unless it is partial.
    """
    drives = dict(state.drives) if seen.partial else {}
    orders: list[SetLimits] = []
    again: list[DriveId] = []
    for drive, now in seen.drives.items():
        after, order = _look(state.drives.get(drive, _NEW), now, state.model, now_ns)
        drives[drive] = after
        if order is not None:
            assert after.reason is not None
            curve = state.model if after.exact and after.reason is not Reason.RELEASED else None
            orders.append(SetLimits(drive, order, after.reason, curve))
        if after.verdict is Verdict.SUSPECT:
            again.append(drive)
    return State(state.model, drives, tuple(again)), orders


def static_limits(state: State) -> list[SetLimits]:
    """Return what holds every drive to its limit, about, where no agent is there to retune.

    No size gets more than its limit; the worst gets what one iops_size can give it.
    """
    orders = []
    for drive, known in state.drives.items():
        policy = known.policy
        if policy is None or policy.limit is None or known.sent is None:
            continue
        if known.exact:
            limits = exact_limits(policy.limit, separate=policy.separate_budgets)
            orders.append(SetLimits(drive, limits, Reason.STOPPING, state.model))
            continue
        limits = limits_for(
            state.model, policy.limit, separate=policy.separate_budgets, overshoot_ratio=0.0
        )
        orders.append(SetLimits(drive, limits, Reason.STOPPING))
    return orders


def full_bounds(known: DriveState) -> list[str]:
    """Return the fields of the limits in force that the last interval used up."""
    limits, did = known.sent, known.rates
    if limits is None or did is None:
        return []
    full = []
    read, write = did.read, did.write
    for suffix, bps, requests in (
        ("total", read.bps + write.bps, read.raw_iops + write.raw_iops),
        ("read", read.bps, read.raw_iops),
        ("write", write.bps, write.raw_iops),
    ):
        if (bound := getattr(limits, f"bps_{suffix}")) and bps >= _FULL_RATIO * bound:
            full.append(f"bps_{suffix}")
        if bound := getattr(limits, f"iops_{suffix}"):
            if known.exact:
                requests = known.rate or 0.0
            elif limits.iops_size:
                requests = max(requests, bps / limits.iops_size)
            if requests >= _FULL_RATIO * bound:
                full.append(f"iops_{suffix}")
    return full


_NEW = DriveState()
_FIELDS = tuple(field.name for field in fields(DriveState))


def _with(known: DriveState, **changes: Any) -> DriveState:
    """Return a state with some fields changed, in a third of dataclasses.replace's time."""
    new = object.__new__(DriveState)
    for name in _FIELDS:
        object.__setattr__(new, name, changes[name] if name in changes else getattr(known, name))
    return new


def _look(
    before: DriveState, seen: DriveSeen, model: CostModel, now_ns: int
) -> tuple[DriveState, ThrottleLimits | None]:
    """Return a drive's state after one look at it, and the limits to set, if any."""
    known = _count(before, seen, model)
    policy = seen.policy
    if policy is None or policy.limit is None:
        return _release(known, seen)
    verdict, reason, suspect, error = Verdict.EXACT, None, 0, None
    if not seen.exact:
        verdict, reason, suspect, error = _judge(known, model, policy, now_ns)
    mix = None if seen.exact else known.priced_for
    if known.base is None or policy != before.policy or seen.exact != before.exact:
        reason = Reason.POLICY
    elif reason is not None:
        mix = None if reason is Reason.IDLE else known.mix
    elif known.credit.open != before.credit.open:
        reason = Reason.BURST_OPENS if known.credit.open else Reason.BURST_CLOSES
    elif _credit_grew(known, policy):
        reason = Reason.CREDIT_GREW
    elif seen.failed:
        reason = Reason.RETRY
    elif seen.in_force is not None and seen.in_force != known.sent:
        reason = Reason.OVERWRITTEN
    throttled_s = known.throttled_s
    if known.rates is not None and full_bounds(known):
        throttled_s += known.rates.elapsed_s
    known = _with(
        known,
        verdict=verdict,
        suspect=suspect,
        error_ratio=error,
        exact=seen.exact,
        throttled_s=throttled_s,
    )
    if reason is None:
        return known, None
    base = known.base
    if seen.exact:
        base = exact_limits(policy.limit, separate=policy.separate_budgets)
    elif base is None or mix is not known.priced_for or reason is Reason.POLICY:
        base = limits_for(model, policy.limit, mix, separate=policy.separate_budgets)
    granted_s = known.credit.seconds if known.credit.open else 0.0
    limits = _with_burst(base, policy, granted_s)
    if limits == known.sent and reason not in (Reason.OVERWRITTEN, Reason.RETRY):
        return _with(known, base=base, priced_for=mix, granted_s=granted_s), None
    if limits == seen.in_force:  # as after a restart of the agent: nothing to do, no gift
        return _with(
            known, base=base, priced_for=mix, granted_s=granted_s, sent=limits, reason=reason
        ), None
    return _with(
        known,
        found=seen.in_force if before.sent is None else known.found,
        base=base,
        priced_for=mix,
        granted_s=granted_s,
        sent=limits,
        replaced=known.sent,
        sent_ns=now_ns,
        reason=reason,
        suspect=0,
        retunes=known.retunes + (before.sent is not None),
        overwritten=known.overwritten + (reason is Reason.OVERWRITTEN),
    ), limits


def _release(known: DriveState, seen: DriveSeen) -> tuple[DriveState, ThrottleLimits | None]:
    """Give a drive whose policy or limit is gone what it had before."""
    verdict = Verdict.NO_POLICY if known.policy is None else Verdict.NO_LIMIT
    bare = DriveState(
        policy=known.policy,
        counters=known.counters,
        rates=known.rates,
        rate=known.rate,
        mix=known.mix,
        verdict=verdict,
        retunes=known.retunes,
        overwritten=known.overwritten,
        throttled_s=known.throttled_s,
        exact=seen.exact,
    )
    if known.sent is None:
        return bare, None
    back = known.found or UNLIMITED
    released = _with(bare, sent=back, replaced=known.sent, found=back, reason=Reason.RELEASED)
    if known.reason is Reason.RELEASED and not seen.failed:
        return (released if seen.in_force is None else bare), None
    ours = (None, known.sent, known.replaced)  # a crash may have kept the last from being done
    if known.reason is not Reason.RELEASED and seen.in_force not in ours:
        return bare, None
    return released, back


def _count(before: DriveState, seen: DriveSeen, model: CostModel) -> DriveState:
    """Return a drive's state with its rates, cost, credit and mix brought up to a reading."""
    policy, counters = seen.policy, seen.counters
    if counters is None or before.counters is None:
        return _with(
            before,
            policy=policy,
            counters=counters or before.counters,
            rates=None,
            rate=None,
            active_ns=None if counters is None else before.active_ns,
        )
    did = rates(before.counters, counters)
    if did is None:
        return _with(
            before, policy=policy, counters=counters, rates=None, rate=None, active_ns=None
        )
    did = replace(
        did,
        read=_with_seen(did.read, before.mix.read if before.mix else None),
        write=_with_seen(did.write, before.mix.write if before.mix else None),
    )
    rate = mix_cost(model, Mix(did.read, did.write))
    if did.idle:
        return _with(
            before,
            policy=policy,
            counters=counters,
            rates=did,
            rate=rate,
            credit=_credit(before, policy, rate, did),
            active_ns=None,
            idle_ns=before.idle_ns or before.counters.at_ns,
        )
    bps = did.read.bps + did.write.bps
    size = before.size.after(bps / (did.read.raw_iops + did.write.raw_iops))
    shifted = _has_shifted(before, size)
    return _with(
        before,
        policy=policy,
        counters=counters,
        rates=did,
        rate=rate,
        credit=_credit(before, policy, rate, did),
        mix=_mean(None if shifted else before.mix, did),
        looks=1 if shifted else before.looks + 1,
        size=size,
        price=before.price.after(bps / rate),
        active_ns=before.active_ns or counters.at_ns,  # it woke up some time before
        idle_ns=None,
    )


def _judge(
    known: DriveState, model: CostModel, policy: DrivePolicy, now_ns: int
) -> tuple[Verdict, Reason | None, int, float | None]:
    """Say whether limits fit what a drive does: (verdict, reason to price anew, suspect, e)."""
    did, base = known.rates, known.base
    if did is None or known.rate is None or base is None:
        return Verdict.UNKNOWN, None, 0, None
    if did.idle or known.mix is None:
        long = now_ns - (known.idle_ns or now_ns) >= IDLE_S * NS_PER_S
        stale = long and known.priced_for is not None
        return Verdict.IDLE, Reason.IDLE if stale else None, 0, None
    assert policy.limit is not None
    headroom = policy.burst / policy.limit if known.credit.open and policy.burst else 1.0
    error = _error(model, base, policy, Mix(did.read, did.write), known.rate, headroom)
    if error is None:
        return Verdict.UNBOUND, None, 0, None
    least = SHIFT_RATIO if known.looks <= 2 else DEADBAND_RATIO
    deadband = max(least, NOISE_FACTOR * known.price.ratio)
    if abs(error) > deadband:
        settled = _since(known.sent_ns, now_ns) and _since(known.active_ns or now_ns, now_ns)
        way = 1 if error > 0 else -1
        again = known.suspect == way and (known.looks > 1 or abs(error) > DEADBAND_RATIO)
        if again and settled:
            return Verdict.RETUNED, Reason.SHIFT, 0, error
        return Verdict.SUSPECT if settled else Verdict.WAITING, None, way, error
    drift: float | None = error
    if known.price.ratio > 0.1 * DRIFT_RATIO:  # else the mean is like this interval
        mix = _at_rate(model, known.mix, known.rate)
        drift = _error(model, base, policy, mix, known.rate, headroom)
    if drift is not None and abs(drift) > DRIFT_RATIO and _since(known.sent_ns, now_ns):
        since_s = min(now_ns - known.sent_ns, now_ns - (known.active_ns or now_ns)) / NS_PER_S
        if abs(drift) * since_s > DRIFT_COST_S:
            return Verdict.RETUNED, Reason.DRIFT, 0, drift
    return Verdict.PRICED, None, 0, error


def _error(
    model: CostModel,
    base: ThrottleLimits,
    policy: DrivePolicy,
    mix: Mix,
    rate: float,
    headroom: float,
) -> float | None:
    """Return e, the worst of two budgets; None where the limits don't matter to the drive.

    rate: what the mix costs a second.
    """
    assert policy.limit is not None
    parts = [(mix, rate)]
    if policy.separate_budgets:
        halves = [Mix(mix.read, _NONE), Mix(_NONE, mix.write)]
        parts = [(half, mix_cost(model, half)) for half in halves]
    errors = []
    for part, cost in parts:
        held = held_rates(base, part, cost)
        done = cost / headroom
        if held is not None and done > BINDING_RATIO * held[0]:
            errors.append(min(max(done, held[0]), held[1]) / policy.limit - 1)
    return max(errors, key=abs, default=None)


def _at_rate(model: CostModel, mix: Mix, rate: float) -> Mix:
    """Return a mix of the same shape that costs `rate`."""
    scale = rate / mix_cost(model, mix)

    def scaled(flow: Flow) -> Flow:
        return Flow(scale * flow.raw_iops, scale * flow.bps, flow.seen_bytes)

    return Mix(scaled(mix.read), scaled(mix.write))


def _since(start_ns: int, now_ns: int) -> bool:
    # Ticks may come a little early.
    return now_ns - start_ns >= 0.95 * MIN_INTERVAL_S * NS_PER_S


def _credit(before: DriveState, policy: DrivePolicy | None, rate: float, did: Rates) -> Credit:
    return before.credit.after(policy, rate, did.elapsed_s) if policy else NO_CREDIT


def _has_shifted(before: DriveState, size: Noise) -> bool:
    """Whether an interval's requests are of other sizes than those of the mix so far."""
    if before.mix is None or size.value is None:
        return True
    read, write = before.mix.read, before.mix.write
    so_far = (read.bps + write.bps) / (read.raw_iops + write.raw_iops)
    if size.ratio < SIZE_RATIO and is_uniform(size.value) != is_uniform(so_far):
        return True
    return abs(size.value / so_far - 1) > max(SIZE_RATIO, NOISE_FACTOR * size.ratio)


def _with_seen(flow: Flow, before: Flow | None) -> Flow:
    """Return a flow with the sizes that its requests had when they were all alike, newest first.

    Workloads mostly shift by a stream that joins or ends, so that a mix is likely made of what
    was there alone before.
    """
    seen = before.seen_bytes if before else ()
    mean = flow.mean_size_bytes
    if mean is not None and is_uniform(mean):
        size = float(2 ** round(math.log2(mean)))
        if not seen or seen[0] != size:
            seen = (size, *(other for other in seen if other != size))[:_SEEN_SIZES]
    return Flow(flow.raw_iops, flow.bps, seen)


def _mean(mix: Mix | None, did: Rates) -> Mix:
    """Return the mean of a drive's flows, in which what is older counts for less."""
    if mix is None:
        return Mix(did.read, did.write)
    keep = 0.5 ** (did.elapsed_s / MIX_HALF_LIFE_S)

    def mean(old: Flow, new: Flow) -> Flow:
        return Flow(
            keep * old.raw_iops + (1 - keep) * new.raw_iops,
            keep * old.bps + (1 - keep) * new.bps,
            new.seen_bytes,
        )

    return Mix(mean(mix.read, did.read), mean(mix.write, did.write))


def _credit_grew(known: DriveState, policy: DrivePolicy) -> bool:
    """Whether limits of a drive that does little should carry more credit than they do."""
    if not known.credit.open or known.rate is None or policy.limit is None:
        return False
    return known.rate < 0.5 * policy.limit and known.credit.seconds >= 1.5 * known.granted_s


def _with_burst(base: ThrottleLimits, policy: DrivePolicy, credit_s: float) -> ThrottleLimits:
    """Return limits that let a drive burst for as long as its credit lasts, and no longer.

    QEMU's bucket of max * length fills at max - average while a drive bursts.
    """
    if not credit_s or policy.burst is None or policy.limit is None:
        return base
    ratio = policy.burst / policy.limit
    length = int(credit_s * (ratio - 1) / ratio)
    if length < 2:  # QEMU doesn't hold a burst of 1 s to its rate
        return base
    bursts: dict[str, int] = {}
    for name in AVERAGES:
        average = getattr(base, name)
        if average is not None:
            bursts[f"{name}_max"] = max(average, round(average * ratio))
            bursts[f"{name}_max_length"] = length
    return replace(base, **bursts)
