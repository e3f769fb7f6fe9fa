"""Static limits by QEMU's throttle: as an operator sets them by hand, once.

A drive gets what it is owed. Which requests that is right for is the operator's choice: limits on
requests are priced for 4K reads, limits on bytes for reads of 1 MiB, and a tuned iops-size comes as
close to the whole curve as QEMU's own rule can.
"""

from __future__ import annotations

import math

from benchmarks.bench.controllers.controller import InKernel
from benchmarks.bench.running.stage import Stage
from iokeel.core.curve import CostModel

SMALL_BYTES, LARGE_BYTES = 4 << 10, 1 << 20
#: Sizes from SMALL_BYTES to LARGE_BYTES at which a tuned iops-size is compared with the curve.
_SIZES = [round(SMALL_BYTES * (LARGE_BYTES / SMALL_BYTES) ** (i / 64)) for i in range(65)]


class Nothing(InKernel):
    """No control."""

    def __init__(self) -> None:
        super().__init__("none", "no control")

    def begin(self, stage: Stage) -> None:
        """Leave everything as it is."""


class StaticIops(InKernel):
    """A limit on requests, of whatever size."""

    def __init__(self) -> None:
        super().__init__("static-iops", "static iops")

    def begin(self, stage: Stage) -> None:
        """Set iops-total."""
        for place in stage.places:
            owed = stage.scenario.owed(place.drive)
            stage.set_limits(place, {"iops-total": requests(owed, stage.scenario.model)})


class StaticBps(InKernel):
    """A limit on bytes."""

    def __init__(self) -> None:
        super().__init__("static-bps", "static bps")

    def begin(self, stage: Stage) -> None:
        """Set bps-total."""
        for place in stage.places:
            owed = stage.scenario.owed(place.drive)
            stage.set_limits(place, {"bps-total": bytes_(owed, stage.scenario.model)})


class TunedSize(InKernel):
    """A limit on requests that counts large ones as several: the best that can be set once."""

    def __init__(self) -> None:
        super().__init__("static-iops-size", "static iops, tuned iops-size")

    def begin(self, stage: Stage) -> None:
        """Set iops-total and iops-size."""
        iops_size, unit = tuned(stage.scenario.model)
        for place in stage.places:
            limit = max(1, round(stage.scenario.owed(place.drive) / unit))
            stage.set_limits(place, {"iops-total": limit, "iops-size": iops_size})


def requests(owed: float, model: CostModel) -> int:
    """Return how many 4K reads a second cost what is owed."""
    return max(1, round(owed / model.read.cost(SMALL_BYTES)))


def bytes_(owed: float, model: CostModel) -> int:
    """Return how many bytes a second cost what is owed if they come in reads of 1 MiB."""
    return max(1, round(owed * LARGE_BYTES / model.read.cost(LARGE_BYTES)))


def tuned(model: CostModel) -> tuple[int, float]:
    """Return the iops-size that comes closest to a curve of reads, and the cost of one unit.

    QEMU charges a request size / iops-size units, at least one. Its price in units and its cost
    differ by a factor; the best iops-size has the least spread of that factor over all sizes, and
    the unit's cost halves what is left between too much and too little.
    """
    best = (math.inf, SMALL_BYTES, 1.0)
    for i in range(513):
        iops_size = round(SMALL_BYTES * (LARGE_BYTES / SMALL_BYTES) ** (i / 512))
        ratios = [model.read.cost(size) / max(1.0, size / iops_size) for size in _SIZES]
        low, high = min(ratios), max(ratios)
        best = min(best, (high / low, iops_size, math.sqrt(high * low)))
    return best[1], best[2]
