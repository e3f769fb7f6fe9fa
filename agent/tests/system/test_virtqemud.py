"""libvirt's modular daemons: virtqemud serves QEMU, and no libvirtd runs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.agents import HostAgent
from testing.hypervisors.iotune import highest_rate
from testing.lab.guests.domain import DiskSpec, domain_xml, make_disk
from testing.lab.guests.vm import Vm
from testing.lab.host import PROJECT, Host
from testing.lab.image import image
from testing.waiting import eventually
from tests.system.rig import blkdeviotune, policy, set_metadata

# The first run builds virtqemud.
pytestmark = [pytest.mark.booted, pytest.mark.trixie, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with Host.bookworm(modular=True) as made:
        made.start_libvirtd()
        assert not (made.dir / "run/libvirt/libvirt-sock").exists()
        yield made


@pytest.fixture
def agent(host: Host) -> Iterator[HostAgent]:
    """An agent that is told nothing of virtqemud: its connection is the default one."""
    made = HostAgent(host)
    made.config.write_text(made.config.read_text().replace(host.uri, "qemu:///system"))
    with made as running:
        yield running


@pytest.fixture
def disk(host: Host) -> Path:
    return make_disk(host.dir / "disk.raw", 8)


def is_held(host: Host, limit: int) -> bool:
    return 0 < highest_rate(blkdeviotune(host, "db1")) <= 1.2 * limit


def test_a_guest_is_held_through_faults_of_virtqemud(
    host: Host, agent: HostAgent, disk: Path
) -> None:
    wanted = policy('target="vda" limit="500"')
    with Vm.boot(host, "db1", [DiskSpec("vda", disk)], policy=wanted, ready=False):
        eventually(lambda: is_held(host, 500))
        set_metadata(host, "db1", '<policy><drive target="vda" limit="300"/></policy>')
        eventually(lambda: is_held(host, 300))
        host.kill_libvirtd()
        eventually(lambda: agent.says("see that libvirtd or virtqemud runs"), 60)
        host.start_libvirtd()
        assert is_held(host, 300)
        set_metadata(host, "db1", '<policy><drive target="vda" limit="200"/></policy>')
        eventually(lambda: is_held(host, 200), 60)


def test_the_hook_is_called_after_a_reload_and_refuses_a_bad_policy(
    host: Host, agent: HostAgent, disk: Path
) -> None:
    hook = PROJECT / "libvirt-hooks/qemu.d/50-iokeel"
    host.run(["install", "-D", "-m", "0755", hook, "/etc/libvirt/hooks/qemu.d/50-iokeel"])
    text = agent.config.read_text() + "[hook]\nstrict = true\n"
    host.run(["sh", "-c", "mkdir -p /etc/iokeel && cat > /etc/iokeel/agent.toml"], input=text)
    vm, bad = Vm(host, "bad1"), policy('target="vda" limit="-1"')
    drives = [DiskSpec("vda", disk)]
    vm.define(domain_xml("bad1", drives, image=image(), folder=host.dir, policy=bad))

    def is_refused() -> bool:
        try:
            vm.launch()
        except RuntimeError as error:
            return "guest bad1 refused" in str(error)
        vm.destroy()
        return False

    assert not is_refused()
    host.signal_libvirtd(signal.SIGHUP)  # as systemctl reload virtqemud
    eventually(is_refused, what="virtqemud calls the hook")
