"""Turns two readings of a drive's counters into rates."""

from __future__ import annotations

import math
from typing import Final

from iokeel.core.values.counters import (
    NO_FLOW,
    NS_PER_S,
    Counters,
    Flow,
    Rates,
    ThrottleCounters,
    Throttled,
)
from iokeel.core.values.curve import SMALLEST_REQUEST_BYTES, is_uniform
from iokeel.core.values.policy import MOST_IOPS

# So many sizes are remembered of each direction.
_SEEN_SIZES = 4
# The mean size of fewer is often the same by chance.
_MANY_REQUESTS = 30
# No drive comes near these, so a QEMU that tells more lies: requests and bytes a nanosecond, and
# requests in flight. One request zeroes up to 2 GiB. After a hang, all requests end at once, each
# with hours of waiting. In whole numbers, because this is asked of each drive in each tick.
_MOST_A_NS: Final = 10 * MOST_IOPS // NS_PER_S
_MOST_BYTES_A_NS: Final = 10**9
_MOST_QUEUE: Final = 10**10
# Any request, or part of one, costs far more.
_LEAST_COST: Final = 1e-6


def rates(
    earlier: Counters, later: Counters, reads_before: Flow = NO_FLOW, writes_before: Flow = NO_FLOW
) -> Rates | None:
    """Return the rates between two readings, or None if they can't be known.

    reads_before, writes_before: the flows before, with the sizes that the drive was seen to use.
    The rates are unknown if a counter went backwards (a guest restarted, a counter wrapped or was
    reset), if no time lies between the readings, if there are bytes without a request, or if no
    drive could do so much. But a throttle group counts a request that passes in parts with the
    first of them.
    """
    at_ns, reads0, read_bytes0, writes0, write_bytes0, read_ns0, write_ns0, throttle0 = earlier[:8]
    to_ns, reads1, read_bytes1, writes1, write_bytes1, read_ns1, write_ns1, throttle1 = later[:8]
    elapsed_ns, reads, writes = to_ns - at_ns, reads1 - reads0, writes1 - writes0
    read_bytes, write_bytes = read_bytes1 - read_bytes0, write_bytes1 - write_bytes0
    if elapsed_ns <= 0 or reads < 0 or writes < 0 or read_bytes < 0 or write_bytes < 0:
        return None
    throttled = None if throttle1 is None else _throttled(throttle0, throttle1)
    if throttled is None and ((read_bytes and not reads) or (write_bytes and not writes)):
        return None
    read_ns = None if read_ns0 is None or read_ns1 is None else read_ns1 - read_ns0
    write_ns = None if write_ns0 is None or write_ns1 is None else write_ns1 - write_ns0
    if (read_ns is not None and read_ns < 0) or (write_ns is not None and write_ns < 0):
        return None
    elapsed_s = elapsed_ns / NS_PER_S
    queued_ns = (read_ns or 0) + (write_ns or 0)
    if _is_too_much(reads + writes, read_bytes + write_bytes, queued_ns, elapsed_ns):
        return None
    if throttled is not None and _costs_too_much(throttle0, throttle1, elapsed_ns):
        return None
    return Rates(
        elapsed_s,
        _flow(reads, read_bytes, elapsed_s, reads_before),
        _flow(writes, write_bytes, elapsed_s, writes_before),
        read_ns / reads / NS_PER_S if reads and read_ns is not None else None,
        write_ns / writes / NS_PER_S if writes and write_ns is not None else None,
        throttled,
        _rate(earlier.flushes, later.flushes, elapsed_s),
        _discards(earlier, later, elapsed_s),
    )


def is_absurd(earlier: Counters, later: Counters) -> bool:
    """Return whether counters tell more than any drive can have done between two readings."""
    at_ns, reads0, read_bytes0, writes0, write_bytes0, read_ns0, write_ns0, throttle0 = earlier[:8]
    to_ns, reads1, read_bytes1, writes1, write_bytes1, read_ns1, write_ns1, throttle1 = later[:8]
    requests, sent = reads1 - reads0 + writes1 - writes0, read_bytes1 - read_bytes0
    queued_ns = (read_ns1 or 0) - (read_ns0 or 0) + (write_ns1 or 0) - (write_ns0 or 0)
    elapsed_ns = max(1, to_ns - at_ns)
    too_much = _is_too_much(requests, sent + write_bytes1 - write_bytes0, queued_ns, elapsed_ns)
    return too_much or _costs_too_much(throttle0, throttle1, elapsed_ns)


def _is_too_much(requests: int, sent: int, queued_ns: int, elapsed_ns: int) -> bool:
    return (
        requests // elapsed_ns >= _MOST_A_NS
        or sent // elapsed_ns >= _MOST_BYTES_A_NS
        or queued_ns // elapsed_ns >= _MOST_QUEUE
    )


def _costs_too_much(
    earlier: ThrottleCounters | None, later: ThrottleCounters | None, elapsed_ns: int
) -> bool:
    if earlier is None or later is None:
        return False
    most = float(_MOST_A_NS * elapsed_ns)
    for before, after in ((earlier.read, later.read), (earlier.write, later.write)):
        cost = after.cost - before.cost
        if not cost <= most or 0 < cost < _LEAST_COST:  # inf - inf is neither
            return True
        if after.wait_ns - before.wait_ns > _MOST_QUEUE * elapsed_ns:
            return True
        if after.took is not None:
            took_ns = after.took.total_ns - (before.took.total_ns if before.took else 0)
            if took_ns > _MOST_QUEUE * elapsed_ns:
                return True
    return False


def _rate(earlier: int | None, later: int | None, elapsed_s: float) -> float | None:
    """Return the rate of a counter that nothing depends on; None if it isn't known."""
    if earlier is None or later is None or later < earlier:
        return None
    return (later - earlier) / elapsed_s


def _discards(earlier: Counters, later: Counters, elapsed_s: float) -> Flow | None:
    raw_iops = _rate(earlier.discards, later.discards, elapsed_s)
    bps = _rate(earlier.discard_bytes, later.discard_bytes, elapsed_s)
    if raw_iops is None or bps is None:
        return None
    return Flow(raw_iops, bps) if raw_iops else NO_FLOW


def _flow(requests: int, sent: int, elapsed_s: float, before: Flow) -> Flow:
    """Return a flow with the sizes of its uniform requests so far, newest first.

    A workload mostly shifts because a stream joins or ends. So a mix is likely made of sizes that
    were there alone before. If the mean of many requests is the same whole number of pages in two
    looks, they hardly differ: by chance it is a whole number once in as many looks as there are
    requests.
    """
    if not (requests or sent or before.raw_iops or before.bps):  # most often: no new object
        return before
    raw_iops, bps, seen = requests / elapsed_s, sent / elapsed_s, before.seen_bytes
    if not (requests and sent):
        return Flow(raw_iops, bps, seen)
    mean = sent / requests
    size = None
    if is_uniform(mean):
        size = float(2 ** round(math.log2(mean)))
    elif requests >= _MANY_REQUESTS and sent % (requests * SMALLEST_REQUEST_BYTES) == 0:
        last = before.mean_size_bytes
        if last is not None and abs(mean / last - 1) <= 1e-9:
            size = mean
    if size is not None and (not seen or seen[0] != size):
        seen = (size, *(other for other in seen if other != size))[:_SEEN_SIZES]
    return Flow(raw_iops, bps, seen)


def _throttled(earlier: ThrottleCounters | None, later: ThrottleCounters) -> Throttled | None:
    if earlier is None or later.at_ns <= earlier.at_ns:
        return None
    for before, after in ((earlier.read, later.read), (earlier.write, later.write)):
        if (
            after.requests < before.requests
            or after.cost < before.cost
            or after.wait_ns < before.wait_ns
            or after.waited < before.waited
        ):
            return None
        took, was = after.took, before.took
        if was is not None and (
            took is None or took.requests < was.requests or took.total_ns < was.total_ns
        ):
            return None
    return Throttled(earlier, later)
