"""QEMU's throttle, simulated: leaky buckets, as in util/throttle.c of QEMU 10.0.

A bucket leaks at its average rate. A request passes while the level is within the bucket's size,
and raises the level by its units. A level above the size is debt, for which the next request waits.
Without a burst, a bucket holds a tenth of a second of its average. With one, it holds max * length,
and a second level limits the rate to max. Setting limits empties all buckets.
"""

from __future__ import annotations

from dataclasses import dataclass

from iokeel.core.values.limits import AVERAGES, UNLIMITED, ThrottleLimits


@dataclass
class _Bucket:
    avg: float
    max: float
    length: int
    level: float = 0.0
    burst_level: float = 0.0

    def leak(self, elapsed_s: float) -> None:
        self.level = max(0.0, self.level - self.avg * elapsed_s)
        if self.length > 1:
            self.burst_level = max(0.0, self.burst_level - self.max * elapsed_s)

    def wait_s(self) -> float:
        size = self.max * self.length if self.max else self.avg / 10
        if self.level > size:
            return (self.level - size) / self.avg
        if self.length > 1 and self.burst_level > self.max / 10:
            return (self.burst_level - self.max / 10) / self.max
        return 0.0

    def account(self, units: float) -> None:
        self.level += units
        if self.length > 1:
            self.burst_level += units


class Throttle:
    """One throttle group. The caller supplies the time, in seconds."""

    def __init__(self) -> None:
        self.limits = UNLIMITED
        self._buckets: list[_Bucket] = []
        # Of reads and of writes: the buckets of each, and whether it counts bytes.
        self._of: list[list[tuple[_Bucket, bool]]] = [[], []]
        self._leaked_s = 0.0

    @property
    def limited(self) -> bool:
        """Whether any limit is set."""
        return bool(self._buckets)

    def set(self, limits: ThrottleLimits, now_s: float) -> None:
        """Put limits in force, as qom-set and block_set_io_throttle do."""
        self.limits = limits
        self._leaked_s = now_s
        found = {
            name: _Bucket(
                getattr(limits, name),
                getattr(limits, f"{name}_max") or 0,
                getattr(limits, f"{name}_max_length") or 1,
            )
            for name in AVERAGES
            if getattr(limits, name)
        }
        self._buckets = list(found.values())
        self._of = [
            [(b, name.startswith("bps")) for name, b in found.items() if not name.endswith(other)]
            for other in ("write", "read")
        ]

    def wait_s(self, write: bool, now_s: float) -> float:
        """Return how long the next request must wait, in seconds; 0 if it may pass."""
        elapsed_s, self._leaked_s = now_s - self._leaked_s, now_s
        for bucket in self._buckets:
            bucket.leak(elapsed_s)
        longest_s = 0.0
        for bucket, _ in self._of[write]:
            longest_s = max(longest_s, bucket.wait_s())
        return longest_s

    def account(self, write: bool, size_bytes: int) -> None:
        """Charge a request that passes."""
        size = self.limits.iops_size
        operations = max(1.0, size_bytes / size) if size else 1.0
        for bucket, counts_bytes in self._of[write]:
            bucket.account(size_bytes if counts_bytes else operations)
