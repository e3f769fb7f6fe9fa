"""A metric, and the run among others that it is computed from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from benchmarks.bench.records import Case, DriveRun, Plan, Run, Setup


@dataclass(frozen=True)
class Seen:
    """What a metric is computed from: a run among the others of its case.

    first_none, first_own: the runs of the scenario's first case with no control, and under the
    run's own controller.
    """

    setup: Setup
    case: Case
    run: Run
    first_none: Sequence[Run] = ()
    first_own: Sequence[Run] = ()

    def none(self, of: Callable[[Run], float | None]) -> float | None:
        """Return the median of a figure with no control."""
        return median_of([of(run) for run in self.case.runs.get("none", [])])

    def alone(self, drive: str, of: Callable[[DriveRun], float | None]) -> float | None:
        """Return the median of a figure of a drive that runs alone."""
        runs = self.case.runs.get("alone", [])
        return median_of([of(run.drives[drive]) for run in runs if drive in run.drives])

    def seconds(self, drive: str) -> list[float] | None:
        """Return a drive's rates of the measured time, second by second."""
        rates = self.run.drives[drive].by_second
        return None if rates is None else rates[round(self.setup.begin_s) :]

    def windows(self, drive: str, begin_s: float) -> list[float]:
        """Return a drive's rates in whole windows, one after the other from begin_s on."""
        rates, length = self.run.drives[drive].by_second or [], self.setup.window_s
        starts = range(round(begin_s), len(rates) - length + 1, length)
        return [fmean(rates[at : at + length]) for at in starts]


OfDrive = Callable[[Seen, Plan, str], float | None]
OfRun = Callable[[Seen], float | None]


@dataclass(frozen=True)
class Metric:
    """A figure. better: "less", "more", or "one" if the nearer to 1 the better.

    unit: "%" if it is shown as percents, "x" for a factor, or a unit of its own. may_lack: a run
    without it isn't the worse for it. windows_from_s: when the windows begin that it is the worst
    of; None: it isn't of windows. of_seconds: it is of single seconds, which say nothing of BFQ if
    its turns are stretched with the disk. never: what it says of a controller none of whose runs
    has it.
    """

    name: str
    title: str
    formula: str
    unit: str
    better: str
    of_drive: OfDrive | None = None
    of_run: OfRun | None = None
    may_lack: bool = False
    windows_from_s: Callable[[Setup], float] | None = None
    of_seconds: bool = False
    never: str = "no figure"

    def distance(self, value: float) -> float:
        """Return how bad a value is; less is better."""
        return {"less": value, "more": -value, "one": abs(value - 1)}[self.better]

    def judged(self, values: Sequence[float]) -> list[float]:
        """Return what is compared: values, or how far they are from 1 if near is better."""
        return [self.distance(one) for one in values] if self.better == "one" else [*values]

    def windows(self, setup: Setup) -> int | None:
        """Return of how many windows it is the worst; None: it isn't of windows."""
        if self.windows_from_s is None:
            return None
        return int(setup.seconds - round(self.windows_from_s(setup))) // setup.window_s


def median_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
