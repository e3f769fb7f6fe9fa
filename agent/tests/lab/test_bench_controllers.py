"""What controllers do with a stage's drives, and what becomes of a run if one fails."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from benchmarks.bench.controllers import CONTROLLERS
from benchmarks.bench.controllers.average_size import AverageSize, is_due
from benchmarks.bench.controllers.iokeel import Iokeel
from benchmarks.bench.controllers.static import Caps
from benchmarks.bench.running.stage import Limits, Place, Stage
from benchmarks.bench.scenario import load
from testing.agents import Agent
from testing.lab.disks.shared_device import SharedDevice
from testing.processes import has_ended
from testing.waiting import eventually


class Bare(Iokeel):
    """An agent that has nothing to hold."""

    def tables(self, stage: Stage) -> str:
        return ""


def stage(folder: Path, *, drives: int = 1) -> Stage:
    """Return a stage of some drives of a scenario, without any process. Each has a cgroup."""
    (scenario,) = load("weights").cases
    device = next(Path("/sys/block").iterdir())
    disk = cast(SharedDevice, SimpleNamespace(device=Path("/dev", device.name)))
    places = tuple(Place(drive, 0, folder) for drive in scenario.drives[:drives])
    return Stage(scenario, disk, folder, places, {}, None)


def kill(agent: Agent) -> None:
    """Kill an agent, and wait for its end."""
    assert agent.process is not None
    agent.process.kill()
    agent.process.wait()


@dataclass(frozen=True)
class Told(Stage):
    """A stage that only notes its limits, by drive."""

    limits: dict[str, Limits] = field(default_factory=dict)

    def set_limits(self, places: Sequence[Place], limits: Limits) -> None:
        self.limits.update({place.drive.name: limits for place in places})


def test_published_settings_cap_the_drives_that_had_them(tmp_path: Path) -> None:
    bare = stage(tmp_path, drives=0)
    found = {}
    for scenario in (load("response-time").cases[0], load("two-groups-random-random").cases[-1]):
        places = tuple(Place(drive, 0, tmp_path) for drive in scenario.drives)
        for controller in CONTROLLERS.values():
            if isinstance(controller, Caps) and controller.lacks(scenario) is None:
                told = Told(scenario, bare.disk, tmp_path, places, {}, None)
                controller.begin(told)
                found[controller.name] = told.limits
    bps = {"bps-total": 512 << 10}
    both = {"bps-total": round(10e6 / 8), "iops-total": round(2150 / 8)}
    assert found == {
        "iops-50": {"p2": {"iops-total": 50}},
        "bps-512KiB": {"p2": bps},
        "bps-512KiB+iops-50": {"p2": {**bps, "iops-total": 50}},
        "bps-128KiB+iops-10": {"p2": {"bps-total": 128 << 10, "iops-total": 10}},
        "io-throttle-caps": {"many": both, "one": both},
    }


def test_a_run_whose_agent_dies_fails(tmp_path: Path) -> None:
    bare = Bare("iokeel-exact", "iokeel", exact=True)
    with (
        pytest.raises(RuntimeError, match="the agent ended by itself with status -9"),
        bare.hold(stage(tmp_path, drives=0)) as held,
    ):
        kill(held.agent)


def test_a_run_whose_agent_says_a_fault_of_its_own_fails(tmp_path: Path) -> None:
    bare = Bare("iokeel-exact", "iokeel", exact=True)
    with (
        pytest.raises(RuntimeError, match="Traceback"),
        bare.hold(stage(tmp_path, drives=0)) as held,
        held.agent.log_file.open("a") as log,
    ):
        log.write("Traceback (most recent call last):\n")


def test_a_run_whose_agent_ends_well_is_good(tmp_path: Path) -> None:
    bare = Bare("iokeel-exact", "iokeel", exact=True)
    with bare.hold(stage(tmp_path, drives=0)) as held:
        assert held.cpu_s()


def test_a_run_whose_retuner_fails_fails(tmp_path: Path) -> None:
    # The cgroup has no counters.
    with (
        pytest.raises(FileNotFoundError, match=r"blkio\.throttle\.io_serviced"),
        AverageSize().hold(stage(tmp_path)),
    ):
        pass


def hold(folder: Path, to: Connection) -> None:
    """Tell the id of an agent's process, and hold nothing until the end."""
    with Bare("iokeel-exact", "iokeel", exact=True).hold(stage(folder, drives=0)) as held:
        assert held.agent.process is not None
        to.send(held.agent.process.pid)
        signal.pause()


def test_an_agent_ends_with_a_run_that_is_killed(tmp_path: Path) -> None:
    ours, theirs = multiprocessing.Pipe()
    owner = multiprocessing.get_context("fork").Process(target=hold, args=(tmp_path, theirs))
    owner.start()
    agent = ours.recv()
    owner.kill()
    owner.join(60)
    eventually(lambda: has_ended(agent), what="the agent ends")


def test_the_retuners_period_begins_at_another_second_in_each_repeat() -> None:
    due = [[look for look in range(1, 31) if is_due(look, repeat)] for repeat in range(10)]
    assert due[:3] == [[10, 20, 30], [3, 13, 23], [6, 16, 26]]
    assert sorted(found[0] for found in due) == [*range(1, 11)]
