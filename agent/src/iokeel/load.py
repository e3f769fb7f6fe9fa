"""What a storage's load is, and how far latencies are above their targets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from iokeel.state import DriveState, StorageSeen, StorageState
from iokeel.storage import StorageLoad, StoragePolicy, storage_load

# A storage that is used to four fifths makes requests of a kind wait for about two of that kind.
TRANSFERS = 3.0
# With less than one request in flight on average, latency is not due to load.
_LOADED_QUEUE = 1.0


def load_of(
    now: StorageSeen, was: StorageState | None, drives: Iterable[DriveState]
) -> StorageLoad | None:
    """Return the load of a storage since the last tick: by its own counters, else by its drives'.

    None where it can't be known.
    """
    there = list(drives)
    if now.counters is None:
        load = _load_by_guests(there)
    else:
        load = storage_load(was.counters, now.counters) if was and was.counters else None
    return replace(load, mean_cost=_mean_cost(there)) if load is not None else None


def storage_strain(policy: StoragePolicy, load: StorageLoad | None) -> float | None:
    """Return a storage's latency over its target; None where it has none or isn't known.

    A target is for 4 KiB reads. A larger request takes longer though nothing is in its way, by no
    less than the time in which the whole storage would serve it: TRANSFERS times that are added.
    """
    if load is None or load.latency_s is None or policy.latency_target_ms is None:
        return None
    target_s = policy.latency_target_ms / 1000
    if load.mean_cost is not None and policy.capacity is not None:
        target_s += TRANSFERS * max(0.0, load.mean_cost - 1) / policy.capacity
    return load.latency_s / target_s


def is_loaded(load: StorageLoad | None) -> bool:
    """Whether a storage's latency can be due to its load."""
    return load is not None and load.queue >= _LOADED_QUEUE


def drive_strain(known: DriveState) -> float | None:
    """Return a drive's latency over its target; None where it did nothing or it isn't known."""
    latency_s = _device_latency_s(known)
    if latency_s is None or known.policy is None or known.policy.latency_target_ms is None:
        return None
    return latency_s * 1000 / known.policy.latency_target_ms


def _device_latency_s(known: DriveState) -> float | None:
    """Return the mean time of a drive's requests in the last interval without the throttle's wait.

    None where no request ended, or where the wait is part of what was measured.
    """
    did = known.rates
    if did is None or did.idle or (known.backlogged and did.throttled is None):
        return None
    total_s = did.read.raw_iops * (did.read_latency_s or 0.0) + did.write.raw_iops * (
        did.write_latency_s or 0.0
    )
    if did.throttled is not None:
        waits_s = did.throttled.wait_s(write=False) + did.throttled.wait_s(write=True)
        total_s = max(0.0, total_s - waits_s / did.throttled.elapsed_s)
    return total_s / (did.read.raw_iops + did.write.raw_iops) or None


def _mean_cost(drives: Iterable[DriveState]) -> float | None:
    """Return what a request of some drives cost in the last interval."""
    cost = requests = 0.0
    for known in drives:
        if known.rate is not None and known.rates is not None:
            cost += known.rate
            requests += known.rates.read.raw_iops + known.rates.write.raw_iops
    return cost / requests if requests else None


def _load_by_guests(drives: Iterable[DriveState]) -> StorageLoad | None:
    requests = queue = elapsed_s = 0.0
    for known in drives:
        latency_s, did = _device_latency_s(known), known.rates
        if latency_s is not None and did is not None:
            raw_iops = did.read.raw_iops + did.write.raw_iops
            requests += raw_iops
            queue += raw_iops * latency_s
            elapsed_s = max(elapsed_s, did.elapsed_s)
    if not requests:
        return None
    return StorageLoad(elapsed_s, requests, queue / requests, min(1.0, queue), queue)
