"""How deep a queue a storage can use, and how long its requests take at a part of its rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import accumulate, pairwise

# A queue twice as deep that gains less than this gains nothing but latency.
GROWTH_RATIO = 1.05
MOST_DEPTH = 512
# The part of its full rate at which a storage's latency is that of one that is well used.
LOAD_RATIO = 0.8


def saturate(
    rate_at: Callable[[int], float],
    start: int = 1,
    patience: int = 1,
    most_latency_s: float = math.inf,
) -> int:
    """Return the queue depth beyond which twice the depth gains less than 5 %.

    rate_at: measures the rate at a depth, from `start` on doubling, MOST_DEPTH at most. patience:
    doublings that have to gain nothing; 2 where a search begins at 1, for a disk that serves one
    request at a time has no choice between two, and gains by its queue from three on.
    most_latency_s: what a request may take in a queue that is tried: one that isn't renewed several
    times while its rate is measured shows what it began with.
    """
    depth, rate = start, rate_at(start)
    deeper, idle = 2 * start, 0
    while deeper <= min(MOST_DEPTH, most_latency_s * rate) and idle < patience:
        gained = rate_at(deeper)
        if gained >= GROWTH_RATIO * rate:
            depth, rate, idle = deeper, gained, 0
        else:
            idle += 1
        deeper *= 2
    return depth


def open_latency_s(rates: Mapping[int, float], load_ratio: float = LOAD_RATIO) -> float:
    """Return the mean latency of requests that arrive at random at a part of the full rate.

    rates: a second, by the queue depth that was kept up (1 among them), to saturation. The
    storage is taken for a server whose rate with n requests in it is the rate that was measured
    with n kept in it (Norton's theorem for queues; Chandy, Herzog and Woo, "Parametric analysis
    of queuing networks", 1975): exact for one server, for several, and for what they make up.
    """
    served = _by_number(rates)
    arrivals = load_ratio * served[-1]
    # The odds of n requests in the storage, from n = 0 to the deepest measured.
    logs = [0.0, *accumulate(math.log(arrivals / rate) for rate in served)]
    top = max(logs)
    odds = [math.exp(log - top) for log in logs]
    # Beyond the deepest, each is load_ratio times the one before.
    deepest, tail = len(served), load_ratio / (1 - load_ratio)
    total = sum(odds) + odds[-1] * tail
    number = sum(n * p for n, p in enumerate(odds)) + odds[-1] * tail * (
        deepest + 1 / (1 - load_ratio)
    )
    return number / total / arrivals


def _by_number(rates: Mapping[int, float]) -> list[float]:
    """Return the rate for each number of requests from 1 on; it never falls."""
    depths = sorted(rates)
    best = list(accumulate((rates[depth] for depth in depths), max))
    served = [best[0]]
    for (d0, r0), (d1, r1) in pairwise(zip(depths, best, strict=True)):
        power = math.log(r1 / r0) / math.log(d1 / d0)
        served += [r0 * (n / d0) ** power for n in range(d0 + 1, d1 + 1)]
    return served
