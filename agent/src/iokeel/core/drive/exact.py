"""Makes limits for a QEMU that charges each request by the cost curve itself."""

from __future__ import annotations

from iokeel.core.curve import CostModel
from iokeel.core.drive.envelope import limits_for_any_size, whole
from iokeel.core.limits import ThrottleLimits
from iokeel.core.orders import Reason

# After idleness, 1 % of a second passes at once. Requests that wait still have the whole bucket, so
# late timers lose nothing.
IDLE_CREDIT_MS = 10
#: A fallback may be for less than the limits that it stands in for, down to this part of them.
FALLBACK_LEAST_RATIO = 0.5


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


def rate_of(exact: ThrottleLimits) -> int:
    """Return the normalized rate of limits with a curve; of separate budgets, that of each."""
    return exact.iops_total or exact.iops_read or 1


def fallback_of(exact: ThrottleLimits, ratio: float = 1.0) -> ThrottleLimits:
    """Return limits without a curve, by which no request size gets more than by some with one.

    ratio: makes them for a part of the rate.
    """
    assert exact.cost_read is not None
    assert exact.cost_write is not None
    model, separate = CostModel(exact.cost_read, exact.cost_write), exact.iops_total is None
    return limits_for_any_size(model, ratio * rate_of(exact), separate=separate)


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
