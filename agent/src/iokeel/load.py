"""What a storage's load is, and how far latencies are above their targets."""

from __future__ import annotations

from collections.abc import Iterable

from iokeel.state import DriveState, StorageSeen, StorageState
from iokeel.storage import StorageLoad, StoragePolicy, storage_load

# With less than one request in flight on average, latency is not due to load.
_LOADED_QUEUE = 1.0


def load_of(
    now: StorageSeen, was: StorageState | None, drives: Iterable[DriveState]
) -> StorageLoad | None:
    """Return the load of a storage since the last tick: by its own counters, else by its drives'.

    None where it can't be known.
    """
    if now.counters is None:
        return _load_by_guests(drives)
    return storage_load(was.counters, now.counters) if was and was.counters else None


def storage_strain(policy: StoragePolicy, load: StorageLoad | None) -> float | None:
    """Return a storage's latency over its target; None where it has none or isn't known."""
    if load is None or load.latency_s is None or policy.latency_target_ms is None:
        return None
    return load.latency_s * 1000 / policy.latency_target_ms


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
