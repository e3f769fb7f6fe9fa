"""Static limits by QEMU's throttle: as an operator sets them by hand, once.

A drive gets what it is owed, with the burst of its policy. Drives of a VM under a tenant's limit
share one throttle group. Which requests that is right for is the operator's choice: limits on
requests are priced for 4K reads, limits on bytes for reads of 1 MiB, and a tuned iops-size comes as
close to the whole curve as QEMU's own rule can.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import lru_cache
from itertools import groupby

from benchmarks.bench.controllers.controller import InKernel
from benchmarks.bench.running.stage import Limits, Place, Stage
from benchmarks.bench.scenario import Policy, Scenario
from iokeel.core.values.curve import CostModel

SMALL_BYTES, LARGE_BYTES = 4 << 10, 1 << 20
#: Sizes from SMALL_BYTES to LARGE_BYTES at which a tuned iops-size is compared with the curve.
_SIZES = [round(SMALL_BYTES * (LARGE_BYTES / SMALL_BYTES) ** (i / 64)) for i in range(65)]


class Nothing(InKernel):
    """No control."""

    def __init__(self) -> None:
        super().__init__("none", "no control")

    def begin(self, stage: Stage) -> None:
        """Leave everything as it is."""


class Static(InKernel):
    """Limits that stay. bound: the one of QEMU's that it sets."""

    bound: str

    def begin(self, stage: Stage) -> None:
        """Set the limits of all drives."""
        scenario = stage.scenario
        for places in _together(stage):
            limits = self.limits(
                sum(scenario.owed(place.drive) for place in places), scenario.model
            )
            stage.set_limits(
                places, {**limits, **self.burst(places[0].drive.policy, scenario.model)}
            )

    @abstractmethod
    def limits(self, owed: float, model: CostModel) -> Limits:
        """Return the limits for what is owed."""

    def burst(self, policy: Policy, model: CostModel) -> Limits:
        """Return the limits of a policy's burst, if it has one.

        QEMU's bucket fills at the difference of the burst and the limit.
        """
        if "burst" not in policy:
            return {}
        most, seconds = policy["burst"], policy["burst_seconds"]
        return {
            f"{self.bound}-max": self.limits(most, model)[self.bound],
            f"{self.bound}-max-length": max(1, round(seconds * (1 - policy["limit"] / most))),
        }


class StaticIops(Static):
    """A limit on requests, of whatever size."""

    bound = "iops-total"

    def __init__(self) -> None:
        super().__init__("static-iops", "static iops")

    def limits(self, owed: float, model: CostModel) -> Limits:
        """Return iops-total."""
        return {self.bound: requests(owed, model)}


class StaticBps(Static):
    """A limit on bytes."""

    bound = "bps-total"

    def __init__(self) -> None:
        super().__init__("static-bps", "static bps")

    def limits(self, owed: float, model: CostModel) -> Limits:
        """Return bps-total."""
        return {self.bound: bytes_(owed, model)}


class TunedSize(Static):
    """A limit on requests that counts large ones as several, as near to the curve as it can."""

    bound = "iops-total"

    def __init__(self) -> None:
        super().__init__("static-iops-size", "static iops, tuned iops-size")

    def limits(self, owed: float, model: CostModel) -> Limits:
        """Return iops-total and iops-size."""
        iops_size, unit = tuned(model)
        return {self.bound: max(1, round(owed / unit)), "iops-size": iops_size}


class Caps(InKernel):
    """The limits that a scenario gives its drives in a setting of this name."""

    def is_for(self, scenario: Scenario) -> bool:
        """Return whether a drive has such limits."""
        return any(self.name in drive.caps for drive in scenario.drives)

    def unfit(self, scenario: Scenario) -> str | None:
        """Return what is missing: the limits."""
        return None if self.is_for(scenario) else "no drive has caps of this name"

    def begin(self, stage: Stage) -> None:
        """Set them."""
        for place in stage.places:
            if self.name in place.drive.caps:
                stage.set_limits([place], place.drive.caps[self.name])


def _together(stage: Stage) -> list[list[Place]]:
    """Return the drives that share limits: exports of one VM under a tenant's limit."""
    if stage.scenario.tenant_limit is None:
        return [[place] for place in stage.places]
    apart = [[place] for place in stage.places if place.number is None]
    exports = [place for place in stage.places if place.number is not None]
    return apart + [[*places] for _, places in groupby(exports, key=lambda each: each.drive.vm)]


def requests(owed: float, model: CostModel) -> int:
    """Return how many 4K reads a second cost what is owed."""
    return max(1, round(owed / model.read.cost(SMALL_BYTES)))


def bytes_(owed: float, model: CostModel) -> int:
    """Return how many bytes a second cost what is owed if they come in reads of 1 MiB."""
    return max(1, round(owed * LARGE_BYTES / model.read.cost(LARGE_BYTES)))


@lru_cache
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
