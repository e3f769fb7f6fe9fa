"""Does a group whose members are in several iothreads reach its limit?"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.qemu.daemon import BOTH, Daemons
from benchmarks.qemu.rows import Threads

THREADS = (1, 2, 4)
UNREACHED = 10**8  # iops
#: The limit, and the one before it, in iops.
LIMITS = (
    (60_000, 60_000),
    (100_000, 100_000),
    (150_000, 150_000),
    (1_000_000, 1_000_000),
    (UNREACHED, UNREACHED),
    (UNREACHED, 1_000),
)
PROGRAM = "throttle-threads"


def threads(daemons: Daemons) -> Iterator[Threads]:
    """Yield the rate of a group at each limit, stock and patched in turn.

    The rates are those of requests to a null device that need nothing but the throttle
    (throttle-threads.c). The order changes from turn to turn.
    """
    ms, turns = (300, 1) if daemons.quick else (1000, 5)
    for count in THREADS:
        for limit, first in LIMITS:
            order = list(BOTH)
            iops: dict[str, list[float]] = {which: [] for which in BOTH}
            cpu_us: dict[str, list[float]] = {which: [] for which in BOTH}
            for _ in range(turns):
                for which in order:
                    program = daemons.of(which).parent / PROGRAM
                    rate, us = _run(program, count, limit, first, ms)
                    iops[which].append(rate)
                    cpu_us[which].append(us)
                order.reverse()
            for which in BOTH:
                yield Threads(
                    threads=count,
                    limit=limit,
                    first=first,
                    qemu=which,
                    iops=iops[which],
                    cpu_us=cpu_us[which],
                    median=median(iops[which]),
                    cpu_us_median=median(cpu_us[which]),
                    of_stock=median(iops[which]) / median(iops["stock"]),
                )


def _run(program: Path, threads: int, limit: int, first: int, ms: int) -> tuple[float, float]:
    """Return IOPS of one run, and its CPU time a request, in us."""
    argv = [str(program), str(threads), str(limit), str(first), str(ms)]
    result = subprocess.run(argv, check=True, capture_output=True, text=True)
    rate, us = map(float, result.stdout.split())
    return rate, us
