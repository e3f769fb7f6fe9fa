"""Whether the limits in force fit what a drive does, and when to set them anew."""

from __future__ import annotations

import iokeel.core.drive.mix as estimate
from iokeel.core.counters import NS_PER_S, Flow
from iokeel.core.curve import CostModel
from iokeel.core.drive.envelope import Mix, held_rates, mix_cost
from iokeel.core.limits import ThrottleLimits
from iokeel.core.policy import DrivePolicy
from iokeel.core.state import DriveState, Reason, Verdict

SHIFT_RATIO = 0.007
DRIFT_RATIO = 0.015
DRIFT_COST_S = 1.0
DRIFT_LOOKS = 4
LOOK_AGAIN_S = 0.4
MIN_INTERVAL_S = 1.0
BINDING_RATIO = 0.6
IDLE_S = 10.0
SHARE_RATIO = 0.01
GIFT_S = 0.1
LOOSE_RATIO = 0.25
_NONE = Flow(0.0, 0.0)


def base_rate(policy: DrivePolicy, allowed: float) -> float:
    """Return the rate that limits are made for, before the burst that comes on top of it."""
    return allowed if policy.limit is None else min(float(policy.limit), allowed)


def share_moved(known: DriveState, allowed: float, now_ns: int) -> bool:
    """Whether what a drive may do has moved so far from what it is held to that it is worth it.

    Where limits change without a gift, that is at once; else once the error times how long it has
    been in force comes to the gift. A drive that does far less than it may gets a coarse limit.
    """
    if known.held is None:
        return False
    off = abs(allowed / known.held - 1)
    if off < SHARE_RATIO:
        return False
    if not known.backlogged and (known.rate or 0.0) < 0.5 * min(allowed, known.held):
        return off > LOOSE_RATIO
    if known.abilities.keeps_levels:
        return True
    return since(known.sent_ns, now_ns) and off * (now_ns - known.sent_ns) > GIFT_S * NS_PER_S


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
    assert known.held is not None
    rate = base_rate(policy, known.held)
    headroom = known.held / rate
    separate = policy.separate_budgets
    error = _error(model, base, separate, rate, Mix(did.read, did.write), known.rate, headroom)
    if error is None:
        return Verdict.UNBOUND, None, 0, None
    least = SHIFT_RATIO if known.looks <= 2 else estimate.DEADBAND_RATIO
    deadband = max(least, estimate.NOISE_FACTOR * known.price.ratio)
    if abs(error) > deadband:
        settled = since(known.sent_ns, now_ns) and since(known.active_ns or now_ns, now_ns)
        way = 1 if error > 0 else -1
        again = known.suspect == way and (known.looks > 1 or abs(error) > estimate.DEADBAND_RATIO)
        if again and settled:
            return Verdict.RETUNED, Reason.SHIFT, 0, error
        return Verdict.SUSPECT if settled else Verdict.WAITING, None, way, error
    if known.looks % DRIFT_LOOKS:
        return Verdict.PRICED, None, 0, error
    drift: float | None = error
    if known.price.ratio > 0.1 * DRIFT_RATIO:  # else the mean is like this interval
        mix = _at_rate(model, known.mix, known.rate)
        drift = _error(model, base, separate, rate, mix, known.rate, headroom)
    if drift is not None and abs(drift) > DRIFT_RATIO and since(known.sent_ns, now_ns):
        since_s = min(now_ns - known.sent_ns, now_ns - (known.active_ns or now_ns)) / NS_PER_S
        if abs(drift) * since_s > DRIFT_COST_S:
            return Verdict.RETUNED, Reason.DRIFT, 0, drift
    return Verdict.PRICED, None, 0, error


def _error(
    model: CostModel,
    base: ThrottleLimits,
    separate: bool,
    rate: float,
    mix: Mix,
    mix_rate: float,
    headroom: float,
) -> float | None:
    """Return e, the worst of two budgets; None where the limits don't matter to the drive.

    rate: what `base` was made for. mix_rate: what the mix costs a second.
    """
    if not separate:
        return _budget_error(base, rate, mix, mix_rate, headroom)
    halves = (Mix(mix.read, _NONE), Mix(_NONE, mix.write))
    errors = (_budget_error(base, rate, half, mix_cost(model, half), headroom) for half in halves)
    return max((error for error in errors if error is not None), key=abs, default=None)


def _budget_error(
    base: ThrottleLimits, rate: float, mix: Mix, cost: float, headroom: float
) -> float | None:
    held = held_rates(base, mix, cost)
    done = cost / headroom
    if held is None or done <= BINDING_RATIO * held[0]:
        return None
    return min(max(done, held[0]), held[1]) / rate - 1


def _at_rate(model: CostModel, mix: Mix, rate: float) -> Mix:
    """Return a mix of the same shape that costs `rate`."""
    scale = rate / mix_cost(model, mix)

    def scaled(flow: Flow) -> Flow:
        return Flow(scale * flow.raw_iops, scale * flow.bps, flow.seen_bytes)

    return Mix(scaled(mix.read), scaled(mix.write))


def since(start_ns: int, now_ns: int) -> bool:
    # Ticks may come a little early.
    return now_ns - start_ns >= 0.95 * MIN_INTERVAL_S * NS_PER_S
