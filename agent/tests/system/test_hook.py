"""The hook, run by libvirt: at prepare it may refuse a guest, but only if it is strict."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testing.agents import HostAgent
from testing.lab.guests.domain import DiskSpec, domain_xml
from testing.lab.guests.vm import Vm
from testing.lab.host import Host
from testing.lab.image import image
from testing.waiting import eventually
from tests.system.rig import policy

pytestmark = pytest.mark.timeout(600)
DISKLESS = """
<domain type='qemu'>
  <name>db1</name>
  <memory unit='MiB'>32</memory>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
</domain>"""
BAD = policy('target="vda" limit="-1"')


@pytest.mark.parametrize("opened", [Host.bookworm, Host.trixie])
def test_libvirt_finds_a_hook_that_came_later_when_it_reloads(opened: Callable[[], Host]) -> None:
    with opened() as host:
        host.start_libvirtd()
        called = host.dir / "called"

        def is_called() -> bool:
            host.virsh("create", "/dev/stdin", input=DISKLESS)
            host.virsh("destroy", "db1")
            return called.exists()

        hook = host.dir / "etc/hooks/qemu.d/50-first"
        hook.parent.mkdir()
        hook.write_text(f"#!/bin/sh\ntouch {called}\n")
        hook.chmod(0o755)
        assert not is_called()
        host.signal_libvirtd(signal.SIGHUP)
        eventually(is_called, what="libvirt calls the hook")


def configure(host: Host, agent: HostAgent, strict: bool) -> None:
    """Write the hook's configuration, in the folder that the hook reads."""
    text = agent.config.read_text() + f"[hook]\nstrict = {str(strict).lower()}\n"
    place = "mkdir -p /etc/iokeel && cat > /etc/iokeel/agent.toml"
    host.run(["sh", "-c", place], input=text)


@pytest.fixture
def bad_guest(host: Host, disk: Path) -> Iterator[Vm]:
    vm = Vm(host, "bad1")
    drives = [DiskSpec("vda", disk)]
    vm.define(domain_xml("bad1", drives, image=image(), folder=host.dir, policy=BAD))
    yield vm
    vm.destroy()
    host.virsh("undefine", "bad1")


def test_a_strict_hook_refuses_a_malformed_policy_and_says_why(
    host: Host, agent: HostAgent, bad_guest: Vm
) -> None:
    configure(host, agent, strict=True)
    with pytest.raises(RuntimeError, match="limit"):
        bad_guest.launch()
    assert not bad_guest.running()


def test_another_hook_warns_and_the_guest_starts(
    host: Host, agent: HostAgent, bad_guest: Vm
) -> None:
    configure(host, agent, strict=False)
    bad_guest.launch()
    assert bad_guest.running()


def test_a_strict_hook_lets_a_good_policy_start(host: Host, agent: HostAgent, disk: Path) -> None:
    configure(host, agent, strict=True)
    drives = [DiskSpec("vda", disk)]
    wanted = policy('target="vda" limit="100"')
    with Vm.boot(host, "good1", drives, ready=False, policy=wanted) as vm:
        assert vm.running()


def test_guests_start_while_the_agent_is_down(host: Host, agent: HostAgent, disk: Path) -> None:
    configure(host, agent, strict=True)
    agent.end()
    drives = [DiskSpec("vda", disk)]
    wanted = policy('target="vda" limit="100"')
    with Vm.boot(host, "good2", drives, ready=False, policy=wanted) as vm:
        assert vm.running()
