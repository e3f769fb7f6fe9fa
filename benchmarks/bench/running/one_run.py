"""One run of a scenario: the stage, a controller, and all drives' jobs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from benchmarks import result_file
from benchmarks.bench.controllers.controller import Controller
from benchmarks.bench.records import DriveRun, Run, daemon_name
from benchmarks.bench.running.booted_host import entering
from benchmarks.bench.running.requests import Done, drive_run
from benchmarks.bench.running.stage import Stage, stage
from benchmarks.bench.scenario import Drive, Scenario, Stream
from benchmarks.fio_log import EVERY_REQUEST
from testing.lab.fio import Job
from testing.lab.processors import Processors

TRIES = 3
_LATE_S = 120  # what fio may take longer than its jobs do


def run_quietly(scenario: Scenario, controller: Controller | None, daemon: Path) -> Run:
    """Run all drives' jobs, again if much was stolen: TRIES times at most. Return the best run.

    controller: None for drives alone.
    """
    tries: list[Run] = []
    while len(tries) < TRIES and not (tries and not tries[-1].disturbed):
        tries.append(run(scenario, controller, daemon))
    return min(tries, key=lambda one: one.stolen_ratio or 0.0)


def run(scenario: Scenario, controller: Controller | None, daemon: Path) -> Run:
    """Run all drives' jobs under a controller; None: under none."""
    before = Processors.now()
    exact = controller is not None and controller.exact
    with stage(scenario, daemon, exact=exact) as set_up:
        with controller.hold(set_up) if controller else nullcontext() as held:
            begun_s = held.cpu_s() if held else None
            drives = _run_jobs(set_up)
            ended_s = held.cpu_s() if held else None
    return Run(
        drives,
        Processors.now().stolen_ratio(before),
        None if begun_s is None or ended_s is None else ended_s - begun_s,
        daemon_name(daemon),
        result_file.now(),
        controller.rule if controller else 1,
    )


def _run_jobs(on: Stage) -> dict[str, DriveRun]:
    """Run all jobs at once, and return each drive's figures.

    A run begins with the first completion of any drive: fio takes a while to start in a guest.
    """
    scenario = on.scenario
    text, exports = _export_jobs(on)
    drives = {drive.name: drive for drive in scenario.drives}
    inside = [(vm, [drives[name]]) for name, vm in on.guests.items()]
    if on.booted is not None:
        inside.append((on.booted, list(scenario.drives)))
    for vm, own in inside:
        vm.write("/tmp/job.fio", _guest_jobs(on, own).encode())
    ahead_s = [vm.clock_offset().seconds for vm, _ in inside]
    fio = "cd /tmp && fio --output=fio.json --output-format=json job.fio"
    programs = [vm.start_program(fio) for vm, _ in inside]
    done, sys_s = {}, {}
    if exports:
        (on.folder / "jobs.fio").write_text(text)
        report = _fio(on.folder, scenario.seconds + _LATE_S)
        for drive in exports:
            logs = sorted(on.folder.glob(f"{drive.name}-*_lat.*.log"))
            done[drive.name] = Done.read(drive.name, logs, scenario.model)
            sys_s[drive.name] = fio_sys_s(report, drive)
    for (vm, own), program, ahead in zip(inside, programs, ahead_s, strict=True):
        ended = vm.wait(program, timeout=scenario.seconds + _LATE_S)
        if ended.status != 0:
            raise RuntimeError(f"{vm.name}: fio failed: {ended.stderr.decode().strip()}")
        report = json.loads(vm.read("/tmp/fio.json"))["jobs"]
        for drive in own:
            logs = []
            for path in vm.exec(f"ls /tmp/{drive.name}-*_lat.*.log").stdout.decode().split():
                logs.append(on.folder / Path(path).name)
                logs[-1].write_bytes(vm.read(path))
            done[drive.name] = Done.read(drive.name, logs, scenario.model, ahead)
            sys_s[drive.name] = fio_sys_s(report, drive)
    began_s = min(float(one.at_s[0]) for one in done.values())
    return {
        name: drive_run(scenario, drive, done[name], began_s, sys_s[name])
        for name, drive in drives.items()
    }


def _fio(folder: Path, timeout_s: float) -> list[Mapping[str, object]]:
    """Run jobs.fio in a folder, and return fio's report of each job."""
    words = ["fio", "--output=fio.json", "--output-format=json", "jobs.fio"]
    done = subprocess.run(words, cwd=folder, timeout=timeout_s, capture_output=True, text=True)
    said = (folder / "fio.json").read_text() if (folder / "fio.json").exists() else ""
    if done.returncode:
        first, *more = (done.stderr or said).strip().splitlines() or ["it said nothing"]
        rest = f" (and {len(more)} lines more)" if more else ""
        raise RuntimeError(f"fio failed: {first[:500]}{rest}")
    jobs: list[Mapping[str, object]] = json.loads(said[said.index("{") :])["jobs"]
    return jobs


def fio_sys_s(report: Sequence[Mapping[str, object]], drive: Drive) -> float:
    """Return the processor time in the kernel of a drive's jobs; fio tells it as % of theirs."""
    return sum(
        float(str(job["sys_cpu"])) / 100 * float(str(job["job_runtime"])) / 1000
        for job in report
        if str(job["jobname"]).startswith(f"{drive.name}-")
    )


def _export_jobs(on: Stage) -> tuple[str, list[Drive]]:
    """Return fio's job file for all exports, and their drives."""
    # Threads end with fio, whatever ends it. Its processes don't: each has a session of its own.
    sections: dict[str, Job] = {"global": {"ioengine": "nbd", "thread": 1, **_COMMON}}
    for drive, number in on.exports:
        place = {"uri": on.disk.uri(number), "size": on.disk.drive_bytes, **_seed(on, number)}
        for stream in drive.streams:
            name = f"{drive.name}-{stream.name}"
            log = {"write_lat_log": on.folder / name}
            sections[name] = {**place, **_times(on.scenario, stream), **log, **stream.job}
    return _text(sections), [drive for drive, _ in on.exports]


def _guest_jobs(on: Stage, drives: Sequence[Drive]) -> str:
    """Return fio's job file for a guest with one drive, or for the booted host with all of them.

    There each has its part of the one disk. One that runs alone, too, has all of it, alone and
    beside the others, as the guest of the pair's scenario has.
    """
    engine = {"ioengine": "libaio", "direct": 1, "filename": "/dev/vda"}
    sections: dict[str, Job] = {"global": {**engine, **_COMMON}}
    part = on.disk.drive_bytes // len(on.scenario.drives) >> 20 << 20
    for number, drive in enumerate(drives):
        own = _seed(on, number)
        if on.booted is not None:
            place = {} if drive.alone else {"offset": number * part, "size": part}
            own = {**own, **place, **entering(drive.name)}
        for stream in drive.streams:
            name = f"{drive.name}-{stream.name}"
            log = {"write_lat_log": f"/tmp/{name}"}
            sections[name] = {**own, **_times(on.scenario, stream), **log, **stream.job}
    return _text(sections)


def _seed(on: Stage, number: int) -> Job:
    """Return a drive's seed: the same under all controllers, and another in each repeat."""
    return {"randseed": number + 1 + 1000 * on.scenario.repeat}


_COMMON: Job = {"norandommap": 1, "group_reporting": 0, **EVERY_REQUEST}


def _times(scenario: Scenario, stream: Stream) -> Job:
    """Return when a stream runs. One with an amount ends when it is done."""
    end_s = min(stream.end_s or scenario.seconds, scenario.seconds)
    times = {"runtime": f"{round(1000 * (end_s - stream.start_s))}ms"}
    if stream.start_s:
        times["startdelay"] = f"{round(1000 * stream.start_s)}ms"
    if "io_size" not in stream.job:
        times["time_based"] = "1"
    return times


def _text(sections: Mapping[str, Job]) -> str:
    lines = []
    for name, values in sections.items():
        lines += [f"[{name}]", *(f"{key}={value}" for key, value in values.items())]
    return "\n".join(lines) + "\n"
