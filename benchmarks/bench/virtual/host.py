"""A host in virtual time, for Python: the library of disksim/host.h."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Self

import numpy as np

from benchmarks.bench.errors import BenchError
from benchmarks.fio_log import Floats, Ints
from iokeel.core.values.counters import Counters, ThrottleCount, ThrottleCounters, Took
from iokeel.core.values.curve import CostCurve
from iokeel.core.values.limits import AVERAGES, ThrottleLimits
from iokeel.core.values.storage import StorageCounters
from testing.lab.disks.disksim import DEVICES, built

#: As of host.h.
_POINTS, _SIZES, _BINS = 32, 16, 64
#: What the way to the disk and back takes: from a storage daemon's export, from a guest without
#: KVM, and for each byte. As measured on the machine of the committed results, from drives alone.
EXPORT_NS, GUEST_NS, BYTE_NS = 150_000, 450_000, 1.0
#: How late QEMU's timers are on average.
LATE_NS = 60_000
_WAYS = (0, 1)  # reads and writes
_Numbers = Sequence[tuple[float, float]]


class _Limits(ctypes.Structure):
    _fields_ = [
        ("avg", ctypes.c_double * 6),
        ("max", ctypes.c_double * 6),
        ("length", ctypes.c_double * 6),
        ("iops_size", ctypes.c_double),
        ("points", ctypes.c_int32 * 2),
        ("size", ctypes.c_double * _POINTS * 2),
        ("cost", ctypes.c_double * _POINTS * 2),
        ("split_bytes", ctypes.c_int64),
        ("idle_credit_ns", ctypes.c_int64),
        ("max_in_flight", ctypes.c_double),
    ]


class _Counts(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("requests", "bytes", "time_ns")),
        *((name, ctypes.c_int64) for name in ("passed", "passed_bytes")),
        ("cost", ctypes.c_double),
        *((name, ctypes.c_int64) for name in ("waited", "wait_ns", "waiting")),
        *((name, ctypes.c_int64) for name in ("ended", "below_ns")),
        ("sizes", ctypes.c_int64 * _BINS),
        ("below", ctypes.c_int64 * _BINS),
    ]


class _DiskCounts(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64 * 2) for name in ("requests", "bytes", "time_ns")),
        *((name, ctypes.c_int64) for name in ("in_flight", "busy_ns")),
    ]


class _Job(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("drive", "depth", "random", "syncs")),
        ("read_part", ctypes.c_double),
        ("sizes", ctypes.c_int32 * 2),
        ("size", ctypes.c_int64 * _SIZES * 2),
        ("weight", ctypes.c_double * _SIZES * 2),
        *((name, ctypes.c_int64) for name in ("offset", "bytes", "start_ns", "end_ns")),
        *((name, ctypes.c_int64) for name in ("amount", "busy_ns", "pause_ns")),
        ("rate", ctypes.c_double),
        ("spread_ns", ctypes.c_int64),
    ]


class _Log(ctypes.Structure):
    _fields_ = [
        ("entries", ctypes.c_int64),
        ("at_ns", ctypes.POINTER(ctypes.c_int64)),
        ("latency_ns", ctypes.POINTER(ctypes.c_int64)),
        ("bytes", ctypes.POINTER(ctypes.c_int32)),
        ("is_write", ctypes.POINTER(ctypes.c_uint8)),
    ]


@dataclass(frozen=True)
class Load:
    """A job: what it asks for, and when. Times are seconds, sizes and places bytes of its drive.

    sizes: of reads and of writes, each with its weight. read_part: of the requests. amount_bytes:
    what it does; 0: it goes on until end_s. busy_s, pause_s: in turn; busy_s 0: without pauses.
    rate: of requests a second at most; 0: any.
    """

    depth: int
    random: bool
    read_part: float
    sizes: tuple[_Numbers, _Numbers]
    offset: int
    bytes: int
    start_s: float
    end_s: float
    syncs: bool = False
    amount_bytes: int = 0
    busy_s: float = 0.0
    pause_s: float = 0.0
    rate: float = 0.0


@dataclass(frozen=True)
class Ended:
    """A drive's requests in the order of their ends."""

    at_ns: Ints
    latency_ns: Floats
    size_bytes: Ints
    is_write: np.ndarray[tuple[int], np.dtype[np.bool_]]


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(built() / "libhost.so"))
    number, index = ctypes.c_int64, ctypes.c_int32
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    returns: Mapping[str, tuple[object, list[object]]] = {
        "host_new": (pointer, [text, ctypes.c_double, ctypes.c_uint64, number]),
        "host_error": (text, []),
        "host_free": (None, [pointer]),
        "host_param": (text, [pointer, text, text]),
        "host_begin": (text, [pointer]),
        "host_group": (index, [pointer, index]),
        "host_drive": (index, [pointer, index, number, number, ctypes.c_double]),
        "host_job": (None, [pointer, pointer]),
        "host_set": (None, [pointer, index, pointer]),
        "host_run": (None, [pointer, number]),
        "host_drive_counts": (None, [pointer, index, index, pointer]),
        "host_disk_counts": (None, [pointer, pointer]),
        "host_drive_log": (None, [pointer, index, pointer]),
    }
    for name, (result, arguments) in returns.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class Host:
    """A host with one disk. Raises BenchError if the disk's parameters are impossible."""

    def __init__(
        self,
        device: str,
        slowdown: float,
        seed: int,
        changed: Mapping[str, str | float] | None = None,
    ) -> None:
        """Make it. changed: parameters of the disk that differ from the device's own."""
        self._library, path = _library(), str(DEVICES[device]).encode()
        self._host = self._library.host_new(path, slowdown, seed, LATE_NS)
        self.now_ns = 0
        self._check(device, None if self._host else self._library.host_error())
        for name, value in (changed or {}).items():
            said = self._library.host_param(self._host, name.encode(), str(value).encode())
            self._check(device, said)
        self._check(device, self._library.host_begin(self._host))

    def _check(self, device: str, said: bytes | None) -> None:
        if said is not None:
            self.close()
            raise BenchError(f"disk {device}", said.decode(), "correct its parameters")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of it; only once."""
        if self._host:
            self._library.host_free(self._host)
            self._host = None

    def group(self, *, keeps_levels: bool) -> int:
        """Add a throttle group without limits, and return its number."""
        return int(self._library.host_group(self._host, keeps_levels))

    def drive(self, group: int, offset: int, *, guest: bool = False) -> int:
        """Add a drive that begins at this byte of the disk, and return its number."""
        path_ns = GUEST_NS if guest else EXPORT_NS
        return int(self._library.host_drive(self._host, group, offset, path_ns, BYTE_NS))

    def load(self, drive: int, load: Load, begin_ns: int, spread_ns: int) -> None:
        """Add a job of a drive.

        begin_ns: when its second 0 is. spread_ns: within so long, all its requests have begun.
        """
        sizes = [len(part) for part in load.sizes]
        if max(sizes) > _SIZES:
            raise BenchError("bssplit", f"it has {max(sizes)} sizes", f"give {_SIZES} or fewer")
        job = _Job(drive, load.depth, load.random, load.syncs, load.read_part)
        for way, part in enumerate(load.sizes):
            job.sizes[way] = len(part)
            for i, (size, weight) in enumerate(part):
                job.size[way][i], job.weight[way][i] = int(size), weight
        job.offset, job.bytes = load.offset, load.bytes
        job.start_ns = begin_ns + _ns(load.start_s)
        job.end_ns = begin_ns + _ns(load.end_s)
        job.amount, job.rate, job.spread_ns = load.amount_bytes, load.rate, spread_ns
        job.busy_ns, job.pause_ns = _ns(load.busy_s), _ns(load.pause_s)
        self._library.host_job(self._host, ctypes.byref(job))

    def set_limits(self, group: int, limits: ThrottleLimits) -> None:
        """Put a group's limits in force."""
        found = _Limits()
        for i, name in enumerate(AVERAGES):
            found.avg[i] = getattr(limits, name) or 0
            found.max[i] = getattr(limits, f"{name}_max") or 0
            found.length[i] = getattr(limits, f"{name}_max_length") or 1
        found.iops_size = limits.iops_size or 0
        for way, curve in enumerate((limits.cost_read, limits.cost_write)):
            for i, (size, cost) in enumerate(_points(curve)):
                found.size[way][i], found.cost[way][i] = size, cost
                found.points[way] = i + 1
        found.split_bytes = limits.split_size or 0
        found.idle_credit_ns = limits.idle_credit_ms * 1_000_000
        found.max_in_flight = limits.max_in_flight or 0
        self._library.host_set(self._host, group, ctypes.byref(found))

    def run(self, until_ns: int) -> None:
        """Let time pass up to and including a moment."""
        self._library.host_run(self._host, until_ns)
        self.now_ns = until_ns

    def counters(self, drive: int, *, guest: bool, counts: bool, times: bool) -> Counters:
        """Return a drive's counters.

        guest: a guest counts its requests; else only its throttle group does. counts, times: what
        the group tells: charges and waits, and how long requests took below it.
        """
        both = [_Counts(), _Counts()]
        for way in _WAYS:
            self._library.host_drive_counts(self._host, drive, way, ctypes.byref(both[way]))
        group = ThrottleCounters(self.now_ns, *(_count(one, times) for one in both))
        if not guest:
            return Counters.of_group(group)
        read, write = both
        return Counters(
            self.now_ns,
            *(read.requests, read.bytes, write.requests, write.bytes),
            *(read.time_ns, write.time_ns),
            group if counts else None,
        )

    def disk_counters(self) -> StorageCounters:
        """Return the disk's counters, as /proc/diskstats has them."""
        found = _DiskCounts()
        self._library.host_disk_counts(self._host, ctypes.byref(found))
        (reads, writes), (read_ns, write_ns) = found.requests, found.time_ns
        times = reads, read_ns, writes, write_ns
        return StorageCounters(
            self.now_ns, *times, found.in_flight, found.busy_ns, found.bytes[0], found.bytes[1]
        )

    def ended(self, drive: int) -> Ended:
        """Return the requests of a drive that have ended."""
        log = _Log()
        self._library.host_drive_log(self._host, drive, ctypes.byref(log))
        if not log.entries:
            none = np.zeros(0, np.int64)
            return Ended(none, none.astype(np.float64), none, none.astype(np.bool_))

        def column(pointer: object) -> Ints:
            return np.ctypeslib.as_array(pointer, (log.entries,))

        return Ended(
            column(log.at_ns).copy(),
            column(log.latency_ns).astype(np.float64),
            column(log.bytes).astype(np.int64),
            column(log.is_write).astype(np.bool_),
        )


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _points(curve: CostCurve | None) -> Sequence[tuple[float, float]]:
    """Return a curve's points, and one far out on its last slope: the library's curves end."""
    if curve is None:
        return []
    far = 2 ** math.ceil(math.log2(curve.points[-1][0]) + 4)
    return [*curve.points, (far, curve.cost(far))]


def _count(one: _Counts, times: bool) -> ThrottleCount:
    took = Took(one.ended, one.below_ns, _bins(one.below)) if times else None
    return ThrottleCount(
        *(one.passed, one.passed_bytes, one.cost, one.waited, one.wait_ns, one.waiting),
        _bins(one.sizes),
        took,
    )


def _bins(counts: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple((1 << i, count) for i, count in enumerate(counts) if count)
