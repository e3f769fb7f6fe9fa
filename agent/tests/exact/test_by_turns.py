"""VMs of Proxmox VE on QEMU 10, stock and patched, whose monitors have another owner."""

from __future__ import annotations

import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.agents import Agent
from testing.hypervisors.proxmox import Owner, ProxmoxHost
from testing.lab.qemu import binaries
from testing.waiting import eventually

pytestmark = pytest.mark.timeout(1800)  # the first run builds a QEMU
LIMIT = 700
RULES = '[[rules]]\nname = "sold"\n[[rules.drives]]\nlimit = "platform"\n'
FIRMWARE = ("-L", "/usr/share/qemu", "-L", "/usr/share/seabios")


@pytest.fixture(params=[["--stock"], []], ids=["stock", "patched"])
def host(request: pytest.FixtureRequest) -> Iterator[ProxmoxHost]:
    qemu = binaries(*request.param) / "qemu-system-x86_64"
    with (
        tempfile.TemporaryDirectory(prefix="iokeel-") as folder,
        ProxmoxHost(Path(folder), (qemu, *FIRMWARE)) as made,
    ):
        yield made


@pytest.mark.parametrize("pause_s", [0.2, 5.0])
def test_an_owner_hardly_waits_and_limits_hold_over_a_kill(
    host: ProxmoxHost, request: pytest.FixtureRequest, pause_s: float
) -> None:
    host.configure(100, scsi0=f"local-lvm:vm-100-disk-0,iops={LIMIT}")
    host.start(100, limits={"iops-total": LIMIT})
    owner = Owner(host.monitor(100))
    is_patched = "patched" in request.node.name
    with Agent(host.run.parent, host.table + RULES) as agent:
        asking = owner.every(pause_s)
        # With a curve, the rate is the limit itself.
        wanted = range(LIMIT, LIMIT + 1) if is_patched else range(1, LIMIT)
        for _ in range(2):
            eventually(lambda: agent.drive("100", "scsi0")["limit_iops"] == LIMIT)
            eventually(lambda: owner.iops() in wanted)
            time.sleep(max(5.0, 3 * pause_s))
            drive = agent.drive("100", "scsi0")
            assert drive["mode"] == ("exact" if is_patched else "retune")
            assert drive["error"] is None
            agent.stop(signal.SIGKILL)
            assert owner.iops() in wanted
            agent.start()
        owner.end(asking)
    assert owner.refused == []
    # The machine that runs tests may itself let a client wait for long.
    assert statistics.median(owner.waits_s) < 0.1
