"""What controllers do with a stage's drives, and what becomes of a run if one fails."""

from __future__ import annotations

import multiprocessing
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from benchmarks.bench.controllers.average_size import AverageSize, is_due
from benchmarks.bench.controllers.iokeel import Iokeel
from benchmarks.bench.running.stage import Place, Stage
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
