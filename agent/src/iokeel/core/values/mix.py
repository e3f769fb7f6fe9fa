"""Describes a drive's requests: their mix of sizes, and how much it varies by itself."""

from __future__ import annotations

from typing import Final, TypeAlias

from iokeel.core.values.counters import Flow, Mix, Rates
from iokeel.core.values.curve import CostCurve, CostModel, is_uniform
from iokeel.core.values.limits import ThrottleLimits

# The mean size has to change by so much to be a shift.
SIZE_RATIO = 0.2
# A change of the mean size or price, or a pricing error seen once, that is no more than noise.
NOISE_RATIO = 0.025
# How many times its own noise a figure has to move to count.
NOISE_FACTOR = 2.0
# The last look's weight in a steady mix, and in its noise: five looks or so count.
LOOK_WEIGHT = 0.2
# The most that one change may count, as a multiple of the noise, because a shift is no noise. If
# changes are normally distributed, 1.7 % of them are beyond that.
_NOISE_CLIP = 3.0


def flow_cost(curve: CostCurve, flow: Flow) -> float:
    """Return the cost of a flow, in normalized I/O operations a second (0 for none).

    A request without data costs what the smallest one does.
    """
    raw_iops, bps, seen_bytes = flow
    return raw_iops * curve.mean_cost(bps / raw_iops or 1.0, seen_bytes) if raw_iops > 0 else 0.0


def mix_cost(model: CostModel, mix: Mix | Rates) -> float:
    """Return the cost of a mix, in normalized I/O operations a second."""
    return flow_cost(model.read, mix.read) + flow_cost(model.write, mix.write)


def requests_in_pieces(mix: Mix | Rates, split_size: int | None) -> float:
    """Return the requests a second of a mix. split_size: of its reads, in bytes; None if whole."""
    reads = mix.read.raw_iops
    if split_size is not None:
        reads = max(reads, mix.read.bps / split_size)
    return reads + mix.write.raw_iops


# A plain tuple, because each look makes them: ("total", "read" or "write"; the most bytes and the
# most requests a second, of which one may be None; the flows that these bound; the flows' requests
# and bytes a second).
Bounds: TypeAlias = tuple[str, int | None, int | None, tuple[Flow, ...], float, float]


def bounds_on(mix: Mix | Rates, limits: ThrottleLimits) -> list[Bounds]:
    """Return the bounds that limits have on a mix."""
    read, write = mix.read, mix.write
    found: list[Bounds] = []
    if limits.bps_total or limits.iops_total:
        requests, sent = read.raw_iops + write.raw_iops, read.bps + write.bps
        both = (read, write)
        found.append(("total", limits.bps_total, limits.iops_total, both, requests, sent))
    if limits.bps_read or limits.iops_read:
        found.append(("read", limits.bps_read, limits.iops_read, (read,), read.raw_iops, read.bps))
    if limits.bps_write or limits.iops_write:
        found.append(
            ("write", limits.bps_write, limits.iops_write, (write,), write.raw_iops, write.bps)
        )
    return found


#: The last value of a figure, and its mean change from look to look, as a ratio of it.
Noise: TypeAlias = tuple[float | None, float]
NO_NOISE: Final[Noise] = (None, 0.0)


def noise_after(noise: Noise, value: float) -> Noise:
    """Return a figure's noise after one more look. A jump counts, but not in full."""
    before, ratio = noise
    if before is None:
        return value, ratio
    change, most = abs(value / before - 1), _NOISE_CLIP * ratio
    if most < NOISE_RATIO:
        most = NOISE_RATIO
    return value, ratio + LOOK_WEIGHT * ((change if change < most else most) - ratio)


def has_shifted(mix: Mix | None, size: Noise) -> bool:
    """Return whether an interval's requests have another mean size than the mix so far."""
    now, ratio = size
    if mix is None or now is None:
        return True
    return abs(now / _mean_size(mix) - 1) > max(SIZE_RATIO, NOISE_FACTOR * ratio)


def has_changed_kind(mix: Mix | None, size: Noise) -> bool:
    """Return whether requests of one size have become a mix of sizes, or a mix one size.

    That may be the first moment of a shift, or a single request of the guest's own.
    """
    now, ratio = size
    if mix is None or now is None or ratio >= SIZE_RATIO:
        return False
    return is_uniform(now) != is_uniform(_mean_size(mix))


def mean_mix(mix: Mix | None, did: Rates) -> Mix:
    """Return the mean of a mix and a new interval. Older intervals count for less."""
    if mix is None:
        return Mix(did.read, did.write)
    return Mix(_mean(mix.read, did.read), _mean(mix.write, did.write))


def _mean_size(mix: Mix) -> float:
    read, write = mix.read, mix.write
    return (read.bps + write.bps) / (read.raw_iops + write.raw_iops)


def _mean(old: Flow, new: Flow) -> Flow:
    if new is old:  # it does nothing, and did nothing (rates.py)
        return old
    raw_iops, bps, seen_bytes = new
    return Flow(
        old.raw_iops + LOOK_WEIGHT * (raw_iops - old.raw_iops),
        old.bps + LOOK_WEIGHT * (bps - old.bps),
        seen_bytes,
    )
