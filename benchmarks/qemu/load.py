"""Loads a daemon with fio, and computes rates from fio's log of every request.

rate in a window: the cost that passed in it over its length. The cost of a request is spread evenly
over the time until the next one passes, because the next one waits for that.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.fio_log import EVERY_REQUEST, Floats, Ints, Requests
from benchmarks.qemu.curves import CURVE, Curve, price
from benchmarks.qemu.daemon import DISK_BYTES, Daemon
from testing.lab.fio import Job, finish_fio, start_fio


@dataclass(frozen=True)
class Passed(Requests):
    """Requests with times counted from the first completion. job: by its number."""

    job: Ints

    def prices(self, read: Curve = CURVE, write: Curve = CURVE) -> Floats:
        """Return each request's cost by two curves."""
        return self.costs(lambda size: price(read, size), lambda size: price(write, size))

    def rates(self, costs: Floats, seconds: int) -> list[float]:
        """Return the rate in each full second after the first, until `seconds`."""
        times = self.at_ms / 1000
        total = np.concatenate(([0.0], np.cumsum(costs)))

        def by(at: int) -> float:
            i = int(np.searchsorted(times, at, side="right"))
            if i in (0, len(times)):
                return float(total[i])
            part = (at - times[i - 1]) / (times[i] - times[i - 1])
            return float(total[i - 1] + (total[i] - total[i - 1]) * part)

        return [by(second + 1) - by(second) for second in range(1, seconds)]


def job(target: Daemon, runtime: int | str, rw: str, options: Job, member: int = 0) -> Job:
    """Return a fio job on a member's export. runtime: in seconds, unless it says its unit."""
    base = {"ioengine": "nbd", "uri": target.uri(member), "rw": rw, "size": DISK_BYTES}
    return {**base, "iodepth": 32, "time_based": 1, "runtime": runtime, **options}


def start_logged(target: Daemon, jobs: Sequence[Job]) -> subprocess.Popen[str]:
    """Start jobs that log every request; finish_logged() waits for them."""
    logged = [{**EVERY_REQUEST, **one, "write_lat_log": f"job{i}"} for i, one in enumerate(jobs)]
    return start_fio(logged, target.folder)


def finish_logged(process: subprocess.Popen[str], target: Daemon) -> Passed:
    """Return the requests. Raises RuntimeError if fio fails or its log lacks a request."""
    reports = finish_fio(process)
    logs = []
    for i in range(len(reports)):
        (log,) = target.folder.glob(f"job{i}_lat.*.log")
        logs.append(Requests.read(log))
        log.unlink()
    done = sum(one[way]["total_ios"] for one in reports for way in ("read", "write"))
    logged = sum(len(log.at_ms) for log in logs)
    if done != logged:
        raise RuntimeError(f"fio did {done} requests and logged {logged}")
    at_ms = np.concatenate([log.at_ms for log in logs])
    order = np.argsort(at_ms, kind="stable")
    return Passed(
        at_ms[order] - at_ms.min(),
        np.concatenate([log.latency_ns for log in logs])[order],
        np.concatenate([log.size_bytes for log in logs])[order],
        np.concatenate([log.is_write for log in logs])[order],
        np.repeat(np.arange(len(logs)), [len(log.at_ms) for log in logs])[order],
    )


def run_logged(target: Daemon, jobs: Sequence[Job]) -> Passed:
    """Run jobs together, and return the requests."""
    return finish_logged(start_logged(target, jobs), target)
