"""Bounds a VM's cgroup on a device, as a backstop below QEMU's limits.

The kernel bounds requests a second and bytes a second by direction, and knows no cost curve. So
each bound is the most of its kind that any traffic within the VM's share can show: all requests of
the cheapest size, or all of the size with the most bytes for its cost. A VM that keeps to its share
is never held back, whatever its mix. What its images add below QEMU's throttle is measured
(beneath.py) and comes on top, and so does the rate of its block jobs (jobs.py). Other traffic that
bypasses the throttle is held to the bound.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache, reduce
from typing import NamedTuple

from iokeel.core.values.counters import DriveId
from iokeel.core.values.curve import LARGEST_REQUEST_BYTES, CostCurve, CostModel
from iokeel.core.values.policy import MOST_WEIGHT
from iokeel.core.values.state import DriveState, State, Verdict

# If a device takes a request in parts, each part is counted. Hardly any device takes less than this
# at once (queue/max_sectors_kb).
PART_BYTES = 128 * 1024
# A bound this much too loose stays, because each change of a bound grants a fresh start.
_LOOSE_RATIO = 1.1


class Io(NamedTuple):
    """Bytes and requests on a device, in IoMax's words: a count, or a rate a second."""

    rbps: float = 0.0
    wbps: float = 0.0
    riops: float = 0.0
    wiops: float = 0.0

    def plus(self, other: Io) -> Io:
        """Return both together."""
        return Io(*(a + b for a, b in zip(self, other, strict=True)))

    def most(self, other: Io) -> Io:
        """Return the larger of both values of each kind."""
        return Io(*map(max, self, other))

    def less(self, other: Io) -> Io:
        """Return the difference."""
        return Io(*(a - b for a, b in zip(self, other, strict=True)))

    def times(self, factor: float) -> Io:
        """Return so many times as much."""
        return Io(*(value * factor for value in self))


NOTHING = Io()


@dataclass(frozen=True, slots=True)
class IoMax:
    """Bounds of a group on a device, in cgroup's words, each > 0; None: no bound."""

    rbps: int | None = None
    wbps: int | None = None
    riops: int | None = None
    wiops: int | None = None

    def plus(self, other: IoMax) -> IoMax:
        """Return the bounds of two loads together, the other one held to `other`."""
        pairs = zip(self.items(), other.items(), strict=True)
        return IoMax(*(None if a is None or b is None else a + b for (_, a), (_, b) in pairs))

    def wider(self, more: Io) -> IoMax:
        """Return bounds with room for more."""
        pairs = zip(self.items(), more, strict=True)
        return IoMax(
            *(None if bound is None else bound + math.ceil(by) for (_, bound), by in pairs)
        )

    def items(self) -> Iterator[tuple[str, int | None]]:
        """Yield the bounds by name."""
        for bound in fields(self):
            yield bound.name, getattr(self, bound.name)


@dataclass(frozen=True, slots=True)
class CgroupOrder:
    """The settings for a VM's group.

    limits: bounds by device (MAJOR:MINOR of a whole disk), for all devices that the VM uses;
    IoMax() for none; None leaves the device's settings as they are. weight: of the VM among the
    others, 1 to 10,000, 100 is usual; None leaves it as it is. latency_targets_s: by device, the
    latency for the kernel to protect.
    """

    limits: Mapping[str, IoMax | None] = field(default_factory=dict)
    weight: int | None = None
    latency_targets_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def unsure(self) -> Collection[str]:
        """The devices whose settings stay as they are."""
        return {device for device, bounds in self.limits.items() if bounds is None}


def backstop(
    model: CostModel, share: float, margin: float = 1.0, read_part_bytes: int = PART_BYTES
) -> IoMax:
    """Return bounds that no traffic within a VM's share ever meets, and none tighter than that.

    share: the normalized rate that QEMU's limits allow all its drives on the device together, an
    open burst included; with separate budgets, each budget's alone. margin: the bound over the
    share, >= 1, because QEMU's own pricing isn't exact. read_part_bytes: a larger read counts once
    for each part of this size.
    """
    rate = max(share, 0.0) * margin
    rbps, riops = _most(model.read, rate, read_part_bytes)
    wbps, wiops = _most(model.write, rate, PART_BYTES)
    return IoMax(rbps, wbps, riops, wiops)


def vm_orders(
    state: State,
    devices: Mapping[DriveId, Sequence[str]],
    margin: float = 1.0,
    only: Collection[str] | None = None,
    free: Collection[str] = (),
    added: Mapping[tuple[str, str], Io] | None = None,
    jobs: Mapping[str, Io] | None = None,
) -> dict[str, CgroupOrder | None]:
    """Return the settings for each VM's group; None if it stays as it is. only: for these VMs.

    devices: of this host (MAJOR:MINOR), those that each drive's requests reach, such as a logical
    volume and the disk below it, or those of a backing file; a drive that isn't in it may reach
    any. A VM has bounds on a device if all its drives there have limits, each priced by its own
    curves. A device stays as it is while it isn't known what one of them may do. Its weight is the
    sum of its drives', or its part of its tenant's. free: VMs without bounds for now, such as those
    that are paused while their memory is written past QEMU's throttle. added: what a normalized
    operation of a VM's drives adds on a device. jobs: room for VMs' block jobs.
    """
    weights: Counter[str] = Counter()
    by_tenant: Counter[str] = Counter()
    vms: dict[str, list[tuple[DriveId, DriveState]]] = {}
    for drive, known in state.drives.items():
        if only is None or drive.domain in only:
            vms.setdefault(drive.domain, []).append((drive, known))
        if known.policy is not None:
            weights[drive.domain] += known.policy.weight
            by_tenant[known.tenant or ""] += known.policy.weight
    orders: dict[str, CgroupOrder | None] = {}
    for vm, drives in vms.items():
        unsure = [d for d, known in drives if known.is_unsure or _waits_for_its_rate(known)]
        if not weights[vm] and not unsure:  # it has no policy
            continue
        there: dict[str, list[DriveState]] = {}
        for drive, known in drives:
            for device in devices.get(drive, ()):
                there.setdefault(device, []).append(known)
        frozen = {device for drive in unsure for device in devices.get(drive, there)}
        if unsure and (not weights[vm] or frozen == there.keys()):
            orders[vm] = None
            continue
        sure = {device: on for device, on in there.items() if device not in frozen}
        bounded = vm not in free and all(drive in devices for drive, _ in drives)
        bounds = {}
        for device, on in sure.items():
            more = (added or {}).get((vm, device), NOTHING)
            limits = _limits(state, on, margin, more) if bounded else IoMax()
            bounds[device] = limits.wider((jobs or {}).get(vm, NOTHING))
        orders[vm] = CgroupOrder(
            {device: bounds.get(device) for device in there},
            _weight(vm, drives[0][1], state, weights, by_tenant),
            {device: target / 1000 for device, on in sure.items() if (target := _target_ms(on))},
        )
    return orders


def _waits_for_its_rate(known: DriveState) -> bool:
    """Whether an earlier agent has limited a drive, and this one hasn't looked at it yet."""
    has_none = known.finding.verdict is Verdict.BYTES
    return known.is_held and known.pricing.rate is None and not has_none


def _limits(state: State, drives: Sequence[DriveState], margin: float, added: Io) -> IoMax:
    """Return the bounds of drives together; none if one of them is unlimited.

    added: what a normalized operation adds below them.
    """
    share = 0.0
    rates: dict[tuple[int, int], float] = {}
    models: dict[int, CostModel] = {}  # by id, since to hash one takes long
    for known in drives:
        if known.pricing.rate is None:
            return IoMax()
        model = model_of(state, known)
        models[id(model)] = model
        limits = known.sent.limits
        split_size = limits.split_size if limits is not None else None
        key = id(model), min(PART_BYTES, split_size or PART_BYTES)
        rates[key] = rates.get(key, 0.0) + known.pricing.rate
        share += known.pricing.rate * (2 if known.policy and known.policy.separate_budgets else 1)
    first, *others = (
        backstop(models[model_id], rate, margin, part_bytes)
        for (model_id, part_bytes), rate in rates.items()
    )
    return reduce(IoMax.plus, others, first).wider(added.times(share * margin))


def model_of(state: State, known: DriveState) -> CostModel:
    """Return the cost curves of a drive."""
    storage = state.storages.get(known.storage or "")
    return (storage and storage.policy.model) or state.model


def _target_ms(drives: Sequence[DriveState]) -> float | None:
    targets = [known.policy.latency_target_ms for known in drives if known.policy is not None]
    return min((target for target in targets if target is not None), default=None)


def _weight(
    vm: str, drive: DriveState, state: State, weights: Counter[str], by_tenant: Counter[str]
) -> int:
    weight = float(weights[vm])
    promised = state.tenants.get(drive.tenant or "")
    if promised is not None and by_tenant[drive.tenant or ""]:
        weight *= promised.weight / by_tenant[drive.tenant or ""]
    return min(MOST_WEIGHT, max(1, round(weight)))


def fits(held: IoMax, wanted: IoMax) -> bool:
    """Return whether bounds in force will do for wanted ones: not tighter, hardly looser."""
    for (_, old), (_, new) in zip(held.items(), wanted.items(), strict=True):
        if (old is None) != (new is None):
            return False
        if old is not None and new is not None and not new <= old <= _LOOSE_RATIO * new:
            return False
    return True


def _most(curve: CostCurve, rate: float, part_bytes: int) -> tuple[int, int]:
    """Return the most bytes and the most requests a second that cost a rate."""
    bytes_per_cost, least_cost = _extremes(curve, part_bytes)
    return max(1, math.ceil(rate * bytes_per_cost)), max(1, math.ceil(rate / least_cost))


@lru_cache(maxsize=64)
def _extremes(curve: CostCurve, part_bytes: int) -> tuple[float, float]:
    """Return the most bytes for a cost of one, and the least cost of a counted request."""
    # Between two points the ratio rises or falls all the way.
    ends = [size for size, _ in curve.points if size < LARGEST_REQUEST_BYTES]
    bytes_per_cost = max(size / curve.cost(size) for size in [*ends, LARGEST_REQUEST_BYTES])
    # One that is counted n times is at least a byte longer than n - 1 parts.
    least_cost = min(
        curve.cost(parts * part_bytes + 1) / (parts + 1)
        for parts in range(LARGEST_REQUEST_BYTES // part_bytes)
    )
    return bytes_per_cost, least_cost
