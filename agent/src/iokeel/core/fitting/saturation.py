"""A storage's saturation depth, and its latency at a part of its full rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import accumulate, pairwise
from math import fsum

# If doubling the depth gains less than this, it adds latency and nothing else.
GROWTH_RATIO = 1.05
# The deepest queue that is tried, in requests.
MOST_DEPTH = 512
# The part of its full rate that a well-used storage serves. Latency is estimated there.
LOAD_RATIO = 0.8


def saturation_depth(
    rate_at: Callable[[int], float],
    start: int = 1,
    patience: int = 1,
    most_latency_s: float = math.inf,
) -> int:
    """Return the queue depth at which doubling it gains less than 5 %.

    rate_at: measures the rate at a depth. It is called with `start`, then with twice that, and so
    on up to MOST_DEPTH. patience: how many doublings in a row must gain nothing. Give 2 to a search
    from depth 1: a disk that serves one request at a time gains nothing from a second, because it
    can only reorder three or more. most_latency_s: the longest that a request may take in a queue
    that is tried. The queue must turn over several times in a run, or the run measures only the
    requests it began with.
    """
    depth, rate = start, rate_at(start)
    deeper, idle_doublings = 2 * start, 0
    while deeper <= min(MOST_DEPTH, most_latency_s * rate) and idle_doublings < patience:
        deeper_rate = rate_at(deeper)
        if deeper_rate >= GROWTH_RATIO * rate:
            depth, rate, idle_doublings = deeper, deeper_rate, 0
        else:
            idle_doublings += 1
        deeper *= 2
    return depth


def open_latency_s(rates: Mapping[int, float], load_ratio: float = LOAD_RATIO) -> float:
    """Return the mean latency of requests that arrive at random, at a part of the full rate.

    rates: requests a second by the queue depth kept up, from depth 1 to saturation. load_ratio: the
    part of the full rate, above 0 and below 1. The storage is modelled as a server that, with n
    requests in it, works at the rate measured at depth n (Norton's theorem for queues; Chandy,
    Herzog and Woo, "Parametric analysis of queuing networks", 1975). This is exact for one server,
    for several, and for networks of them.
    """
    served = _rates_by_count(rates)
    arrivals = load_ratio * served[-1]
    # The odds of n requests in the storage, from n = 0 to the deepest measured.
    logs = [0.0, *accumulate(math.log(arrivals / rate) for rate in served)]
    top = max(logs)
    odds = [math.exp(log - top) for log in logs]
    # Beyond the deepest, each is load_ratio times the one before.
    deepest, tail = len(served), load_ratio / (1 - load_ratio)
    total = fsum(odds) + odds[-1] * tail
    requests = fsum(n * p for n, p in enumerate(odds)) + odds[-1] * tail * (
        deepest + 1 / (1 - load_ratio)
    )
    return requests / total / arrivals


def _rates_by_count(rates: Mapping[int, float]) -> list[float]:
    """Return the rate with 1, 2, 3, ... requests in the storage; it never falls."""
    depths = sorted(rates)
    best = list(accumulate((rates[depth] for depth in depths), max))
    served = [best[0]]
    for (d0, r0), (d1, r1) in pairwise(zip(depths, best, strict=True)):
        power = math.log(r1 / r0) / math.log(d1 / d0)
        served += [r0 * (n / d0) ** power for n in range(d0 + 1, d1 + 1)]
    return served
