"""`iokeel top` in a real terminal (tmux), with a real agent and over a simulated host."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from math import inf
from pathlib import Path

import pytest

from iokeel.errors import PolicyError
from testing.agents import IOKEEL, Agent, iokeel
from testing.simulated_api import SimulatedApi, steady_guest
from testing.waiting import eventually, until

SCREENS = Path(__file__).parent / "screens"
pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not there")


class Terminal:
    """A tmux server of its own with one window, in which a command runs; it ends with that."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._runs = folder, 0

    def run(self, width: int, height: int, *words: str | Path, term: str = "xterm") -> None:
        """Run a command; its exit status is in the file `status` of this folder."""
        command = shlex.join(["env", f"TERM={term}", *map(str, words)])
        script = f"{command}; echo status $?; exec sleep 60"
        size = ["-x", str(width), "-y", str(height)]
        # A server that is told to end may still answer at its socket for a moment.
        self._runs += 1
        self._tmux = ["tmux", "-f", "/dev/null", "-S", str(self._folder / f"tmux{self._runs}")]
        self._do("new-session", "-d", "-s", "top", *size, script)

    def press(self, *keys: str) -> None:
        self._do("send-keys", "-t", "top", *keys)

    def screen(self) -> str:
        return "\n".join(line.rstrip() for line in self._do("capture-pane", "-p").splitlines())

    def pid(self, command: str) -> int:
        """Return the id of the process in the window that runs a command."""
        pane = self._do("list-panes", "-t", "top", "-F", "#{pane_pid}").strip()
        children = Path(f"/proc/{pane}/task/{pane}/children").read_text().split()
        (found,) = (c for c in children if command in Path(f"/proc/{c}/cmdline").read_text())
        return int(found)

    def shows(self, *texts: str) -> None:
        """Wait until the screen has all of some texts."""
        eventually(
            lambda: all(text in self.screen() for text in texts), what=f"the screen has {texts}"
        )

    def end(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], capture_output=True, check=False)

    def _do(self, *words: str) -> str:
        done = subprocess.run(
            [*self._tmux, *words], capture_output=True, text=True, check=True, env=_ENVIRONMENT
        )
        return done.stdout


# COLUMNS and LINES, which a process of several workers has, would count for more than the window.
_ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith("TMUX") and name not in ("COLUMNS", "LINES")
} | {"LC_ALL": "C.UTF-8"}


@pytest.fixture
def terminal(short_folder: Path, tmp_path: Path) -> Iterator[Terminal]:
    folder = short_folder / tmp_path.name
    folder.mkdir()
    made = Terminal(folder)
    yield made
    made.end()


# A real agent


def test_it_is_live_and_leaves_the_terminal_as_it_was(agent: Agent, terminal: Terminal) -> None:
    eventually(lambda: bool(agent.ask("/v1/vms")), what="the VM is found")
    terminal.run(80, 24, IOKEEL, "top", "--socket", agent.socket)
    terminal.shows("1 drives 2 storages 3 tenants", "db1", "vdb", "? keys  q quit")
    terminal.press("Enter")
    terminal.shows("db1/vda", "a limit of 400 iops")
    terminal.press("q")
    terminal.shows("status 0")
    assert "drives" not in terminal.screen()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_in_order(
    agent: Agent, terminal: Terminal, number: signal.Signals
) -> None:
    terminal.run(80, 24, IOKEEL, "top", "--socket", agent.socket)
    terminal.shows("q quit")
    os.kill(terminal.pid("iokeel"), number)
    terminal.shows("status 0")
    assert "Traceback" not in terminal.screen()


def test_an_agent_may_stop_and_come_back(agent: Agent, terminal: Terminal) -> None:
    eventually(lambda: bool(agent.ask("/v1/vms")), what="the VM is found")
    terminal.run(80, 24, IOKEEL, "top", "--socket", agent.socket)
    terminal.shows("vda", "q quit")
    agent.stop()
    try:
        terminal.shows("no answer for ", "is not there", "vda")
    finally:
        agent.start()
    terminal.shows("vda", "q quit")
    assert "no answer" not in terminal.screen()


def test_without_a_screen_it_is_the_table(agent: Agent, terminal: Terminal) -> None:
    eventually(lambda: bool(agent.ask("/v1/vms")), what="the VM is found")
    table = iokeel("top", "--socket", agent.socket)
    assert (table.status, table.err) == (0, "")
    assert [line.split()[:2] for line in table.out.splitlines()[:2]] == [
        ["VM", "drive"],
        ["db1", "vda"],
    ]
    terminal.run(80, 24, IOKEEL, "top", "--once", "--socket", agent.socket)
    terminal.shows("norm. iops", "status 0")
    terminal.end()
    terminal.run(80, 24, IOKEEL, "top", "--socket", agent.socket, term="dumb")
    terminal.shows("norm. iops", "status 0")


# Screens as text


@pytest.mark.parametrize(
    ("name", "width", "height", "keys"),
    [
        ("80x24", 80, 24, []),
        ("80x24-why", 80, 24, ["Enter"]),
        ("80x24-storages", 80, 24, ["2"]),
        ("120x12-tenants", 120, 12, ["3", "Enter"]),
        ("20x10", 20, 10, []),
        ("20x10-keys", 20, 10, ["?"]),
    ],
)
async def test_the_screen_is_as_kept(
    terminal: Terminal, tmp_path: Path, name: str, width: int, height: int, keys: list[str]
) -> None:
    host = SimulatedApi(
        [
            steady_guest("db1", inf, 1000, "acme"),
            steady_guest("a-web-server-with-a-long-name", 300, 400, "acme", 1),
            steady_guest("batch", 2500, 4000, "globex"),
            steady_guest("broken[red]", 50, 100, None, 1),
        ],
        2,
    )
    host.errors["broken[red]"] = PolicyError("domain broken[red]", "limit is -5", "give 1 or more")
    host.run(150)
    kept = (SCREENS / f"{name}.txt").read_text().rstrip("\n")
    socket = tmp_path / "agent.sock"
    async with host.served(socket):
        await asyncio.to_thread(terminal.run, width, height, IOKEEL, "top", "--socket", socket)
        await until(lambda: "Enter why" in terminal.screen())
        for key in keys:
            terminal.press(key)
        try:
            await until(lambda: terminal.screen() == kept)
        except AssertionError:
            assert terminal.screen() == kept
            raise
