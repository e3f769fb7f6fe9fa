"""The demo's agent: a process of its own, sound or broken on purpose."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.demo.broken_agent import Break
from iokeel.cli import client
from iokeel.errors import IokeelError
from testing.lab.host import PROJECT, Host
from testing.waiting import eventually

_START_TIMEOUT_S = 30.0
_BROKEN = [PROJECT / ".venv/bin/python", PROJECT / "benchmarks/demo/broken_agent.py"]


@contextmanager
def running_agent(host: Host, drives: int, log: Path, broken: Break | None) -> Iterator[Path]:
    """Run an agent until the end of the block, and yield its socket once it holds all drives.

    drives: how many there are. log: the file for its log. Raises RuntimeError if the agent sets
    no limits.
    """
    socket = host.dir / "agent.sock"
    config = host.dir / "agent.toml"
    config.write_text(
        f'[agent]\nsocket = "{socket}"\nstate_dir = "{host.dir}/state"\n'
        f'[libvirt]\nuri = "{host.uri}"\n'
    )
    command = host.iokeel if broken is None else [*_BROKEN, broken]
    with log.open("w") as stderr:
        process = host.popen([*command, "agent", "--config", config], stderr=stderr)
    try:
        _wait_for_limits(socket, drives, log)
        yield socket
    finally:
        process.terminate()
        process.wait()


def _wait_for_limits(socket: Path, drives: int, log: Path) -> None:
    def all_held() -> bool:
        held = [drive for vm in client.vms(socket) for drive in vm.drives if drive.limits_in_force]
        return len(held) == drives

    try:
        eventually(all_held, _START_TIMEOUT_S)
    except (IokeelError, AssertionError) as error:
        raise RuntimeError(
            f"the agent set no limits within {_START_TIMEOUT_S:.0f} s; see {log}"
        ) from error
