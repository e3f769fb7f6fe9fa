"""Guests of a simulated host: the demand of their drives over time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import inf

from iokeel.core.values.counters import DriveId
from iokeel.core.values.curve import DEFAULT_MODEL, KIB, CostModel
from iokeel.core.values.limits import AVERAGES
from iokeel.core.values.policy import DrivePolicy, VmPolicy

Sizes = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Kind:
    """A mix of requests.

    reads, writes: (bytes, probability) of each size. write_ratio: the part of requests that write.
    """

    reads: Sizes
    write_ratio: float = 0.0
    writes: Sizes = ()

    @classmethod
    def of(cls, kib: float, write_ratio: float = 0.0) -> Kind:
        """Return a mix of requests that all have one size."""
        sizes = ((round(kib * KIB), 1.0),)
        return cls(sizes, write_ratio, sizes)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.reads, self.write_ratio, self.writes))

    @cached_property
    def mean_bytes(self) -> tuple[float, float]:
        """Return the mean size of a read and of a write, in bytes."""
        return _mean(self.reads, float), _mean(self.writes, float)

    @lru_cache(maxsize=1024)  # noqa: B019  there are few kinds
    def cost(self, model: CostModel = DEFAULT_MODEL) -> float:
        """Return the mean cost of a request."""
        read, write = _mean(self.reads, model.read.cost), _mean(self.writes, model.write.cost)
        return (1 - self.write_ratio) * read + self.write_ratio * write

    @lru_cache(maxsize=65536)  # noqa: B019
    def charges(self, iops_size: int | None, exact: bool) -> tuple[float, ...]:
        """Return each bucket's mean charge per normalized operation, in the order of AVERAGES.

        exact: whether the iops buckets are charged by the cost curve.
        """

        def units(size: float) -> float:
            return max(1.0, size / iops_size) if iops_size else 1.0

        parts = (1 - self.write_ratio, self.write_ratio)
        bps = [part * mean for part, mean in zip(parts, self.mean_bytes, strict=True)]
        count = (DEFAULT_MODEL.read.cost, DEFAULT_MODEL.write.cost) if exact else (units, units)
        iops = [
            part * _mean(sizes, units)
            for part, sizes, units in zip(parts, (self.reads, self.writes), count, strict=True)
        ]
        charged = dict(zip(AVERAGES, (sum(bps), *bps, sum(iops), *iops), strict=True))
        return tuple(charged[name] / self.cost() for name in AVERAGES)


def _mean(sizes: Sizes, of: Callable[[float], float]) -> float:
    return sum(part * of(size) for size, part in sizes)


PAGES = Kind.of(4)


@dataclass(frozen=True)
class Phase:
    """A drive's demand for a time.

    rate: normalized operations a second; inf: all that `depth` requests in flight can do; 0: none.
    """

    seconds: float
    rate: float = inf
    kind: Kind = PAGES
    depth: int = 16


def idle(seconds: float) -> Phase:
    """Return a phase in which a drive does nothing."""
    return Phase(seconds, 0.0)


@dataclass
class Guest:
    """A guest with one drive.

    policy: None if the drive is not managed. phases: its demand; it is idle after the last. disk:
    the index of its disk in the host. exact: whether its QEMU has the patches. vm: the VM whose
    drive it is, if that has several, and the promise to them together. cached: the host's cache
    answers all its requests, so that its disk never sees them.
    """

    name: str
    policy: DrivePolicy | None
    phases: Iterator[Phase]
    disk: int = 0
    tenant: str | None = None
    exact: bool = False
    vm: tuple[str, VmPolicy] | None = None
    cached: bool = False

    @property
    def drive(self) -> DriveId:
        return DriveId(self.vm[0], self.name) if self.vm else DriveId(self.name, "vda")


KINDS = (
    Kind.of(4),
    Kind.of(8, 0.3),
    Kind.of(16),
    Kind.of(64, 0.5),
    Kind.of(256),
    Kind(((4 * KIB, 0.9), (64 * KIB, 0.1))),
    Kind(((8 * KIB, 0.5), (64 * KIB, 0.5)), 0.4, ((32 * KIB, 1.0),)),
)


def switching(
    seed: int, rates: Sequence[float], mean_s: float, kinds: Sequence[Kind] = KINDS
) -> Iterator[Phase]:
    """Yield phases for ever, each with a random length, rate, mix and depth."""
    chance = random.Random(seed)
    while True:
        yield Phase(
            min(chance.expovariate(1 / mean_s), 20 * mean_s),
            chance.choice(rates),
            chance.choice(kinds),
            chance.choice((1, 4, 16, 32)),
        )
