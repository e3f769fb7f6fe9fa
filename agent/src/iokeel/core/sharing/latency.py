"""Measures a storage's load, and compares latencies with their targets.

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
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from math import inf
from typing import NamedTuple

from iokeel.core.counters import Rates
from iokeel.core.limits import BUCKET_S, ThrottleLimits
from iokeel.core.mix import bounds_on, requests_in_pieces
from iokeel.core.observation import StorageSeen
from iokeel.core.state import DriveState, StorageState
from iokeel.core.storage import StorageActivity, StoragePolicy, activity_between, allowance_s
from iokeel.core.weighted_median import weighted_median

# A storage with less strain than this is calm.
CALM_RATIO = 0.7
# With less than one request in flight on average, latency is not due to load.
_LOADED_QUEUE = 1.0


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
