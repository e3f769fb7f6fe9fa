"""What a drive's requests are like: their mix of sizes, and how much that varies by itself."""

from __future__ import annotations

import math
from typing import NamedTuple

from iokeel.core.counters import Flow, Rates
from iokeel.core.curve import is_uniform
from iokeel.core.drive.envelope import Mix

SIZE_RATIO = 0.2
DEADBAND_RATIO = 0.025
NOISE_FACTOR = 2.0
MIX_HALF_LIFE_S = 4.0
# How fast the noise estimate follows, and how much larger than it one change may count: a shift
# is no noise.
_NOISE_GAIN = 0.2
_NOISE_CLIP = 3.0
_SEEN_SIZES = 4


class Noise(NamedTuple):
    """A figure as last seen, and by how much of itself it changes from look to look."""

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
    """Whether an interval's requests are of other sizes than those of the mix so far."""
    if mix is None or size.value is None:
        return True
    read, write = mix.read, mix.write
    so_far = (read.bps + write.bps) / (read.raw_iops + write.raw_iops)
    if size.ratio < SIZE_RATIO and is_uniform(size.value) != is_uniform(so_far):
        return True
    return abs(size.value / so_far - 1) > max(SIZE_RATIO, NOISE_FACTOR * size.ratio)


def with_seen(flow: Flow, before: Flow) -> Flow:
    """Return a flow with the sizes that its requests had when they were all alike, newest first.

    Workloads mostly shift by a stream that joins or ends, so that a mix is likely made of what
    was there alone before.
    """
    seen = before.seen_bytes
    if flow.raw_iops > 0 and is_uniform(mean := flow.bps / flow.raw_iops):
        size = float(2 ** round(math.log2(mean)))
        if not seen or seen[0] != size:
            seen = (size, *(other for other in seen if other != size))[:_SEEN_SIZES]
    return Flow(flow.raw_iops, flow.bps, seen) if seen else flow


def mean_mix(mix: Mix | None, did: Rates) -> Mix:
    """Return the mean of a drive's flows, in which what is older counts for less."""
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
