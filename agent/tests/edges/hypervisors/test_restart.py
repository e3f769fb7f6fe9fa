"""The agent as a process, started again with another configuration, on a QEMU without a guest."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.agents import Agent, start_qemu
from testing.hypervisors.qmp_client import QmpClient
from testing.waiting import eventually

TENANT = "[tenants.acme]\nlimit = 800\n"


@pytest.fixture
def socket(folder: Path) -> Iterator[Path]:
    """The monitor of a QEMU with two drives, for one client at a time."""
    process, path = start_qemu(folder)
    yield path
    process.kill()
    process.wait()


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
