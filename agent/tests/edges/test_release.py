"""`iokeel agent --release` and `--check`, as an operator types them before and after an agent."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from iokeel.core.fleet.claims import Budget
from iokeel.fleet.keys import BudgetId, Kind
from iokeel.fleet.memory import FILE, Memory, Remembered
from iokeel.store.store import StateStore
from testing.agents import QEMU, Agent, iokeel, start_qemu
from testing.fleet.etcd import Certificates
from testing.host.cgroups import Host
from testing.hypervisors.monitored import Monitored
from testing.hypervisors.qmp_client import QmpClient
from testing.processes import hang
from testing.waiting import eventually

BEFORE = 123


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="iokeel-") as name:
        yield Path(name)


@pytest.fixture
def qemu(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A QEMU with two drives, of which an operator has limited one, and its monitor."""
    process, path = start_qemu(folder)
    try:
        set_iops(path, BEFORE)
        yield process, path
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def socket(qemu: tuple[subprocess.Popen[bytes], Path]) -> Path:
    return qemu[1]


def agent_of(folder: Path, socket: Path) -> Agent:
    drives = "".join(f"[vm.drives.{target}]\nlimit = 800\n" for target in ("vda", "vdb"))
    return Agent(folder, f'[[vm]]\nname = "db1"\nsocket = "{socket}"\n{drives}')


def iops(socket: Path) -> dict[str, int]:
    """Return the limits that QEMU itself has, while no agent runs."""
    with QmpClient(socket) as qemu:
        found = {b["qdev"].split("/")[-2]: b["inserted"] for b in qemu.ask("query-block")}
    return {target: drive["iops"] for target, drive in found.items()}


def set_iops(socket: Path, iops: int, **group: str) -> None:
    """Limit vda by hand. group: where it moves to."""
    none = dict.fromkeys(("bps", "bps_rd", "bps_wr", "iops_rd", "iops_wr"), 0)
    with QmpClient(socket) as qemu:
        qemu.ask("block_set_io_throttle", device="d-vda", iops=iops, **none, **group)


def limit(agent: Agent) -> None:
    """Have an agent limit both drives."""
    eventually(lambda: agent.says("db1/vda: limits set") and agent.says("db1/vdb: limits set"))


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_released_drives_have_their_former_limits(
    folder: Path, socket: Path, end: signal.Signals
) -> None:
    with agent_of(folder, socket) as agent:
        limit(agent)
        refused = iokeel("agent", "--release", "--config", agent.config)
        assert refused.status == 2
        assert "another agent runs with this state_dir; stop it first" in refused.complaint
        agent.stop(end)
    assert BEFORE not in iops(socket).values()
    done = iokeel("agent", "--release", "--config", agent.config)
    assert (done.status, done.err) == (0, "")
    assert done.out == "2 drives have their former limits again\n"
    assert iops(socket) == {"vda": BEFORE, "vdb": 0}
    again = iokeel("agent", "--release", "--config", agent.config)
    assert again.out == "0 drives have their former limits again\n"


def test_a_drive_whose_medium_is_changed_gets_back_what_it_had_before_the_agent(
    folder: Path,
) -> None:
    """QEMU keeps its limits while there is none, but doesn't tell them."""
    (folder / "cd").write_bytes(bytes(1 << 20))
    medium = {"driver": "raw", "file": {"driver": "file", "filename": str(folder / "cd")}}
    none = dict.fromkeys(("bps", "bps_rd", "bps_wr", "iops_rd", "iops_wr"), 0)
    words = f"{QEMU} -M q35,accel=tcg -nodefaults -display none -S -m 16"
    drive = ["-device", "ide-cd,id=cd0"]
    qemu = Monitored(folder, [*words.split(), *drive], "db1")
    table = f'[[vm]]\nname = "db1"\nsocket = "{qemu.agent_socket}"\n[vm.drives.cd0]\nlimit = 800\n'

    def insert(name: str) -> None:
        qemu.ask("blockdev-add", **medium, **{"node-name": name})
        qemu.ask("blockdev-insert-medium", id="cd0", **{"node-name": name})
        qemu.ask("blockdev-close-tray", id="cd0")

    def iops_of_cd0() -> int:
        (cd0,) = [b for b in qemu.ask("query-block") if b["qdev"] == "cd0"]
        return int(cd0["inserted"]["iops"])

    try:
        qemu.ask("blockdev-open-tray", id="cd0", force=True)
        insert("first")
        qemu.ask("block_set_io_throttle", id="cd0", iops=BEFORE, **none)
        with Agent(folder, table) as agent:
            eventually(lambda: agent.says("db1/cd0: limits set"))
            qemu.ask("eject", id="cd0", force=True)
            eventually(lambda: not agent.ask("/v1/vms")[0]["drives"])
            looks = agent.metrics()["iokeel_agent_tick_seconds_count"]
            eventually(lambda: agent.metrics()["iokeel_agent_tick_seconds_count"] > looks + 1)
            insert("second")
            eventually(lambda: agent.drive("db1", "cd0")["limit_iops"] == 800)
            assert not agent.says("there is no such drive")
            agent.stop(signal.SIGKILL)
        assert iops_of_cd0() != BEFORE
        assert iokeel("agent", "--release", "--config", agent.config).status == 0
        assert iops_of_cd0() == BEFORE
    finally:
        qemu.end()


def test_limits_that_were_set_by_hand_since_stay(folder: Path, socket: Path) -> None:
    with agent_of(folder, socket) as agent:
        limit(agent)
        agent.stop()
    set_iops(socket, 77)
    assert iokeel("agent", "--release", "--config", agent.config).status == 0
    assert iops(socket) == {"vda": 77, "vdb": 0}


def test_a_drive_in_another_group_gets_back_what_that_had_before_the_agent_held_it(
    folder: Path, socket: Path
) -> None:
    with agent_of(folder, socket) as agent:
        limit(agent)
        agent.stop()
        set_iops(socket, 55, group="other")
        agent.start()
        eventually(lambda: iops(socket.with_name("watch.sock"))["vda"] != 55)
        agent.stop()
    assert not {55, BEFORE} & {*iops(socket).values()}
    assert iokeel("agent", "--release", "--config", agent.config).status == 0
    assert iops(socket) == {"vda": 55, "vdb": 0}


@pytest.mark.parametrize("serves_again", [False, True])
def test_drives_of_a_qemu_that_started_while_no_agent_ran_get_back_its_own_limits(
    folder: Path, qemu: tuple[subprocess.Popen[bytes], Path], serves_again: bool
) -> None:
    process, socket = qemu
    with agent_of(folder, socket) as agent:
        limit(agent)
        agent.stop()
    process.kill()
    process.wait()
    socket.unlink()
    process, socket = start_qemu(folder)
    try:
        set_iops(socket, 77)
        if serves_again:
            with agent_of(folder, socket) as agent:
                limit(agent)
                metrics = agent.metrics()
                for target in ("vda", "vdb"):
                    of = f'{{domain="db1",target_device="{target}"'
                    (overwritten,) = [
                        value
                        for name, value in metrics.items()
                        if name.startswith(f"iokeel_drive_limits_overwritten_total{of}")
                    ]
                    assert overwritten == 0
                agent.stop()
            assert 77 not in iops(socket).values()
        assert iokeel("agent", "--release", "--config", agent.config).status == 0
        assert iops(socket) == {"vda": 77, "vdb": 0}
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("libvirt_is_gone", [False, True])
def test_a_qemu_that_hangs_is_named_and_released_later(
    folder: Path, qemu: tuple[subprocess.Popen[bytes], Path], *, libvirt_is_gone: bool
) -> None:
    process, socket = qemu
    with agent_of(folder, socket) as agent:
        limit(agent)
        agent.stop()
    hang(process)
    text = agent.config.read_text()
    assert "enabled = false" in text
    if libvirt_is_gone:
        gone = f'uri = "qemu+unix:///system?socket={folder}/none"'
        agent.config.write_text(text.replace("enabled = false", gone))
    done = iokeel("agent", "--release", "--config", agent.config)
    assert done.status == 1
    assert "db1/vda, db1/vdb: not given back" in done.err.splitlines()[-1]
    agent.config.write_text(text)
    process.send_signal(signal.SIGCONT)
    assert iokeel("agent", "--release", "--config", agent.config).status == 0
    assert iops(socket) == {"vda": BEFORE, "vdb": 0}


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_drives_of_a_vm_that_has_gone_from_the_configuration_are_released(
    folder: Path, socket: Path, end: signal.Signals
) -> None:
    with agent_of(folder, socket) as agent:
        limit(agent)
        agent.stop(end)
    Agent(folder)  # writes a configuration without it
    done = iokeel("agent", "--release", "--config", agent.config)
    assert done.out == "2 drives have their former limits again\n"
    assert iops(socket) == {"vda": BEFORE, "vdb": 0}
    assert iokeel("agent", "--release", "--config", agent.config).status == 0


def test_drives_of_a_vm_that_has_gone_and_ended_are_forgotten(
    folder: Path, qemu: tuple[subprocess.Popen[bytes], Path]
) -> None:
    process, socket = qemu
    with agent_of(folder, socket) as agent:
        limit(agent)
        agent.stop()
    process.kill()
    process.wait()
    Agent(folder)
    for drives in (2, 0):
        done = iokeel("agent", "--release", "--config", agent.config)
        assert done.out == f"{drives} drives have their former limits again\n"


def test_drives_of_a_vm_that_no_source_can_have_are_named_and_released_later(
    folder: Path, socket: Path
) -> None:
    with agent_of(folder, socket) as agent:
        limit(agent)
        agent.stop()
    held, text = iops(socket), agent.config.read_text()
    agent.config.write_text(text.replace('"db1"', '"renamed"'))
    for _ in range(2):
        done = iokeel("agent", "--release", "--config", agent.config)
        assert done.status == 1
        mend = "put each VM's [[vm]] or [[discover]] back"
        assert f"db1/vda, db1/vdb: not given back; {mend}" in done.err
    assert iops(socket) == held
    agent.config.write_text(text)
    assert iokeel("agent", "--release", "--config", agent.config).status == 0
    assert iops(socket) == {"vda": BEFORE, "vdb": 0}


@pytest.mark.parametrize("damage", ["no database", "of a later version", "a row"])
def test_nothing_is_forgotten_where_the_state_file_cant_be_used(
    folder: Path, socket: Path, damage: str
) -> None:
    with agent_of(folder, socket) as agent:
        limit(agent)
        agent.stop()
    state = agent.state / "state.db"
    held = iops(socket)
    if damage == "no database":
        state.write_bytes(b"x" * 4096)
    else:
        change = (
            "UPDATE drives SET state = '{'" if damage == "a row" else "PRAGMA user_version = 99"
        )
        with contextlib.closing(sqlite3.connect(state)) as database, database:
            database.execute(change)
    for _ in range(2):
        done = iokeel("agent", "--release", "--config", agent.config)
        assert done.status == 2
        assert f"{state}: can't be used" in done.complaint
        assert "set what drives should have" in done.complaint
    assert iops(socket) == held
    state.rename(folder / "away")
    done = iokeel("agent", "--release", "--config", agent.config)
    assert (done.status, iops(socket)) == (0, held)


@pytest.mark.parametrize(
    ("version", "file", "bound"),
    [
        (2, "io.max", "8:16 rbps=max wbps=max riops=500 wiops=max"),
        (1, "blkio.throttle.read_iops_device", "8:16 500"),
    ],
)
def test_a_cgroup_whose_saved_values_make_no_sense_is_named_until_its_bounds_are_gone(
    folder: Path, version: int, file: str, bound: str
) -> None:
    agent = Agent(folder)
    group, _ = Host(folder, version).guest(1, "db1")
    (group / file).write_text(bound)
    store = StateStore(agent.state)
    with store.lock():
        store.save_cgroups({str(group): "{", str(folder / "gone"): "{"})
    for _ in range(2):
        done = iokeel("agent", "--release", "--config", agent.config)
        mend = f"put back by hand the bounds in {group}/{file}, and try again"
        assert done.status == 1
        assert done.err.splitlines()[-1] == f"iokeel: {group}: not given back; {mend}"
    (group / file).write_text("")
    assert iokeel("agent", "--release", "--config", agent.config).status == 0
    assert StateStore(agent.state).load_cgroups() == {}


def test_a_good_configuration_is_checked_without_a_word(folder: Path) -> None:
    agent = Agent(folder, "[classes.mine]\nlimit = 500\n")
    done = iokeel("agent", "--check", "--config", agent.config)
    assert (done.status, done.out, done.err) == (0, "", "")
    assert not agent.state.exists()


def test_limits_at_which_large_requests_wait_for_long_are_told_by_a_check(folder: Path) -> None:
    agent = Agent(folder, "[classes.mine]\nlimit = 5\n[tenants.acme]\nlimit = 31\n")
    done = iokeel("agent", "--check", "--config", agent.config)
    assert (done.status, done.out) == (0, "")
    assert done.complaint == (  # 150 by the published table, at 5 a second
        "classes.mine: at the limit, 5, one request of 1 MiB waits 30 s, and all others behind it;"
        " give 31 or more"
    )


def test_a_rule_that_can_never_fit_is_told_by_a_check(folder: Path) -> None:
    rule = '[[rules]]\nname = "io1"\nwhen = {"nova.flavor" = ["io1.*", "!io*"]}\nclass = "gold"\n'
    done = iokeel("agent", "--check", "--config", Agent(folder, rule).config)
    assert (done.status, done.out) == (0, "")
    assert done.complaint == (
        "rule io1: never fits: nova.flavor fits 'io1.*' only where '!io*' excludes it; correct"
        " when, or remove the table"
    )


def test_a_bad_configuration_is_told_by_a_check(folder: Path) -> None:
    agent = Agent(folder, "[clases.mine]\nlimit = 5\n")
    done = iokeel("agent", "--check", "--config", agent.config)
    assert done.status == 2
    assert "did you mean 'classes'" in done.complaint


def test_a_memory_of_the_fleet_by_a_later_iokeel_is_told_by_a_check(folder: Path) -> None:
    agent = Agent(folder, '[fleet]\netcd = ["http://127.0.0.1:1"]\n')
    agent.state.mkdir()
    memory = Memory(agent.state)
    memory.keep({BudgetId(Kind.TENANT, "acme"): Remembered(Budget(1000, 0.2, 0, 100), None)})
    memory.close()
    assert iokeel("agent", "--check", "--config", agent.config).status == 0
    with sqlite3.connect(agent.state / FILE) as database:
        database.execute("UPDATE tenants SET budget = replace(budget, '\"v\":1', '\"v\":9')")
    done = iokeel("agent", "--check", "--config", agent.config)
    assert done.status == 1
    assert "fleet.db: was written by a newer iokeel, schema 9" in done.complaint


@pytest.mark.parametrize("wrong", [None, "ca.crt", "client.crt", "client.key", "password"])
def test_files_for_etcd_that_cannot_be_used_are_told_by_a_check(
    folder: Path, wrong: str | None
) -> None:
    Certificates(folder)
    (folder / "password").write_text("secret\n")
    agent = Agent(
        folder,
        "[fleet]\netcd = ['https://127.0.0.1:1']\nuser = 'iokeel'\n"
        f"ca = '{folder}/ca.crt'\npassword_file = '{folder}/password'\n"
        f"certificate = '{folder}/client.crt'\nkey = '{folder}/client.key'\n",
    )
    if wrong is not None:
        (folder / wrong).unlink()
    done = iokeel("agent", "--check", "--config", agent.config)
    if wrong is None:
        assert (done.status, done.out, done.err) == (0, "", "")
    else:
        assert done.status == 2
        assert f"{folder}/{wrong}" in done.complaint
        assert "can't be read: no such file" in done.complaint
