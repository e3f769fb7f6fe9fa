"""Whether the limits in force fit what a drive does, and when to set them anew."""

from __future__ import annotations

import iokeel.estimate as estimate
from iokeel.curve import CostModel
from iokeel.envelope import Mix, held_rates, mix_cost
from iokeel.limits import ThrottleLimits
from iokeel.policy import DrivePolicy
from iokeel.state import DriveState, Reason, Verdict
from iokeel.workload import NS_PER_S, Flow

SHIFT_RATIO = 0.007
DRIFT_RATIO = 0.015
DRIFT_COST_S = 1.0
LOOK_AGAIN_S = 0.4
MIN_INTERVAL_S = 1.0
BINDING_RATIO = 0.6
IDLE_S = 10.0
_NONE = Flow(0.0, 0.0)


def judge(
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
    least = SHIFT_RATIO if known.looks <= 2 else estimate.DEADBAND_RATIO
    deadband = max(least, estimate.NOISE_FACTOR * known.price.ratio)
    if abs(error) > deadband:
        settled = _since(known.sent_ns, now_ns) and _since(known.active_ns or now_ns, now_ns)
        way = 1 if error > 0 else -1
        again = known.suspect == way and (known.looks > 1 or abs(error) > estimate.DEADBAND_RATIO)
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
