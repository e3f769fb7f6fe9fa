"""Holds a drive's counters, and its work between two readings of them."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

NS_PER_S = 1_000_000_000


class DriveId(NamedTuple):
    """A drive: its domain's name, and its target (libvirt) or device (QMP) in it."""

    domain: str
    target: str

    def __str__(self) -> str:
        return f"{self.domain}/{self.target}"


class Took(NamedTuple):
    """How long requests took below a throttle group, which counts each when it ends.

    bins: (least time in ns, requests) for each power of two that there was.
    """

    requests: int = 0
    total_ns: int = 0
    bins: tuple[tuple[int, int], ...] = ()

    @property
    def mean_s(self) -> float:
        """The mean of at least one request, in seconds."""
        return self.total_ns / self.requests / NS_PER_S


def at_most_s(times: Mapping[int, int], part: float) -> float | None:
    """Return a time in seconds that this part of some requests, 0 to 1, didn't exceed.

    times: requests by the least ns of a range. The time is the end of one, so up to twice as long
    as the shortest such time. None if there are none.
    """
    left = part * sum(times.values())
    for least_ns, requests in sorted(times.items()):
        left -= requests
        if left <= 0:
            return 2 * least_ns / NS_PER_S
    return None


class ThrottleCount(NamedTuple):
    """A throttle group's counts of one direction since it was created.

    cost: its charges, in operations of its iops limits. waited: the requests that had to wait;
    wait_ns: the sum of their waits, counted when each is over. waiting: requests that wait now.
    sizes: (least size in bytes, requests) for each power of two that there was. took: None if it
    can't time requests.
    """

    requests: int
    bytes: int
    cost: float
    waited: int
    wait_ns: int
    waiting: int
    sizes: tuple[tuple[int, int], ...] = ()
    took: Took | None = None


class ThrottleCounters(NamedTuple):
    """One reading of the statistics of a drive's throttle group."""

    at_ns: int
    read: ThrottleCount
    write: ThrottleCount


class Counters(NamedTuple):
    """One reading of a drive's counters since its guest started, as QEMU counts them.

    at_ns: the monotonic clock at the reading. Times are sums over requests from submission to
    completion, in ns, the throttle's wait included; None if nobody counts them. throttle: None if
    QEMU keeps no such statistics, or if the group has other members. Writes of zeroes are writes.
    flushes, discards: None if nobody counts them; libvirt counts flushes only.
    """

    at_ns: int
    read_requests: int
    read_bytes: int
    write_requests: int
    write_bytes: int
    read_time_ns: int | None
    write_time_ns: int | None
    throttle: ThrottleCounters | None = None
    flushes: int | None = None
    flush_time_ns: int | None = None
    discards: int | None = None
    discard_bytes: int | None = None
    discard_time_ns: int | None = None

    @classmethod
    def of_group(cls, group: ThrottleCounters) -> Counters:
        """Return the counters of a drive that only its throttle group counts."""
        read, write = group.read, group.write
        return cls(
            group.at_ns, read.requests, read.bytes, write.requests, write.bytes, None, None, group
        )


class Flow(NamedTuple):
    """Requests of one direction: how many a second and how many bytes a second.

    seen_bytes: sizes that requests of this drive and direction are known to have.
    """

    raw_iops: float
    bps: float
    seen_bytes: tuple[float, ...] = ()

    @property
    def mean_size_bytes(self) -> float | None:
        """Mean request length in bytes; None if there was no request."""
        return self.bps / self.raw_iops if self.raw_iops > 0 else None


NO_FLOW = Flow(0.0, 0.0)


class Mix(NamedTuple):
    """A drive's reads and writes, as rates in any common unit."""

    read: Flow
    write: Flow


NO_MIX = Mix(NO_FLOW, NO_FLOW)


class Throttled(NamedTuple):
    """A throttle group's work between two readings; no counter went backwards."""

    earlier: ThrottleCounters
    later: ThrottleCounters

    @property
    def elapsed_s(self) -> float:
        """Time between the readings."""
        return (self.later.at_ns - self.earlier.at_ns) / NS_PER_S

    @property
    def rate(self) -> float:
        """The charges a second, in operations of the iops limits."""
        (_, r0, w0), (_, r1, w1) = self.earlier, self.later
        return (r1.cost - r0.cost + w1.cost - w0.cost) / self.elapsed_s

    def rate_of(self, write: bool) -> float:
        """Return the charges a second of one direction."""
        before, after = self._of(write)
        return (after.cost - before.cost) / self.elapsed_s

    @property
    def nothing_waited(self) -> bool:
        """Whether no request has waited, or waits now."""
        (_, r0, w0), (_, r1, w1) = self.earlier, self.later
        return not (r1.waiting or w1.waiting) and (r1.waited, w1.waited) == (r0.waited, w0.waited)

    @property
    def something_waits(self) -> bool:
        """Whether a request waits now."""
        return bool(self.later.read.waiting or self.later.write.waiting)

    def wait_s(self, write: bool) -> float:
        """Return the sum of the waits that ended, in seconds."""
        before, after = self._of(write)
        return (after.wait_ns - before.wait_ns) / NS_PER_S

    @property
    def waits_ratio(self) -> float:
        """The sum of the waits that ended, in seconds a second."""
        (_, r0, w0), (_, r1, w1) = self.earlier, self.later
        waits_s = (r1.wait_ns - r0.wait_ns) / NS_PER_S + (w1.wait_ns - w0.wait_ns) / NS_PER_S
        return waits_s / self.elapsed_s

    def held_s(self, write: bool, most_s: float = inf) -> float:
        """Return for how long requests waited, in seconds; at most, if several did at once.

        most_s: for how long any can have waited, unless it did all the time.
        """
        before, after = self._of(write)
        if after.waiting and after.waited == before.waited:
            return self.elapsed_s if before.waiting else min(self.elapsed_s, most_s)
        return min(self.elapsed_s, self.wait_s(write), most_s)

    def sizes(self, write: bool) -> dict[int, int]:
        """Return how many requests had which size, by the least size of a power of two."""
        before, after = self._of(write)
        return _new(before.sizes, after.sizes)

    def times(self, write: bool) -> dict[int, int]:
        """Return how many requests took how long below the group, by the least ns of a range."""
        before, after = self._of(write)
        return _new((before.took or Took()).bins, (after.took or Took()).bins)

    def took(self, write: bool | None = None) -> Took:
        """Return how long requests took below the group, without a histogram.

        write: None for reads and writes together.
        """
        requests = total_ns = 0
        for direction in (False, True) if write is None else (write,):
            before, after = self._of(direction)
            if after.took is not None:
                was = before.took or Took()
                requests += after.took.requests - was.requests
                total_ns += after.took.total_ns - was.total_ns
        return Took(requests, total_ns)

    def _of(self, write: bool) -> tuple[ThrottleCount, ThrottleCount]:
        if write:
            return self.earlier.write, self.later.write
        return self.earlier.read, self.later.read


def _new(before: tuple[tuple[int, int], ...], after: tuple[tuple[int, int], ...]) -> dict[int, int]:
    """Return what has been added to a histogram."""
    were = dict(before)
    return {least: new for least, count in after if (new := count - were.get(least, 0))}


class Rates(NamedTuple):
    """A drive's work between two readings.

    Latencies are means per request in seconds, the throttle's wait included; None if no request
    ended, or if nobody counts their times. throttled: None if QEMU doesn't count waits.
    flush_raw_iops, discards: None if nobody counts them. No limit of ours is made for them.
    """

    elapsed_s: float
    read: Flow
    write: Flow
    read_latency_s: float | None
    write_latency_s: float | None
    throttled: Throttled | None = None
    flush_raw_iops: float | None = None
    discards: Flow | None = None

    @property
    def idle(self) -> bool:
        """No request ended at all."""
        return not (self.read.raw_iops or self.write.raw_iops)

    def wait_s(self, write: bool) -> float | None:
        """Return the mean wait per request for the throttle.

        None if no request ended, or if QEMU doesn't count waits. Waits and requests are counted
        over intervals of their own, which may differ a little.
        """
        raw_iops = self.write.raw_iops if write else self.read.raw_iops
        if self.throttled is None or not raw_iops:
            return None
        return self.throttled.wait_s(write) / self.throttled.elapsed_s / raw_iops

    def device_latency_s(self, write: bool) -> float | None:
        """Return the mean latency per request below the throttle, or without its wait.

        None if neither is known, or if latency and wait don't fit together: a wait counts when it
        ends, a latency when its request does, which may be in different intervals.
        """
        if self.throttled is not None and (took := self.throttled.took(write)).requests:
            return took.mean_s
        total_s = self.write_latency_s if write else self.read_latency_s
        wait_s = self.wait_s(write)
        if total_s is None or wait_s is None or wait_s > total_s:
            return None
        return total_s - wait_s

    @property
    def mean_latency_s(self) -> float | None:
        """The mean latency over reads and writes in seconds, the throttle's wait included.

        None if no request ended, or if nobody counts their times.
        """
        if self.read_latency_s is None and self.write_latency_s is None:
            return None
        total_s = self.read.raw_iops * (self.read_latency_s or 0.0) + self.write.raw_iops * (
            self.write_latency_s or 0.0
        )
        return total_s / (self.read.raw_iops + self.write.raw_iops)

    @property
    def mean_wait_s(self) -> float | None:
        """The mean wait for the throttle over reads and writes in seconds.

        None if no request ended, or if QEMU doesn't count waits.
        """
        if self.idle or self.throttled is None:
            return None
        return self.throttled.waits_ratio / (self.read.raw_iops + self.write.raw_iops)

    @property
    def mean_device_latency_s(self) -> float | None:
        """The mean latency over reads and writes without the throttle's wait, in seconds.

        As timed below the throttle, if it was. If QEMU doesn't count waits either, they are part of
        it. None if no request ended, or if nobody counts their times.
        """
        if self.idle:
            return None
        if self.throttled is not None and (took := self.throttled.took()).requests:
            return took.mean_s or None
        total_s = self.read.raw_iops * (self.read_latency_s or 0.0) + self.write.raw_iops * (
            self.write_latency_s or 0.0
        )
        if self.throttled is not None:
            total_s = max(0.0, total_s - self.throttled.waits_ratio)
        return total_s / (self.read.raw_iops + self.write.raw_iops) or None
