"""fio's logs of a drive's requests, as the figures of the drive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from benchmarks.bench.records import DriveRun
from benchmarks.bench.scenario import Drive, Scenario
from benchmarks.fio_log import Floats, Ints, Requests
from iokeel.core.values.curve import CostModel
from iokeel.words.units import parse_size


@dataclass(frozen=True)
class Done:
    """A drive's requests in the order of completion. at_s: seconds of the epoch, by our clock."""

    at_s: Floats
    latency_ms: Floats
    size_bytes: Ints
    cost: Floats

    @classmethod
    def read(cls, name: str, logs: Sequence[Path], model: CostModel, ahead_s: float = 0.0) -> Self:
        """Read the logs of all jobs of a drive.

        ahead_s: how far the clock of the logs' writer is ahead of ours. Raises RuntimeError if
        there are no requests at all.
        """
        parts = [Requests.read(log) for log in logs if log.stat().st_size]
        if not sum(len(part.at_ms) for part in parts):
            raise RuntimeError(f"{name}: fio logged no request")
        at_s = np.concatenate([part.at_ms for part in parts]) / 1000 - ahead_s
        order = np.argsort(at_s, kind="stable")
        costs = [part.costs(model.read.cost, model.write.cost) for part in parts]
        return cls(
            at_s[order],
            np.concatenate([part.latency_ns for part in parts])[order] / 1e6,
            np.concatenate([part.size_bytes for part in parts])[order],
            np.concatenate(costs)[order],
        )


def drive_run(
    scenario: Scenario, drive: Drive, done: Done, began_s: float, fio_sys_s: float | None
) -> DriveRun:
    """Return a drive's figures. began_s: when the run began, in seconds of the epoch."""
    at_s = done.at_s - began_s
    begin, end = scenario.begin_s, scenario.seconds
    counts = (at_s >= begin) & (at_s < end)
    measured = done.latency_ms[counts]
    total, wanted = int(done.size_bytes.sum()), amount(drive)
    return DriveRun(
        rate=float(done.cost[counts].sum()) / (end - begin),
        bytes=total,
        bytes_measured=int(done.size_bytes[counts].sum()),
        requests=len(at_s),
        latency_mean_ms=float(measured.mean()) if len(measured) else None,
        latency_p99_ms=float(np.percentile(measured, 99)) if len(measured) else None,
        latency_max_ms=float(measured.max()) if len(measured) else None,
        by_second=by_second(at_s, done.cost, int(end)),
        finished_s=float(at_s[-1]) if wanted and total >= wanted else None,
        fio_sys_s=fio_sys_s,
    )


def by_second(at_s: Floats, cost: Floats, seconds: int) -> list[float]:
    """Return the cost of the requests that ended in each whole second from 0 on."""
    within = (at_s >= 0) & (at_s < seconds)
    sums = np.bincount(at_s[within].astype(int), cost[within], minlength=seconds)
    return [float(one) for one in sums]


def amount(drive: Drive) -> int:
    """Return how many bytes a drive has to do; 0: as many as it can."""
    total = 0
    for stream in drive.streams:
        if "io_size" in stream.job:
            jobs = int(str(stream.job.get("numjobs", 1)))
            total += jobs * parse_size(str(stream.job["io_size"]))
    return total
