"""Describes a storage, which several drives share: its policy, its counters, its activity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from iokeel.core.values.counters import NO_FLOW, NS_PER_S, Flow
from iokeel.core.values.curve import CostModel

#: A storage's name, as people call it: sda, dm-3, rbd:pool, or its name in the configuration.
StorageId = str

# The default bounds of a capacity's correction by latency, as ratios of it. The upper one is the
# most that may be configured: a storage that isn't loaded by its own evidence holds nobody back.
LEAST_RATIO = 0.25
MOST_RATIO = 100.0
# At 80 % utilization, a request waits for twice the one in service when it comes (Pollaczek and
# Khinchine: rho / (2 (1 - rho)), for one server and random arrivals).
WAITS = 2.0


@dataclass(frozen=True, slots=True)
class Place:
    """Something that holds a drive's data, and maybe others' too.

    name: sda, dm-3, a mount point, rbd:pool. number: MAJOR:MINOR of a block device, else None.
    """

    name: StorageId
    number: str | None = None


@dataclass(frozen=True, slots=True)
class StoragePolicy:
    """A storage's figures, from an operator or a calibration.

    capacity: the normalized I/O operations a second that it serves, > 0; None if unknown.
    latency_target_ms: it is overloaded if its requests take longer than this on average, were they
    all 4 KiB reads; None if its capacity is never corrected. least_ratio, most_ratio: the bounds of
    that correction, as ratios of `capacity`, 0 < least_ratio <= 1 <= most_ratio. model: its own
    cost curves; None for the agent's.
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
    least one request in flight. in_flight: requests now. at_ns: the monotonic clock. read_bytes,
    write_bytes: None if nobody counts them.
    """

    at_ns: int
    read_requests: int
    read_time_ns: int
    write_requests: int
    write_time_ns: int
    in_flight: int
    busy_ns: int
    read_bytes: int | None = None
    write_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class StorageActivity:
    """A storage's activity between two readings.

    latency_s: the mean time of a request at the device; None if none ended. busy_ratio: the part
    of the time with a request in flight, 0 to 1. queue: the mean number of requests in flight.
    mean_cost: the mean normalized cost of a request. served_cost: the mean cost of the request in
    service, at a random moment, so that each counts for as long as it is served. Both are None if
    unknown. read, write: its own requests, as it counts them; None if it doesn't. read_latency_s,
    write_latency_s: the mean times of these; None if none ended, or if it doesn't count them.
    """

    elapsed_s: float
    raw_iops: float
    latency_s: float | None
    busy_ratio: float
    queue: float
    mean_cost: float | None = None
    served_cost: float | None = None
    read: Flow | None = None
    write: Flow | None = None
    read_latency_s: float | None = None
    write_latency_s: float | None = None


class Load(NamedTuple):
    """What a storage's drives did in an interval: on a host, or in the fleet on all of them.

    Rates are normalized I/O operations a second. activity: None if unknown. done: by drives with a
    policy; strangers: by the others. known: whether all of these rates are. gifts: what stock QEMU
    let through for nothing. drained: the queue is short now, however long it was on average.
    usable_part: of the capacity, less than 1 while headroom is kept. short: a drive could do more
    if it were allowed more.
    """

    activity: StorageActivity | None = None
    done: float = 0.0
    strangers: float = 0.0
    known: bool = True
    gifts: float = 0.0
    drained: bool = True
    usable_part: float = 1.0
    short: bool = False

    @property
    def total(self) -> float | None:
        """The rate of all drives; None if unknown."""
        return self.strangers + self.done if self.known else None


def allowance_s(mean_cost: float, served_cost: float, capacity: float) -> float:
    """Return how much longer than 4 KiB reads requests may take, in seconds.

    mean_cost, served_cost: as in StorageActivity. capacity: in normalized I/O operations a second.
    """
    return (max(0.0, mean_cost - 1) + WAITS * max(0.0, served_cost - 1)) / capacity


def activity_between(earlier: StorageCounters, later: StorageCounters) -> StorageActivity | None:
    """Return the activity between two readings, or None if it can't be known.

    It is unknown if a counter went backwards (the device was replaced, a counter wrapped), or if no
    time lies between the readings.
    """
    elapsed_ns = later.at_ns - earlier.at_ns
    reads = later.read_requests - earlier.read_requests
    writes = later.write_requests - earlier.write_requests
    read_ns = later.read_time_ns - earlier.read_time_ns
    write_ns = later.write_time_ns - earlier.write_time_ns
    busy_ns = later.busy_ns - earlier.busy_ns
    if elapsed_ns <= 0 or later.in_flight < 0:
        return None
    if min(reads, writes, read_ns, write_ns, busy_ns) < 0:
        return None
    requests, time_ns = reads + writes, read_ns + write_ns
    return StorageActivity(
        elapsed_ns / NS_PER_S,
        requests * NS_PER_S / elapsed_ns,
        time_ns / requests / NS_PER_S if requests else None,
        min(1.0, busy_ns / elapsed_ns),
        time_ns / elapsed_ns,
        read=_flow(reads, earlier.read_bytes, later.read_bytes, elapsed_ns),
        write=_flow(writes, earlier.write_bytes, later.write_bytes, elapsed_ns),
        read_latency_s=read_ns / reads / NS_PER_S if reads else None,
        write_latency_s=write_ns / writes / NS_PER_S if writes else None,
    )


def _flow(requests: int, earlier: int | None, later: int | None, elapsed_ns: int) -> Flow | None:
    """Return a storage's requests of one direction; None if their bytes aren't known."""
    if earlier is None or later is None or later < earlier:
        return None
    if not requests:
        return NO_FLOW
    return Flow(requests * NS_PER_S / elapsed_ns, (later - earlier) * NS_PER_S / elapsed_ns)
