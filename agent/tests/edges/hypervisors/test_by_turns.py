"""Monitors that have another owner, and VMs that [[discover]] finds: Proxmox VE's, with real QEMUs.

The agent is a process of its own, as in service.
"""

from __future__ import annotations

import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.agents import Agent, iokeel
from testing.hypervisors.proxmox import QEMU, Owner, ProxmoxHost
from testing.processes import hang
from testing.waiting import eventually

pytestmark = pytest.mark.skipif(shutil.which(QEMU[0]) is None, reason=f"needs {QEMU[0]}")
SOLD = 700
FOUND = {"iops-total": SOLD}
DISK = "local-lvm:vm-100-disk-0,iops={},size=32G"
RULES = """
[[rules]]
name = "pools"
when = {"pve.pool" = "*"}
tenant = "{pve.pool}"
[[rules]]
name = "sold"
[[rules.drives]]
limit = "platform"
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, for sockets."""
    with tempfile.TemporaryDirectory(prefix="iokeel-") as name:
        yield Path(name)


@pytest.fixture
def host(folder: Path) -> Iterator[ProxmoxHost]:
    """A host with VM 100 in the pool acme, of which 700 requests a second are sold."""
    with ProxmoxHost(folder) as made:
        configure(made)
        made.pool(100)
        yield made


@pytest.fixture
def owner(host: ProxmoxHost) -> Owner:
    return Owner(host.monitor(100))


BEGINS = """
[[rules]]
name = "begins"
[[rules.drives]]
limit = 500
burst = 1000
start_credit_seconds = 50
"""


def configure(host: ProxmoxHost, iops: int = SOLD, vmid: int = 100) -> Path:
    return host.configure(vmid, name="web", scsi0=DISK.format(iops), ide2="none,media=cdrom")


def limit(agent: Agent, vmid: int = 100) -> int | None:
    """Return what a VM's disk is promised; None if the VM isn't there."""
    drives = [drive for vm in agent.ask("/v1/vms") for drive in vm["drives"]]
    limits = {(drive["domain"], drive["target"]): drive["limit_iops"] for drive in drives}
    return limits.get((str(vmid), "scsi0"))


def held(agent: Agent, iops: int = SOLD) -> None:
    """Wait until VM 100's disk is promised so much, and has limits of the agent's."""
    eventually(lambda: limit(agent) == iops and agent.says("100/scsi0: limits set"))


@pytest.mark.parametrize("old", [False, True], ids=["group", "device"])
def test_an_owner_is_never_refused_and_hardly_waits(
    host: ProxmoxHost, owner: Owner, folder: Path, old: bool
) -> None:
    host.start(100, limits=FOUND, old=old)
    with Agent(folder, host.table + RULES) as agent:
        asking = owner.every(0.2)
        held(agent)
        time.sleep(6.0)
        owner.end(asking)
        (vm,) = agent.ask("/v1/vms")
        assert (vm["domain"], vm["tenant"], vm["policy_error"]) == ("100", "acme", None)
        assert [drive["target"] for drive in vm["drives"]] == ["scsi0"], "ide2 is no disk"
        assert agent.drive("100", "scsi0")["error"] is None
        (drive,) = [b for b in owner.ask("query-block") if b["qdev"].startswith("scsi0")]
    assert owner.refused == []
    assert len(owner.waits_s) > 20
    # The machine that runs tests may itself let a client wait for long.
    assert statistics.median(owner.waits_s) < 0.1
    total = drive["inserted"]["iops"] if old else owner.iops()
    assert 0 < total < SOLD


def test_an_owner_that_stays_is_told_of_once_and_limits_hold(
    host: ProxmoxHost, owner: Owner, folder: Path
) -> None:
    host.start(100, limits=FOUND)
    with Agent(folder, host.table + RULES) as agent:
        held(agent)
        eventually(lambda: owner.iops() < SOLD)
        before = owner.iops()
        owner.ask("query-status", hold_s=16.0)
        assert owner.iops() == before
        lines = [line for line in agent.log().splitlines() if line.startswith("ERROR")]
        assert [line.partition("VM 100: ")[2] for line in lines] == [
            f"{owner.monitor}: another client has it all the time, so the limits in force stay as"
            " they are; see which, and let it hang up: ss -xp | grep 100.qmp"
        ]
        assert limit(agent) == SOLD
        configure(host, 900)
        eventually(lambda: limit(agent) == 900 and owner.iops() > before)


def test_vms_come_and_go_with_their_sockets_and_follow_their_files(
    host: ProxmoxHost, owner: Owner, folder: Path
) -> None:
    with Agent(folder, host.table + RULES) as agent:
        host.start(100, limits=FOUND)
        held(agent)
        file = configure(host, 1400)
        eventually(lambda: limit(agent) == 1400)
        file.write_text("scsi0: local-lvm:vm-100-disk-0,iops=many\n")
        told = "VM 100, drive scsi0: iops is 'many', which is no number; set it anew, by `qm set`"
        eventually(lambda: agent.says(told))
        assert limit(agent) == 1400
        file.unlink()
        eventually(lambda: agent.says(f"{file}: can't be read, no such file or directory;"))
        assert limit(agent) == 1400
        configure(host, 800)
        eventually(lambda: limit(agent) == 800)
        host.end(100)
        eventually(lambda: limit(agent) is None)
        assert agent.says("VM 100: has ended")
        host.start(100, limits={"iops-total": 800})
        eventually(lambda: limit(agent) == 800 and owner.iops() < 800)
        errors = [line for line in agent.log().splitlines() if line.startswith("ERROR")]
        of_file = [line for line in errors if "iops is" in line or "can't be read" in line]
        assert len(of_file) == 2, "each is told once"
        assert not agent.says("no such socket")


def test_a_guest_begins_with_credit_when_it_boots_and_not_when_it_migrates(
    host: ProxmoxHost, folder: Path
) -> None:
    with Agent(folder, host.table + BEGINS) as agent:
        host.start(100, "-incoming", "defer")
        eventually(lambda: agent.says("100/scsi0: limits set"))
        assert agent.drive("100", "scsi0")["credit_s"] < 30
        host.end(100)
        host.start(100)
        eventually(lambda: limit(agent) is not None and agent.drive("100", "scsi0")["burst_open"])
        assert agent.drive("100", "scsi0")["credit_s"] > 40


def test_another_qemu_at_the_same_socket_gets_its_limits(
    host: ProxmoxHost, owner: Owner, folder: Path
) -> None:
    host.start(100, limits=FOUND)
    with Agent(folder, host.table + RULES) as agent:
        held(agent)
        for _ in range(3):
            host.end(100)
            host.start(100, limits=FOUND)
            eventually(lambda: owner.iops() < SOLD)
        assert limit(agent) == SOLD


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_the_platform_set_is_given_back(
    host: ProxmoxHost, owner: Owner, folder: Path, number: signal.Signals
) -> None:
    host.start(100, limits=FOUND)
    agent = Agent(folder, host.table + RULES)
    for _ in range(2):
        with agent:
            eventually(lambda: limit(agent) == SOLD and 0 < owner.iops() < SOLD)
            agent.stop(number)
        assert 0 < owner.iops() < SOLD
    done = iokeel("agent", "--release", "--config", agent.config)
    assert (done.status, done.err) == (0, "")
    assert owner.iops() == SOLD


def test_a_vm_that_has_ended_while_no_agent_ran_holds_up_no_release(
    host: ProxmoxHost, folder: Path
) -> None:
    host.start(100, limits=FOUND)
    with Agent(folder, host.table + RULES) as agent:
        held(agent)
        agent.stop()
    host.end(100)
    done = iokeel("agent", "--release", "--config", agent.config)
    assert (done.status, done.err) == (0, "")


@pytest.mark.parametrize("runs", [True, False], ids=["reload", "restart"])
def test_vms_that_no_discover_names_any_more_are_left_at_their_static_limit(
    host: ProxmoxHost, owner: Owner, folder: Path, runs: bool
) -> None:
    host.start(100, limits=FOUND)
    with Agent(folder, host.table + RULES) as agent:
        held(agent)
        text = agent.config.read_text()
        agent.config.write_text(text.replace(host.table, ""))
        if runs:
            agent.send(signal.SIGHUP)
        else:
            agent.stop(signal.SIGKILL)
            agent.start()
        eventually(lambda: not agent.ask("/v1/vms"))
        eventually(lambda: agent.says("VM 100: is left, as the configuration says") or runs)
        assert 0 < owner.iops() < SOLD
        agent.config.write_text(text)
        agent.send(signal.SIGHUP)
        eventually(lambda: limit(agent) == SOLD)
        agent.stop()
    assert iokeel("agent", "--release", "--config", agent.config).status == 0


def test_a_qemu_that_is_stopped_is_told_as_that(
    host: ProxmoxHost, owner: Owner, folder: Path
) -> None:
    host.start(100, limits=FOUND)
    with Agent(folder, host.table + RULES) as agent:
        held(agent)
        pid = host.process(100).pid
        hang(host.process(100))
        told = f"{owner.monitor}: process {pid} is stopped, and answers nobody; kill -CONT {pid}"
        eventually(lambda: agent.says(told))
        time.sleep(12.0)
        errors = [line for line in agent.log().splitlines() if line.startswith("ERROR")]
        assert len(errors) == 1
        assert limit(agent) == SOLD
        host.process(100).send_signal(signal.SIGCONT)
        configure(host, 900)
        eventually(lambda: limit(agent) == 900)
        assert owner.iops() < 900


def test_links_and_odd_names_are_told_and_the_others_are_served(
    host: ProxmoxHost, folder: Path
) -> None:
    host.start(100, limits=FOUND)
    (host.run / "101.qmp").symlink_to(host.monitor(100))
    (host.run / "1 2.qmp").touch()
    with Agent(folder, host.table + RULES) as agent:
        held(agent)
        eventually(lambda: agent.says("so it may lead to another VM's monitor"))
        assert agent.says(f"{host.run}/1 2.qmp: the name is not a name")
        assert [vm["domain"] for vm in agent.ask("/v1/vms")] == ["100"]


def test_a_vm_that_is_configured_may_be_shared_too(
    host: ProxmoxHost, owner: Owner, folder: Path
) -> None:
    host.start(100)
    table = f'[[vm]]\nname = "web"\nsocket = "{owner.monitor}"\nshared = true\n'
    with Agent(folder, f"{table}[vm.drives.scsi0]\nlimit = 500\n") as agent:
        asking = owner.every(0.2)
        eventually(lambda: agent.says("web/scsi0: limits set"))
        owner.end(asking)
        assert owner.refused == []
        assert 0 < owner.iops() < 500
