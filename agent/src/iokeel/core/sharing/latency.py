"""What a storage's load is, and how far latencies are above their targets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from iokeel.core.counters import Rates
from iokeel.core.sharing.storage import StorageLoad, StoragePolicy, storage_load
from iokeel.core.state import DriveState, StorageSeen, StorageState

# A storage that is used to four fifths makes a request wait for twice what is being served when it
# comes (Pollaczek and Khinchine: rho / (2 (1 - rho)), for one server and arrivals at random).
WAITS = 2.0
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
    if load is None:
        return None
    mean_cost, served_cost = _costs(there)
    return replace(load, mean_cost=mean_cost, served_cost=served_cost)


def storage_strain(policy: StoragePolicy, load: StorageLoad | None) -> float | None:
    """Return a storage's latency over its target; None where it has none or isn't known.

    A target is for 4 KiB reads. A larger request takes longer though nothing is in its way, by no
    less than the time in which the whole storage would serve it; and any request waits longer where
    larger ones are served.
    """
    if load is None or load.latency_s is None or policy.latency_target_ms is None:
        return None
    target_s = policy.latency_target_ms / 1000
    if load.mean_cost is not None and load.served_cost is not None and policy.capacity is not None:
        target_s += allowance_s(load.mean_cost, load.served_cost, policy.capacity)
    return load.latency_s / target_s


def allowance_s(mean_cost: float, served_cost: float, capacity: float) -> float:
    """Return by how much longer requests may take than 4 KiB reads; see StorageLoad's costs."""
    return (max(0.0, mean_cost - 1) + WAITS * max(0.0, served_cost - 1)) / capacity


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


def _costs(drives: Iterable[DriveState]) -> tuple[float | None, float | None]:
    """Return StorageLoad's mean_cost and served_cost of some drives' requests."""
    cost = requests = squares = 0.0
    for known in drives:
        if known.rate and known.rates is not None and not known.rates.idle:
            raw_iops = _served_iops(known, known.rates)
            cost += known.rate
            requests += raw_iops
            squares += known.rate**2 / raw_iops
    return (cost / requests, squares / cost) if requests else (None, None)


def _served_iops(known: DriveState, did: Rates) -> float:
    """Return how many requests of a drive a second its storage sees: parts of reads that wait."""
    split_size = known.sent.split_size if known.sent is not None and known.backlogged else None
    if split_size is None:
        return did.read.raw_iops + did.write.raw_iops
    return max(did.read.raw_iops, did.read.bps / split_size) + did.write.raw_iops


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
