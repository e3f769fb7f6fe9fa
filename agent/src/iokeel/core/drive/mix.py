"""Describes a drive's requests: their mix of sizes, and how much it varies by itself."""

from __future__ import annotations

import math
from typing import NamedTuple

from iokeel.core.counters import Flow, Rates
from iokeel.core.curve import CostCurve, CostModel, is_uniform

# The mean size has to change by so much to be a shift.
SIZE_RATIO = 0.2
# A pricing error, or a change of the mean size or price, that is no more than noise.
DEADBAND_RATIO = 0.04
# How many times its own noise a figure has to move to count.
NOISE_FACTOR = 2.0
# In a steady mix, an interval this old counts for half.
MIX_HALF_LIFE_S = 4.0
# How fast the noise estimate follows, and the most that one change may count, as a multiple of the
# noise: a shift is no noise.
_NOISE_GAIN = 0.2
_NOISE_CLIP = 3.0
# So many sizes are remembered of each direction.
_SEEN_SIZES = 4


class Mix(NamedTuple):
    """A drive's reads and writes, as rates in any common unit."""

    read: Flow
    write: Flow


NO_MIX = Mix(Flow(0, 0), Flow(0, 0))


def flow_cost(curve: CostCurve, flow: Flow) -> float:
    """Return the cost of a flow, in normalized I/O operations a second (0 for none)."""
    if flow.raw_iops <= 0:
        return 0.0
    return flow.raw_iops * curve.mean_cost(flow.bps / flow.raw_iops, flow.seen_bytes)


def mix_cost(model: CostModel, mix: Mix) -> float:
    """Return the cost of a mix, in normalized I/O operations a second."""
    return flow_cost(model.read, mix.read) + flow_cost(model.write, mix.write)


class Noise(NamedTuple):
    """The last value of a figure, and its mean change from look to look, as a ratio of it."""

    value: float | None = None
    ratio: float = 0.0

    def after(self, value: float) -> Noise:
        """Return the noise after one more look. A jump counts, but not in full."""
        if self.value is None:
            return Noise(value, self.ratio)
        change = min(abs(value / self.value - 1), max(DEADBAND_RATIO, _NOISE_CLIP * self.ratio))
        return Noise(value, self.ratio + _NOISE_GAIN * (change - self.ratio))


NO_NOISE = Noise()


def has_shifted(mix: Mix | None, size: Noise) -> bool:
    """Return whether an interval's requests have other sizes than the mix so far."""
    if mix is None or size.value is None:
        return True
    read, write = mix.read, mix.write
    so_far = (read.bps + write.bps) / (read.raw_iops + write.raw_iops)
    if size.ratio < SIZE_RATIO and is_uniform(size.value) != is_uniform(so_far):
        return True
    return abs(size.value / so_far - 1) > max(SIZE_RATIO, NOISE_FACTOR * size.ratio)


def with_seen(flow: Flow, before: Flow) -> Flow:
    """Return a flow with the sizes of its uniform requests so far, newest first.

    A workload mostly shifts because a stream joins or ends. So a mix is likely made of sizes that
    were there alone before.
    """
    seen = before.seen_bytes
    if flow.raw_iops > 0 and is_uniform(mean := flow.bps / flow.raw_iops):
        size = float(2 ** round(math.log2(mean)))
        if not seen or seen[0] != size:
            seen = (size, *(other for other in seen if other != size))[:_SEEN_SIZES]
    return Flow(flow.raw_iops, flow.bps, seen) if seen else flow


def mean_mix(mix: Mix | None, did: Rates) -> Mix:
    """Return the mean of a mix and a new interval. Older intervals count for less."""
    if mix is None:
        return Mix(did.read, did.write)
    keep = 0.5 ** (did.elapsed_s / MIX_HALF_LIFE_S)
    return Mix(_mean(mix.read, did.read, keep), _mean(mix.write, did.write, keep))


def _mean(old: Flow, new: Flow, keep: float) -> Flow:
    return Flow(
        keep * old.raw_iops + (1 - keep) * new.raw_iops,
        keep * old.bps + (1 - keep) * new.bps,
        new.seen_bytes,
    )
