"""What tests notice of an agent that ends as it shouldn't."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from testing.agents import Agent
from testing.processes import has_ended
from testing.waiting import eventually


def test_an_agent_that_ends_by_itself_is_at_fault_also_once_another_runs(tmp_path: Path) -> None:
    agent = Agent(tmp_path).start()
    assert agent.process is not None
    agent.process.kill()
    agent.process.wait()
    ended = ["the agent ended by itself with status -9"]
    assert agent.own_faults() == ended
    agent.end()
    agent.start()
    assert agent.stop() == 0
    assert agent.own_faults() == ended


def test_a_traceback_in_its_log_is_a_fault(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    agent.log_file.write_text(
        "| Traceback (most recent call last):\n|   File x\n| KeyError: 5\nINFO a: b\n"
    )
    with pytest.raises(AssertionError), agent:
        pass
    agent.log_file.write_text("Traceback (most recent call last):\n  File x\nKeyError: 5\n")
    assert agent.own_faults() == ["Traceback (most recent call last):", "KeyError: 5"]


class Mute(Agent):
    """An agent that never answers. to: who is told the id of its process."""

    to: Connection

    def answers(self) -> bool:
        assert self.process is not None
        self.to.send(self.process.pid)
        return False


def start_mute(folder: Path, to: Connection) -> None:
    """Start one, and wait for its answer until SIGTERM comes."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    agent = Mute(folder)
    agent.to = to
    agent.start()


def test_an_agent_ends_if_its_owner_is_interrupted_before_it_answers(tmp_path: Path) -> None:
    ours, theirs = multiprocessing.Pipe()
    owner = multiprocessing.get_context("fork").Process(target=start_mute, args=(tmp_path, theirs))
    owner.start()
    agent = ours.recv()
    assert owner.pid is not None
    os.kill(owner.pid, signal.SIGTERM)
    owner.join(60)
    eventually(lambda: has_ended(agent), what="the agent ends")
