"""Agents and commands of this version, of the last release, and of a later one that broke with it.

Each reads what the other has written or answers, or refuses it with the mend. Limits stay.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from iokeel import __version__
from testing.agents import Agent, Done, iokeel, start_qemu
from testing.fleet.monitor import Monitor, sockets
from testing.hypervisors.iotune import TOLERANCE
from testing.packages import last_release
from testing.processes import end
from testing.waiting import eventually
from tests.edges.conftest import VM

SOURCE = Path(__file__).parents[2] / "src"
LIMIT = 400  # as VM has it


def later(folder: Path, file: str) -> Mapping[str, str]:
    """Return the environment of a release that raises the version in a file, as one that breaks."""
    source = shutil.copytree(SOURCE, folder / "later")
    raised = source / "iokeel" / file
    text, count = re.subn(r"(?m)^((API_)?VERSION = )1$", r"\g<1>2", raised.read_text())
    assert count == 1
    raised.write_text(text)
    return last_release.environment(source)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("v")


def ask(agent: Agent, *words: str, by: Mapping[str, str] | None = None) -> Done:
    """Run a command of a version, this one's if it isn't given, that asks an agent."""
    return iokeel(*words, "--socket", agent.socket, environment=by)


def test_commands_and_agents_of_the_last_release_and_this_one_understand_each_other(
    folder: Path, vm: str
) -> None:
    former = last_release.environment()
    agent = Agent(folder, vm)
    agent.environment = former
    with agent:
        eventually(lambda: "db1" in ask(agent, "stats").out)
        assert ask(agent, "why", "db1", "vda").status == 0
        done = ask(agent, "report")  # which that one lacks
        assert "restart the agent after an upgrade" in done.complaint
    with Agent(folder, vm) as agent:
        eventually(lambda: "vda" in ask(agent, "stats", by=former).out)
        assert '"vda"' in ask(agent, "stats", "--json", by=former).out
        assert "vda" in ask(agent, "why", "db1", "vda", by=former).out


def test_a_version_of_the_api_that_is_not_served_is_refused_with_the_mend(
    folder: Path, vm: str
) -> None:
    by = later(folder, "report/records.py")
    with Agent(folder, vm) as agent:
        assert ask(agent, "stats", by=by).complaint == (
            f"the agent, iokeel {__version__}: answers by version 1 of the API, and '/v2/vms' is of"
            " another; restart the agent after an upgrade; else ask by the command, or page, of its"
            " version"
        )


def test_state_of_a_later_release_is_refused_by_a_check_and_lifts_no_limit(folder: Path) -> None:
    qemu, socket = start_qemu(folder)
    tables = VM.format(socket) + f"[vm.drives.vdb]\nlimit = {LIMIT}\n"
    try:
        with Monitor(sockets([folder])) as monitor:
            agent = Agent(folder, tables)
            agent.environment = later(folder, "store/store.py")
            with agent:
                eventually(lambda: 0 < monitor.seen <= 2 * TOLERANCE * LIMIT)
                agent.stop()
            done = iokeel("agent", "--check", "--config", agent.config)
            state = agent.state / "state.db"
            assert done.complaint.startswith(f"{state}: a later iokeel wrote it: it has version 2")
            assert "install that iokeel again" in done.complaint
            with Agent(folder, tables) as agent:
                eventually(lambda: agent.drive("db1")["limit_iops"] == LIMIT)
                assert agent.says("state.later keeps the rest")
                seen = monitor.samples
                eventually(lambda: monitor.samples > seen + 20)
            assert monitor.worst <= 2 * TOLERANCE * LIMIT
    finally:
        end(qemu)
