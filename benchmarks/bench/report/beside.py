"""Figures in virtual time, beside those of real runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from benchmarks.bench.controllers import ALONE, CONTROLLERS, NONE, OURS, title
from benchmarks.bench.report.figures import LEAST_RATIO, Figures, Spread, apart_ratio, shown
from benchmarks.bench.shown import Shown
from benchmarks.bench.virtual import result as virtual_result
from benchmarks.bench.virtual.controllers import VIRTUAL

#: After a figure whose virtual and real values don't meet.
APART = "≠"


@dataclass(frozen=True)
class Beside:
    """One figure both ways. real: None if there is no real run."""

    case: str
    controller: str
    figure: str
    virtual: Spread
    real: Spread | None

    @property
    def apart(self) -> bool:
        """Whether the two differ by more than their repeats do."""
        if self.real is None:
            return False
        metric, one, other = self.virtual.metric, self.virtual.values, self.real.values
        meet = min(one) <= max(other) and min(other) <= max(one)
        return not meet and abs(apart_ratio(metric, one, other)) > LEAST_RATIO

    def __str__(self) -> str:
        """The virtual figure, then the real one's median."""
        if self.real is None:
            return self.virtual.range
        real = shown(self.virtual.metric, self.real.median)
        return f"{self.virtual.range}; real {real}{f' {APART}' * self.apart}"


@dataclass(frozen=True)
class Both:
    """A scenario's figures of real runs, and by case and controller those of virtual time, if any.

    Those of virtual time are left out if they are of another state of the scenario.
    """

    real: Figures
    virtual: Mapping[str, virtual_result.Figures] = field(default_factory=dict)

    @classmethod
    def of(cls, real: Figures, virtual: virtual_result.VirtualResult | None) -> Both:
        """Return both."""
        found = virtual.scenarios.get(real.suite.name) if virtual else None
        digest = real.result.setup.digest if real.result else real.suite.cases[0].digest
        return cls(real, found.cases if found and found.digest == digest else {})

    @property
    def best_other(self) -> str | None:
        """The other controller with the best headline; of virtual time only without real runs."""
        if self.real.result:
            return self.real.best(self.real.others)
        names = self.virtual.get(self.real.suite.cases[-1].case, {})
        others = [name for name in names if name in CONTROLLERS and name not in (NONE, *OURS)]
        found = {name: one for name in others if (one := self._headline(name))}
        return min(found, key=lambda name: found[name].distance, default=None)

    def median(self, controller: str) -> str:
        """Return the headline, of virtual time without a real run; "" if neither has it."""
        headline = self.real.shown[0]
        real = self.real.spread(headline, controller)
        if one := real or self._headline(controller):
            return shown(headline.metric, one.median) + " (virtual)" * (not real)
        return ""

    def _headline(self, controller: str) -> Spread | None:
        return self._computed(self.real.suite.cases[-1].case, controller, self.real.shown[0])

    def _computed(self, case: str, controller: str, what: Shown) -> Spread | None:
        found = self.virtual.get(case, {}).get(controller, {}).get(what.words)
        if found is None or not found.values:
            return None
        return Spread(what.metric, tuple(found.values), found.without)

    def each(self) -> Iterator[Beside]:
        """Yield all figures that were computed, with the real ones."""
        for case, by_controller in self.virtual.items():
            for controller in by_controller:
                for what in self.real.judged:
                    if computed := self._computed(case, controller, what):
                        there = case in self.real.cases
                        real = self.real.spread(what, controller, case) if there else None
                        yield Beside(case, controller, what.title, computed, real)

    def table(self) -> tuple[list[str], list[list[str]]] | None:
        """Return a table's header and rows: a row for each case and controller, if there is any."""
        cells = {(one.case, one.controller, one.figure): str(one) for one in self.each()}
        heads = list(dict.fromkeys(figure for _, _, figure in cells))
        many = len(self.virtual) > 1
        rows = [
            [
                *[case] * many,
                name_of(controller),
                *(cells.get((case, controller, head), "") for head in heads),
            ]
            for case, by_controller in self.virtual.items()
            for controller in by_controller
        ]
        return ([*["case"] * many, "controller", *heads], rows) if rows else None


def name_of(controller: str) -> str:
    """Return a controller's name for readers."""
    if controller == ALONE:
        return ALONE
    return VIRTUAL[controller].title if controller in VIRTUAL else title(controller)
