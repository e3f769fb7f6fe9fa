"""The requests of drives in a run, and the figures of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Self

import numpy as np

from benchmarks.fio_log import Floats, Requests
from benchmarks.shares.rows import DriveFigures, RunFigures
from benchmarks.shares.scenario import Drive, Scenario
from iokeel.core.curve import CostModel

_UNKNOWN_S = 2.0  # a reservation counts from the third second on


@dataclass(frozen=True)
class Done:
    """A drive's requests in the order of completion.

    at_s: since all jobs began. cost: in normalized operations.
    """

    at_s: Floats
    cost: Floats
    latency_ms: Floats
    bytes: int

    @classmethod
    def read(cls, log: Path, began_s: float, model: CostModel) -> Self:
        """Read fio's log. began_s: by the clock of its writer, in seconds of the epoch."""
        requests = Requests.read(log)
        return cls(
            requests.at_ms / 1000 - began_s,
            requests.costs(model.read.cost, model.write.cost),
            requests.latency_ns / 1e6,
            int(requests.size_bytes.sum()),
        )

    def rate(self, start_s: float, end_s: float) -> float:
        """Return normalized operations a second in [start, end)."""
        first, last = np.searchsorted(self.at_s, [start_s, end_s])
        return float(self.cost[first:last].sum()) / (end_s - start_s)

    def seconds(self, start_s: float, end_s: float) -> list[float]:
        """Return the rate of each whole second from start to end."""
        return [self.rate(start_s + i, start_s + i + 1) for i in range(int(end_s - start_s))]


#: A run: each drive's requests, by name.
DoneByDrive = Mapping[str, Done]


@dataclass(frozen=True)
class Run:
    """A run, and the part of the processors' time that was stolen in it."""

    done: DoneByDrive
    stolen_ratio: float


def free_rate(scenario: Scenario, runs: Sequence[Run]) -> float:
    """Return the rate of all drives together, the median over the runs."""
    begin, end = scenario.begin_s, float(scenario.seconds)
    return median(sum(one.rate(begin, end) for one in run.done.values()) for run in runs)


def figures(scenario: Scenario, run: Run, free: float) -> RunFigures:
    """Return a run's figures. free: the total with no control."""
    begin, end = scenario.begin_s, float(scenario.seconds)
    total = sum(one.rate(begin, end) for one in run.done.values())
    return RunFigures(
        total,
        total / free,
        {
            drive.name: _drive_figures(drive, run.done[drive.name], begin, end, total)
            for drive in scenario.drives
            if drive.name in run.done
        },
        run.stolen_ratio,
    )


def _drive_figures(
    drive: Drive, done: Done, begin: float, end: float, total: float
) -> DriveFigures:
    rate = done.rate(begin, end)
    latency = done.latency_ms[done.at_s >= begin]
    worst, by_second = None, None
    if reservation := drive.policy.get("reservation"):
        worst = min(done.seconds(_UNKNOWN_S, end)) / reservation
        by_second = [round(rate / reservation, 3) for rate in done.seconds(0.0, end)]
    return DriveFigures(
        rate,
        rate / total,
        done.bytes,
        float(latency.mean()) if len(latency) else None,
        float(np.percentile(latency, 99)) if len(latency) else None,
        worst,
        by_second,
    )
