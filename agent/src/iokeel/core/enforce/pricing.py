"""Makes a drive's limits by the kind of enforcement that its QEMU is able to.

A QEMU with cost curves gets exact limits. Any other gets limits for its mix
(envelope.py), which are judged and made anew as the mix shifts (retune.py). If a QEMU hasn't told
yet, its limits are stock limits that no request size exceeds. The rest of the law doesn't know
which.
"""

from __future__ import annotations

from iokeel.core.enforce.bounds import at_most, with_bounds, with_part
from iokeel.core.enforce.envelope import limits_for, limits_for_any_size, scaled, whole
from iokeel.core.enforce.retune import in_halves, judge
from iokeel.core.measure.burst import carried
from iokeel.core.values.counters import Mix
from iokeel.core.values.curve import CostModel
from iokeel.core.values.limits import Abilities, ThrottleLimits
from iokeel.core.values.observation import Reason
from iokeel.core.values.policy import DrivePolicy
from iokeel.core.values.state import DriveState, Finding, Pricing, Verdict

# After idleness, 1 % of a second passes at once. Requests that wait still have the whole bucket, so
# late timers lose nothing.
IDLE_CREDIT_MS = 10
#: A fallback may be for less than the limits that it stands in for, down to this part of them.
FALLBACK_LEAST_RATIO = 0.5
# Stock limits are made for this rate and then scaled to each drive's own. It is so large that
# rounding doesn't matter. With fewer requests a second than the second figure, it does: they are
# made for the drive's own rate then, and not for half of it.
_UNIT_RATE = 1_000_000.0
_FEW_RAW_IOPS = 20
#: The averages of ThrottleLimits that bound bytes.
BYTES = ("bps_total", "bps_read", "bps_write")
_EXACT, _ANY_QEMU = Finding(Verdict.EXACT), Finding(Verdict.ANY_QEMU)


def exact_limits(
    model: CostModel, rate: float, *, separate: bool = False, split_size: int | None = None
) -> ThrottleLimits:
    """Return the limits that hold a drive to a normalized rate, whatever its requests.

    rate: > 0; with `separate`, for reads and for writes each. split_size: the split size of large
    reads, in bytes; None if they wait whole.
    """
    iops = whole(rate, alone=True)
    return ThrottleLimits(
        iops_total=None if separate else iops,
        iops_read=iops if separate else None,
        iops_write=iops if separate else None,
        cost_read=model.read,
        cost_write=model.write,
        split_size=split_size,
        idle_credit_ms=IDLE_CREDIT_MS,
    )


def reason_to_replace(
    base: ThrottleLimits, model: CostModel, split_size: int | None
) -> Reason | None:
    """Return why limits no longer fit, if they don't; the workload is never a reason."""
    if (base.cost_read, base.cost_write) != (model.read, model.write):
        return Reason.CURVE
    return Reason.SPLIT if base.split_size != split_size else None


def _rate_of(exact: ThrottleLimits) -> int:
    """Return the normalized rate of limits with a curve; of separate budgets, the larger one's."""
    return exact.iops_total or max(exact.iops_read or 1, exact.iops_write or 1)


def fallback_of(exact: ThrottleLimits, ratio: float = 1.0) -> ThrottleLimits:
    """Return limits without a curve, by which no request size gets more than by some with one.

    ratio: makes them for a part of the rate.
    """
    assert exact.cost_read is not None
    assert exact.cost_write is not None
    model, separate = CostModel(exact.cost_read, exact.cost_write), exact.iops_total is None
    rate = _rate_of(exact)
    limits = limits_for_any_size(model, ratio * rate, separate=separate)
    for way in ("read", "write") if separate else ():
        limits = with_part(limits, way, (getattr(exact, f"iops_{way}") or rate) / rate)
    bytes_each = {name: bps for name in BYTES if (bps := getattr(exact, name))}
    return at_most(limits, bytes_each) if bytes_each else limits


def may_be_fallback(limits: ThrottleLimits, exact: ThrottleLimits) -> bool:
    """Return whether limits may be the fallback of limits with a curve.

    An iops_size of the curve's tells them. Without one, somebody may have set them by hand.
    """
    if exact.cost_read is None:
        return False
    most, least = fallback_of(exact), fallback_of(exact, FALLBACK_LEAST_RATIO)
    if limits in (most, least) or limits.iops_size is None:
        return limits in (most, least)
    return limits == limits.stock and all(
        min(a or 0, b or 0) <= (n or 0) <= max(a or 0, b or 0)
        for (_, n), (_, a), (_, b) in zip(limits.items(), most.items(), least.items(), strict=True)
    )


def look_at_prices(
    known: DriveState,
    policy: DrivePolicy,
    model: CostModel,
    split_size: int | None,
    now_ns: int,
) -> tuple[Finding, Reason | None]:
    """Return whether a drive's limits fit it, and the reason to make them anew, if there is one."""
    abilities = known.abilities
    if abilities is None:
        return _ANY_QEMU, None
    if not abilities.cost_curve:
        return judge(known, model, policy, now_ns)
    base = known.pricing.base
    reason = None if base is None else reason_to_replace(base, model, split_size)
    return _EXACT, reason


def price(
    known: DriveState,
    policy: DrivePolicy,
    model: CostModel,
    split_size: int | None,
    allowed: float,
    reason: Reason,
) -> Pricing:
    """Return the limits that hold a drive to the rate that it is allowed.

    allowed: its burst included, if that is open. reason: why limits are made.
    """
    abilities = known.abilities
    rate, separate = carried(known, policy, allowed)[0], policy.separate_budgets
    if abilities is None:
        base = limits_for_any_size(model, rate, separate=separate)
        return Pricing(allowed, rate, None, None, base)
    if abilities.cost_curve:
        base = exact_limits(model, rate, separate=separate, split_size=split_size)
        return Pricing(allowed, rate, None, known.pricing.unit, base)
    mix, unit = _mix_for(known, model, reason), known.pricing.unit
    apart = not separate and rate >= _FEW_RAW_IOPS and _are_apart(known, reason)
    split, each = separate or apart, rate / 2 if apart else rate
    is_new = mix is not known.pricing.mix or apart is not known.pricing.apart
    if unit is None or is_new or reason is Reason.POLICY:
        unit = limits_for(model, _UNIT_RATE, mix, separate=split)
    base = scaled(unit, each / _UNIT_RATE)
    if min(filter(None, (base.iops_total, base.iops_read, base.iops_write))) < _FEW_RAW_IOPS:
        base = limits_for(model, each, mix, separate=split)
    return Pricing(allowed, rate, mix, unit, base, apart)


def _are_apart(known: DriveState, reason: Reason) -> bool:
    """Return whether reads and writes are held apart, because the drive writes zeroes."""
    return reason is Reason.ZEROES or (known.pricing.apart and reason is not Reason.NO_ZEROES)


def static_limits(
    abilities: Abilities | None,
    policy: DrivePolicy,
    model: CostModel,
    split_size: int | None,
    limit: float,
) -> ThrottleLimits:
    """Return limits that hold a drive to a limit if no agent is there to retune.

    On stock QEMU no size gets more than the limit, and the worst gets as much of it as one
    iops_size can give.
    """
    separate = policy.separate_budgets
    if abilities is not None and abilities.cost_curve:
        limits = exact_limits(model, limit, separate=separate, split_size=split_size)
    else:
        limits = limits_for_any_size(model, limit, separate=separate)
    return with_bounds(limits, policy, limit, limit) if policy.has_bounds else limits


def _mix_for(known: DriveState, model: CostModel, reason: Reason) -> Mix | None:
    """Return the mix that limits are made for; None for any mix."""
    if reason is Reason.IDLE:
        return None
    if reason is Reason.STARVED:
        return in_halves(known, model)
    if reason in (Reason.SHIFT, Reason.DRIFT):
        return known.measured.mix
    return known.pricing.mix
