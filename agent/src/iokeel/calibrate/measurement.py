"""Measures a storage at saturation: reads and writes of each size, random and sequential."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Protocol

from iokeel.calibrate.fio import Job, JobResult
from iokeel.core.fitting import (
    GROWTH_RATIO,
    Steadiness,
    joined_windows,
    saturation_depth,
    steadiness,
)
from iokeel.core.values.curve import KIB

# The runs that a search for saturation is expected to take. Random requests of these two sizes are
# searched from depth 1, because latency at load is estimated from the rates at all depths.
_EXPECTED_FROM_ONE = {4 * KIB: 8, 1024 * KIB: 5}
# Other searches begin near the depth of the size before.
_EXPECTED_FROM_NEAR = 2
# A median of fewer runs than this is no more than their mean.
_LEAST_MEDIAN_RUNS = 3
# How often the queue must turn over in a run, at the least.
_LEAST_TURNS = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """The jobs of a calibration.

    random_kib, sequential_kib: request sizes in KiB. seconds, ramp_s: of each run. repeats: runs at
    saturation beyond the first.
    """

    random_kib: tuple[int, ...] = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
    sequential_kib: tuple[int, ...] = (4, 16, 64, 256, 1024)
    seconds: float = 3.0
    ramp_s: float = 0.5
    repeats: int = 2

    def jobs(self, *, write: bool) -> list[Job]:
        """Return the job of each series, at a depth of 1."""
        # A write buffer takes the first writes faster than the disk can go on with.
        ramp_s = max(self.ramp_s, self.seconds / 2) if write else self.ramp_s
        return [
            Job(write, sequential, kib * KIB, 1, self.seconds, ramp_s)
            for sequential, sizes in ((False, self.random_kib), (True, self.sequential_kib))
            for kib in sizes
        ]


QUICK = Plan((4, 16, 64, 256, 1024), (4, 64, 1024), seconds=1.0, ramp_s=0.25, repeats=1)


@dataclass(frozen=True, slots=True)
class Series:
    """All runs of one direction, order and size.

    job: at the depth of saturation, beyond which twice the depth gains less than 5 %. search: one
    run for each depth tried. saturated: all runs at twice the depth of saturation, which gains the
    last few percent; at the depth itself if the storage is slower in a deeper queue.
    """

    job: Job
    search: tuple[JobResult, ...]
    saturated: tuple[JobResult, ...]

    @property
    def latency_p99_s(self) -> float:
        """The 99th percentile of latency at the depth of saturation."""
        return next(run.latency_p99_s for run in self.search if run.job == self.job)

    @property
    def steadiness(self) -> Steadiness:
        """How the rates at saturation are spread."""
        windows = [run.window_iops for run in self.saturated]
        return steadiness(joined_windows(windows, self.job.window_s))

    @property
    def slowest_counts(self) -> bool:
        """Whether the slowest run's rate is the one to count on: there are two modes, or may be."""
        spread = self.steadiness
        few = len(self.saturated) < _LEAST_MEDIAN_RUNS
        return spread.modes is not None or (few and not spread.steady)

    @property
    def raw_iops(self) -> float:
        """The rate to count on: the median run's, or the slowest run's."""
        rates = [run.raw_iops for run in self.saturated]
        return min(rates) if self.slowest_counts else median(rates)

    @property
    def rates(self) -> Mapping[int, float]:
        """The rate by depth, lowered as far as the slowest run if that one counts.

        The search may have met only the faster of two modes.
        """
        found = {run.job.depth: run.raw_iops for run in self.search}
        first = self.saturated[0]
        factor = self.raw_iops / first.raw_iops if self.slowest_counts else 1.0
        return {depth: factor * rate for depth, rate in found.items()}

    @property
    def searched_from_one(self) -> bool:
        """Whether all depths were tried, from 1 on."""
        return _from_one(self.job)

    @property
    def unsaturated(self) -> bool:
        """Whether the deepest queue tried still gained: its run was the last of several."""
        return len(self.search) > 1 and self.search[-1].job == self.job


class Runs(Protocol):
    """Runs jobs on a storage, as fio does (fio.py)."""

    def run(self, job: Job) -> JobResult:
        """Run a job to its end. Raises CalibrationError if the storage fails."""


class Progress(Protocol):
    """Told how a measurement goes on."""

    def run_started(self, job: Job, runs_left: int) -> None:
        """Called before a run. runs_left: an estimate, with this run."""

    def run_finished(self, result: JobResult) -> None:
        """Called after a run."""


def measure(
    fio: Runs,
    plan: Plan,
    writes: bool,
    progress: Progress,
    before_writes: Callable[[], None] = lambda: None,
) -> list[Series]:
    """Measure reads and then, if `writes`, writes.

    before_writes: called between the two, which are minutes apart. Raises CalibrationError if fio
    or the storage fails.
    """
    rounds = [plan.jobs(write=write) for write in ((False, True) if writes else (False,))]
    measurement = _Measurement(fio, plan, progress, rounds)
    found: list[Series] = []
    for jobs in rounds:
        if jobs[0].write:
            before_writes()
        found += measurement.all_series(jobs)
    return found


class _Measurement:
    def __init__(
        self, fio: Runs, plan: Plan, progress: Progress, rounds: Sequence[Sequence[Job]]
    ) -> None:
        self._fio = fio
        self._plan = plan
        self._progress = progress
        self._runs_left = sum(_expected_runs(job) + plan.repeats for jobs in rounds for job in jobs)

    def all_series(self, jobs: Sequence[Job]) -> list[Series]:
        """Find each job's saturation, then repeat all in rounds, so that repeats lie apart."""
        found: list[Series] = []
        near = 1
        for job in jobs:
            found.append(self._search(job, 1 if _from_one(job) else near))
            # As a rule a larger size needs no deeper queue. If it does, the search goes deeper.
            near = max(1, found[-1].job.depth // 2)
        for _ in range(self._plan.repeats):
            found = [
                replace(series, saturated=(*series.saturated, self._run(series.saturated[0].job)))
                for series in found
            ]
        return found

    def _search(self, job: Job, start: int) -> Series:
        runs: dict[int, JobResult] = {}
        left_after = self._runs_left - _expected_runs(job)

        def rate_at(depth: int) -> float:
            # If a search takes longer than expected, it counts as one run from its end.
            self._runs_left = max(self._runs_left, left_after + 1)
            runs[depth] = self._run(replace(job, depth=depth))
            return runs[depth].raw_iops

        patience = 2 if _from_one(job) else 1
        most_latency_s = job.seconds / _LEAST_TURNS
        depth = saturation_depth(rate_at, start, patience, most_latency_s)
        self._runs_left = left_after
        deeper = runs.get(2 * depth)
        if deeper is None or deeper.raw_iops * GROWTH_RATIO < runs[depth].raw_iops:
            deeper = runs[depth]
        return Series(replace(job, depth=depth), tuple(runs.values()), (deeper,))

    def _run(self, job: Job) -> JobResult:
        self._progress.run_started(job, self._runs_left)
        result = self._fio.run(job)
        self._runs_left -= 1
        self._progress.run_finished(result)
        return result


def _from_one(job: Job) -> bool:
    """Whether a search tries all depths; else it begins near the depth of the size before."""
    return not job.sequential and job.size_bytes in _EXPECTED_FROM_ONE


def _expected_runs(job: Job) -> int:
    """Return the number of runs that a search is expected to take."""
    return _EXPECTED_FROM_ONE[job.size_bytes] if _from_one(job) else _EXPECTED_FROM_NEAR
