"""A scenario's result as figures: of each metric, case and controller, with its spread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, stdev

from msgspec.structs import replace

from benchmarks.bench.controllers import ALONE, CONTROLLERS, NONE, OURS, USUAL
from benchmarks.bench.metric import Metric
from benchmarks.bench.records import Case, Result, read_all
from benchmarks.bench.scenario import Suite, load, names
from benchmarks.bench.shown import Shown
from benchmarks.bench.student import noise, welch

#: With fewer, ranges that don't meet say nothing.
LEAST_REPEATS = 2
#: Means that are less apart are alike, however certain the difference is.
LEAST_RATIO = 0.02
#: Below this, in the metric's unit, a figure is nothing, and its ratio to another means nothing.
NOTHING = 0.005
#: Of a mean outside its confidence interval, and of two that chance alone has set apart.
_ODDS = 0.05


@dataclass(frozen=True)
class Spread:
    """A figure of several runs. without: how many more runs there are, which don't have it."""

    metric: Metric
    values: tuple[float, ...]
    without: int = 0

    @property
    def median(self) -> float:
        """Its median."""
        return median(self.values)

    def apart(self, other: Spread) -> bool:
        """Return whether they differ: their ranges don't meet, and their means are not noise.

        Of three repeats each, ranges don't meet by chance once in ten. So the means have to be
        further apart than noise makes in one of twenty, by Welch's test, and than LEAST_RATIO. If
        near to 1 is better, all that is of how far they are from it.
        """
        if not self.apart_in_each(other):
            return False
        mine, theirs = self.metric.judged(self.values), self.metric.judged(other.values)
        least = noise(welch(mine, theirs), _ODDS, _sample(mine), _sample(theirs))
        return abs(fmean(mine) - fmean(theirs)) > least

    def apart_in_each(self, other: Spread) -> bool:
        """Return whether they would be apart if their means were not noise."""
        mine, theirs = self.metric.judged(self.values), self.metric.judged(other.values)
        if max(mine) >= min(theirs) and max(theirs) >= min(mine):
            return False
        if min(len(mine), len(theirs)) < LEAST_REPEATS:
            return False
        return abs(apart_ratio(self.metric, self.values, other.values)) > LEAST_RATIO

    def better(self, other: Spread) -> bool:
        """Return whether it is better."""
        return self.distance < other.distance

    @property
    def distance(self) -> float:
        """How bad it is: the median of how bad its values are."""
        return median(map(self.metric.distance, self.values))

    @property
    def confidence(self) -> float:
        """Half of the 95 % confidence interval of the mean, by Student's t; inf of one run."""
        freedom = len(self.values) - 1
        return noise(freedom, _ODDS, _sample(self.values)) if freedom else math.inf

    @property
    def range(self) -> str:
        """Its median, then the least and the most."""
        low, high = min(self.values), max(self.values)
        text = shown(self.metric, self.median)
        if shown(self.metric, low) != shown(self.metric, high):
            text += f" ({shown(self.metric, low, '')} to {shown(self.metric, high, '')})"
        return text + self.missing

    def __str__(self) -> str:
        """Its range and its confidence interval, unless all values look alike."""
        if "(" not in self.range:
            return self.range
        return f"{self.range} ±{shown(self.metric, self.confidence, '')}"

    @property
    def missing(self) -> str:
        """How many runs don't have it, in words after a value."""
        runs = "run" if self.without == 1 else "runs"
        return f", {self.without} {runs} without" if self.without else ""


def _sample(values: Sequence[float]) -> tuple[float, int]:
    return stdev(values), len(values)


def apart_ratio(metric: Metric, one: Sequence[float], other: Sequence[float]) -> float:
    """Return how much greater the other's mean is, over the mean of both; 0 if both are nothing.

    If near to 1 is better: how much further from it.
    """
    means = abs(fmean(one)), abs(fmean(other))
    if max(means) < NOTHING:
        return 0.0
    difference = fmean(metric.judged(other)) - fmean(metric.judged(one))
    return difference / max(NOTHING, fmean(means))


def shown(metric: Metric, value: float, unit: str | None = None) -> str:
    """Return a value with its unit; unit "": without."""
    factor = 100 if metric.unit == "%" else 1
    value *= factor
    digits = 0 if abs(value) >= 100 or (factor == 100 and abs(value) >= 10) else 1
    text = f"{value:.{digits}f}" if abs(value) >= 10 else f"{value:.2g}"
    unit = metric.unit if unit is None else unit
    return f"{text} {unit}" if unit else text


@dataclass(frozen=True)
class Figures:
    """A scenario and its result; result None: it hasn't been run."""

    suite: Suite
    result: Result | None

    @property
    def judged(self) -> list[Shown]:
        """The metrics that a verdict goes by, the headline first."""
        return [Shown.of(words) for words in self.suite.cases[0].metrics]

    @property
    def shown(self) -> list[Shown]:
        """All its metrics, the headline first; those that are only published come last."""
        return list(dict.fromkeys([*self.judged, *self.published]))

    @property
    def published(self) -> dict[Shown, dict[str, list[float]]]:
        """The published figures: one for each case, by the metric and the control."""
        table = self.suite.published
        if table is None:
            return {}
        found = {self.judged[0]: table.values} if table.values else {}
        return found | {Shown.of(words): values for words, values in table.others.items()}

    @property
    def measured(self) -> list[Shown]:
        """The metrics that any run has, in the same order."""
        return [
            what
            for what in self.shown
            if any(
                self.spread(what, name, case) for case in self.cases for name in self.controllers
            )
        ]

    @property
    def cases(self) -> list[str]:
        """Its result's cases, whether they have runs or not; the last one is the hardest."""
        return list(self.result.cases) if self.result else []

    @property
    def controllers(self) -> list[str]:
        """The controllers that have runs, in the order in which they are shown."""
        if self.result is None:
            return []
        found = {
            name for case in self.result.cases.values() for name, runs in case.runs.items() if runs
        }
        return [name for name in CONTROLLERS if name in found]

    @property
    def ours(self) -> list[str]:
        """The controllers that are iokeel."""
        return [name for name in self.controllers if name in OURS]

    @property
    def others(self) -> list[str]:
        """The controllers that it is compared with; none if its result has a caveat."""
        if self.suite.caveat:
            return []
        left_out = (NONE, ALONE, *OURS, *self.outdated)
        found = [name for name in self.controllers if name not in left_out]
        return [name for name in found if not name.startswith("paced")]

    @property
    def outdated(self) -> list[str]:
        """The controllers whose rule has changed since they ran."""
        cases = self.result.cases.values() if self.result else ()
        return [
            name
            for name in self.controllers
            if any(case.rules(name) - {CONTROLLERS[name].rule} for case in cases)
        ]

    @property
    def not_run(self) -> list[str]:
        """The usual controllers that could run it, but have no runs, nor a reason why."""
        if self.result is None:
            return []
        first, allowed = self.suite.cases[0], self.suite.controllers or USUAL
        known = {*self.controllers, *self.result.lacking}
        left = [name for name in USUAL if name in allowed and name not in known]
        return [name for name in left if CONTROLLERS[name].unfit(first) is None]

    def spread(self, what: Shown, controller: str, case: str | None = None) -> Spread | None:
        """Return a figure. case: None for the last one, which is the hardest."""
        if not self.cases:
            return None
        if controller == ALONE and what.drive is None:
            return None  # a run of some drives only
        values = self._values(what, controller, case)
        return Spread(what.metric, values, self.without(what, controller, case)) if values else None

    def without(self, what: Shown, controller: str, case: str | None = None) -> int:
        """Return how many runs don't have a figure. case: as of `spread`."""
        runs = self._case(case).runs.get(controller, [])
        return len(runs) - len(self._values(what, controller, case))

    def _values(self, what: Shown, controller: str, case: str | None) -> tuple[float, ...]:
        assert self.result is not None
        if what.metric.of_seconds and "bfq" in controller and self.result.setup.slowdown > 1:
            return ()
        first = self._case(self.cases[0])
        return tuple(what.values(self.result.setup, self._case(case), controller, first))

    def _case(self, name: str | None) -> Case:
        """Return a case, with the runs alone of all cases in which it is the same drives' load."""
        assert self.result is not None
        name = self.cases[-1] if name is None else name
        case = self.result.cases[name]
        alone = {one.case: [d for d in one.drives if d.alone] for one in self.suite.cases}
        found = [
            run
            for each, other in self.result.cases.items()
            if alone.get(each) == alone.get(name)
            for run in other.runs.get(ALONE, [])
        ]
        return replace(case, runs={**case.runs, ALONE: found})

    def best(self, controllers: Sequence[str], case: str | None = None) -> str | None:
        """Return the controller with the best headline. case: as of `spread`."""
        headline = self.shown[0]
        found = {
            name: spread
            for name in controllers
            if (spread := self.spread(headline, name, case)) is not None
        }
        if not found:
            return None
        return min(found, key=lambda name: found[name].distance)


def all_figures(folder: Path) -> list[Figures]:
    """Return all scenarios with a folder's results."""
    results = read_all(folder)
    return [Figures(load(name), results.get(name)) for name in names()]
