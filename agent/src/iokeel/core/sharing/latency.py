"""Measures a storage's load, and compares latencies with their targets.

A latency over its target is called a *strain*.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from iokeel.core.counters import Rates
from iokeel.core.observation import StorageSeen
from iokeel.core.state import DriveState, StorageState
from iokeel.core.storage import StorageActivity, StoragePolicy, activity_between

# At 80 % utilization, a request waits for twice the one in service when it comes (Pollaczek and
# Khinchine: rho / (2 (1 - rho)), for one server and random arrivals).
WAITS = 2.0
# With less than one request in flight on average, latency is not due to load.
_LOADED_QUEUE = 1.0


def activity_of(
    seen: StorageSeen, before: StorageState | None, drives: Iterable[DriveState]
) -> StorageActivity | None:
    """Return a storage's activity since the last tick: by its own counters, else by its drives'.

    None if it can't be known.
    """
    on_it = list(drives)
    if seen.counters is None:
        activity = _activity_of_guests(on_it)
    elif before and before.counters:
        activity = activity_between(before.counters, seen.counters)
    else:
        activity = None
    if activity is None:
        return None
    mean_cost, served_cost = _costs(on_it)
    return replace(activity, mean_cost=mean_cost, served_cost=served_cost)


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


def allowance_s(mean_cost: float, served_cost: float, capacity: float) -> float:
    """Return how much longer than 4 KiB reads requests may take, in seconds.

    mean_cost, served_cost: as in StorageActivity. capacity: in normalized I/O operations a second.
    """
    return (max(0.0, mean_cost - 1) + WAITS * max(0.0, served_cost - 1)) / capacity


def is_loaded(activity: StorageActivity | None) -> bool:
    """Return whether a storage's latency can be due to its load."""
    return activity is not None and activity.queue >= _LOADED_QUEUE


def drive_strain(known: DriveState) -> float | None:
    """Return a drive's latency over its target; None if it was idle or it isn't known."""
    latency_s = device_latency_s(known)
    if latency_s is None or known.policy is None or known.policy.latency_target_ms is None:
        return None
    return latency_s * 1000 / known.policy.latency_target_ms


def device_latency_s(known: DriveState) -> float | None:
    """Return the mean device latency of a drive in the last interval, in seconds.

    None if no request ended, or if the measured time contains the throttle's wait.
    """
    did = known.measured.rates
    if did is None or (known.demand.backlogged and did.throttled is None):
        return None
    return did.mean_device_latency_s


def _costs(drives: Iterable[DriveState]) -> tuple[float | None, float | None]:
    """Return the mean_cost and served_cost of drives' requests, as in StorageActivity."""
    cost = requests = squares = 0.0
    for known in drives:
        rate, did = known.measured.rate, known.measured.rates
        if rate and did is not None and not did.idle:
            raw_iops = _served_iops(known, did)
            cost += rate
            requests += raw_iops
            squares += rate**2 / raw_iops
    return (cost / requests, squares / cost) if requests else (None, None)


def _served_iops(known: DriveState, did: Rates) -> float:
    """Return the requests a second that a storage sees of a drive; it sees reads in pieces."""
    limits = known.sent.limits
    split_size = limits.split_size if limits is not None and known.demand.backlogged else None
    if split_size is None:
        return did.read.raw_iops + did.write.raw_iops
    return max(did.read.raw_iops, did.read.bps / split_size) + did.write.raw_iops


def _activity_of_guests(drives: Iterable[DriveState]) -> StorageActivity | None:
    requests = queue = elapsed_s = 0.0
    for known in drives:
        latency_s, did = device_latency_s(known), known.measured.rates
        if latency_s is not None and did is not None:
            raw_iops = did.read.raw_iops + did.write.raw_iops
            requests += raw_iops
            queue += raw_iops * latency_s
            elapsed_s = max(elapsed_s, did.elapsed_s)
    if not requests:
        return None
    return StorageActivity(elapsed_s, requests, queue / requests, min(1.0, queue), queue)
