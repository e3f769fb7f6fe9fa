"""What was saved is there after the agent's end, by its will or not, on a disk that is full.

On one that has become read-only, an agent starts with what was saved before.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from iokeel.core.values.policy import DomainPolicy, DrivePolicy, LastGood
from iokeel.errors import ConfigError, StateNotWritten
from iokeel.store.store import StateStore
from testing.agents import Agent
from testing.host.storage import MIB, loop_device, mounted
from testing.hypervisors.qmp_client import QmpClient
from testing.waiting import eventually

NOT_SAVED = 'iokeel_agent_errors_total{kind="store"}'
CHANGES = 60  # of one life at most; far more than what SQLite's log has room for


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A state folder on a disk of its own."""
    with mounted(tmp_path / "state", "state", "-t", "tmpfs", "-o", "size=1m") as folder:
        yield folder


@pytest.mark.parametrize("seed", range(8))
def test_a_policy_is_saved_on_a_full_disk(small: Path, seed: int) -> None:
    draw = random.Random(seed)
    limit = _live(small, 0, [1], killed=draw.random() < 0.5)
    for _ in range(6):
        _fill(small)
        for _ in range(draw.randint(1, 3)):
            changes = range(limit + 1, limit + 1 + draw.randrange(CHANGES))
            limit = _live(small, limit, changes, killed=draw.random() < 0.5)
        (small / "filler").unlink()
        limit = _live(small, limit, [limit + 1], killed=draw.random() < 0.5)


@pytest.mark.parametrize("killed", [False, True])
def test_a_read_only_disk_is_read_and_written_again_once_it_can_be(
    small: Path, killed: bool
) -> None:
    _live(small, 0, [300], killed=killed)
    _remount(small, "ro")
    store = StateStore(small)
    with store.lock():
        store.load()
        assert store.policies["db1"].policy.drives["vda"].limit == 300
        store.policies["db1"] = LastGood(DomainPolicy({"vda": DrivePolicy(limit=200)}))
        with pytest.raises(StateNotWritten, match="can't be written: Read-only file system"):
            store.save({})
        with (
            pytest.raises(ConfigError, match="another agent runs"),
            StateStore(small).lock(),
        ):
            pass
        _remount(small, "rw")
        assert store.save({})
    _live(small, 200, [], killed=False)


def test_a_folder_that_is_gone_is_told_as_any_other_that_cant_be_written(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "state")
    with store.lock():
        store.load()
        (tmp_path / "state").rename(tmp_path / "away")
        store._close()  # as after any failure to write
        store.policies["db1"] = LastGood(DomainPolicy({"vda": DrivePolicy(limit=200)}))
        with pytest.raises(StateNotWritten, match="unable to open database file"):
            store.save({})


def test_a_folder_that_no_agent_has_used_has_to_be_writable(small: Path) -> None:
    _remount(small, "ro")
    with (
        pytest.raises(ConfigError, match="Read-only file system; let the agent write it"),
        StateStore(small).lock(),
    ):
        pass


def test_an_agent_sets_limits_though_it_can_write_no_state(
    small: Path, vm: str, short_folder: Path, tmp_path: Path
) -> None:
    folder = short_folder / tmp_path.name
    folder.mkdir()
    with Agent(folder, vm, state=small) as agent:
        agent.stop(signal.SIGKILL)
        agent.config.write_text(agent.config.read_text().replace("limit = 400", "limit = 300"))
        _remount(small, "ro")
        agent.start()
        eventually(lambda: (agent.drive("db1")["limits_in_force"] or {}).get("iops_total"))
        assert agent.drive("db1")["limit_iops"] == 300
        assert agent.says("state.db: can't be written: Read-only file system; free some space, or")
        assert not agent.says("Traceback")


def test_an_agent_sets_limits_though_its_disk_hangs(
    vm: str, short_folder: Path, tmp_path: Path
) -> None:
    folder = short_folder / tmp_path.name
    folder.mkdir()
    with (
        loop_device(tmp_path, 16 * MIB) as device,
        ext4(tmp_path / "state", device) as state,
        Agent(folder, vm, state=state) as agent,
    ):
        eventually(lambda: agent.drive("db1")["limits_in_force"])
        text = agent.config.read_text() + "[tenants.acme]\nlimit = 9000\n"

        def change(limit: int) -> None:
            agent.config.write_text(text.replace("limit = 400", f"limit = {limit}"))
            agent.send(signal.SIGHUP)
            eventually(lambda: agent.drive("db1")["limit_iops"] == limit)
            eventually(lambda: agent.drive("db1")["limits_in_force"]["iops_total"] <= limit)

        with frozen(state):
            change(300)
            eventually(lambda: agent.says("its disk doesn't answer; see what holds the disk up"))
            told = agent.metrics()[NOT_SAVED]
            eventually(lambda: agent.metrics()[NOT_SAVED] > told, what="it is counted again")
            change(250)
        eventually(lambda: agent.says("the state is saved again"))
        agent.stop(signal.SIGKILL)
        with contextlib.closing(sqlite3.connect(state / "state.db")) as database:
            (drive,) = database.execute("SELECT state FROM drives").fetchone()
            (table,) = database.execute("SELECT text FROM tables").fetchone()
        assert "250" in drive
        assert "9000" in table


def test_an_agent_leaves_static_limits_though_its_disk_hangs(
    vm: str, short_folder: Path, tmp_path: Path
) -> None:
    folder = short_folder / tmp_path.name
    folder.mkdir()
    burst = "limit = 400\nburst = 4000\nburst_seconds = 60"
    with (
        loop_device(tmp_path, 16 * MIB) as device,
        ext4(tmp_path / "state", device) as state,
        Agent(folder, vm.replace("limit = 400", burst), state=state) as agent,
        QmpClient(short_folder / "watch.sock") as qemu,
    ):

        def may_burst() -> bool:
            return any(drive["inserted"].get("iops_max") for drive in qemu.ask("query-block"))

        eventually(may_burst, what="it may burst")
        with frozen(state):
            agent.send(signal.SIGHUP)
            eventually(lambda: agent.says("its disk doesn't answer"))
            process, agent.process = agent.process, None
            assert process is not None
            process.terminate()
            eventually(lambda: not may_burst(), what="it is at its static limit")
        assert process.wait(20) == 0


@contextlib.contextmanager
def ext4(folder: Path, device: Path) -> Iterator[Path]:
    subprocess.run(["mkfs.ext4", "-q", "-F", device], check=True)
    with mounted(folder, device):
        yield folder


@contextlib.contextmanager
def frozen(folder: Path) -> Iterator[None]:
    """Let no write to a filesystem end."""
    subprocess.run(["fsfreeze", "--freeze", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", folder], check=True)


def _remount(folder: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", folder], check=True)


def _live(folder: Path, known: int, changes: Sequence[int], *, killed: bool) -> int:
    """Have an agent's state live in a process of its own, and return the last limit."""
    child = os.fork()
    if child == 0:
        _end(folder, known, changes, killed=killed)
    status = os.waitpid(child, 0)[1]
    assert status == 0, os.waitstatus_to_exitcode(status)
    return changes[-1] if changes else known


def _end(folder: Path, known: int, changes: Sequence[int], *, killed: bool) -> NoReturn:
    try:
        store = StateStore(folder)
        with store.lock():
            store.load()
            found = [last.policy.drives["vda"].limit for last in store.policies.values()]
            assert found == ([known] if known else []), (found, known)
            for limit in changes:
                store.policies["db1"] = LastGood(DomainPolicy({"vda": DrivePolicy(limit=limit)}))
                store.save({})
            if killed:
                os._exit(0)
        os._exit(0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    finally:
        os._exit(1)


def _fill(folder: Path) -> None:
    with (folder / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
