"""Makes limits for a QEMU that charges each request by the cost curve itself."""

from __future__ import annotations

from iokeel.core.curve import CostModel
from iokeel.core.limits import ThrottleLimits
from iokeel.core.orders import Reason

# After idleness, 1 % of a second passes at once. Requests that wait still have the whole bucket, so
# late timers lose nothing.
IDLE_CREDIT_MS = 10


def exact_limits(
    model: CostModel, rate: float, *, separate: bool = False, split_size: int | None = None
) -> ThrottleLimits:
    """Return the limits that hold a drive to a normalized rate, whatever its requests.

    rate: > 0; with `separate`, for reads and for writes each. split_size: the split size of large
    reads, in bytes; None if they wait whole.
    """
    iops = max(1, round(rate))
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
