"""Which controllers hadn't settled when a run ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, median

from benchmarks.bench.controllers import title
from benchmarks.bench.records import Case, Run, Setup
from benchmarks.bench.report.figures import Figures

#: All drives' rate in the last quarter of the measured time, over that in the quarter before.
_STILL_RATIO = 0.1
#: How long a quarter must be; with BFQ, as long as a window, because its turns are stretched.
_LEAST_S = 4


def moving(figures: Figures) -> list[str]:
    """Return the controllers whose rate still moved at the end, in all repeats in one direction.

    Left out: cases whose load changes meanwhile, or ends.
    """
    return [f"{where} ({ratio:+.0%})" for where, ratio in _all(figures)]


def _all(figures: Figures) -> Iterator[tuple[str, float]]:
    assert figures.result is not None
    for name, case in figures.result.cases.items():
        if _changes(case, figures.result.setup):
            continue
        for controller in figures.controllers:
            setup = figures.result.setup
            least_s = max(_LEAST_S, setup.window_s) if "bfq" in controller else _LEAST_S
            ratios = [_moved(run, setup.begin_s, least_s) for run in case.runs.get(controller, [])]
            known = [ratio for ratio in ratios if ratio is not None]
            if known and (min(known) > _STILL_RATIO or max(known) < -_STILL_RATIO):
                yield f"{name} {title(controller)}".strip(), median(known)


def _changes(case: Case, setup: Setup) -> bool:
    """Return whether drives' loads begin, shift or end in the measured time."""
    plans = case.plans.values()
    runs = [run for found in case.runs.values() for run in found]
    ends = any(one.finished_s for run in runs for one in run.drives.values())
    return ends or any(plan.shifts_s or plan.from_s > setup.begin_s for plan in plans)


def _moved(run: Run, begin_s: float, least_s: int) -> float | None:
    """Return by how much the last quarter is above the one before, as a ratio; None: not known."""
    drives = [one.by_second for one in run.drives.values()]
    known: list[Sequence[float]] = [rates for rates in drives if rates is not None]
    if len(known) < len(drives):
        return None
    rates = [sum(second) for second in zip(*known, strict=True)][round(begin_s) :]
    quarter = len(rates) // 4
    if quarter < least_s or not sum(rates[-2 * quarter : -quarter]):
        return None
    return fmean(rates[-quarter:]) / fmean(rates[-2 * quarter : -quarter]) - 1
