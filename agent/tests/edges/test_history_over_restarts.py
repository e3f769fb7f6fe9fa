"""The history of weeks outlives a real agent, killed or stopped, and follows a reload."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from testing.agents import Agent, Done, iokeel
from testing.waiting import eventually


def recommended(agent: Agent) -> Any:
    return json.loads(iokeel("recommend", "--json", "--socket", agent.socket).out)


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_history_over_a_kill_a_stop_and_reloads(
    vm: str, short_folder: Path, tmp_path: Path
) -> None:
    folder = short_folder / tmp_path.name
    folder.mkdir()
    with Agent(folder, vm) as agent:
        eventually(lambda: recommended(agent)["seconds"] >= 60, 300, what="a minute is recorded")
        before = recommended(agent)["seconds"]
        agent.stop(signal.SIGKILL)
        assert [*folder.glob("agent.sock.*.journal")]
        agent.start()
        eventually(lambda: recommended(agent)["seconds"] > before, 300, what="it goes on")
        before = recommended(agent)["seconds"]
        agent.stop(signal.SIGTERM)
        assert not [*folder.glob("agent.sock.*.journal")]
        agent.start()
        found = recommended(agent)
        assert found["seconds"] >= before  # and what was sampled since the last minute
        assert [drive["target"] for drive in found["drives"]] == ["vda", "vdb"]
        agent.config.write_text(agent.config.read_text() + "[history]\nkeep_days = 0\n")
        agent.send(signal.SIGHUP)
        eventually(lambda: agent.says("the configuration was read again"))
        said = iokeel("recommend", "--socket", agent.socket)
        assert said == Done(
            1,
            "",
            "iokeel: history: isn't recorded; set keep_days of [history], and wait for some"
            " hours\n",
        )
