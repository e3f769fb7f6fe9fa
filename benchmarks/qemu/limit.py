"""Does the limit hold: for all sizes, after a shift, after idleness, and while it is rewritten?"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator
from statistics import mean

import numpy as np

from benchmarks.qemu.curves import CURVE, OWN_READ, OWN_WRITE, Curve, Limits, limits_of
from benchmarks.qemu.daemon import BOTH, Daemons, Which, daemon
from benchmarks.qemu.load import finish_logged, job, run_logged, start_logged
from benchmarks.qemu.rows import Exactness, Idleness, Retune, Shift
from iokeel.core.values.curve import KIB
from testing.hypervisors.dialects import TODAYS
from testing.lab.fio import Job


def exactness(daemons: Daemons) -> Iterator[Exactness]:
    """Is every request charged the cost of the curve, and the limit held?"""
    seconds = 4 if daemons.quick else 8
    for limit in (1000, 10000, 50000):
        for name, (rw, options, read, write) in _workloads().items():
            with daemon(daemons.patched, limits_of(limit, read, write)) as target:
                passed = run_logged(target, [job(target, seconds + 1, rw, options)])
                group = target.stats()
            costs = passed.prices(read, write)
            expected = math.fsum(costs)
            charged = group.read.cost + group.write.cost
            rates = passed.rates(costs, seconds)
            yield Exactness(
                limit=limit,
                workload=name,
                requests=len(costs),
                requests_counted=group.read.requests + group.write.requests,
                cost_expected=expected,
                cost_charged=charged,
                cost_error=charged / expected - 1,
                rate_min=min(rates) / limit,
                rate_max=max(rates) / limit,
            )


def _workloads() -> dict[str, tuple[str, Job, Curve, Curve]]:
    # Random sizes need an offset that fits them: any multiple of 512.
    any_size = {"bsrange": "512-2m", "blockalign": 512}
    return {
        **{f"{size // KIB}K reads": ("randread", {"bs": size}, CURVE, CURVE) for size, _ in CURVE},
        "8K + 64K": ("randread", {"bssplit": "8k/50:64k/50"}, CURVE, CURVE),
        "4K reads, 1M writes": ("randrw", {"bssplit": "4k/100,1m/100"}, CURVE, CURVE),
        "512 B to 2 MiB": ("randrw", any_size, CURVE, CURVE),
        "own curves": ("randrw", any_size, OWN_READ, OWN_WRITE),
    }


def shift(daemons: Daemons) -> Iterator[Shift]:
    """What passes when a guest goes from 4K to 1M in mid-run?"""
    limit, half = 2000, 5
    for which in BOTH:
        with daemon(daemons.of(which), _limits(which, limit)) as target:
            jobs = [
                job(target, half, "randread", {"bs": "4k"}),
                job(target, half + 1, "randread", {"bs": "1m", "startdelay": half}),
            ]
            passed = run_logged(target, jobs)
        seconds = [rate / limit for rate in passed.rates(passed.prices(), 2 * half)]
        yield Shift(which, limit, seconds, max(seconds))


def _limits(which: Which, limit: int) -> Limits:
    """Return a limit by the curve; stock QEMU has none, and counts requests."""
    return limits_of(limit) if which == "patched" else {"iops-total": limit}


def idleness(daemons: Daemons) -> Iterator[Idleness]:
    """What passes in the first second after idleness, and while the host is late?"""
    limit = 1000
    cases: tuple[tuple[Which, int | None], ...] = (
        ("stock", None), ("patched", None), ("patched", 10)
    )  # fmt: skip
    for which, credit_ms in cases:
        limits = _limits(which, limit)
        if credit_ms is not None:
            limits[TODAYS.extra]["idle-credit-ms"] = credit_ms
        with daemon(daemons.of(which), limits) as target:
            bursts = [
                job(target, 2, "randread", {"bs": "4k", "startdelay": 3 * i}) for i in range(4)
            ]
            at_ms = run_logged(target, bursts).at_ms
            begins = at_ms[np.diff(at_ms, prepend=-1000) > 500]
            firsts = [int(((begin <= at_ms) & (at_ms < begin + 1000)).sum()) for begin in begins]
            seconds = 5
            process = start_logged(target, [job(target, seconds, "randread", {"bs": "4k"})])
            while process.poll() is None:
                time.sleep(0.18)
                target.process.send_signal(signal.SIGSTOP)
                time.sleep(0.02)
                target.process.send_signal(signal.SIGCONT)
            passed = finish_logged(process, target)
        late = mean(passed.rates(passed.prices(), seconds - 1)) / limit
        yield Idleness(which, limit, credit_ms, [first / limit for first in firsts], late)


def retune(daemons: Daemons) -> Iterator[Retune]:
    """What passes in 10 s when limits are rewritten 10 times a second?"""
    seconds = 10
    cases = [("same 2000", [2000], "4k"), ("1000 and 3000 in turn", [1000, 3000], "4k")]
    cases.append(("same 2000", [2000], "1m"))
    for which in BOTH:
        for name, values, size in cases:
            if which == "stock" and size == "1m":
                continue
            limits = _limits(which, values[0])
            with daemon(daemons.of(which), limits) as target:
                process = start_logged(target, [job(target, seconds, "randread", {"bs": size})])
                start, sets = time.monotonic(), 0
                while process.poll() is None:
                    sets += 1
                    limits["iops-total"] = values[sets % len(values)]
                    target.set_limits(limits)
                    time.sleep(max(0, start + sets / 10 - time.monotonic()))
                done = finish_logged(process, target)
            passed = math.fsum(done.prices()[done.at_ms < seconds * 1000])
            yield Retune(which, name, size, sets, passed, passed / (mean(values) * seconds))
