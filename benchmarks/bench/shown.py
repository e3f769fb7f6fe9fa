"""The metrics that a scenario's file names, and their values in its runs."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.bench.errors import BenchError
from benchmarks.bench.metric import Metric, Seen
from benchmarks.bench.metrics import METRICS
from benchmarks.bench.records import Case, Setup
from iokeel.words.quoting import did_you_mean


@dataclass(frozen=True)
class Shown:
    """A metric of a scenario, of one of its drives or of the run (drive None)."""

    metric: Metric
    drive: str | None

    @classmethod
    def of(cls, words: str) -> Shown:
        """Return the metric that a scenario's file names. Raises BenchError if there is none."""
        name, _, drive = words.partition(" ")
        if name not in METRICS:
            mend = did_you_mean(name, METRICS)
            raise BenchError(f"metric {name}", "there is none of this name", mend)
        metric = METRICS[name]
        if bool(drive) != (metric.of_drive is not None):
            mend = "name a drive after it" if not drive else "leave out the drive"
            raise BenchError(f"metric {words}", "it has a drive too many or too few", mend)
        return cls(metric, drive or None)

    @property
    def words(self) -> str:
        """How a scenario's file names it."""
        return f"{self.metric.name} {self.drive}" if self.drive else self.metric.name

    def value(self, seen: Seen) -> float | None:
        """Return the figure of a run."""
        if self.drive is None:
            assert self.metric.of_run is not None
            return self.metric.of_run(seen)
        if self.drive not in seen.run.drives:
            return None
        assert self.metric.of_drive is not None
        return self.metric.of_drive(seen, seen.case.plans[self.drive], self.drive)

    def values(self, setup: Setup, case: Case, controller: str, first: Case) -> list[float]:
        """Return the figures of all of a controller's repeats that have one."""
        nones, own = first.runs.get("none", []), first.runs.get(controller, [])
        runs = case.runs.get(controller, [])
        found = [self.value(Seen(setup, case, run, nones, own)) for run in runs]
        return [one for one in found if one is not None]

    @property
    def title(self) -> str:
        """Its words for readers."""
        return f"{self.drive}: {self.metric.title}" if self.drive else self.metric.title
