"""What does the series cost when nothing ever waits?"""

from __future__ import annotations

import contextlib
import math
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median

from benchmarks.qemu.curves import Limits, limits_of
from benchmarks.qemu.daemon import Daemon, Daemons, daemon
from benchmarks.qemu.load import job
from benchmarks.qemu.rows import Accounting, Overhead, Ratio
from testing.lab.fio import fio

NEVER = 10**9  # iops: a limit that nothing reaches
RUN_MS = 300


def overhead(daemons: Daemons) -> Iterator[Overhead]:
    """Yield the cost of 4K reads in stock QEMU, the patched one, and the patched one with a curve.

    All daemons run at once, and fio loads one after another, so briefly that other work on the
    machine hits all of them alike. fio and daemons share one processor, so that a request takes
    the time that its instructions take, and no processor has to be woken.
    """
    kinds: dict[str, tuple[Path, Limits]] = {
        "stock": (daemons.stock, {"iops-total": NEVER}),
        "patched": (daemons.patched, {"iops-total": NEVER}),
        "patched, curve": (daemons.patched, limits_of(NEVER)),
    }
    processor = max(os.sched_getaffinity(0))
    for depth in (1, 32):
        iops: dict[str, list[float]] = {kind: [] for kind in kinds}
        cpu_us: dict[str, list[float]] = {kind: [] for kind in kinds}
        with contextlib.ExitStack() as stack:
            targets = {
                kind: stack.enter_context(daemon(binary, limits))
                for kind, (binary, limits) in kinds.items()
            }
            for target in targets.values():
                os.sched_setaffinity(target.process.pid, {processor})
            order = list(kinds)
            for _ in range(5 if daemons.quick else 150):
                for kind in order:
                    rate, us = _read(targets[kind], depth, processor)
                    iops[kind].append(rate)
                    cpu_us[kind].append(us)
                order = order[1:] + order[:1]
        for kind, values in iops.items():
            yield Overhead(
                depth=depth,
                qemu=kind,
                iops=values,
                cpu_us=cpu_us[kind],
                median=median(values),
                cpu_us_median=median(cpu_us[kind]),
                ratio=median_ratio(values, iops["stock"]),
                cpu_ratio=median_ratio(cpu_us[kind], cpu_us["stock"]),
                undisturbed=fastest(values) / fastest(iops["stock"]),
            )


def _read(target: Daemon, depth: int, processor: int) -> tuple[float, float]:
    """Return IOPS of one short run, and the daemon's CPU time a request, in us."""
    options = {"bs": "4k", "iodepth": depth, "cpus_allowed": processor, "disable_slat": 1}
    before = target.cpu_seconds()
    (report,) = fio(job(target, f"{RUN_MS}ms", "randread", options))
    used_s = target.cpu_seconds() - before
    return report["read"]["iops"], used_s / report["read"]["total_ios"] * 1e6


def fastest(iops: Sequence[float]) -> float:
    """Return the mean of the fastest tenth of runs: other work on the machine only slows them."""
    return fmean(sorted(iops)[-max(1, len(iops) // 10) :])


def median_ratio(values: Sequence[float], base: Sequence[float]) -> Ratio:
    """Return the median ratio of pairs, and the range that holds it with 95 % confidence."""
    pairs = sorted(a / b for a, b in zip(values, base, strict=True))
    # The rank of the median among n is binomial, of n and a half.
    off = math.ceil(0.98 * math.sqrt(len(pairs)))
    middle = len(pairs) / 2
    low = pairs[max(0, math.floor(middle) - off)]
    high = pairs[min(len(pairs) - 1, math.ceil(middle) + off - 1)]
    return Ratio(median(pairs), low, high)


def accounting(daemons: Daemons) -> Iterator[Accounting]:
    """How long does the accounting of one request take?"""
    test = daemons.patched.parent / "test-throttle"
    runs: dict[str, list[float]] = {}
    for _ in range(3 if daemons.quick else 7):
        command = [str(test), "-m", "perf", "-p", "/throttle/perf", "--tap"]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for name, ns in re.findall(r"^# *(.*): ([0-9.]+) ns per request", output, re.MULTILINE):
            runs.setdefault(name, []).append(float(ns))
    for name, values in runs.items():
        yield Accounting(name, values, median(values))
