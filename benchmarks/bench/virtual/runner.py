"""Runs scenarios under controllers in virtual time, with many seeds, on all processors."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing import Pool

from benchmarks import result_file
from benchmarks.bench.controllers import ALONE, NONE
from benchmarks.bench.records import VERSION, Case, Result, Run, Setup
from benchmarks.bench.report.figures import Figures
from benchmarks.bench.running.runner import plan
from benchmarks.bench.scenario import Scenario, Suite, load
from benchmarks.bench.virtual.controllers import VIRTUAL, Virtual
from benchmarks.bench.virtual.one_run import alone, run
from benchmarks.bench.virtual.result import ScenarioFigures, Values, VirtualResult, model

SEEDS = 10


@dataclass(frozen=True)
class _Job:
    """A case's runs under a controller: a run for each seed. Drives that run alone have none."""

    suite: str
    case: int
    controller: str
    seeds: int


def is_virtual(suite: Suite) -> bool:
    """Return whether virtual time can run a scenario: it has no kernel and its schedulers."""
    return not suite.cases[0].booted


def measure(
    suites: Sequence[Suite],
    controllers: Sequence[Virtual],
    seeds: int,
    say: Callable[[str], None] = lambda text: None,
) -> VirtualResult:
    """Run all cases of scenarios under controllers, and return all figures."""
    suites = [suite.settled for suite in suites]
    jobs = [
        _Job(suite.name, i, name, seeds)
        for suite in suites
        for i, scenario in enumerate(suite.cases)
        for name in _names(suite, scenario, controllers)
    ]
    runs: dict[_Job, list[Run]] = {}
    with Pool(initializer=_end_quietly) as pool:  # whatever ends the block ends the workers
        for job, found in zip(jobs, pool.imap(_runs, jobs), strict=True):
            runs[job] = found
            if len(runs) % 50 == 0:
                say(f"{len(runs)} of {len(jobs)} done")
    figures = {suite.name: _figures(suite, runs) for suite in suites}
    return VirtualResult(model(), seeds, result_file.revision(), figures)


def _end_quietly() -> None:
    """Leave it to the command to say that it was interrupted."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _names(suite: Suite, scenario: Scenario, controllers: Sequence[Virtual]) -> list[str]:
    """Return the controllers of a case, and the name of running alone if drives do."""
    allowed = suite.controllers
    names = [
        each.name
        for each in controllers
        if each.is_for(scenario) and (not allowed or each.real is None or each.name in allowed)
    ]
    return [*names, ALONE] if alone(scenario) else names


@cache
def _suite(name: str) -> Suite:
    return load(name).settled


def _runs(job: _Job) -> list[Run]:
    scenario, controller = _suite(job.suite).cases[job.case], VIRTUAL.get(job.controller)
    if controller is None:
        scenario, controller = scenario.only(alone(scenario)), VIRTUAL[NONE]
    return [run(scenario, controller, seed) for seed in range(job.seeds)]


def _figures(suite: Suite, runs: dict[_Job, list[Run]]) -> ScenarioFigures:
    first = suite.cases[0]
    setup = Setup(
        suite.name, first.device, first.slowdown, first.seconds, first.begin_s, own_seeds=True
    )
    cases = {}
    for i, scenario in enumerate(suite.cases):
        plans = {drive.name: plan(scenario, drive) for drive in scenario.drives}
        own = {
            job.controller: found
            for job, found in runs.items()
            if (job.suite, job.case) == (suite.name, i)
        }
        cases[scenario.case] = Case(plans, own)
    all_of = Figures(suite, Result(VERSION, setup, cases))
    return ScenarioFigures(
        first.digest,
        {
            name: {
                controller: {
                    what.words: Values([*spread.values], spread.without)
                    for what in all_of.judged
                    if (spread := all_of.spread(what, controller, name)) is not None
                }
                for controller in case.runs
            }
            for name, case in cases.items()
        },
        suite.settle_s,
    )
