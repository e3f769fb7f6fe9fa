"""One fio job, and its result."""

from __future__ import annotations

from dataclasses import dataclass

from iokeel.words.units import size

# Rates are counted over windows of this length: several in a run, to see how they vary.
_WINDOW_S = 0.5


@dataclass(frozen=True, slots=True)
class Job:
    """Requests of one size, kept at one queue depth for a time.

    depth: requests in flight, of all threads together. ramp_s: time before counting begins.
    """

    write: bool
    sequential: bool
    size_bytes: int
    depth: int
    seconds: float
    ramp_s: float

    @property
    def window_s(self) -> float:
        """The time over which each of the result's window rates is counted."""
        return min(_WINDOW_S, self.seconds)

    @property
    def direction(self) -> str:
        """Return "read" or "write"."""
        return "write" if self.write else "read"

    @property
    def order(self) -> str:
        """Return "sequential" or "random"."""
        return "sequential" if self.sequential else "random"

    def __str__(self) -> str:
        return f"{self.order} {size(self.size_bytes)} {self.direction}s"


@dataclass(frozen=True, slots=True)
class JobResult:
    """A job's rate and latencies. Latency is from submission to completion.

    window_iops: the rate in each window. busy_ratio: the processor time of fio's busiest thread,
    as a part of one processor.
    """

    job: Job
    raw_iops: float
    latency_s: float
    latency_p99_s: float
    window_iops: tuple[float, ...]
    busy_ratio: float
