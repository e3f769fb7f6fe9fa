"""The agent as a service: SIGHUP, and what it tells the service manager."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import pytest

from iokeel import daemon
from iokeel import service as iokeel_service
from iokeel.config.load import load
from iokeel.config.settings import Config
from iokeel.core.values.counters import DriveId
from iokeel.core.values.limits import ThrottleLimits
from iokeel.core.values.state import NEW, Sent, State
from iokeel.errors import ConfigError
from iokeel.host.service_manager import ServiceManager
from iokeel.hypervisors.qmp.source import QmpSource
from iokeel.report.metrics.prometheus import Metrics
from iokeel.store.store import StateStore
from testing.agents import Agent, http, iokeel, start_qemu
from testing.hypervisors.iotune import TOLERANCE, highest_rate
from testing.hypervisors.qmp_client import QmpClient
from testing.processes import hang
from testing.waiting import eventually, until
from tests.edges.conftest import VM

IOTUNE = {"iops": "total_iops_sec", "iops_size": "size_iops_sec", "bps": "total_bytes_sec"}
READ_AGAIN = "the configuration was read again"
STAYS = "the configuration stays as it was: "
GOLD = '<policy xmlns="urn:iokeel:policy:1" class="platinum"/>'


class Service(Agent):
    """An agent that a service manager has started: this one, which writes down what it is told."""

    def __init__(self, folder: Path, tables: str) -> None:
        super().__init__(folder, tables)
        self.tables = tables
        self.told: list[list[str]] = []
        self.status = ""
        self.environment = {**os.environ, "NOTIFY_SOCKET": str(folder / "notify")}
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.manager.bind(str(folder / "notify"))
        # A manager's queue is short, and what doesn't fit isn't told again.
        self._heard: SimpleQueue[bytes] = SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        """Take the manager's messages, until its end."""
        with self.manager:
            while message := self.manager.recv(65536):
                self._heard.put(message)

    def end_manager(self) -> None:
        self.manager.shutdown(socket.SHUT_RDWR)

    def receive(self) -> None:
        """Write down the manager's messages."""
        while not self._heard.empty():
            lines = self._heard.get().decode().splitlines()
            self.told.append(lines)
            for line in lines:
                name, _, value = line.partition("=")
                self.status = value if name == "STATUS" else self.status

    def has_status(self, text: str) -> None:
        """Wait until this is the last STATUS."""

        def is_so() -> bool:
            self.receive()
            return self.status == text

        eventually(is_so, what=f"STATUS={text} is told")

    def says_to_manager(self, line: str) -> bool:
        """Return whether the last messages have a line, and forget those up to it."""
        self.receive()
        for number, lines in enumerate(self.told):
            if any(re.fullmatch(line, each) for each in lines):
                del self.told[: number + 1]
                return True
        return False

    def hears(self, line: str) -> None:
        """Wait until the manager is told a line, a regular expression."""
        eventually(lambda: self.says_to_manager(line), what=f"{line} is told")

    def reload(self, old: str, new: str) -> None:
        """Change the configuration, send SIGHUP, and wait until that is done."""
        text = self.config.read_text()
        assert old in text
        self.config.write_text(text.replace(old, new))
        self.hang_up()

    def hang_up(self) -> None:
        """Send SIGHUP, and wait until the agent is ready again."""
        self.send(signal.SIGHUP)
        self.hears("RELOADING=1")
        self.hears("READY=1")

    def limit(self) -> int | None:
        """Return the limit of db1/vda that the agent goes by."""
        limit: int | None = self.drive("db1")["limit_iops"]
        return limit

    def iops(self) -> int:
        """Return the bound on requests that is in force on db1/vda."""
        iops: int = self.drive("db1")["limits_in_force"]["iops_total"]
        return iops


@pytest.fixture
def service(vm: str, short_folder: Path, tmp_path: Path) -> Iterator[Service]:
    """A service with one VM that has limits."""
    folder = short_folder / tmp_path.name
    folder.mkdir()
    with Service(folder, vm) as running:
        eventually(lambda: running.ask("/v1/vms"), what="the VM is found")
        # Those of the service before this one may be in force still.
        eventually(lambda: 280 < running.iops() <= 400, what="limits for 400 iops are set")
        yield running
    running.end_manager()


def test_ready_is_told_once_after_a_tick(service: Service) -> None:
    service.hears("READY=1")
    service.has_status("VMs: 1, drives with limits: 1")
    for _ in range(2):
        service.hears("WATCHDOG=1")
    assert service.metrics()["iokeel_agent_tick_seconds_count"] >= 2
    assert service.says_to_manager("READY=1") is False


def test_stopping_is_told(service: Service) -> None:
    assert service.stop() == 0
    service.hears("STOPPING=1")


def test_a_manager_that_is_gone_ends_nothing(service: Service) -> None:
    (service.folder / "notify").unlink()
    ticks = service.metrics()["iokeel_agent_tick_seconds_count"]
    eventually(
        lambda: service.metrics()["iokeel_agent_tick_seconds_count"] >= ticks + 2,
        what="it ticks on",
    )
    (service.folder / "notify").mkdir()
    ticks = service.metrics()["iokeel_agent_tick_seconds_count"]
    eventually(
        lambda: service.metrics()["iokeel_agent_tick_seconds_count"] >= ticks + 2,
        what="it ticks on",
    )
    assert "Traceback" not in service.log()


def test_a_manager_that_reads_nothing_holds_nothing_up(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "s"))
        manager.setblocking(False)
        service = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "s")})
        for number in range(2000):  # more than its queue holds
            service.alive(str(number))
        told = []
        while True:
            try:
                told.append(manager.recv(4096))
            except BlockingIOError:
                break
        assert told[0] == b"WATCHDOG=1\nREADY=1\nSTATUS=0"
        assert 1 < len(told) < 2000
        service.alive("1999")
        assert manager.recv(4096) == b"WATCHDOG=1\nSTATUS=1999"


def test_ready_is_told_again_if_nobody_heard_it(tmp_path: Path) -> None:
    service = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "s")})
    service.alive("one\ntwo")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "s"))
        service.alive("one\nFDSTORE=1")
        assert manager.recv(4096) == b"WATCHDOG=1\nREADY=1\nSTATUS=one FDSTORE=1"
        with service.reloading():
            assert re.fullmatch(rb"RELOADING=1\nMONOTONIC_USEC=\d+", manager.recv(4096))
            service.alive("one\nFDSTORE=1")
            assert manager.recv(4096) == b"WATCHDOG=1"
        service.alive("one\nFDSTORE=1")
        assert manager.recv(4096) == b"WATCHDOG=1\nREADY=1"


def managed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Config]:
    """Return the configuration of an agent without VMs, whose service manager is at folder/s."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(folder / "s"))
    monkeypatch.setattr("iokeel.service._collect_seldom", lambda _drives: None)
    file = folder / "agent.toml"
    file.write_text(f'agent.state_dir = "{folder}/state"')
    (folder / "state").mkdir()
    return file, load(file)


class Slow(daemon.Agent):
    """An agent without VMs that takes a configuration over once it may."""

    def __init__(self, config: Config) -> None:
        super().__init__(config, [QmpSource(())], StateStore(config.agent.state_dir), Metrics())
        self.may = asyncio.Semaphore(0)

    async def reconfigure(self, config: Config) -> None:
        await self.may.acquire()
        await super().reconfigure(config)


async def test_ready_is_told_after_the_last_of_two_reloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    file, config = managed(tmp_path, monkeypatch)
    agent = Slow(config)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "s"))
        manager.setblocking(False)
        service = iokeel_service.Service(agent, file, None)
        reloads = [asyncio.create_task(service.reload()) for _ in range(2)]
        await asyncio.sleep(0)  # both begin
        for done in range(3):
            await until(lambda: sum(task.done() for task in reloads) == done)  # noqa: B023
            service.manager.alive("")
            agent.may.release()
        told = b"\n".join(manager.recv(4096) for _ in range(5)).decode().splitlines()
    assert [line for line in told if line.endswith("=1")] == [
        *["RELOADING=1"] * 2, "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1", "READY=1",
    ]  # fmt: skip


async def test_a_reload_is_told_as_done_while_the_state_folders_disk_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    file, config = managed(tmp_path, monkeypatch)
    new = config.agent.state_dir / "agent.toml.new"
    os.mkfifo(new)  # whose opening hangs until somebody reads it
    agent = daemon.Agent(config, [QmpSource(())], StateStore(config.agent.state_dir), Metrics())
    service = iokeel_service.Service(agent, file, None)
    for limit in (200, 300):
        file.write_text(f"{config.text.decode()}\n[tenants.acme]\nlimit = {limit}\n")
        await asyncio.wait_for(service.reload(), 60)
        assert agent.config.tenants["acme"].limit == limit
    assert caplog.messages.count(READ_AGAIN) == 2
    assert f"{config.agent.state_dir}: its disk doesn't answer; until it does" in caplog.text
    reader = os.open(new, os.O_RDONLY | os.O_NONBLOCK)
    kept = config.agent.state_dir / "agent.toml"
    await until(lambda: kept.is_file() and "limit = 300" in kept.read_text())
    os.close(reader)


async def test_drives_are_counted_every_tenth_tick_and_a_refusal_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, config = managed(tmp_path, monkeypatch)
    agent = daemon.Agent(config, [QmpSource(())], StateStore(config.agent.state_dir), Metrics())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "s"))
        manager.setblocking(False)

        def tick() -> list[str]:
            agent.on_tick()
            return manager.recv(4096).decode().splitlines()

        service = iokeel_service.Service(agent, file, ConfigError("a.toml", "is bad", "mend it"))
        none = "STATUS=VMs: 0, drives with limits: 0"
        refused = f"{none}; the configuration stays as it was: a.toml: is bad; mend it"
        assert tick() == ["WATCHDOG=1", "READY=1", refused]
        assert b"\niokeel_agent_config_valid 0.0\n" in await agent.metrics.text(agent.snapshot())
        limited = NEW._replace(sent=Sent(limits=ThrottleLimits(iops_total=5)))
        agent.state = State(drives={DriveId("db1", "vda"): limited})
        assert tick() == ["WATCHDOG=1"]
        await service.reload()
        assert manager.recv(4096).startswith(b"RELOADING=1")
        agent.state = State(drives={DriveId("db1", "vda"): limited})
        assert tick() == ["WATCHDOG=1", "READY=1", none]
        assert b"\niokeel_agent_config_valid 1.0\n" in await agent.metrics.text(agent.snapshot())
        later = [tick() for _ in range(8)]
    assert later == [
        *[["WATCHDOG=1"]] * 7,
        ["WATCHDOG=1", "STATUS=VMs: 0, drives with limits: 1"],
    ]


@pytest.mark.parametrize("address", ["", "@", "/", "a\0b", "x" * 4096])
def test_an_address_that_is_none_is_let_be(address: str) -> None:
    service = ServiceManager({"NOTIFY_SOCKET": address})
    service.alive("works")
    service.stopping()


# Reloads


def test_good_configuration_is_taken_over_by_the_same_agent(service: Service) -> None:
    before = service.iops()
    service.reload("limit = 400", "limit = 900")
    assert service.says(READ_AGAIN)
    eventually(lambda: service.limit() == 900, what="the new limit is the policy's")
    eventually(lambda: service.iops() > before, what="the new limit is in force")
    assert service.metrics()["iokeel_agent_reconnects_total"] == 0


def test_bad_configuration_changes_nothing_and_is_told(service: Service) -> None:
    before = service.drive("db1")["limits_in_force"]
    service.reload("limit = 400", "limit = 900\nlimt = 1")
    wrong = f"{service.config}, [[vm]] 1, [vm.drives.vda] limt: not known; did you mean 'limit'?"
    service.has_status(f"VMs: 1, drives with limits: 1; {STAYS}{wrong}")
    assert service.log().count(STAYS + wrong) == 1
    assert service.limit() == 400
    assert service.drive("db1")["limits_in_force"] == before
    assert service.metrics()['iokeel_agent_errors_total{kind="config"}'] == 1
    service.reload("limt = 1", "")
    service.has_status("VMs: 1, drives with limits: 1")
    eventually(lambda: service.limit() == 900, what="the corrected limit")


@pytest.mark.parametrize("wrong", ["limt = 1", "[vm", "\0"])
def test_a_start_with_a_bad_file_goes_by_the_last_one(service: Service, wrong: str) -> None:
    service.reload("limit = 400", "limit = 500")
    service.stop(signal.SIGKILL)
    good = service.config.read_text()
    service.config.write_text(f"{good.replace('limit = 500', 'limit = 900')}\n{wrong}\n")
    service.start()
    eventually(lambda: service.limit() == 500, what="the last good limit is the policy's")
    assert service.says(STAYS + str(service.config))
    assert service.metrics()['iokeel_agent_errors_total{kind="config"}'] == 1
    refused = iokeel("agent", "--check", "--config", service.config)
    assert (refused.status, str(service.config) in refused.complaint) == (2, True)
    service.config.write_text(good.replace("limit = 500", "limit = 700"))
    service.hang_up()
    eventually(lambda: service.limit() == 700, what="the mended file is taken over")
    service.stop()
    service.config.write_text(wrong + good)
    assert iokeel("agent", "--release", "--config", service.config).status == 0


def test_a_bad_file_that_was_never_good_is_refused(service: Service) -> None:
    other = service.folder / "other.toml"
    other.write_text(f"{service.config.read_text()}\n[vm")
    service.stop()
    refused = iokeel("agent", "--config", other)
    assert (refused.status, str(other) in refused.complaint) == (2, True)


@pytest.mark.parametrize("content", [None, b"\xff", b"[agent"])
def test_a_file_that_cannot_be_read_changes_nothing(
    service: Service, content: bytes | None
) -> None:
    if content is None:
        service.config.unlink()
    else:
        service.config.write_bytes(content)
    service.hang_up()
    assert service.says(STAYS + str(service.config))
    assert service.limit() == 400


def test_settings_of_the_start_are_kept_and_told(service: Service) -> None:
    other = service.folder / "other.sock"
    service.reload("[agent]\n", "[agent]\ntick_seconds = 2.0\n")
    assert service.says("[agent] tick_seconds: takes a restart of the agent")
    service.reload(str(service.socket), str(other))
    assert service.says("[agent] socket, [agent] tick_seconds: takes a restart of the agent")
    assert service.answers()
    assert not other.exists()


def test_virtual_machines_come_and_go(service: Service, short_folder: Path) -> None:
    folder = service.folder / "second"
    folder.mkdir()
    qemu, path = start_qemu(folder)
    try:
        second = VM.format(path).replace("db1", "db2")
        service.reload("[[vm]]", f"{second}\n[[vm]]")
        eventually(lambda: service.drive("db2")["limits_in_force"], what="it has limits")
        service.reload(second, "")
        assert [vm["domain"] for vm in service.ask("/v1/vms")] == ["db1"]
        assert service.limit() == 400
        assert service.metrics()["iokeel_agent_reconnects_total"] == 0
    finally:
        qemu.kill()
        qemu.communicate()


def test_virtual_machine_that_goes_stays_at_its_part_of_its_tenants_limit(service: Service) -> None:
    own = service.iops()
    (path,) = re.findall('socket = "(.*qmp.*)"', service.config.read_text())
    service.reload("[[vm]]", "[tenants.acme]\nlimit = 200\n[[vm]]")
    eventually(lambda: service.iops() < own, what="its tenant's limit is in force")
    tables = service.config.read_text()
    service.reload(tables[tables.index("[[vm]]") :], "")
    assert service.ask("/v1/vms") == []
    with QmpClient(Path(path)) as qemu:
        drives = {b["qdev"].split("/")[-2]: b["inserted"] for b in qemu.ask("query-block")}
    limits = {iotune: drives["vda"][name] for name, iotune in IOTUNE.items()}
    assert 150 < highest_rate(limits) <= TOLERANCE * 200


LEFT = "VM db1: is left, as the configuration says"
CANT_BE_LEFT = (
    "VM db1: has gone from the configuration, but db1/vda can't be set to a static limit: no answer"
    " to block_set_io_throttle in 5 s; see that its QEMU answers, or end it; until then it is tried"
    " again each minute"
)


@dataclass
class Hung:
    """A service whose only VM, with 400 iops, hangs as it goes, and its tenant gets 200."""

    service: Service
    qemu: subprocess.Popen[bytes]
    tables: str

    def rows(self) -> list[tuple[str, str]]:
        """Return the saved drives, from a copy: the agent has the database for itself."""
        with tempfile.TemporaryDirectory() as name:
            for file in self.service.state.glob("state.db*"):
                shutil.copy(file, name)
            with contextlib.closing(sqlite3.connect(Path(name) / "state.db")) as database:
                return database.execute("SELECT domain, target FROM drives").fetchall()

    def limits(self) -> dict[str, int]:
        """Return the limits that QEMU itself has, in libvirt's words."""
        with QmpClient(self.service.folder / "watch.sock") as client:
            (vda,) = [b for b in client.ask("query-block") if "/vda/" in b["qdev"]]
        return {iotune: vda["inserted"].get(name, 0) for name, iotune in IOTUNE.items()}


@pytest.fixture
def hung(short_folder: Path, tmp_path: Path) -> Iterator[Hung]:
    folder = short_folder / tmp_path.name
    folder.mkdir()
    qemu, path = start_qemu(folder)
    vm = VM.format(path)
    try:
        with Service(folder, vm) as service:
            found = Hung(service, qemu, vm)
            eventually(lambda: 280 < service.iops() <= 400, what="limits for 400 iops are set")
            hang(qemu)
            service.reload(vm, "[tenants.acme]\nlimit = 200\n")
            assert service.ask("/v1/vms") == []
            assert service.log().count(CANT_BE_LEFT) == 1
            yield found
        service.end_manager()
    finally:
        qemu.kill()
        qemu.communicate()


def test_virtual_machine_that_hangs_as_it_goes_is_left_once_it_answers(hung: Hung) -> None:
    service = hung.service
    ticks = service.metrics()["iokeel_agent_tick_seconds_count"]
    eventually(
        lambda: service.metrics()["iokeel_agent_tick_seconds_count"] > ticks + 6,
        what="it saves all that it knows",
    )
    eventually(lambda: hung.rows() == [("db1", "vda")], what="a copy is whole")
    hung.qemu.send_signal(signal.SIGCONT)
    eventually(lambda: service.says(LEFT), what="it is left")
    assert 150 < highest_rate(hung.limits()) <= TOLERANCE * 200
    eventually(lambda: hung.rows() == [], what="it is forgotten")
    assert service.log().count(CANT_BE_LEFT) == 1
    assert "Traceback" not in service.log()


def test_virtual_machine_that_ends_while_it_is_left_is_forgotten(hung: Hung) -> None:
    hung.qemu.kill()
    eventually(lambda: hung.service.says(LEFT), what="it is left")
    eventually(lambda: hung.rows() == [], what="it is forgotten")


def test_virtual_machine_that_comes_back_before_it_was_left_can_be_released(hung: Hung) -> None:
    service = hung.service
    text = service.config.read_text()
    service.config.write_text(text + hung.tables)
    service.hang_up()
    hung.qemu.send_signal(signal.SIGCONT)
    eventually(lambda: 0 < service.iops() <= 200, what="its share is in force again")
    assert not service.says(LEFT)
    service.stop()
    assert iokeel("agent", "--release", "--config", service.config).status == 0
    assert set(hung.limits().values()) == {0}


def test_virtual_machine_that_hangs_as_it_goes_is_left_at_a_stop(hung: Hung) -> None:
    hung.qemu.send_signal(signal.SIGCONT)
    hung.limits()  # it answers again
    hung.service.stop()
    assert 150 < highest_rate(hung.limits()) <= TOLERANCE * 200


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_virtual_machine_that_hangs_as_it_goes_is_left_by_the_next_agent(
    hung: Hung, end: signal.Signals
) -> None:
    service = hung.service
    service.stop(end)
    service.start()
    assert service.says("VM db1: has gone from the configuration, but isn't left yet")
    assert service.ask("/v1/vms") == []
    time.sleep(2.5)
    assert not service.says(LEFT)
    hung.qemu.send_signal(signal.SIGCONT)
    eventually(lambda: service.says(LEFT), what="it is left")
    assert 150 < highest_rate(hung.limits()) <= TOLERANCE * 200
    eventually(lambda: hung.rows() == [], what="it is forgotten")


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_virtual_machine_that_hangs_and_goes_between_two_agents_is_left_by_the_second(
    hung: Hung, end: signal.Signals
) -> None:
    service = hung.service
    without = service.config.read_text()
    service.config.write_text(without + hung.tables)
    service.hang_up()
    service.stop(end)
    service.config.write_text(without)
    service.start()
    assert service.says("VM db1: has gone from the configuration, but isn't left yet")
    hung.qemu.send_signal(signal.SIGCONT)
    eventually(lambda: service.says(LEFT), what="it is left")
    assert 150 < highest_rate(hung.limits()) <= TOLERANCE * 200
    eventually(lambda: hung.rows() == [], what="it is forgotten")


def test_virtual_machine_that_hangs_as_it_goes_can_be_released_later(hung: Hung) -> None:
    service = hung.service
    service.stop(signal.SIGKILL)
    assert iokeel("agent", "--release", "--config", service.config).status == 1
    hung.qemu.send_signal(signal.SIGCONT)
    assert iokeel("agent", "--release", "--config", service.config).status == 0
    assert set(hung.limits().values()) == {0}


def test_virtual_machine_at_a_second_socket_of_its_own_can_be_released(service: Service) -> None:
    folder = service.folder / "second"
    folder.mkdir()
    qemu, path = start_qemu(folder)
    (service.folder / "other").symlink_to(folder)
    other = service.folder / "other" / path.name
    try:
        service.reload("[[vm]]", f"{VM.format(path).replace('db1', 'db2')}\n[[vm]]")
        eventually(lambda: service.drive("db2")["limits_in_force"], what="it has limits")
        service.reload(str(path), str(other))
        found = "VM db2: connected"
        eventually(lambda: service.log().count(found) == 2, what="it is found again")
        eventually(lambda: service.drive("db2")["limits_in_force"], what="it has limits again")
        assert service.drive("db2")["overwritten"] == 0
        service.stop()
        assert iokeel("agent", "--release", "--config", service.config).status == 0
        with QmpClient(path) as client:
            assert {b["inserted"]["iops"] for b in client.ask("query-block")} == {0}
    finally:
        qemu.kill()
        qemu.communicate()


def test_virtual_machine_at_another_socket_is_another(service: Service) -> None:
    folder = service.folder / "second"
    folder.mkdir()
    qemu, path = start_qemu(folder)
    try:
        (old,) = re.findall('socket = "(.*qmp.*)"', service.config.read_text())
        service.reload(old, str(path))
        eventually(lambda: service.drive("db1")["limits_in_force"], what="it has limits")
        assert service.says("VM db1: connected, 2 drives")
        assert service.log().count("VM db1: connected, 2 drives") == 2
        assert service.drive("db1")["overwritten"] == 0
    finally:
        qemu.kill()
        qemu.communicate()


def test_tenants_and_storages_are_taken_over_and_stay_when_they_go(service: Service) -> None:
    tenant = "[tenants.acme]\nlimit = 300\n"
    service.reload("[[vm]]", f"{tenant}[[vm]]")
    eventually(lambda: service.drive("db1")["allowed_iops"] == 300, what="the tenant's limit")
    service.reload(tenant, "")
    eventually(lambda: service.says("[tenants.acme]: has gone"), what="it is told")
    ticks = service.metrics()["iokeel_agent_tick_seconds_count"]
    eventually(
        lambda: service.metrics()["iokeel_agent_tick_seconds_count"] >= ticks + 2,
        what="it ticks on",
    )
    assert service.drive("db1")["allowed_iops"] == 300
    service.reload("[[vm]]", "[tenants.acme]\n[[vm]]")
    eventually(lambda: service.drive("db1")["allowed_iops"] == 400, what="an empty table lifts it")
    service.reload("[[vm]]", '[storage.fast]\ndrives = ["db1/*"]\ncapacity = 5000\n[[vm]]')
    eventually(lambda: service.drive("db1")["storage"] == "fast", what="it is on the storage")
    (fast,) = [each for each in service.ask("/v1/storages") if each["storage"] == "fast"]
    assert fast["capacity_iops"] == 5000


def test_curve_is_taken_over(service: Service) -> None:
    before = service.drive("db1")["limits_in_force"]
    service.reload("[[vm]]", '[curve]\nread = [["4k", 4.0], ["64k", 40.0]]\n[[vm]]')
    eventually(
        lambda: service.drive("db1")["limits_in_force"] != before, what="limits by the new curve"
    )


def test_limits_that_qemu_does_not_have_are_not_told(service: Service) -> None:
    folder = service.folder / "second"
    folder.mkdir()
    qemu, path = start_qemu(folder)
    try:
        service.reload("[[vm]]", "[curve]\n[[vm]]")
        service.reload("[[vm]]", f"{VM.format(path).replace('db1', 'db2')}\n[[vm]]")
        eventually(lambda: service.drive("db2")["limits_in_force"], what="it has limits")
        before = service.drive("db2")["limits_in_force"]
        hang(qemu)
        service.reload("[curve]", '[curve]\nread = [["4k", 4.0], ["64k", 40.0]]')
        told = []

        def has_failed() -> bool:
            drive = service.drive("db2")
            told.append(drive["limits_in_force"])
            return bool(drive["errors"])

        eventually(has_failed, what="the order has timed out")
        assert all(limits in (before, None) for limits in told)
        qemu.send_signal(signal.SIGCONT)
        eventually(
            lambda: service.drive("db2")["limits_in_force"] not in (before, None, {}),
            what="it has limits by the new curve",
        )
        assert [service.drive(vm)["overwritten"] for vm in ("db1", "db2")] == [0, 0]
    finally:
        qemu.kill()
        qemu.communicate()


def test_classes_are_taken_over(service: Service) -> None:
    xml = f"<domain><name>db9</name><metadata>{GOLD}</metadata></domain>".replace('"', "'")
    message = f'{{"domain": "db9", "operation": "prepare", "xml": "{xml}"}}'.encode()
    assert '"ok":false' in http(service.socket, "POST", "/v1/hook", message)[2]
    service.reload("[[vm]]", "[classes.platinum]\nlimit = 5\n[[vm]]")
    assert '"ok":true' in http(service.socket, "POST", "/v1/hook", message)[2]


def test_log_level_is_taken_over(service: Service) -> None:
    service.reload("[agent]\n", '[agent]\nlog_level = "error"\n')
    assert not service.says(READ_AGAIN)
    service.reload('log_level = "error"', 'log_level = "info"')
    assert service.says(READ_AGAIN)
