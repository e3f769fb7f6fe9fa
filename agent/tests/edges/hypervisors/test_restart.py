"""The agent as a process, started again with another configuration, on a QEMU without a guest."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testing.agents import Agent, start_qemu
from testing.hypervisors.qmp_client import QmpClient
from testing.waiting import eventually

TENANT = "[tenants.acme]\nlimit = 800\n"


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., Path]]:
    """Starts a QEMU with two drives in place of the last one, and returns its monitor."""
    running: list[subprocess.Popen[bytes]] = []

    def end() -> None:
        for process in running:
            process.kill()
            process.wait()
        running.clear()

    def begin(*options: str) -> Path:
        end()
        process, path = start_qemu(folder, *options)
        running.append(process)
        return path

    yield begin
    end()


@pytest.fixture
def socket(start: Callable[..., Path]) -> Path:
    """The monitor of a QEMU with two drives, for one client at a time."""
    return start()


def iops_of_vda(socket: Path) -> int:
    """Return the limit that QEMU itself has, while no agent runs."""
    with QmpClient(socket) as qemu:
        (vda,) = [b["inserted"] for b in qemu.ask("query-block") if "/vda/" in b["qdev"]]
    return int(vda["iops"])


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_tenant_that_goes_from_the_configuration_lifts_no_limit(
    folder: Path, socket: Path, end: signal.Signals
) -> None:
    vm = f'[[vm]]\nname = "db1"\nsocket = "{socket}"\ntenant = "acme"\n'
    vm += "[vm.drives.vda]\nweight = 9\n"
    with Agent(folder, TENANT + vm) as agent:
        eventually(lambda: "db1/vda: limits set" in agent.log())
        agent.stop(end)
    with Agent(folder, vm) as later:
        told = eventually(lambda: later.drive("db1")["error"])
        assert told["where"] == "[tenants.acme]"
        eventually(lambda: later.drive("db1")["allowed_iops"] == 800)
        assert later.says("write an empty [tenants.acme]")
        assert later.metrics()['iokeel_agent_errors_total{kind="config"}'] == 1
        if end is signal.SIGTERM:  # that one gave back what only a division held
            eventually(lambda: "db1/vda: limits set" in later.log())
        later.stop(signal.SIGKILL)
    assert 0 < iops_of_vda(socket) <= 800
    with Agent(folder, "[tenants.acme]\n" + vm) as lifted:
        eventually(lambda: "db1/vda: limits set: the drive no longer has" in lifted.log())
        assert lifted.drive("db1")["error"] is None
        lifted.stop(signal.SIGKILL)
    assert iops_of_vda(socket) == 0


def test_a_guest_begins_with_credit_when_it_boots_and_not_when_it_is_restored(
    folder: Path, socket: Path, start: Callable[..., Path]
) -> None:
    saved = folder / "saved"
    with QmpClient(socket) as qemu:
        qemu.ask("migrate", uri=f"exec:cat >{saved}")
        eventually(lambda: qemu.ask("query-migrate").get("status") == "completed")
    vm = f'[[vm]]\nname = "db1"\nsocket = "{socket}"\n[vm.drives.vda]\n'
    with Agent(folder, f"{vm}limit = 500\nburst = 1000\nstart_credit_seconds = 50\n") as agent:
        start("-incoming", f"exec:cat {saved}")
        eventually(lambda: "db1/vda: limits set" in agent.log())
        assert agent.drive("db1")["credit_s"] < 30
        start()
        eventually(lambda: agent.ask("/v1/vms") and agent.drive("db1")["burst_open"])
        assert agent.drive("db1")["credit_s"] > 40
