"""A stage of the demo: all phases in all guests at once, and everything measured meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from benchmarks.demo.fio_log import Completions, GuestClock
from benchmarks.demo.guests import fio_job
from benchmarks.demo.limits_in_force import Sample, Watch
from benchmarks.demo.scenario import Guest, Scenario
from iokeel.cli import client
from iokeel.cli.drive_tables import DrivesByVm
from iokeel.errors import IokeelError
from testing.lab.guests.vm import Vm
from testing.lab.processors import Processors
from testing.waiting import eventually

_START_DELAY_S = 2  # time for the order to start fio to reach all guests
_PROGRESS_S = 0.5
_LOAD_TIMEOUT_S = 30

SetLimit = Callable[[Vm, Guest, int], None]


@dataclass(frozen=True)
class LimitChange:
    """When setting a guest's new limit began and ended."""

    begin_s: float
    end_s: float


@dataclass
class Stage:
    """One run of all phases: what was measured, by guest. Times are the host's epoch.

    stolen_ratio: the share of the processors' time that this machine's own hypervisor took.
    """

    name: str
    start_s: float = 0.0
    stolen_ratio: float = 0.0
    logs: dict[str, bytes] = field(default_factory=dict)
    clocks: dict[str, GuestClock] = field(default_factory=dict)
    limits: dict[str, list[Sample]] = field(default_factory=dict)
    changes: dict[str, LimitChange] = field(default_factory=dict)

    def completions(self, name: str) -> Completions:
        """Return a guest's requests, on the host's clock."""
        return Completions.parse(self.logs[name], self.clocks[name])


def run_stage(
    stage: Stage,
    scenario: Scenario,
    vms: Mapping[str, Vm],
    set_limit: SetLimit,
    *,
    agent: Path | None,
    exact: bool,
    logs: Path,
    console: Console,
) -> None:
    """Run all phases in all guests, and note in `stage` what happens.

    set_limit: changes a limit as the scenario says. agent: its socket, if one runs; its view
    of the drives is shown. exact: QEMU has the patches. logs: the folder for fio's logs.
    """
    guests = [(guest, vms[guest.name]) for guest in scenario.guests]
    for guest, vm in guests:
        vm.write("/tmp/job.fio", fio_job(scenario, guest).encode())
    first = {vm.name: (time.time(), vm.clock_offset().seconds) for _, vm in guests}
    uri = guests[0][1].host.uri
    processors = Processors.now()
    with Watch(uri, [guest.name for guest in scenario.guests], exact=exact) as watch:
        stage.start_s = time.time() + _START_DELAY_S
        programs = {vm.name: _start_fio(vm, stage.start_s) for _, vm in guests}
        with ThreadPoolExecutor(1) as pool:
            changes = pool.submit(_change_limits, stage, watch, guests, set_limit)
            _show_progress(stage, scenario, agent, console)
        changes.result()  # raises why a limit couldn't be changed
        for _, vm in guests:
            ended = vm.wait(programs[vm.name], timeout=60)
            if ended.status != 0:
                raise RuntimeError(f"{vm.name}: fio failed: {ended.stderr.decode().strip()}")
    stage.limits = watch.samples
    stage.stolen_ratio = Processors.now().stolen_ratio(processors)
    for _, vm in guests:
        stage.clocks[vm.name] = GuestClock(
            (first[vm.name], (time.time(), vm.clock_offset().seconds))
        )
        stage.logs[vm.name] = vm.read("/tmp/io_iops.log")
        stem = f"{vm.name}-{stage.name.replace(' ', '-')}"
        (logs / f"{stem}.log").write_bytes(stage.logs[vm.name])
        (logs / f"{stem}.fio.json").write_bytes(vm.read("/tmp/fio.json"))


def _start_fio(vm: Vm, start_s: float) -> int:
    pause_us = round(max(0.0, start_s - time.time()) * 1e6)
    fio = "fio --output=/tmp/fio.json --output-format=json+ /tmp/job.fio"
    return vm.start_program(f"rm -f /tmp/io_iops*.log; usleep {pause_us}; {fio}")


def _change_limits(
    stage: Stage, watch: Watch, guests: Sequence[tuple[Guest, Vm]], set_limit: SetLimit
) -> None:
    changes = [(guest.change, guest, vm) for guest, vm in guests if guest.change is not None]
    for change, guest, vm in sorted(changes, key=lambda item: item[0].at_s):
        left_s = stage.start_s + _LOAD_TIMEOUT_S - time.time()
        try:
            eventually(partial(watch.begun_s.__contains__, guest.name), left_s)
        except AssertionError:
            return  # fio says why when it is waited for
        time.sleep(max(0.0, watch.begun_s[guest.name] + change.at_s - time.time()))
        begin_s = time.time()
        set_limit(vm, guest, change.limit)
        stage.changes[guest.name] = LimitChange(begin_s, time.time())


def _show_progress(stage: Stage, scenario: Scenario, agent: Path | None, console: Console) -> None:
    shows = console.is_terminal
    with Live(console=console, auto_refresh=False, transient=not shows) as live:
        while (at_s := time.time() - stage.start_s) < scenario.length_s:
            if shows:
                live.update(_progress(scenario, at_s, agent), refresh=True)
            time.sleep(_PROGRESS_S)
        live.update(_progress(scenario, at_s, agent), refresh=True)


def _progress(scenario: Scenario, at_s: float, agent: Path | None) -> Group:
    phase = next((p for p in scenario.phases if at_s < p.end_s), scenario.phases[-1])
    title = Text(f"  {max(at_s, 0):4.0f} s of {scenario.length_s:.0f} s: {phase.name}")
    if agent is None:
        return Group(title)
    try:
        return Group(title, DrivesByVm(client.vms(agent)))
    except IokeelError as error:
        return Group(title, Text(str(error)))
