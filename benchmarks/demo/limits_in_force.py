"""The limits that QEMU really held drives to, read from QEMU several times a second.

Nothing here is the agent's: limits are asked of QEMU through a connection to libvirtd of its own,
and requests are charged by the rule in QEMU's util/throttle.c. A limit on bytes charges a request
by its bytes. A limit on requests charges it 1, or size / iops-size if that is more, or its cost
if the group has a cost curve.
"""

from __future__ import annotations

import json
import math
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypedDict

import libvirt
import libvirt_qemu
import numpy as np

from benchmarks.demo.fio_log import Completions, Floats
from iokeel.core.values.curve import DEFAULT_MODEL
from testing.hypervisors.dialects import throttle_groups
from testing.hypervisors.qmp_client import QmpError
from testing.sampler import Sampler

_INTERVAL_S = 0.2
UNANSWERED_S = 0.5
_SHARP_S = 0.005  # of an answer that took longer, the time of the count isn't known
_BUCKETS = 6  # bytes and requests: of all, of reads, of writes

Curve = tuple[tuple[int, float], ...]
"""A cost curve's points: sizes in bytes, costs in normalized I/O operations."""


class Direction(TypedDict, total=False):
    """A group's reads or writes in query-throttle-groups. cost: of all that was let through."""

    cost: float


class CurvePoint(TypedDict):
    """A point of a cost curve."""

    size: int
    cost: float


GroupLimits = TypedDict(
    "GroupLimits",
    {
        "bps-total": int,
        "bps-read": int,
        "bps-write": int,
        "iops-total": int,
        "iops-read": int,
        "iops-write": int,
        "iops-size": int,
        "cost-read": list[CurvePoint],
        "cost-write": list[CurvePoint],
    },
    total=False,
)


class Group(TypedDict):
    """A group in query-throttle-groups, as far as it is read here."""

    read: Direction
    write: Direction
    limits: GroupLimits


class Limits(NamedTuple):
    """A drive's limits as QEMU has them; 0 means no limit."""

    bps_total: int = 0
    bps_read: int = 0
    bps_write: int = 0
    iops_total: int = 0
    iops_read: int = 0
    iops_write: int = 0
    iops_size: int = 0
    cost_read: Curve = ()
    cost_write: Curve = ()


class Sample(NamedTuple):
    """A drive's limits at a time of the host's clock, in seconds of the epoch.

    passed: the cost of all that QEMU has let through so far, by its own count, in normalized I/O
    operations. None if it doesn't count, or took so long to answer that the time of the count isn't
    known to some milliseconds.
    """

    at_s: float
    limits: Limits
    passed: float | None = None


def changes(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples that show other limits than the one before."""
    return [after for before, after in pairwise(samples) if before.limits != after.limits]


def gaps(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    """Return from when to when libvirtd or QEMU was too busy to answer."""
    return [
        (before.at_s, after.at_s)
        for before, after in pairwise(samples)
        if after.at_s - before.at_s > UNANSWERED_S
    ]


def most_passed(samples: Sequence[Sample]) -> float | None:
    """Return the most that QEMU let through in about a second, by its own count.

    As a ratio of the limit in force, between two samples that are a second or a little more apart.
    None if QEMU doesn't count.
    """
    counts = [(i, s.at_s, s.passed) for i, s in enumerate(samples) if s.passed is not None]
    ratios = []
    for i, since_s, before in counts:
        end = bisect_left(counts, since_s + 1, key=lambda count: count[1])
        if end == len(counts):
            break
        j, at_s, after = counts[end]
        if limit := max(s.limits.iops_total for s in samples[i : j + 1]):
            ratios.append((after - before) / (at_s - since_s) / limit)
    return max(ratios, default=None)


class Throttle:
    """How much of the time the limits in force charge for the requests that passed."""

    def __init__(self, done: Completions, samples: Sequence[Sample]) -> None:
        """Both on the same clock. Limits are taken to hold until a sample shows others."""
        self._at_s = done.at_s
        in_turn = [*samples[:1], *changes(samples)]
        self._changes_s = [sample.at_s for sample in in_turn[1:]]
        edges = [0, *np.searchsorted(done.at_s, self._changes_s), len(done.at_s)]
        charged = np.zeros((_BUCKETS, len(done.at_s) + 1))
        for sample, (first, last) in zip(in_turn, pairwise(edges), strict=False):
            part = slice(int(first), int(last))
            for bucket, seconds in zip(charged, _charges(done, part, sample.limits), strict=True):
                bucket[first + 1 : last + 1] = seconds
        self._charged_s = np.cumsum(charged, axis=1)

    def used_ratio(self, start_s: float, end_s: float) -> float:
        """Return the share of [start, end) for which the requests in it had to wait.

        About 1: the limits held the drive all the time. Less: it asked for less.
        """
        within = [at_s for at_s in self._changes_s if start_s < at_s < end_s]
        edges = np.searchsorted(self._at_s, [start_s, *within, end_s])
        used_s = np.diff(self._charged_s[:, edges], axis=1).max(axis=0)  # by the fullest bucket
        return float(used_s.sum()) / (end_s - start_s)


def _charges(done: Completions, part: slice, limits: Limits) -> Iterator[Floats]:
    """Yield how long each bucket takes to drain each request, in seconds."""
    size, write = done.size[part], done.is_write[part]
    units = np.maximum(1.0, size / limits.iops_size) if limits.iops_size else np.ones(len(size))
    if limits.cost_read or limits.cost_write:
        read_cost = _cost(limits.cost_read, size)
        units = np.where(write, _cost(limits.cost_write, size), read_cost)
    everything = np.ones(len(size), dtype=np.bool_)
    for amount, bounds in (
        (size, (limits.bps_total, limits.bps_read, limits.bps_write)),
        (units, (limits.iops_total, limits.iops_read, limits.iops_write)),
    ):
        for bound, mine in zip(bounds, (everything, ~write, write), strict=True):
            yield np.where(mine, amount / bound, 0.0) if bound else np.zeros(len(size))


def ceiling(limits: Limits) -> float:
    """Return the highest normalized rate of requests of any one size; inf if one isn't limited."""
    slowest_s = np.max([*_charges(_ONE_OF_EACH, slice(None), limits)], axis=0)
    if not slowest_s.all():
        return math.inf
    return float((_ONE_OF_EACH.cost / slowest_s).max())


def _one_of_each() -> Completions:
    """Return a read and a write of every size from 4 KiB to 1 MiB."""
    sizes = np.arange(4 << 10, (1 << 20) + 1, 4 << 10, dtype=float)
    cost = [
        model.cost(size) for model in (DEFAULT_MODEL.read, DEFAULT_MODEL.write) for size in sizes
    ]
    is_write = np.repeat([False, True], len(sizes))
    return Completions(np.zeros(len(cost)), np.array(cost), np.tile(sizes, 2), is_write)


_ONE_OF_EACH = _one_of_each()


def _cost(curve: Curve, size: Floats) -> Floats:
    if not curve:
        return np.ones(len(size))
    sizes, costs = zip(*curve, strict=True)
    return np.asarray(np.interp(size, sizes, costs))


class Watch(Sampler):
    """Looks at guests' drive vda several times a second.

    samples: the limits in force, by guest. begun_s: when each guest's load began, in seconds of
    the epoch.
    """

    def __init__(self, uri: str, names: Sequence[str], *, exact: bool) -> None:
        """uri: libvirt's. exact: QEMU has the patches, so it may have cost curves as well."""
        super().__init__()
        self.samples: dict[str, list[Sample]] = {name: [] for name in names}
        self.begun_s: dict[str, float] = {}
        self._read = _read_exact if exact else _read
        self._connection = libvirt.open(uri)
        self._domains = {name: self._connection.lookupByName(name) for name in names}
        self._requests = {name: _requests(domain) for name, domain in self._domains.items()}

    def __exit__(self, *reason: object) -> None:
        """Stop looking. Raises libvirtError if it failed meanwhile."""
        super().__exit__(*reason)
        self._connection.close()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due = max(due + _INTERVAL_S, time.monotonic())
            for name, domain in self._domains.items():
                asked_s = time.time()
                limits, passed = self._read(domain)
                took_s = time.time() - asked_s
                if took_s > _SHARP_S:
                    passed = None
                self.samples[name].append(Sample(asked_s + took_s / 2, limits, passed))
                if name not in self.begun_s and _requests(domain) > self._requests[name]:
                    self.begun_s[name] = time.time()


def _requests(domain: Any) -> int:
    reads, _, writes, *_ = domain.blockStats("vda")
    return int(reads + writes)


def _read(domain: Any) -> tuple[Limits, None]:
    tune: Mapping[str, int] = domain.blockIoTune("vda")  # asks QEMU's monitor each time
    limits = Limits(
        tune["total_bytes_sec"],
        tune["read_bytes_sec"],
        tune["write_bytes_sec"],
        tune["total_iops_sec"],
        tune["read_iops_sec"],
        tune["write_iops_sec"],
        tune.get("size_iops_sec", 0),
    )
    return limits, None


def _read_exact(domain: Any) -> tuple[Limits, float | None]:
    groups: list[Any] = throttle_groups(partial(_ask, domain))
    if not groups:
        return Limits(), None
    (group,) = groups
    return group_limits(group), group_passed(group)


def _ask(domain: Any, command: str) -> Any:
    text = libvirt_qemu.qemuMonitorCommand(domain, json.dumps({"execute": command}), 0)
    reply = json.loads(text)
    if "error" in reply:
        raise QmpError(f"{command}: {reply['error']['desc']}")
    return reply["return"]


def group_passed(group: Group) -> float:
    """Return the cost of all that a group in query-throttle-groups has let through."""
    return group["read"].get("cost", 0.0) + group["write"].get("cost", 0.0)


def group_limits(group: Group) -> Limits:
    """Return the limits of a group in query-throttle-groups."""
    found = group["limits"]
    return Limits(
        found.get("bps-total", 0),
        found.get("bps-read", 0),
        found.get("bps-write", 0),
        found.get("iops-total", 0),
        found.get("iops-read", 0),
        found.get("iops-write", 0),
        found.get("iops-size", 0),
        tuple((point["size"], point["cost"]) for point in found.get("cost-read", ())),
        tuple((point["size"], point["cost"]) for point in found.get("cost-write", ())),
    )
