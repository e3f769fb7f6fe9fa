"""Measures a storage: its load, its latencies against their targets, and its strangers.

A latency over its target is called a *strain*. What a drive waits for its own throttle is no
latency of its storage. A QEMU with the patches times requests below the throttle, or counts their
waits. Stock QEMU's times contain the wait, and a mean rate below the limit doesn't tell that no
burst waited. So on stock QEMU

- a drive's time counts only if its requests of the last two intervals fit into an empty bucket
  together, because then none can have waited;
- any other drive counts with the mean time of its device's own requests, but no more than its own;
- if its storage has no counters, it tells nothing but that the storage took no longer.

And with counters, no drive waits for its device longer than all requests there together took.

Without counters, a storage's latency is a median over VMs, weighted by their requests, in which no
VM has more weight than all others together. So a guest or a QEMU that tells long times moves
nothing while most of the others, or of their requests, tell that the storage is calm.

*Strangers* are drives without a policy, the host's own programs, and what an image adds below
QEMU. No drive's counters tell their work, but the storage's own do: it is what the storage did
beyond the drives that are known. If it did less than these, their requests came from a cache, or
from holes, and cost it nothing. The rate is negative then, because there is room for as much.

Bytes are compared, because they stay the same if a device splits or merges requests.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from math import fsum, inf
from typing import NamedTuple

from iokeel.core.values.counters import Flow, Rates
from iokeel.core.values.curve import CostCurve, CostModel
from iokeel.core.values.limits import BUCKET_S, ThrottleLimits
from iokeel.core.values.mix import bounds_on, flow_cost, requests_in_pieces
from iokeel.core.values.observation import StorageSeen
from iokeel.core.values.state import DriveState, StorageState
from iokeel.core.values.storage import StorageActivity, StoragePolicy, activity_between, allowance_s

# Of all weight: sums of weights are rounded, and a tie is one anyway.
_HALF = 0.5 * (1 - 1e-9)
# A storage with less strain than this is calm.
CALM_RATIO = 0.7
# With less than one request in flight on average, latency is not due to load.
_LOADED_QUEUE = 1.0
# QEMU and the device count at different moments, so a difference below this part tells nothing.
_ALIKE_RATIO = 0.1


def weighted_median(pairs: Iterable[tuple[float, float]]) -> float | None:
    """Return the least value that has half of all weight at or below it; None without any weight.

    pairs: values and their weights, >= 0. No value weighs more than all others together. So of two
    values, the lower one counts.
    """
    known = sorted((value, weight) for value, weight in pairs if weight > 0)
    if not known:
        return None
    weights = [weight for _, weight in known]
    heaviest = weights.index(max(weights))
    weights[heaviest] = min(weights[heaviest], fsum(weights[:heaviest] + weights[heaviest + 1 :]))
    below = [*accumulate(weights)]
    return known[bisect_left(below, _HALF * below[-1])][0]


def activity_of(
    seen: StorageSeen,
    before: StorageState | None,
    drives: Sequence[DriveState],
    vms: Sequence[str] = (),
) -> StorageActivity | None:
    """Return a storage's activity since the last tick: by its own counters, else by its drives'.

    drives: those on it. vms: their VMs' names, if it has no counters. None if it can't be known.
    """
    if seen.counters is None:
        return _activity_of_guests(seen.policy, drives, vms)
    if before is None or before.counters is None:
        return None
    activity = activity_between(before.counters, seen.counters)
    return None if activity is None else _with_costs(activity, drives)


def storage_strain(policy: StoragePolicy, activity: StorageActivity | None) -> float | None:
    """Return a storage's latency over its target; None if it has no target or isn't known.

    A target is for 4 KiB reads. A larger request takes longer by itself, at least by the time in
    which the whole storage would serve it. And any request waits longer among larger ones.
    """
    if activity is None or activity.latency_s is None or policy.latency_target_ms is None:
        return None
    target_s = policy.latency_target_ms / 1000
    mean_cost, served_cost = activity.mean_cost, activity.served_cost
    if mean_cost is not None and served_cost is not None and policy.capacity is not None:
        target_s += allowance_s(mean_cost, served_cost, policy.capacity)
    return activity.latency_s / target_s


def is_loaded(activity: StorageActivity | None) -> bool:
    """Return whether a storage's latency can be due to its load."""
    return activity is not None and activity.queue >= _LOADED_QUEUE


def drive_strain(known: DriveState, activity: StorageActivity | None) -> float | None:
    """Return a drive's latency over its target; None if it was idle or it isn't known.

    activity: of its storage.
    """
    latency_s = device_latency_s(known, activity)
    if latency_s is None or known.policy is None or known.policy.latency_target_ms is None:
        return None
    return latency_s * 1000 / known.policy.latency_target_ms


def device_latency_s(known: DriveState, activity: StorageActivity | None) -> float | None:
    """Return the mean device latency of a drive in the last interval, in seconds.

    activity: of its storage. None if no request ended, or if nobody can tell it without the
    throttle's wait.
    """
    did = known.measured.rates
    latency_s = None if did is None else did.mean_device_latency_s
    if did is None or latency_s is None:
        return None
    if activity is None or activity.read is None or activity.write is None:
        return None if _may_have_waited(known, did) else latency_s
    own = (did.read.raw_iops, did.write.raw_iops)
    device_s = (activity.read_latency_s or 0.0, activity.write_latency_s or 0.0)
    if _may_have_waited(known, did):
        explained_s = (own[0] * device_s[0] + own[1] * device_s[1]) / (own[0] + own[1])
    else:
        explained_s = activity.queue / (own[0] + own[1])
    return min(latency_s, explained_s)


def _may_have_waited(known: DriveState, did: Rates) -> bool:
    """Return whether a drive's times may contain waits for its own throttle."""
    if did.throttled is not None:
        return False
    if known.demand.backlogged or known.sent.group:
        return True
    used_s = max((_used_s(limits, did) for limits in known.sent.ours), default=0.0)
    recent = known.demand.recent
    earlier = recent[1] / recent[0] if len(recent) > 1 and recent[0] else 1.0
    return used_s * (1 + earlier) > BUCKET_S


def _used_s(limits: ThrottleLimits, did: Rates) -> float:
    """Return for how long limits have to pay for what a drive did, in seconds."""
    used = 0.0
    for _, most_bps, most_iops, _, requests, bps in bounds_on(did, limits):
        if most_bps:
            used = max(used, bps / most_bps)
        if most_iops:
            used = max(used, max(requests, bps / (limits.iops_size or inf)) / most_iops)
    return used * did.elapsed_s


def _with_costs(activity: StorageActivity, drives: Iterable[DriveState]) -> StorageActivity:
    """Return an activity with the costs of the requests of drives."""
    cost = requests = squares = 0.0
    for known in drives:
        rate, did = known.measured.rate, known.measured.rates
        if rate and did is not None and not did.idle:
            raw_iops = _served_iops(known, did)
            cost += rate
            requests += raw_iops
            squares += rate**2 / raw_iops
    if not requests:
        return activity
    return replace(activity, mean_cost=cost / requests, served_cost=squares / cost)


def _served_iops(known: DriveState, did: Rates) -> float:
    """Return the requests a second that a storage sees of a drive; it sees reads in pieces."""
    split_size = None if known.sent.limits is None else known.sent.limits.split_size
    if split_size is not None and did.throttled is not None:
        timed = did.throttled.took().requests  # each piece by itself
        if timed:
            return max(requests_in_pieces(did, None), timed / did.elapsed_s)
    return requests_in_pieces(did, split_size if known.demand.backlogged else None)


def _activity_of_guests(
    policy: StoragePolicy, drives: Sequence[DriveState], vms: Sequence[str]
) -> StorageActivity | None:
    """Return a storage's activity by its guests' requests; None if these don't tell."""
    telling: dict[str, list[DriveState]] = {}
    for vm, known in zip(vms, drives, strict=True):
        if _tells(policy, known):
            telling.setdefault(vm, []).append(known)
    times = [found for each in telling.values() if (found := _times_of(each)) is not None]
    latency_s = weighted_median((each.latency_s, each.raw_iops) for each in times)
    if latency_s is None:
        return None
    raw_iops = sum(each.raw_iops for each in times)
    queue = sum(each.raw_iops * each.latency_s for each in times)
    elapsed_s = max(each.elapsed_s for each in times)
    activity = StorageActivity(elapsed_s, raw_iops, latency_s, min(1.0, queue), queue)
    return _with_costs(activity, chain(*telling.values()))


class _Times(NamedTuple):
    """The times of requests that ended. latency_s: the mean of them."""

    latency_s: float
    raw_iops: float
    elapsed_s: float


def _tells(policy: StoragePolicy, known: DriveState) -> bool:
    """Return whether a drive's times tell something of a storage that nobody counts.

    One that may have waited for its throttle tells at most that the storage is calm.
    """
    if device_latency_s(known, None) is not None:
        return True
    times = _times_of([known])
    if times is None or policy.latency_target_ms is None:
        return False
    own = StorageActivity(1.0, times.raw_iops, times.latency_s, 1.0, 1.0)
    return (storage_strain(policy, _with_costs(own, [known])) or 0.0) < CALM_RATIO


def _times_of(drives: Iterable[DriveState]) -> _Times | None:
    """Return the times of drives' requests; None if none ended, or nobody counts these."""
    requests = queue = elapsed_s = 0.0
    for known in drives:
        did = known.measured.rates
        if did is not None and (latency_s := did.mean_device_latency_s) is not None:
            raw_iops = did.read.raw_iops + did.write.raw_iops
            requests += raw_iops
            queue += raw_iops * latency_s
            elapsed_s = max(elapsed_s, did.elapsed_s)
    return _Times(queue / requests, requests, elapsed_s) if requests else None


def strangers_rate(
    activity: StorageActivity | None, drives: Sequence[DriveState], model: CostModel
) -> float | None:
    """Return the rate of a storage's strangers, in normalized I/O operations a second.

    drives: those with a policy. Below 0: the storage did so much less than these. None if it isn't
    known: the storage doesn't count, or what one of the drives did can't be told.
    """
    if activity is None or activity.read is None or activity.write is None:
        return None
    did = [known.measured.rates for known in drives]
    reads = [each.read for each in did if each is not None]
    writes = [each.write for each in did if each is not None]
    if len(reads) < len(did):
        return None
    return _beyond(activity.read, reads, model.read) + _beyond(activity.write, writes, model.write)


def _beyond(device: Flow, known: Sequence[Flow], curve: CostCurve) -> float:
    """Return the rate of a device's requests of one direction beyond those that are known."""
    known_bps = fsum(flow.bps for flow in known)
    beyond_bps = device.bps - known_bps
    if abs(beyond_bps) <= _ALIKE_RATIO * max(device.bps, known_bps):
        return 0.0
    if beyond_bps < 0:
        return beyond_bps / known_bps * fsum(flow_cost(curve, flow) for flow in known)
    return beyond_bps / device.bps * flow_cost(curve, device)
