"""A storage: what several drives share, what is promised of it, and what it did."""

from __future__ import annotations

from dataclasses import dataclass

from iokeel.core.counters import NS_PER_S
from iokeel.core.curve import CostModel

#: What people call it: sda, dm-3, nbd:unix:/run/x.sock, rbd:pool, or its name in configuration.
StorageId = str

# How far latency feedback may move a capacity away from what was configured or calibrated.
LEAST_RATIO = 0.25
MOST_RATIO = 1.5


@dataclass(frozen=True, slots=True)
class Place:
    """Something that holds a drive's data, and that others may be on too.

    name: as people call it: sda, dm-3, a mount point, rbd:pool. number: a block device's
    MAJOR:MINOR; None for what is none.
    """

    name: StorageId
    number: str | None = None


@dataclass(frozen=True, slots=True)
class StoragePolicy:
    """What an operator or a calibration says of a storage.

    capacity: normalized I/O operations a second that it serves, > 0; None where it is unknown.
    latency_target_ms: the mean time of its own requests above which it is overloaded, were they
    all 4 KiB reads; None: its capacity is never corrected. least_ratio, most_ratio: how far it may
    be corrected, as ratios of `capacity`, 0 < least_ratio <= 1 <= most_ratio. model: cost curves of
    its own; None: the agent's.
    """

    capacity: int | None = None
    latency_target_ms: float | None = None
    least_ratio: float = LEAST_RATIO
    most_ratio: float = MOST_RATIO
    model: CostModel | None = None


@dataclass(frozen=True, slots=True)
class StorageCounters:
    """One reading of a storage's own counters, as the host counts them (/proc/diskstats).

    Times are sums over requests from submission to completion, in ns. busy_ns: time with at
    least one request in flight. in_flight: requests now. at_ns: the monotonic clock.
    """

    at_ns: int
    read_requests: int
    read_time_ns: int
    write_requests: int
    write_time_ns: int
    in_flight: int
    busy_ns: int


@dataclass(frozen=True, slots=True)
class StorageLoad:
    """What a storage did between two readings.

    latency_s: mean time of a request at the device; None where none ended. busy_ratio: part of
    the time with a request in flight, 0 to 1. queue: requests in flight, on average.
    mean_cost: what a request cost, normalized. served_cost: what the request costs that is being
    served, at a moment taken at random: each counts for as long as it is served. None where they
    are not known.
    """

    elapsed_s: float
    raw_iops: float
    latency_s: float | None
    busy_ratio: float
    queue: float
    mean_cost: float | None = None
    served_cost: float | None = None


def storage_load(earlier: StorageCounters, later: StorageCounters) -> StorageLoad | None:
    """Return the load between two readings, or None where it can't be known.

    A counter that went backwards (the device was replaced, a counter wrapped) and no time between
    the readings are unknown, never nonsense.
    """
    elapsed_ns = later.at_ns - earlier.at_ns
    requests = (later.read_requests - earlier.read_requests) + (
        later.write_requests - earlier.write_requests
    )
    time_ns = (later.read_time_ns - earlier.read_time_ns) + (
        later.write_time_ns - earlier.write_time_ns
    )
    busy_ns = later.busy_ns - earlier.busy_ns
    if (
        elapsed_ns <= 0
        or later.read_requests < earlier.read_requests
        or later.write_requests < earlier.write_requests
        or later.read_time_ns < earlier.read_time_ns
        or later.write_time_ns < earlier.write_time_ns
        or busy_ns < 0
        or later.in_flight < 0
    ):
        return None
    return StorageLoad(
        elapsed_ns / NS_PER_S,
        requests * NS_PER_S / elapsed_ns,
        time_ns / requests / NS_PER_S if requests else None,
        min(1.0, busy_ns / elapsed_ns),
        time_ns / elapsed_ns,
    )
