"""Figures in virtual time, beside those of real runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.bench.controllers import ALONE, title
from benchmarks.bench.report.figures import LEAST_RATIO, Figures, Spread, apart_ratio, shown
from benchmarks.bench.virtual.controllers import VIRTUAL
from benchmarks.bench.virtual.result import ScenarioFigures, Values

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


def beside(figures: Figures, virtual: ScenarioFigures) -> Iterator[Beside]:
    """Yield all figures that were computed, with the real ones of the same scenario."""
    same = figures.result is not None and figures.result.setup.digest == virtual.digest
    for case, by_controller in virtual.cases.items():
        for controller, found in by_controller.items():
            for what in figures.judged:
                values = found.get(what.words, Values([]))
                if not values.values:
                    continue
                there = same and figures.result is not None and case in figures.result.cases
                real = figures.spread(what, controller, case) if there else None
                one = Spread(what.metric, tuple(values.values), values.without)
                yield Beside(case, controller, what.title, one, real)


def table(figures: Figures, virtual: ScenarioFigures) -> tuple[list[str], list[list[str]]]:
    """Return a table's header and rows: a row for each case and controller."""
    cells = {(one.case, one.controller, one.figure): str(one) for one in beside(figures, virtual)}
    heads = list(dict.fromkeys(figure for _, _, figure in cells))
    many = len(virtual.cases) > 1
    rows = [
        [
            *[case] * many,
            name_of(controller),
            *(cells.get((case, controller, h), "") for h in heads),
        ]
        for case, by_controller in virtual.cases.items()
        for controller in by_controller
    ]
    return [*["case"] * many, "controller", *heads], rows


def name_of(controller: str) -> str:
    """Return a controller's name for readers."""
    if controller == ALONE:
        return ALONE
    return VIRTUAL[controller].title if controller in VIRTUAL else title(controller)
