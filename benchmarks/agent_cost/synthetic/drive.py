"""One drive of a synthetic VM: its load, the limits in force on it, and QEMU's words for both.

Replies have QEMU 7.2.22's own members, order and length: 1.5 kB a drive for query-blockstats.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from typing import TypeAlias, TypedDict

_IDLE = (4096, 1.0, 0.0)
#: Request size in bytes, part of the requests that read, requests a second without a limit.
WORKLOADS = (
    _IDLE,
    (4096, 0.7, 800.0),
    (4096, 1.0, 6000.0),
    (8192, 0.6, 3000.0),
    (16384, 0.8, 2500.0),
    (65536, 0.5, 900.0),
    (262144, 0.0, 500.0),
    (1048576, 1.0, 300.0),
)
MEAN_PHASE_S = 60.0
QUEUE_DEPTH = 16
BASE_LATENCY_S = 0.0002
DEVICE_BPS = 1e9

# Members as QEMU 7.2 sends them, in its order.
_STATS = (
    '{"unmap_operations": 0, "unmap_merged": 0, "flush_total_time_ns": %(flush_ns)d, '
    '"wr_highest_offset": %(highest)d, "wr_total_time_ns": %(wr_ns)d, "failed_wr_operations": 0, '
    '"failed_rd_operations": 0, "wr_merged": 0, "wr_bytes": %(wr_bytes)d, "timed_stats": [], '
    '"failed_unmap_operations": 0, "failed_flush_operations": 0, "account_invalid": %(account)s, '
    '"rd_total_time_ns": %(rd_ns)d, "invalid_unmap_operations": 0, "flush_operations": %(flush)d, '
    '"wr_operations": %(wr)d, "unmap_bytes": 0, "rd_merged": 0, "rd_bytes": %(rd_bytes)d, '
    '"unmap_total_time_ns": 0, "invalid_flush_operations": 0, "account_failed": %(account)s, '
    '%(idle)s"rd_operations": %(rd)d, "invalid_wr_operations": 0, "invalid_rd_operations": 0}'
)
_NOTHING = dict.fromkeys(
    ("flush_ns", "highest", "wr_ns", "wr_bytes", "rd_ns", "flush", "wr", "rd_bytes", "rd"), 0
)
_BLOCKSTATS = (
    '{"device": "", "parent": {"stats": '
    + _STATS % {**_NOTHING, "account": "false", "idle": ""}
    + ', "node-name": "NAME-file", "driver-specific": {"discard-bytes-ok": 0, "discard-nb-ok": 0,'
    ' "driver": "file", "discard-nb-failed": 0}}, "stats": '
    + _STATS.replace("%(idle)s", '"idle_time_ns": %(idle)d, ').replace("%(account)s", "true")
    + ', "node-name": "NAME-format", "qdev": "/machine/peripheral/NAME/virtio-backend"}'
)
LIMITS = tuple(
    f"{what}{way}{burst}" for burst in ("", "_max") for what in ("bps", "iops")
    for way in ("", "_rd", "_wr")
)  # fmt: skip
LENGTHS = tuple(f"{name}_length" for name in LIMITS[6:])


class CostPoint(TypedDict):
    """A point of a cost curve: a size in bytes, and such a request's cost."""

    size: int
    cost: float


#: Arguments of block_set_io_throttle.
Arguments: TypeAlias = Mapping[str, int | str | list[CostPoint] | dict[str, object]]


def number(arguments: Arguments, name: str, default: int = 0) -> int:
    """Return a number among arguments."""
    value = arguments.get(name, default)
    assert isinstance(value, int)
    return value


class Drive:
    """One virtio-blk drive, its workload and the limits that were set on it."""

    def __init__(self, vm: str, number: int, seed: int, idle: bool = False) -> None:
        self.target = f"vd{chr(ord('a') + number)}"
        self.qdev = f"/machine/peripheral/{self.target}/virtio-backend"
        self.path = f"/var/lib/images/{vm}-{self.target}.raw"
        self.limits: dict[str, int] = {}
        self._levels: dict[str, float] = {}
        self._rng = random.Random(seed)
        self._template = _BLOCKSTATS.replace("NAME", self.target)
        self._workloads = (_IDLE,) if idle else WORKLOADS
        self._workload = self._rng.choice(self._workloads)
        self._then_s = time.monotonic()
        self._shift_s = self._then_s + self._rng.expovariate(1 / MEAN_PHASE_S)
        self._reads = self._writes = self._read_bytes = self._write_bytes = 0
        self._read_part = self._write_part = self._read_s = self._write_s = 0.0

    def blockstats(self) -> str:
        """Return the drive's element of query-blockstats as of now."""
        self._catch_up()
        return self._template % {
            "rd": self._reads, "rd_bytes": self._read_bytes, "rd_ns": self._read_s * 1e9,
            "wr": self._writes, "wr_bytes": self._write_bytes, "wr_ns": self._write_s * 1e9,
            "flush": self._writes // 50, "flush_ns": self._writes // 50 * 90_000, "idle": 3_962_972,
            "highest": 17_179_869_184,
        }  # fmt: skip

    def _catch_up(self) -> None:
        """Do all that the workload has done until now."""
        now_s = time.monotonic()
        while self._shift_s < now_s:
            self._advance(self._shift_s)
            self._workload = self._rng.choice(self._workloads)
            self._shift_s += self._rng.expovariate(1 / MEAN_PHASE_S)
        self._advance(now_s)

    def achieved_iops(self) -> float:
        """Return the rate of the workload under the limits, in requests a second."""
        size_bytes, read_ratio, iops = self._workload
        for name, charge in self._charges(size_bytes, read_ratio):
            iops = min(iops, self._allowed(name) / charge)
        return iops

    def _charges(self, size_bytes: int, read_ratio: float) -> Iterator[tuple[str, float]]:
        """Yield each limit in force, and a request's mean charge on it."""
        units = max(1.0, size_bytes / (self.limits.get("iops_size") or size_bytes))
        for way, part in (("", 1.0), ("_rd", read_ratio), ("_wr", 1 - read_ratio)):
            for name, charge in ((f"iops{way}", units), (f"bps{way}", size_bytes)):
                if part > 0 and name in self.limits:
                    yield name, charge * part

    def _allowed(self, name: str) -> float:
        """Return the rate that a limit allows: its burst until that is used up."""
        length_s = self.limits.get(f"{name}_max_length", 1)
        burst = self.limits.get(f"{name}_max", 0)
        full = length_s < 2 or self._levels.get(name, 0.0) >= burst * length_s
        return self.limits[name] if full else burst

    def _advance(self, to_s: float) -> None:
        elapsed_s = to_s - self._then_s
        self._then_s = to_s
        size_bytes, read_ratio, offered = self._workload
        iops = self.achieved_iops()
        for name, charge in self._charges(size_bytes, read_ratio):
            level = self._levels.get(name, 0.0) + (iops * charge - self.limits[name]) * elapsed_s
            self._levels[name] = max(0.0, level)
        latency_s = BASE_LATENCY_S + size_bytes / DEVICE_BPS
        if iops < offered:
            latency_s = max(latency_s, QUEUE_DEPTH / iops)
        # Whole requests only, as QEMU counts; the rest is carried over.
        self._read_part += iops * read_ratio * elapsed_s
        self._write_part += iops * (1 - read_ratio) * elapsed_s
        reads, writes = int(self._read_part), int(self._write_part)
        self._read_part -= reads
        self._write_part -= writes
        self._reads += reads
        self._writes += writes
        self._read_bytes += reads * size_bytes
        self._write_bytes += writes * size_bytes
        self._read_s += reads * latency_s
        self._write_s += writes * latency_s

    def set_limits(self, arguments: Arguments) -> str | None:
        """Put limits in force as block_set_io_throttle does. Return QEMU's complaint, if any."""
        given = {name: number(arguments, name) for name in LIMITS}
        for what in ("bps", "iops"):
            for burst in ("", "_max"):
                if given[what + burst] and (
                    given[f"{what}_rd{burst}"] or given[f"{what}_wr{burst}"]
                ):
                    return (
                        "bps/iops/max total values and read/write values cannot be used at the "
                        "same time"
                    )
        if min(given.values()) < 0 or max(given.values()) > 10**15:
            return "bps/iops/max values must be within [0, 1000000000000000]"
        iops_size = number(arguments, "iops_size")
        if iops_size and not any(given[name] for name in ("iops", "iops_rd", "iops_wr")):
            return "iops size requires an iops value to be set"
        self.limits = {name: value for name, value in given.items() if value}
        self.limits |= {
            name: number(arguments, name)
            for name in LENGTHS
            if self.limits.get(name.removesuffix("_length")) and name in arguments
        }
        if iops_size:
            self.limits["iops_size"] = iops_size
        self._levels.clear()  # as stock QEMU empties its buckets
        return None

    def group(self) -> str | None:
        """Return the drive's element of query-throttle-groups; None: stock QEMU has none."""
        return None

    def block(self) -> dict[str, object]:
        """Return the drive's element of query-block."""
        inserted: dict[str, object] = {name: 0 for name in LIMITS[:6]}
        inserted |= self.limits
        if self.limits:
            inserted["group"] = self.qdev
        inserted |= self._node("format", "raw")
        return {
            "io-status": "ok", "device": "", "locked": False, "removable": False,
            "inserted": inserted, "qdev": self.qdev, "type": "unknown",
        }  # fmt: skip

    def nodes(self) -> list[dict[str, object]]:
        """Return the drive's elements of query-named-block-nodes."""
        limits: dict[str, object] = dict.fromkeys(LIMITS[:6], 0)
        return [limits | self._node("format", "raw"), limits | self._node("file", "file")]

    def _node(self, kind: str, driver: str) -> dict[str, object]:
        return {
            "detect_zeroes": "off",
            "image": {
                "virtual-size": 1 << 34, "filename": self.path, "format": driver,
                "actual-size": 1 << 33, "dirty-flag": False,
            },
            "ro": False, "node-name": f"{self.target}-{kind}", "backing_file_depth": 0,
            "drv": driver, "write_threshold": 0, "encrypted": False,
            "cache": {"no-flush": False, "direct": True, "writeback": True}, "file": self.path,
        }  # fmt: skip
