"""An ordinary host: its storage, its guests, and what goes on there. Drawn from a seed alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from iokeel.core.values.curve import DEFAULT_MODEL

Mode = Literal["stock", "exact", "trixie"]
MODES: tuple[Mode, ...] = ("stock", "exact", "trixie")

Storage = Literal["partitions", "files", "nbd"]
Bus = Literal["virtio", "scsi", "ide"]
Format = Literal["raw", "qcow2", "overlay"]
Demand = Literal["steady", "paced", "bursts", "cached"]
Event = Literal[
    "backup", "blockcopy", "snapshot", "discards", "zeroes", "host reads", "host reads cache"
]

BURST_PAUSE_S = 0.3
DISK_MIB = 128
LOAD_MIB = 96
"""The part of a disk that fio's load is on. Discards and zeroes have the rest."""
_SIZES = (4096, 4096, 16384, 65536)  # bytes
_LIMITS = (300, 400, 600, 800, 1000)  # normalized iops
_CACHED_BYTES = 1 << 20


@dataclass(frozen=True)
class Load:
    """A guest's load, which doesn't change.

    demand: "steady" asks without a pause, "paced" for less than the limit, "bursts" for more than
    the limit, with pauses between; "cached" reads the same megabytes again and again. iops: the
    requests a second of one that is paced or cached. burst: the requests of each burst.
    """

    demand: Demand
    read_percent: int
    read_bytes: int
    write_bytes: int
    depth: int
    iops: int | None = None
    burst: int | None = None

    @property
    def mean_cost(self) -> float:
        """The mean cost of its requests, in normalized I/O operations."""
        reads = self.read_percent / 100
        read, write = DEFAULT_MODEL.read, DEFAULT_MODEL.write
        return reads * read.cost(self.read_bytes) + (1 - reads) * write.cost(self.write_bytes)

    def most(self, limit: float) -> float:
        """Return the normalized rate that it can have under a limit; inf: without one.

        A burst of cost B and a pause of p seconds after it make B / (B / limit + p).
        """
        if self.iops is not None:
            return min(limit, self.iops * self.mean_cost)
        if self.burst is None:
            return limit
        cost = self.burst * self.mean_cost
        return cost / (cost / limit + BURST_PAUSE_S)


@dataclass(frozen=True)
class Drive:
    """A guest's drive. limit: None if it has no policy. latency_target_ms: None if it has none."""

    name: str
    bus: Bus
    format: Format
    cache: str
    io: str
    iothreads: int
    load: Load
    limit: int | None
    reservation: int = 0
    latency_target_ms: int | None = None

    @property
    def target(self) -> str:
        """Its name in the guest, and in the policy."""
        return {"virtio": "vda", "scsi": "sda", "ide": "hda"}[self.bus]

    @property
    def device(self) -> str:
        """Its device in the guest. Linux calls an IDE disk sda."""
        return "/dev/vda" if self.bus == "virtio" else "/dev/sda"

    def __str__(self) -> str:
        bus = self.bus if not self.iothreads else f"{self.bus} in {self.iothreads} iothread(s)"
        policy = "no policy" if self.limit is None else f"limit {self.limit}"
        if self.reservation:
            policy += f", reservation {self.reservation}"
        if self.latency_target_ms is not None:
            policy += f", target {self.latency_target_ms} ms"
        image = f"{self.format} {self.cache}/{self.io}"
        return f"{self.name} ({bus}, {image}, {self.load.demand}: {policy})"


@dataclass(frozen=True)
class Happens:
    """Something that goes on in each part of a run. drive: the index of the one that it is of."""

    event: Event
    drive: int


@dataclass(frozen=True)
class FieldHost:
    """A host. capacity, latency_target_ms: of its [storage]; None: it has none."""

    seed: int
    storage: Storage
    capacity: int | None
    latency_target_ms: int | None
    drives: tuple[Drive, ...]
    happens: tuple[Happens, ...]

    def __str__(self) -> str:
        known = "" if self.capacity is None else f" of {self.capacity} iops"
        if self.latency_target_ms is not None:
            known += f" at {self.latency_target_ms} ms"
        drives = ", ".join(map(str, self.drives))
        events = ", ".join(f"{h.event} ({self.drives[h.drive].name})" for h in self.happens)
        return f"{self.storage}{known}; {drives}; {events or 'nothing else'}"


def draw(seed: int, mode: Mode) -> FieldHost:
    """Return the host of a seed. Only queue mapping depends on the mode: stock lacks it."""
    random = Random(seed)
    storage: Storage = random.choice(("partitions", "files", "files", "nbd"))
    capacity = random.choice((None, 2000, 3000, 5000))
    target = None if capacity is None else random.choice((None, 4, 8))
    drives = [_drive(random, name, storage, mode) for name in ("a", "b")]
    if random.random() < 0.5:
        drives.append(_stranger(random, storage, mode))
    happens = _happens(random, storage, drives)
    return FieldHost(seed, storage, capacity, target, tuple(drives), happens)


def _happens(random: Random, storage: Storage, drives: Sequence[Drive]) -> tuple[Happens, ...]:
    """Draw a job or a snapshot, or neither, and something else, or nothing."""
    jobs: list[Event | None] = [None, "backup", "blockcopy"]
    if storage == "files":
        jobs += ["snapshot", "snapshot"]
    others: list[Event | None] = [None, "discards", "zeroes", "host reads", "host reads cache"]
    job, other = random.choice(jobs), random.choice(others)
    happens = [Happens(event, random.randrange(2)) for event in (job, other) if event is not None]
    writers = [i for i, drive in enumerate(drives[:2]) if drive.load.read_percent < 100]
    if job == "snapshot" and writers:
        happens[0] = Happens("snapshot", random.choice(writers))
    # Linux discards nothing on an IDE disk of QEMU's.
    return tuple(h for h in happens if h.event != "discards" or drives[h.drive].bus != "ide")


def _drive(random: Random, name: str, storage: Storage, mode: Mode) -> Drive:
    limit = random.choice(_LIMITS)
    reservation = random.choice((0, 0, limit // 2))
    target = random.choice((None, 8))
    load = _load(random, limit)
    return _made(random, name, storage, mode, load, limit, reservation, target)


def _stranger(random: Random, storage: Storage, mode: Mode) -> Drive:
    if random.random() < 0.6:
        load = Load("cached", 100, _CACHED_BYTES, 4096, 2, iops=60)
        return _made(random, "c", storage, mode, load, None, 0, None, cache="writeback")
    iops = random.choice((100, 300))
    load = Load("paced", random.choice((0, 70, 100)), 4096, 4096, 8, iops=iops)
    return _made(random, "c", storage, mode, load, None, 0, None)


def _load(random: Random, limit: int) -> Load:
    demand: Demand = random.choice(("steady", "steady", "paced", "bursts", "bursts"))
    reads = random.choice((0, 30, 70, 100))
    sizes = random.choice(_SIZES[:3]), random.choice(_SIZES[:3])
    if demand == "steady":
        sizes = random.choice(_SIZES), random.choice(_SIZES)
    shape = Load(demand, reads, *sizes, random.choice((8, 16, 32)))
    if demand == "paced":
        iops = max(1, round(random.choice((0.5, 0.8)) * limit / shape.mean_cost))
        return Load(demand, reads, *sizes, shape.depth, iops=iops)
    if demand == "bursts":
        burst = max(1, round(random.choice((0.2, 0.3)) * limit / shape.mean_cost))
        return Load(demand, reads, *sizes, 64, burst=burst)
    return shape


def _made(
    random: Random,
    name: str,
    storage: Storage,
    mode: Mode,
    load: Load,
    limit: int | None,
    reservation: int,
    target: int | None,
    cache: str | None = None,
) -> Drive:
    buses: tuple[Bus, ...] = ("virtio", "virtio", "scsi", "ide")
    bus = random.choice(buses)
    formats: tuple[Format, ...] = ("raw", "qcow2", "overlay") if storage == "files" else ("raw",)
    image = random.choice(formats)
    cache = cache or random.choice(("none", "none", "writeback", "directsync"))
    # Linux AIO is only for direct I/O.
    io = random.choice(("threads", "io_uring", *(("native",) * 2 * (cache != "writeback"))))
    threads = 0 if bus == "ide" else random.choice((0, 0, 1, 2))
    if threads == 2 and (bus == "scsi" or mode != "trixie"):
        threads = 1
    return Drive(name, bus, image, cache, io, threads, load, limit, reservation, target)
