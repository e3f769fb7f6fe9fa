"""Runs scenarios under controllers, in turn and several times, and keeps each run at once.

A run that the result file has already is not done again, so an interrupted command that is given
again goes on where it was.
"""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import median

import msgspec

from benchmarks import result_file
from benchmarks.bench.controllers import ALONE, NONE
from benchmarks.bench.controllers.controller import Controller
from benchmarks.bench.errors import BenchError
from benchmarks.bench.metrics import total
from benchmarks.bench.records import (
    VERSION,
    Case,
    Plan,
    Result,
    Run,
    Setup,
    daemon_name,
    daemon_of,
    kept,
    path_of,
    read,
    write,
)
from benchmarks.bench.running.checks import check_room
from benchmarks.bench.running.one_run import run_quietly
from benchmarks.bench.scenario import Drive, Scenario, Suite
from iokeel.words.units import duration
from testing.hypervisors.qmp_client import QmpError
from testing.lab.guests.qga import AgentError

#: What a run takes beside its scenario's time: exports, and guests that boot.
_STAGE_S, _GUEST_S = 3.0, 14.0

#: What has to be as it was if runs are added to a file.
_NAMES = {
    "digest": "state of the scenario",
    "device": "device",
    "shortened": "length",
    "revision": "revision",
    "cpu": "processor",
    "kernel": "kernel",
    "programs": "fio or qemu-storage-daemon",
}

Say = Callable[[str], None]
#: What a run may fail by, without any fault of the others'.
_FAILURES = (
    *(AgentError, AssertionError, OSError, QmpError, RuntimeError, ValueError),
    *(subprocess.CalledProcessError, subprocess.TimeoutExpired),
)


@dataclass(frozen=True)
class Job:
    """One run that is to be done. controller: None for drives alone."""

    suite: Suite
    scenario: Scenario
    controller: Controller | None
    repeat: int

    @property
    def name(self) -> str:
        """The controller's name, or that of running alone."""
        return self.controller.name if self.controller else ALONE

    @property
    def length_s(self) -> float:
        """About how long it takes."""
        guests = sum(drive.guest for drive in self.scenario.drives)
        return self.scenario.seconds + _STAGE_S + _GUEST_S * bool(guests) + 4.0 * guests


@dataclass
class Runner:
    """Runs scenarios into result files.

    suites: shortened by `shortened` already. folder: of the result files. daemon: the
    qemu-storage-daemon to use. fresh: remove these files first.
    """

    suites: Sequence[Suite]
    controllers: Sequence[Controller]
    repeats: int
    folder: Path
    daemon: Path
    say: Say
    shortened: float = 1.0
    fresh: bool = False

    def run(self) -> list[str]:
        """Do all runs; return what failed, and why. Raises BenchError if no other can be done."""
        failed = []
        if self.fresh:
            for suite in self.suites:
                path_of(self.folder, suite.name).unlink(missing_ok=True)
        results = {suite.name: self._begin(suite) for suite in self.suites}
        jobs = [job for suite in self.suites for job in self._jobs(suite)]
        left = [job for job in jobs if not self._has(results[job.suite.name], job)]
        if len(left) < len(jobs):
            self.say(f"{len(jobs) - len(left)} of {len(jobs)} runs are there already")
        spent_s = planned_s = 0.0
        for i, job in enumerate(left):
            rest_s = sum(each.length_s for each in left[i:]) * (
                spent_s / planned_s if planned_s else 1.0
            )
            case = f" {job.scenario.case}" if job.scenario.case else ""
            self.say(
                f"[{i + 1}/{len(left)}] {job.suite.name}{case}, {job.name}, "
                f"{job.repeat + 1} of {self.repeats}; {duration(rest_s)} left"
            )
            check_room(self.folder)
            result = results[job.suite.name]
            if not any(chain.from_iterable(case.runs.values() for case in result.cases.values())):
                setup = msgspec.structs.replace(result.setup, load_before=os.getloadavg()[0])
                result = results[job.suite.name] = msgspec.structs.replace(result, setup=setup)
            begun_s = time.monotonic()
            try:
                run = self._one(job, result)
            except _FAILURES as error:
                failed.append(f"{job.suite.name}{case}, {job.name}: {error}")
                self.say(f"failed: {error}")
                continue
            result.cases[job.scenario.case].runs[job.name].append(run)
            write(path_of(self.folder, job.suite.name), result)
            spent_s += time.monotonic() - begun_s
            planned_s += job.length_s
        for name, result in results.items():
            write(path_of(self.folder, name), result)
        return failed

    def _one(self, job: Job, result: Result) -> Run:
        runs = result.cases[job.scenario.case].runs
        scenario = replace(job.scenario, repeat=len(runs[job.name]))
        if job.controller is not None:
            nones = runs.get(NONE, [])
            free = median(total(run) for run in nones) if nones else None
            scenario = job.controller.scenario(scenario, free)
        return run_quietly(scenario, job.controller, self.daemon)

    def _jobs(self, suite: Suite) -> Iterator[Job]:
        """Yield all runs of a scenario: each repeat has all controllers in turn."""
        for repeat in range(self.repeats):
            for scenario in suite.cases:
                for controller in self._able(suite):
                    yield Job(suite, scenario, controller, repeat)
                if alone := tuple(drive for drive in scenario.drives if drive.alone):
                    yield Job(suite, scenario.only(alone), None, repeat)

    def _able(self, suite: Suite) -> list[Controller]:
        return [each for each in self._wanted(suite) if each.lacks(suite.cases[0]) is None]

    def _wanted(self, suite: Suite) -> list[Controller]:
        allowed = suite.controllers or [each.name for each in self.controllers]
        wanted = [each for each in self.controllers if each.name in allowed]
        return [each for each in wanted if each.is_for(suite.cases[0])]

    @staticmethod
    def _has(result: Result, job: Job) -> bool:
        return len(result.cases[job.scenario.case].runs.get(job.name, [])) > job.repeat

    def _begin(self, suite: Suite) -> Result:
        """Return the result so far, with a list for each controller."""
        path = path_of(self.folder, suite.name)
        first = suite.cases[0]
        lacking = {
            each.name: why for each in self._wanted(suite) if (why := each.lacks(first)) is not None
        }
        setup = Setup(
            suite.name,
            first.device,
            first.slowdown,
            first.seconds,
            first.begin_s,
            self.shortened,
            first.digest,
            result_file.Machine.this(),
            result_file.cpu_model(),
            platform.release(),
            result_file.revision(),
            {
                "fio": result_file.version("fio"),
                daemon_name(self.daemon): result_file.version(self.daemon),
            },
            own_seeds=True,
        )
        cases = {
            scenario.case: Case(
                {drive.name: plan(scenario, drive) for drive in scenario.drives}, {}
            )
            for scenario in suite.cases
        }
        if path.exists():
            before = read(path)
            differ = [
                name
                for what, name in _NAMES.items()
                if getattr(before.setup, what) != getattr(setup, what)
            ]
            if not differ and _plans(before.cases) != _plans(cases):
                differ = ["calibration"]
            if differ:
                mend = "give --fresh to begin anew, or --results with another folder"
                theirs = daemon_of(before.setup)
                if differ == [_NAMES["programs"]] and theirs not in (None, self.daemon):
                    mend = f"give --daemon {theirs} to add to them; else {mend}"
                raise BenchError(str(path), f"its runs are of another {differ[0]}", mend)
            setup, cases = before.setup, before.cases
            able = {each.name for each in self._able(suite)}
            had = {name: why for name, why in before.lacking.items() if name not in able}
            lacking = {**had, **lacking}
        result = Result(VERSION, setup, cases, lacking)
        for job in self._jobs(suite):
            result.cases[job.scenario.case].runs.setdefault(job.name, [])
        return result


def _plans(cases: Mapping[str, Case]) -> object:
    return kept({name: case.plans for name, case in cases.items()})


def plan(scenario: Scenario, drive: Drive) -> Plan:
    """Return what a drive is promised, and when its load changes."""
    starts = {each.start_s for each in drive.streams}
    ends = {each.end_s for each in drive.streams if each.end_s is not None}
    shifts = sorted(at for at in starts | ends if at < scenario.seconds)
    reservation = drive.policy.get("reservation")
    return Plan(
        scenario.owed(drive),
        drive.weight,
        None if reservation is None else float(reservation),
        shifts if len(shifts) > 1 else [],
        drive.file_bytes,
        drive.credit_s,
        min(starts),
    )
