"""A drive's counters, and the rates and request sizes that two readings of them show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

NS_PER_S = 1_000_000_000


class DriveId(NamedTuple):
    """A drive: its domain's name, and its target (libvirt) or device (QMP) in it."""

    domain: str
    target: str

    def __str__(self) -> str:
        return f"{self.domain}/{self.target}"


@dataclass(frozen=True, slots=True)
class Counters:
    """One reading of a drive's counters since its guest started, as QEMU counts them.

    Times are the sums over requests of the time from submission to completion, in ns, and
    include the throttle's wait. `at_ns` is the monotonic clock when the reading was taken.
    """

    at_ns: int
    read_requests: int
    read_bytes: int
    write_requests: int
    write_bytes: int
    read_time_ns: int
    write_time_ns: int


@dataclass(frozen=True, slots=True)
class Flow:
    """Requests of one direction: how many a second and how many bytes a second.

    seen_bytes: sizes that requests of this drive and direction are known to have.
    """

    raw_iops: float
    bps: float
    seen_bytes: tuple[float, ...] = ()

    @property
    def mean_size_bytes(self) -> float | None:
        """Mean request length in bytes; None where there was no request."""
        return self.bps / self.raw_iops if self.raw_iops > 0 else None


@dataclass(frozen=True, slots=True)
class Rates:
    """What a drive did between two readings.

    Latencies are means per request in seconds, the throttle's wait included; None where no
    request ended.
    """

    elapsed_s: float
    read: Flow
    write: Flow
    read_latency_s: float | None
    write_latency_s: float | None

    @property
    def idle(self) -> bool:
        """Whether no request ended at all."""
        return self.read.raw_iops == 0 and self.write.raw_iops == 0


def rates(earlier: Counters, later: Counters) -> Rates | None:
    """Return the rates between two readings, or None where they can't be known.

    A counter that went backwards (a guest restarted, a counter wrapped or was reset), bytes
    without a request and no time between the readings are all unknown, never nonsense.
    """
    elapsed_ns = later.at_ns - earlier.at_ns
    reads = later.read_requests - earlier.read_requests
    writes = later.write_requests - earlier.write_requests
    read_bytes = later.read_bytes - earlier.read_bytes
    write_bytes = later.write_bytes - earlier.write_bytes
    read_ns = later.read_time_ns - earlier.read_time_ns
    write_ns = later.write_time_ns - earlier.write_time_ns
    if elapsed_ns <= 0 or min(reads, writes, read_bytes, write_bytes, read_ns, write_ns) < 0:
        return None
    if (read_bytes and not reads) or (write_bytes and not writes):
        return None
    elapsed_s = elapsed_ns / NS_PER_S
    return Rates(
        elapsed_s,
        Flow(reads / elapsed_s, read_bytes / elapsed_s),
        Flow(writes / elapsed_s, write_bytes / elapsed_s),
        read_ns / reads / NS_PER_S if reads else None,
        write_ns / writes / NS_PER_S if writes else None,
    )
