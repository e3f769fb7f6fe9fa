"""One run of a scenario: the disk, its drives under a control, and their jobs."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from benchmarks.fio_log import EVERY_REQUEST
from benchmarks.shares.agent import agent
from benchmarks.shares.done import Done, Run
from benchmarks.shares.scenario import Drive, Scenario
from testing.lab.blkio import ROOT as BLKIO
from testing.lab.blkio import blkio_groups
from testing.lab.domain import DiskSpec
from testing.lab.fio import Job
from testing.lab.host import Host
from testing.lab.processors import Processors
from testing.lab.shared_disk import SharedDisk
from testing.lab.vm import Vm
from testing.qmp_client import QmpClient

Control = Literal["none", "static", "bfq", "iokeel"]
CONTROLS: tuple[Control, ...] = ("none", "static", "bfq", "iokeel")
STOLEN_RATIO, TRIES = 0.02, 3


def run_quietly(scenario: Scenario, control: Control, alone: bool = False) -> Run:
    """Run all drives' jobs, again if much was stolen: TRIES times at most. Return the best run."""
    tries: list[Run] = []
    while len(tries) < TRIES and not (tries and tries[-1].stolen_ratio < STOLEN_RATIO):
        before = Processors.now()
        done = run(scenario, control, alone)
        tries.append(Run(done, Processors.now().stolen_ratio(before)))
    return min(tries, key=lambda one: one.stolen_ratio)


def run(scenario: Scenario, control: Control, alone: bool = False) -> dict[str, Done]:
    """Run all drives' jobs under a control. alone: only those that have a latency target."""
    drives = [drive for drive in scenario.drives if not alone or drive.has_target]
    exports = [drive for drive in drives if not drive.guest]
    with ExitStack() as stack:
        disk = stack.enter_context(
            SharedDisk(scenario.device, len(exports), slowdown=scenario.slowdown, apart=True)
        )
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="iokeel-shares-")))
        host, guests = None, {}
        if len(exports) < len(drives):
            host = stack.enter_context(Host.bookworm())
            host.start_libvirtd()
        for drive in drives:
            if host is not None and drive.guest:
                spec = DiskSpec("vda", disk.device)
                vm = Vm.boot(host, drive.name, [spec], policy=drive.policy_xml)
                guests[drive.name] = stack.enter_context(vm)
        if control == "static":
            _set_static_limits(scenario, drives, disk)
        stack.enter_context(_grouped(drives, disk, host, bfq=control == "bfq"))
        if control == "iokeel":
            stack.enter_context(agent(scenario, drives, disk, folder, host))
        return _run_jobs(scenario, drives, disk, guests, folder)


def _set_static_limits(scenario: Scenario, drives: Sequence[Drive], disk: SharedDisk) -> None:
    """Bound every export to its part of the disk, in 4K reads, as an operator can by hand."""
    weights = sum(drive.weight for drive in drives)
    for i, drive in enumerate(drive for drive in drives if not drive.guest):
        limits = {"iops-total": max(1, round(scenario.capacity * drive.weight / weights))}
        with QmpClient(disk.qmp_socket(i)) as qmp:
            qmp.ask("qom-set", path=f"/objects/group{i}", property="limits", value=limits)


@contextmanager
def _grouped(
    drives: Sequence[Drive], disk: SharedDisk, host: Host | None, *, bfq: bool
) -> Iterator[None]:
    """Put each drive's process into a cgroup, as libvirt does. bfq: with weights, under BFQ."""
    weights = None
    if bfq:
        disk.set_scheduler("bfq")
        weights = {drive.name: drive.weight for drive in drives}
    exports = iter(range(len(drives)))
    with blkio_groups((drive.name for drive in drives), weights) as groups:
        for drive in drives:
            members = BLKIO / groups[drive.name] / "cgroup.procs"
            if not drive.guest:
                members.write_text(str(disk.process(next(exports))))
            elif host is not None:  # process ids are the host's own there
                host.run(["sh", "-c", f"cat /run/libvirt/qemu/{drive.name}.pid > {members}"])
        yield


def _run_jobs(
    scenario: Scenario,
    drives: Sequence[Drive],
    disk: SharedDisk,
    guests: Mapping[str, Vm],
    folder: Path,
) -> dict[str, Done]:
    """Run all jobs at once, and return each drive's requests."""
    exports = [drive for drive in drives if not drive.guest]
    jobs: dict[str, Job] = {}
    for i, drive in enumerate(exports):
        place = {"uri": disk.uri(i), "size": disk.drive_bytes, "randseed": i + 1}
        jobs[drive.name] = {**place, "write_lat_log": folder / drive.name, **drive.job}
    (folder / "jobs.fio").write_text(_job_file(scenario, {"ioengine": "nbd"}, jobs))
    offsets_s, programs = {}, {}
    for drive in drives:
        if drive.guest:
            vm = guests[drive.name]
            job = {"filename": "/dev/vda", "write_lat_log": "/tmp/io", **drive.job}
            text = _job_file(scenario, {"ioengine": "libaio", "direct": 1}, {"io": job})
            vm.write("/tmp/job.fio", text.encode())
            offsets_s[drive.name] = vm.clock_offset().seconds
    began_s = time.time()
    for name, vm in guests.items():
        programs[name] = vm.start_program("fio --output=/tmp/fio.out /tmp/job.fio")
    if exports:
        words = folder / "fio.out"
        if subprocess.run(["fio", f"--output={words}", "jobs.fio"], cwd=folder).returncode:
            raise RuntimeError(f"fio failed: {words.read_text()[:2000]}")
    found = {
        drive.name: Done.read(folder / f"{drive.name}_lat.{i}.log", began_s, scenario.model)
        for i, drive in enumerate(exports, 1)
    }
    for name, vm in guests.items():
        ended = vm.wait(programs[name], timeout=scenario.seconds + 60)
        if ended.status != 0:
            raise RuntimeError(f"{name}: fio failed: {ended.stderr.decode().strip()}")
        log = folder / f"{name}_lat.log"
        log.write_bytes(vm.read("/tmp/io_lat.1.log"))
        found[name] = Done.read(log, began_s + offsets_s[name], scenario.model)
    return {drive.name: found[drive.name] for drive in drives}


def _job_file(scenario: Scenario, engine: Job, jobs: Mapping[str, Job]) -> str:
    """Return a job file in which all jobs run for the scenario's time and log every request."""
    options: Job = {"time_based": 1, "runtime": scenario.seconds, "norandommap": 1}
    sections = {"global": {**options, "group_reporting": 0, **EVERY_REQUEST, **engine}, **jobs}
    lines = []
    for name, values in sections.items():
        lines += [f"[{name}]", *(f"{key}={value}" for key, value in values.items())]
    return "\n".join(lines) + "\n"
