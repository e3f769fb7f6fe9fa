"""What hosts that share a disk did in windows of time, and which part of it was whose.

Rates are those of fio's own log, in requests that ended within a window. Latencies are the disk's:
the time that a host's block device took for its requests, by the kernel's counters, without the
throttle's wait.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from benchmarks.spread import Spread
from testing.lab.processors import Processors


class Reading(NamedTuple):
    """One reading of counters.

    at_s: the monotonic clock. devices: by host, requests that its device has ended, and the time
    that they took, in ms.
    """

    at_s: float
    devices: Mapping[str, tuple[int, int]]
    processors: Processors = Processors(0, 0, 0)


@dataclass(frozen=True)
class Part:
    """What a host did, or all of them.

    iops: requests a second. latency_ms: at the disk. waited_ms: fio's own, with the throttle's
    wait. of_share: its part of the cost of all requests, over the part that it is entitled to; None
    for all hosts. Each is of several windows; None if no request ended in one of them.
    """

    iops: Spread
    latency_ms: Spread | None
    waited_ms: Spread | None
    of_share: Spread | None = None


@dataclass(frozen=True)
class Drive:
    """A host's promise and load.

    reservation: in normalized I/O operations a second. bs, depth: of its requests.
    """

    weight: int = 100
    reservation: int = 0
    bs: str = "16k"
    depth: int = 32


Requests = Sequence[tuple[float, float]]
"""When they ended, in order, by the monotonic clock, and their latency in ms."""


def reading(devices: Mapping[str, Path]) -> Reading:
    """Read the counters of hosts' devices."""
    at_s, counters = time.monotonic(), {}
    for name, device in devices.items():
        words = Path("/sys/block", device.name, "stat").read_text().split()
        counters[name] = (int(words[0]), int(words[3]))
    return Reading(at_s, counters, Processors.now())


def busy_ratio(readings: Sequence[Reading]) -> float:
    """Return the part of their time in which the processors had work."""
    return readings[-1].processors.busy_ratio(readings[0].processors)


def entitled(total: float, drives: Mapping[str, Drive]) -> dict[str, float]:
    """Return what each host is entitled to of a total, if all want more than that.

    Each has its reservation, and the rest is divided by weight. The reservations have to fit.
    """
    rest = total - sum(drive.reservation for drive in drives.values())
    weights = sum(drive.weight for drive in drives.values())
    return {n: drive.reservation + rest * drive.weight / weights for n, drive in drives.items()}


def parts(
    readings: Sequence[Reading],
    done: Mapping[str, Requests],
    drives: Mapping[str, Drive],
    costs: Mapping[str, float],
) -> dict[str, Part]:
    """Return what each host did between readings, and "all" of them together.

    costs: of a request of each size, in normalized I/O operations.
    """
    windows = [_window(*pair, done) for pair in pairwise(readings)]
    shares: dict[str, list[float]] = {name: [] for name in drives}
    for window in windows:
        rates = {name: window[name].iops * costs[drive.bs] for name, drive in drives.items()}
        for name, owed in entitled(sum(rates.values()), drives).items():
            shares[name].append(rates[name] / owed)
    return {
        name: Part(
            Spread.of([window[name].iops for window in windows]),
            _spread([window[name].latency_ms for window in windows]),
            _spread([window[name].waited_ms for window in windows]),
            Spread.of(shares[name]) if name in shares else None,
        )
        for name in (*drives, "all")
    }


class _Did(NamedTuple):
    iops: float
    latency_ms: float | None
    waited_ms: float | None


def _window(first: Reading, last: Reading, done: Mapping[str, Requests]) -> dict[str, _Did]:
    found: dict[str, _Did] = {}
    every: list[float] = []
    ended = took = 0
    seconds = last.at_s - first.at_s
    for name, requests in done.items():
        begin, end = (bisect.bisect(requests, (r.at_s, 0.0)) for r in (first, last))
        waits = [ms for _, ms in requests[begin:end]]
        (reads_before, ms_before), (reads, ms) = first.devices[name], last.devices[name]
        reads, ms = reads - reads_before, ms - ms_before
        found[name] = _did(waits, seconds, reads, ms)
        every += waits
        ended, took = ended + reads, took + ms
    return {**found, "all": _did(every, seconds, ended, took)}


def _did(waits: Sequence[float], seconds: float, ended: int, ms: int) -> _Did:
    return _Did(
        len(waits) / seconds,
        ms / ended if ended else None,
        sum(waits) / len(waits) if waits else None,
    )


def _spread(values: Sequence[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return Spread.of(known) if len(known) == len(values) else None


def taken_over_s(stopped_s: float, done: Requests, rate: float, until_s: float) -> float | None:
    """Return how long after a stop others did 95 % of a rate for the first time.

    done: their requests. rate: in requests a second. Counted in steps of a tenth of a second, over
    one second each; None if it didn't come to that before until_s.
    """
    at_s = stopped_s
    while at_s + 1 <= until_s:
        count = bisect.bisect(done, (at_s + 1, 0.0)) - bisect.bisect(done, (at_s, 0.0))
        if count >= 0.95 * rate:
            return at_s + 1 - stopped_s
        at_s += 0.1
    return None
