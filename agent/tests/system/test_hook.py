"""The hook, run by libvirt: at prepare it may refuse a guest, but only if it is strict."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.agents import HostAgent
from testing.lab.guests.domain import DiskSpec, domain_xml
from testing.lab.guests.vm import Vm
from testing.lab.host import Host
from testing.lab.image import image
from tests.system.rig import policy

pytestmark = pytest.mark.timeout(600)
BAD = policy('target="vda" limit="-1"')


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
