"""The demo's agent: a process of its own, sound or broken on purpose."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.demo.broken_agent import Break
from iokeel.cli import client
from iokeel.errors import IokeelError
from testing.agents import Agent, HostAgent
from testing.lab.host import PROJECT, Host
from testing.waiting import eventually

_HELD_S = 30.0
_BROKEN = [f"{PROJECT}/.venv/bin/python", f"{PROJECT}/benchmarks/demo/broken_agent.py"]


@contextmanager
def running_agent(host: Host, drives: int, log: Path, broken: Break | None) -> Iterator[Path]:
    """Run an agent until the end of the block, and yield its socket once it holds all drives.

    drives: how many there are. log: the file for its log. Raises RuntimeError if the agent sets
    no limits.
    """
    agent = HostAgent(host)
    agent.log_file = log
    if broken is not None:
        agent.command = [*_BROKEN, broken]
    try:
        _start(agent, drives)
        yield agent.socket
        agent.stop()
    finally:
        agent.end()


def _start(agent: Agent, drives: int) -> None:
    def all_held() -> bool:
        vms = client.vms(agent.socket)
        return sum(bool(drive.limits_in_force) for vm in vms for drive in vm.drives) == drives

    try:
        agent.start()
        eventually(all_held, _HELD_S, process=agent.process)
    except (IokeelError, AssertionError) as error:
        raise RuntimeError(f"the agent set no limits; see {agent.log_file}") from error
