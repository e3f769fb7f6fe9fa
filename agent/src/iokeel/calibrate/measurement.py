"""Measures what a storage serves at saturation: reads and writes of each size, in any order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Protocol

from iokeel.calibrate.fio import Fio, Job, Run
from iokeel.core.curve import KIB
from iokeel.core.fitting.saturation import GROWTH_RATIO, MOST_DEPTH, saturation_depth
from iokeel.core.fitting.steadiness import Steadiness, joined_windows, steadiness

# Runs that a search for saturation takes, as a guess until it is done. At the least and the largest
# size all depths are tried, which tells latency by load.
_GUESSED_FROM_ONE = {4 * KIB: 8, 1024 * KIB: 5}
_GUESSED_FROM_NEAR = 2
# How often a queue is renewed in a run.
_LEAST_TURNS = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure: sizes in KiB, seconds a run, and runs at saturation beyond the first."""

    random_kib: tuple[int, ...] = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
    sequential_kib: tuple[int, ...] = (4, 16, 64, 256, 1024)
    seconds: float = 3.0
    ramp_s: float = 0.5
    repeats: int = 2

    def jobs(self, *, write: bool) -> list[Job]:
        """Return the job of each series, at a depth of 1."""
        # What a write buffer takes at first is not what a disk can go on with.
        ramp_s = max(self.ramp_s, self.seconds / 2) if write else self.ramp_s
        return [
            Job(write, sequential, kib * KIB, 1, self.seconds, ramp_s)
            for sequential, sizes in ((False, self.random_kib), (True, self.sequential_kib))
            for kib in sizes
        ]


QUICK = Plan((4, 16, 64, 256, 1024), (4, 64, 1024), seconds=1.0, ramp_s=0.25, repeats=1)


@dataclass(frozen=True, slots=True)
class Series:
    """All runs of one kind and size.

    job: what was run, at the depth of saturation: twice that gains less than 5 %. search: one
    run for each depth tried. saturated: all runs at twice the depth of saturation, where what is
    left to gain is gained; at the depth itself where the storage does less in a deeper queue.
    """

    job: Job
    search: tuple[Run, ...]
    saturated: tuple[Run, ...]

    @property
    def latency_p99_s(self) -> float:
        """The 99th percentile of latency at the depth of saturation."""
        return next(run.latency_p99_s for run in self.search if run.job == self.job)

    @property
    def steadiness(self) -> Steadiness:
        """How its rates at saturation are spread."""
        return steadiness(
            joined_windows([run.window_iops for run in self.saturated], self.job.window_s)
        )

    @property
    def raw_iops(self) -> float:
        """The rate that can be counted on: the median run's; where there are two, the worst's."""
        rates = [run.raw_iops for run in self.saturated]
        return min(rates) if self.steadiness.modes else median(rates)

    @property
    def rates(self) -> Mapping[int, float]:
        """The rate by depth."""
        return {run.job.depth: run.raw_iops for run in self.search}

    @property
    def searched(self) -> bool:
        """Whether all depths were tried, from 1 on."""
        return _from_one(self.job)

    @property
    def unsaturated(self) -> bool:
        """Whether the deepest queue tried still gained."""
        return self.job.depth == MOST_DEPTH


class Watch(Protocol):
    """What is told while measuring goes on."""

    def running(self, job: Job, left: int) -> None:
        """Say what runs, and how many runs are left with it, as far as is known."""

    def done(self, run: Run) -> None:
        """Say what came of it."""


def measure(fio: Fio, plan: Plan, writes: bool, watch: Watch) -> list[Series]:
    """Measure reads and then, if wanted, writes.

    Raises CalibrationError where the storage fails.
    """
    wanted = [plan.jobs(write=write) for write in ((False, True) if writes else (False,))]
    measurement = _Measurement(fio, plan, watch, wanted)
    return [series for jobs in wanted for series in measurement.rounds(jobs)]


class _Measurement:
    def __init__(self, fio: Fio, plan: Plan, watch: Watch, wanted: Sequence[Sequence[Job]]) -> None:
        self._fio = fio
        self._plan = plan
        self._watch = watch
        self._left = sum(_guessed(job) + plan.repeats for jobs in wanted for job in jobs)

    def rounds(self, jobs: Sequence[Job]) -> list[Series]:
        """Find each saturation, then repeat it in rounds, so that repeats lie apart in time."""
        found: list[Series] = []
        near = 1
        for job in jobs:
            found.append(self._search(job, 1 if _from_one(job) else near))
            # A larger size needs no deeper queue, as a rule; the search goes deeper if it does.
            near = max(1, found[-1].job.depth // 2)
        for _ in range(self._plan.repeats):
            found = [
                replace(series, saturated=(*series.saturated, self._run(series.saturated[0].job)))
                for series in found
            ]
        return found

    def _search(self, job: Job, start: int) -> Series:
        runs: dict[int, Run] = {}
        after = self._left - _guessed(job)

        def rate_at(depth: int) -> float:
            # What a search takes beyond the guess is added as it comes.
            self._left = max(self._left, after + 1)
            runs[depth] = self._run(replace(job, depth=depth))
            return runs[depth].raw_iops

        most_latency_s = job.seconds / _LEAST_TURNS
        depth = saturation_depth(rate_at, start, 2 if _from_one(job) else 1, most_latency_s)
        self._left = after
        deeper = runs.get(2 * depth)
        if deeper is None or deeper.raw_iops * GROWTH_RATIO < runs[depth].raw_iops:
            deeper = runs[depth]
        return Series(replace(job, depth=depth), tuple(runs.values()), (deeper,))

    def _run(self, job: Job) -> Run:
        self._watch.running(job, self._left)
        run = self._fio.run(job)
        self._left -= 1
        self._watch.done(run)
        return run


def _from_one(job: Job) -> bool:
    """Whether all depths are tried; else the search begins where that of the size before ended."""
    return not job.sequential and job.size_bytes in _GUESSED_FROM_ONE


def _guessed(job: Job) -> int:
    """Guess the runs that a search takes."""
    return _GUESSED_FROM_ONE[job.size_bytes] if _from_one(job) else _GUESSED_FROM_NEAR
