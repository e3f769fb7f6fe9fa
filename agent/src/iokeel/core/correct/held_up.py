"""Finds drives that do less than is reserved for them because their storage holds them up.

Such a drive has requests on their way nearly all the time, and its limits don't hold it. Its rate
would be taken for its demand: others would have the rest, it would wait for their requests, and do
still less. So its demand is what it would do if its requests took no longer than the storage's
target, up to what is reserved, and to what it *showed* when they last did so. How much more that is
than what it does counts as the storage's strain.

A guest with few requests on their way does no more than these allow at the target. So a reservation
promises no more. If the target is missed although the others do next to nothing, what the drive
does then is the most that it can do, and the others aren't cut for the last fifth of that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import fsum
from typing import NamedTuple

from iokeel.core.correct.capacity import STEP
from iokeel.core.correct.headroom import LEAST_ROOM
from iokeel.core.correct.lessons import FORGET_S, GAIN
from iokeel.core.measure.demand import GROWING_RATIO
from iokeel.core.measure.storage import device_latency_s
from iokeel.core.values.claimant import Claimant
from iokeel.core.values.counters import DriveId
from iokeel.core.values.state import DriveState, Shown
from iokeel.core.values.storage import StorageActivity, StoragePolicy, allowance_s

#: With fewer requests on their way, on average, a drive's rate depends little on their latency.
LEAST_QUEUE = 0.5


class _Seen(NamedTuple):
    """A drive that its limits don't hold.

    strain: its requests' latency over the target. demand: its rate if they kept that; 0 if it
    doesn't depend on them. in_vain: cutting others to nothing doesn't help it to the target.
    """

    claimant: Claimant
    rate: float
    strain: float
    demand: float
    in_vain: bool = False


@dataclass
class HeldUp:
    """Looks for the drives of a storage that it holds up, and raises their demands.

    promised: drives that have a reservation together, and that. beyond: what all do beyond what is
    reserved for them. policy: one with a capacity and a target. counted: the storage has counters
    of its own. shown: by drives with a reservation until now. elapsed_s: the length of the
    interval. strain: how many times what they do the worst of them want; 0 if none does. shown_now:
    what all have shown. demands: of those that their limits don't hold, as if the target could be
    kept; 0 if it doesn't depend on the storage.
    """

    promised: Sequence[tuple[int, Sequence[Claimant]]]
    beyond: float
    policy: StoragePolicy
    activity: StorageActivity | None
    shown: Mapping[DriveId, Shown]
    elapsed_s: float
    counted: bool = False
    strain: float = 0.0
    shown_now: dict[DriveId, Shown] = field(default_factory=dict)
    demands: dict[DriveId, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for reserved, drives in self.promised:
            self._raise(drives, reserved)

    @cached_property
    def _exhausted(self) -> bool:
        """Whether drives do next to nothing beyond what is reserved."""
        assert self.policy.capacity is not None
        return self.beyond <= LEAST_ROOM * self.policy.capacity

    def _raise(self, drives: Sequence[Claimant], reserved: int) -> None:
        """Raise the demands of drives that have a reservation together."""
        found = [seen for c in drives if (seen := self._look(c))]
        more = [max(0.0, seen.demand - seen.claimant.wants) for seen in found]
        missing = max(0.0, reserved - fsum(c.wants for c in drives))
        part = min(1.0, missing / total) if (total := fsum(more)) else 0.0
        for seen, extra in zip(found, more, strict=True):
            claimant = seen.claimant
            claimant.wants = min(claimant.most, claimant.wants + part * extra)
        done = done_by(drives)
        for seen in found:
            wanted = min(reserved / done, seen.strain, seen.demand / seen.rate)
            if not seen.in_vain or wanted > 1:
                self.strain = max(self.strain, wanted)

    def _look(self, claimant: Claimant) -> _Seen | None:
        """Return what is seen of a drive, and remember what it shows; None if nothing is."""
        if claimant.known.demand.backlogged:
            return None
        seen, shown = self._seen(claimant), self.shown.get(claimant.drive)
        if seen is not None:
            self.demands[claimant.drive] = seen.demand
            shown = self._shown_after(shown, seen)
        elif shown is not None:
            shown = shown._replace(age_s=shown.age_s + self.elapsed_s)
        if shown is not None and shown.age_s <= FORGET_S:
            self.shown_now[claimant.drive] = shown
            if seen is not None and not shown.in_vain:
                self.demands[claimant.drive] = min(seen.demand, shown.rate)
            if seen is not None:
                most = (GAIN if shown.in_vain else 1.0) * shown.rate
                seen = seen._replace(demand=min(seen.demand, most), in_vain=shown.in_vain)
        return seen

    def _shown_after(self, before: Shown | None, seen: _Seen) -> Shown | None:
        """Return what a drive has shown after an interval; None if nothing."""
        rate = seen.rate
        if seen.strain <= 1:
            return Shown(max(rate, STEP * before.rate) if before else rate, 0.0)
        if self._exhausted:
            return Shown(rate, 0.0, in_vain=True)
        if before is None or rate > GROWING_RATIO * before.rate:  # it shows something new
            return None
        age_s = before.age_s + self.elapsed_s
        return before._replace(rate=max(rate, before.rate), age_s=age_s)

    def _seen(self, claimant: Claimant) -> _Seen | None:
        known = claimant.known
        did, rate = known.measured.rates, known.measured.rate
        if did is None or did.idle or not rate:
            return None
        raw_iops = did.read.raw_iops + did.write.raw_iops
        cost = rate / raw_iops
        strain = self._strain(known, cost)
        if strain is None:
            return None
        target_s = self._target_s(cost, cost)
        queue = raw_iops * strain * target_s
        if queue < LEAST_QUEUE:
            return _Seen(claimant, rate, strain, 0.0)
        thinks_s = max(0.0, 1 - queue) / raw_iops
        return _Seen(claimant, rate, strain, cost * max(1.0, queue) / (target_s + thinks_s))

    def _strain(self, known: DriveState, cost: float) -> float | None:
        """Return a drive's latency over the target; the storage's, if nobody tells the drive's.

        If nobody tells that either, because requests of all its drives take long and their own
        throttles may be why, the drive's is believed: its reservation is a promise.
        """
        latency_s, mean_cost = device_latency_s(known, self.activity), cost
        if latency_s is None and self.activity is not None:
            latency_s, mean_cost = self.activity.latency_s, self.activity.mean_cost or cost
        elif latency_s is None and not self.counted and known.measured.rates is not None:
            latency_s = known.measured.rates.mean_device_latency_s
        return None if latency_s is None else latency_s / self._target_s(mean_cost, cost)

    def _target_s(self, mean_cost: float, cost: float) -> float:
        """Return the target of requests that wait among others, by their mean costs, in seconds."""
        assert self.policy.capacity is not None
        assert self.policy.latency_target_ms is not None
        allowed_s = allowance_s(mean_cost, cost, self.policy.capacity)
        return self.policy.latency_target_ms / 1000 + allowed_s


def done_by(drives: Iterable[Claimant]) -> float:
    """Return what drives are known to have done in the last interval."""
    return fsum(claimant.known.measured.rate or 0.0 for claimant in drives)
