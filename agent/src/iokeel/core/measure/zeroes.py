"""Finds the zeroes that a drive wrote, and says when its limits forgive them.

A guest zeroes up to 2 GiB by one request (`blkdiscard -z`, mkfs), and QEMU counts it as a write of
as many bytes. Stock QEMU also charges it so, in one piece, and lets nothing else pass until it is
paid: for minutes, though the disk had little to do. But QEMU empties its buckets when limits are
set. So limits are set anew once PAID_S are paid, and the rest is forgiven. Zeroes often come in a
row, and each stops what has its bucket. So the new limits hold reads and writes apart, to half of
the rate each, until no zeroes have come for PAID_S: only writes wait for the next ones.

Real requests stay paid in full. Only bytes that they can't explain count as zeroes. In an interval
of t seconds a guest writes no more than all of these together:

- what the limits let through, with full buckets at its beginning;
- one request that exceeds them: of up to LARGEST_REQUEST_BYTES, or of MERGED_REQUESTS that QEMU has
  merged, of the interval's mean size, which is taken for LARGE_BYTES at most. No guest sends larger
  ones unless somebody has told it to.

Nor do its requests have more than LARGEST_REQUEST_BYTES on average. What zeroes there are is in
neither the rate nor the mix: one of a GiB among small requests would be taken for a new mix.

QEMU counts a request when it ends. A drive that does nothing although it was busy may wait for
zeroes that haven't ended yet, or for requests that QEMU doesn't count, such as a `qemu-io` command.
So limits are set anew, too, once a drive has been silent for PAID_S beyond the time that it owes
for what is counted. It must have done at least SILENT_RATIO of what they allow before, and at least
SILENT_RAW_IOPS requests a second: with fewer, limits for another mix may make it wait so long. If
it was idle, its buckets are empty, and new limits cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from iokeel.core.values.counters import NO_FLOW, NS_PER_S, Counters, Flow, Rates
from iokeel.core.values.curve import LARGEST_REQUEST_BYTES
from iokeel.core.values.limits import BUCKET_S, ThrottleLimits
from iokeel.core.values.state import Zeroes

PAID_S = 3.0
SILENT_RATIO = 0.1
SILENT_RAW_IOPS = 10.0
# As virtio-blk does (VIRTIO_BLK_MAX_MERGE_REQS).
MERGED_REQUESTS = 32
# Linux's own bound on a request since 6.14; 1,280 KiB before.
LARGE_BYTES = 4 << 20
# Ticks may come a little early.
_EARLY_RATIO = 0.95
_WRITE_BOUNDS = ("total", "write")


def zeroes_in(
    earlier: Counters, later: Counters, limits: Sequence[ThrottleLimits]
) -> Zeroes | None:
    """Return the zeroes that were written between two readings; None if there were none.

    limits: those in force meanwhile, the last ones at the end; if there are several, QEMU's buckets
    were emptied in between.
    """
    written, requests = later.write_bytes - earlier.write_bytes, later.write_requests
    requests -= earlier.write_requests
    if written <= LARGEST_REQUEST_BYTES or requests <= 0 or not limits:  # nearly always
        return None
    elapsed_s = (later.at_ns - earlier.at_ns) / NS_PER_S
    merged = min(requests, MERGED_REQUESTS) * min(written / requests, LARGE_BYTES)
    through = sum(_most_bytes(each, elapsed_s) for each in limits)
    through += max(merged, LARGEST_REQUEST_BYTES)
    explained = min(requests * float(LARGEST_REQUEST_BYTES), through)
    if written <= explained:
        return None
    owed_s = _owed_s(limits[-1], written, requests, elapsed_s)
    return Zeroes(written - explained, later.at_ns, later.at_ns + round(owed_s * NS_PER_S))


def without_zeroes(did: Rates, writes_before: Flow) -> Rates:
    """Return the rates of an interval with zeroes as they are without them.

    All requests but one are taken to be of the size that the drive's writes had before.
    """
    requests = did.write.raw_iops - 1 / did.elapsed_s
    size = writes_before.mean_size_bytes
    if size is None or requests <= 0:
        return did._replace(write=NO_FLOW, write_latency_s=None)
    write = Flow(requests, requests * size, did.write.seen_bytes)
    return did._replace(write=write)


def still_paid(
    before: Zeroes | None, found: Zeroes | None, sent_ns: int, now_ns: int
) -> Zeroes | None:
    """Return the zeroes that a drive still pays for; None if there are none.

    before: those that it paid for at the last reading; found: those of this one. sent_ns: when its
    last limits were made, which forgave those before.
    """
    if before is None or sent_ns > before.at_ns or now_ns >= before.paid_ns:
        return found
    if found is None:
        return before
    paid_ns = max(before.paid_ns, found.paid_ns)
    return Zeroes(before.bytes + found.bytes, before.at_ns, paid_ns)


def has_paid(since_ns: int, now_ns: int) -> bool:
    """Return whether PAID_S are over."""
    return now_ns - since_ns >= _EARLY_RATIO * PAID_S * NS_PER_S


def _most_bytes(limits: ThrottleLimits, elapsed_s: float) -> float:
    """Return the most bytes that limits let a guest write, with full buckets at the beginning."""
    least = inf
    for way in _WRITE_BOUNDS:
        least = min(least, _most(limits, f"bps_{way}", elapsed_s))
        if limits.iops_size:
            least = min(least, limits.iops_size * _most(limits, f"iops_{way}", elapsed_s))
    return least


def _most(limits: ThrottleLimits, name: str, elapsed_s: float) -> float:
    """Return the most that one bound lets through; inf if it isn't set."""
    return min(
        (size + rate * elapsed_s for rate, size in _buckets(limits, name)),
        default=inf,
    )


def _owed_s(limits: ThrottleLimits, written: int, requests: int, elapsed_s: float) -> float:
    """Return how long nothing passes after requests with so many bytes in all."""
    units = float(requests)
    if limits.iops_size:
        units = max(units, written / limits.iops_size)
    return max(
        (
            max(0.0, amount - size - rate * elapsed_s) / rate
            for unit, amount in (("bps", float(written)), ("iops", units))
            for way in _WRITE_BOUNDS
            for rate, size in _buckets(limits, f"{unit}_{way}")
        ),
        default=0.0,
    )


def _buckets(limits: ThrottleLimits, name: str) -> list[tuple[float, float]]:
    """Return the rates at which a bound's buckets empty, and their sizes (QEMU's throttle.c)."""
    average, most = getattr(limits, name), getattr(limits, f"{name}_max")
    if not average:
        return []
    if not most:
        return [(average, BUCKET_S * average)]
    length = getattr(limits, f"{name}_max_length") or 1
    buckets = [(float(average), float(most * length))]
    if length > 1:
        buckets.append((float(most), BUCKET_S * most))
    return buckets
