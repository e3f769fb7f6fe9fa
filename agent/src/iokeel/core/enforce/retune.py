"""Judges when a drive's limits are set anew: for its workload, and for its share.

This is for stock QEMU, whose limits are made for a mix of request sizes (envelope.py). Let

    R   the normalized rate of the interval just ended: the cost of its requests a second
    P   the rate that the limits in force let through of the interval's mix, if demand has no end
    L   the rate that the limits are made for
    e   the pricing error, P / L - 1

A drive is *mispriced* if e is beyond a deadband and the limits matter to it, that is if
R > BINDING_RATIO * P. Its limits are then made anew for the mix, but not at once, for two reasons.
The interval in which a shift falls shows a blend of two workloads. And each change of limits is a
*gift*: it empties QEMU's buckets, which lets BUCKET_S of L through for nothing. So

- a drive has to be mispriced the same way in two looks in a row. All of the second look lies after
  the shift, and limits are made for it. It comes LOOK_AGAIN_S after the first (`State.suspects`).
  Looks between two requests don't count if the drive does only a few a second;
- the deadband is SHIFT_RATIO in the first SHIFT_LOOKS looks after a shift, when one more gift does
  no harm. Later it is DEADBAND_RATIO, because a second with a gift in it is further off than that.
  NOISE_FACTOR times the mix's own noise counts instead if that is more (core/values/mix.py);
- requests of one size that become a mix, or a mix that becomes one size, may be the first moment of
  a shift, or a single request of the guest's own. An error beyond SHIFT_RATIO calls for the second
  look then, but is not enough to be put right;
- MIN_INTERVAL_S lies between two changes. It also lies between the moment when a drive wakes up,
  with an empty bucket, and the first change. So no second sees two gifts;
- a smaller error is worth a gift once its sum over time, with its sign, comes to DRIFT_COST_S. What
  is noise has no sum. In a steady mix each look makes the mean mix better known;
- a drive that has been idle for IDLE_S goes back to limits for an unknown mix, which serve all
  sizes alike. That costs nothing because its bucket is empty anyway. A drive whose last requests
  cost seconds of L isn't idle until L has paid for them, since its next ones may wait for that;
- if e was below -STARVED_RATIO in a look, and the next one sees no request, limits may let so few
  pass that most looks would see none. Large writes after reads are such, if they cost more and
  their bound was made for none. So are large reads under limits for no mix, if writes cost far
  more. Limits for reads and writes alike, or for these reads, then let enough pass to judge.
  They too wait until L has paid for the last requests, and so forgive no more than these limits
  took beyond L.

The envelope keeps the error small in between, and never lets more than OVERSHOOT_RATIO too much
through. docs/design/measurements.md shows the cost and gain of each constant.

A share moves as neighbours come and go. On stock QEMU a change of limits is a gift of BUCKET_S of
the rate. So limits follow once the error, summed over its time in force, comes to that: a large
move at once, and a small one later. A QEMU that keeps its buckets' levels hands out no gifts, so
limits follow each move of SHARE_RATIO at once. A drive below BUSY_RATIO of its rate only needs a
coarse limit, so its limits follow moves of LOOSE_RATIO. But a smaller part of a limit over several
drives is followed at once: their limits never add up to more.
"""

from __future__ import annotations

import iokeel.core.values.mix as mix_law
from iokeel.core.enforce.envelope import held_rates
from iokeel.core.measure.burst import carried
from iokeel.core.measure.drive import IDLE_S
from iokeel.core.measure.zeroes import SILENT_RATIO, SILENT_RAW_IOPS, has_paid
from iokeel.core.values.counters import NO_FLOW, NO_MIX, NS_PER_S, Flow, Mix, Rates
from iokeel.core.values.curve import CostModel
from iokeel.core.values.limits import BUCKET_S, ThrottleLimits
from iokeel.core.values.mix import flow_cost, mix_cost
from iokeel.core.values.observation import Reason
from iokeel.core.values.policy import DrivePolicy
from iokeel.core.values.state import DriveState, Finding, Verdict

BINDING_RATIO = 0.6
DEADBAND_RATIO = 0.04
SHIFT_RATIO = 0.007
SHIFT_LOOKS = 3
DRIFT_COST_S = 2.0
MIN_INTERVAL_S = 0.95  # a tick; it may come a little early
STARVED_RATIO = 0.5
_UNKNOWN, _IDLE, _UNBOUND, _ZEROES = (
    Finding(verdict) for verdict in (Verdict.UNKNOWN, Verdict.IDLE, Verdict.UNBOUND, Verdict.ZEROES)
)
SHARE_RATIO = 0.01
LOOSE_RATIO = 0.25
BUSY_RATIO = 0.5


def judge(
    known: DriveState, model: CostModel, policy: DrivePolicy, now_ns: int
) -> tuple[Finding, Reason | None]:
    """Return whether limits fit a drive's workload, and the reason to make them anew, if any."""
    measured = known.measured
    did, rate, mix = measured.rates, measured.rate, measured.mix
    if did is None or rate is None or known.pricing.base is None:
        return _UNKNOWN, None
    if measured.zeroes is not None:
        return _ZEROES, Reason.ZEROES if has_paid(measured.zeroes.at_ns, now_ns) else None
    if known.pricing.apart:
        return _ZEROES, Reason.NO_ZEROES if has_paid(known.sent.at_ns, now_ns) else None
    if measured.idle_ns is not None or mix is None:
        finding = _IDLE
        if measured.active_ns is not None and known.finding.suspect:  # it may be between requests
            finding = known.finding._replace(verdict=Verdict.IDLE)
        return finding, _idle_reason(known, finding, model, now_ns)
    error = _error(known, policy, model, did, rate)
    if error is None:
        return _UNBOUND, None
    drift_s = known.finding.drift_s + error * did.elapsed_s
    if abs(error) > _deadband(known):
        finding, reason = _mispriced(known, error, _sign(error), Reason.SHIFT, now_ns)
    elif abs(drift_s) > DRIFT_COST_S:
        finding, reason = _mispriced(known, error, _sign(drift_s), Reason.DRIFT, now_ns)
    elif measured.looks == 1 and abs(error) > _above_noise(known, SHIFT_RATIO):
        finding, reason = Finding(Verdict.SUSPECT, _sign(error), error), None
    else:
        finding, reason = Finding(Verdict.PRICED, 0, error), None
    return (finding._replace(drift_s=drift_s) if reason is None else finding), reason


def is_due(since_ns: int, now_ns: int) -> bool:
    """Return whether MIN_INTERVAL_S has passed since a change of limits, or another event."""
    return now_ns - since_ns >= MIN_INTERVAL_S * NS_PER_S


def is_starved(finding: Finding) -> bool:
    """Return whether limits seem to let hardly any of a drive's last requests pass."""
    error = finding.error_ratio
    return finding.suspect < 0 and error is not None and error < -STARVED_RATIO


def _idle_reason(
    known: DriveState, finding: Finding, model: CostModel, now_ns: int
) -> Reason | None:
    """Return the reason to make limits for no mix, or for reads and writes alike, if any.

    Or to set the same again, if they may hold it back for what isn't counted.
    """
    idle_for_ns = now_ns - (known.measured.idle_ns or now_ns)
    if idle_for_ns >= IDLE_S * NS_PER_S:
        return None if known.pricing.mix is None else Reason.IDLE
    starved = idle_for_ns >= 0 and is_starved(finding) and is_due(known.sent.at_ns, now_ns)
    if starved:
        return Reason.STARVED
    if not has_paid(known.measured.idle_ns or now_ns, now_ns):
        return None
    return Reason.SILENT if _fell_silent(known, model) else None


def _fell_silent(known: DriveState, model: CostModel) -> bool:
    """Return whether an idle drive was busy before, and no limits have been set since."""
    measured, allowed = known.measured, known.pricing.rate
    if measured.mix is None or allowed is None or known.sent.at_ns > (measured.idle_ns or 0):
        return False
    raw_iops = measured.mix.read.raw_iops + measured.mix.write.raw_iops
    if raw_iops < SILENT_RAW_IOPS:
        return False
    return mix_cost(model, measured.mix) >= SILENT_RATIO * allowed


def in_halves(known: DriveState, model: CostModel) -> Mix | None:
    """Return a mix of as much cost in reads as in writes, for a drive that may do either next.

    If the last requests were only one of them, the other is that of the mix that limits are made
    for. If that has none either, these limits' mix stays. If they are made for none, as of a drive
    whose reads are held by the price of writes, it is that of the last requests.
    """
    seen, made_for = known.measured.mix or NO_MIX, known.pricing.mix or NO_MIX
    read, write = (
        flow if flow.raw_iops else other for flow, other in zip(seen, made_for, strict=True)
    )
    read_cost, write_cost = flow_cost(model.read, read), flow_cost(model.write, write)
    if not (read_cost and write_cost):
        return known.pricing.mix or known.measured.mix
    return Mix(_scaled(read, 1 / read_cost), _scaled(write, 1 / write_cost))


def _deadband(known: DriveState) -> float:
    is_new = known.measured.looks_since_shift <= SHIFT_LOOKS
    return _above_noise(known, SHIFT_RATIO if is_new else DEADBAND_RATIO)


def _above_noise(known: DriveState, ratio: float) -> float:
    return max(ratio, mix_law.NOISE_FACTOR * known.measured.price[1])


def _mispriced(
    known: DriveState, error: float, sign: int, reason: Reason, now_ns: int
) -> tuple[Finding, Reason | None]:
    """Return the finding on an error or sum of this sign, and the reason once seen twice."""
    active_ns = known.measured.active_ns or now_ns
    settled = is_due(known.sent.at_ns, now_ns) and is_due(active_ns, now_ns)
    if settled and known.finding.suspect == sign:
        return Finding(Verdict.RETUNED, 0, error), reason
    return Finding(Verdict.SUSPECT if settled else Verdict.WAITING, sign, error), None


def _sign(error: float) -> int:
    return 1 if error > 0 else -1


def _error(
    known: DriveState,
    policy: DrivePolicy,
    model: CostModel,
    mix: Mix | Rates,
    mix_rate: float,
) -> float | None:
    """Return e for a mix, the worse of two budgets; None if the limits don't matter to the drive.

    mix_rate: the cost of the mix a second.
    """
    held, rate, _, _, base, _ = known.pricing
    assert base is not None
    assert held is not None
    assert rate is not None
    if not policy.separate_budgets:
        return _budget_error(base, rate, held, mix, mix_rate)
    halves = (Mix(mix.read, NO_FLOW), Mix(NO_FLOW, mix.write))
    # `base` has the same for both: a lower limit of one of them is put in later (bounds.py).
    own = (policy.limit_read, policy.limit_write)
    errors = (
        _budget_error(
            base,
            rate,
            held if each is None else held * min(1.0, each / rate),
            half,
            mix_cost(model, half),
        )
        for half, each in zip(halves, own, strict=True)
    )
    return max((error for error in errors if error is not None), key=abs, default=None)


def _budget_error(
    base: ThrottleLimits, rate: float, held: float, mix: Mix | Rates, cost: float
) -> float | None:
    """Return e for a budget. rate: of `base`; held: the same with the burst on top."""
    passed = held_rates(base, mix, cost)
    done = cost / (held / rate)
    if passed is None or done <= BINDING_RATIO * passed[0]:
        return None
    return min(max(done, passed[0]), passed[1]) / rate - 1


def _scaled(flow: Flow, scale: float) -> Flow:
    return Flow(scale * flow.raw_iops, scale * flow.bps, flow.seen_bytes)


def share_has_moved(known: DriveState, policy: DrivePolicy, allowed: float, now_ns: int) -> bool:
    """Return True if the drive's share differs enough from its limit to be worth a change.

    allowed: the rate that policy and share allow now.
    """
    held, at_ns = known.pricing.rate, known.sent.at_ns
    if held is None:
        return False
    off = abs(allowed / held - 1)
    if held > allowed and (most := known.parts_most) is not None and held > most:
        return True
    vm = known.vm
    if vm is not None and vm.part is not None and vm.sustained is not None:
        base = known.pricing.base_rate or held
        if vm.credit.open and base > known.each_budget(vm.sustained):
            return True
        off = max(off, carried(known, policy, allowed)[0] / base - 1)
    if off < SHARE_RATIO:
        return False
    rate = known.measured.budget_rate or 0.0
    if not known.demand.backlogged and rate < BUSY_RATIO * min(allowed, held):
        return off > LOOSE_RATIO
    if known.keeps_levels:
        return True
    return is_due(at_ns, now_ns) and off * (now_ns - at_ns) > BUCKET_S * NS_PER_S
