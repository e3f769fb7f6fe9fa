"""What tests notice of an agent that ends as it shouldn't."""

from __future__ import annotations

from pathlib import Path

import pytest

from testing.agents import Agent


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
    with pytest.raises(AssertionError), agent:
        with agent.log_file.open("a") as log:
            log.write("Traceback (most recent call last):\n")
