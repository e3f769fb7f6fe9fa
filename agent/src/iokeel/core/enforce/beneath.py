"""What a VM's images add below QEMU's throttle, by the kernel's own count.

A write to a qcow2 image may copy a cluster, and any request may read or write tables. So a drive
that keeps to its limit may do far more on the device. How much that is depends on formats, chains
and caches, and isn't reckoned but measured:

1. While the kernel counts at least half of a bound, whatever it counts beyond the drives' own
   requests (QEMU's counters) and the room for block jobs is what images add.
2. That, divided by the drives' normalized rate, is what a normalized operation adds. The bound is
   widened by this much for each operation of the share, before it is met or at once after that.
3. If QEMU tells nothing while a bound on writes is used up, its drives are taken to write nothing.
   libvirt can't read a domain while the kernel zeroes its block device, for which a bound may take
   minutes. Nothing is learned of reads then: a guest that resets its device would widen theirs.
4. A higher value counts at once. A lower one replaces it slowly, with a half-life of an hour.
5. An operation adds at most `MOST_BYTES` and `MOST_REQUESTS` of a direction. A QEMU that has been
   taken over by its guest isn't told from an image that copies, so this is what holds it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from iokeel.core.enforce.backstop import NOTHING, Io, IoMax
from iokeel.core.measure.demand import FULL_RATIO
from iokeel.core.measure.rates import rates
from iokeel.core.values.counters import NS_PER_S, Counters
from iokeel.core.values.curve import CostModel
from iokeel.core.values.mix import mix_cost

#: qcow2's largest cluster, read and written with its tables.
MOST_BYTES = 4 << 20
#: The same in parts of a device's least common size, 64 KiB.
MOST_REQUESTS = MOST_BYTES // (64 << 10)
#: The least for a drive whose image is on another one: it will copy clusters, and its first writes
#: come before anything is measured. qcow2's usual clusters took 78 KiB read and 62 KiB written.
COPIED = Io(96 << 10, 96 << 10, 2.0, 2.0)
# Below this part of a bound nothing is learned, because a few requests by the way look like much
# beside a drive that does little.
_WATCHED_RATIO = 0.5
_HALF_LIFE_S = 3600.0
# Drives that do less than this are taken to do so much: one request that a bound holds up for
# seconds isn't counted by QEMU before it ends.
_LEAST_RATE = 1.0


_MOST = Io(MOST_BYTES, MOST_BYTES, MOST_REQUESTS, MOST_REQUESTS)


class Reading(NamedTuple):
    """The kernel's count of a group's I/O on a device so far. at_ns: the monotonic clock."""

    at_ns: int
    total: Io


class Work(NamedTuple):
    """What drives did at QEMU in an interval. rate: normalized; io: requests and bytes a second."""

    rate: float = 0.0
    io: Io = NOTHING


class Beneath(NamedTuple):
    """What is known of a group on a device.

    last: the last reading. did: the kernel's count since the one before, a second; None if unknown.
    added: what a normalized operation of its drives adds. full: the bounds that held the group.
    """

    last: Reading | None = None
    did: Io | None = None
    added: Io = NOTHING
    full: tuple[str, ...] = ()


def work_of(drives: Iterable[tuple[Counters, Counters, CostModel]]) -> Work | None:
    """Return what drives did between two readings each; None if it isn't known of one of them."""
    rate, io = 0.0, NOTHING
    for earlier, later, model in drives:
        did = rates(earlier, later)
        if did is None:
            return None
        rate += mix_cost(model, did)
        io = io.plus(Io(did.read.bps, did.write.bps, did.read.raw_iops, did.write.raw_iops))
    return Work(rate, io)


def is_watched(before: Beneath, reading: Reading, bounds: IoMax) -> bool:
    """Return whether a reading teaches something, once it is known what the drives did."""
    did = _did(before, reading)
    return did is not None and max(_used(did, bounds).values(), default=0.0) >= _WATCHED_RATIO


def seen(before: Beneath, reading: Reading, work: Work | None, bounds: IoMax, jobs: Io) -> Beneath:
    """Return what is known of a group after a reading.

    work: what its drives did at QEMU since the last one; None if unknown. bounds: those that held
    meanwhile. jobs: the most that block jobs did, a second. Nothing is learned from counters that
    stand still or go backwards.
    """
    did = _did(before, reading)
    if did is None or before.last is None:
        return Beneath(reading, None, before.added)
    elapsed_s = (reading.at_ns - before.last.at_ns) / NS_PER_S
    added = before.added
    if added is not NOTHING:
        added = added.times(0.5 ** (elapsed_s / _HALF_LIFE_S))
    full = tuple(name for name, ratio in _used(did, bounds).items() if ratio >= FULL_RATIO)
    learned = did
    if work is None and not {"wbps", "wiops"}.isdisjoint(full):
        work, learned = Work(), did._replace(rbps=0.0, riops=0.0)
    if work is not None and is_watched(before, reading, bounds):
        beyond = learned.less(work.io).less(jobs).times(1 / max(work.rate, _LEAST_RATE))
        added = added.most(Io(*map(min, beyond, _MOST)))
    return Beneath(reading, did, added, full)


def _did(before: Beneath, reading: Reading) -> Io | None:
    """Return the rates since the last reading; None if they aren't known."""
    last = before.last
    if last is None or reading.at_ns <= last.at_ns:
        return None
    did = reading.total.less(last.total)
    if min(did) < 0:
        return None
    return did.times(NS_PER_S / (reading.at_ns - last.at_ns))


def _used(did: Io, bounds: IoMax) -> dict[str, float]:
    """Return the part of each bound that was used."""
    pairs = zip(bounds.items(), did, strict=True)
    return {name: value / bound for (name, bound), value in pairs if bound is not None}
