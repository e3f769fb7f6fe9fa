"""A site that refuses tainted domains: no command goes past libvirt."""

from __future__ import annotations

import pytest

from testing.agents import HostAgent
from testing.hypervisors.iotune import highest_rate
from testing.lab.guests.vm import Vm
from testing.lab.host import Host
from testing.waiting import eventually
from tests.system.rig import blkdeviotune, set_metadata

pytestmark = pytest.mark.timeout(600)

LIMIT = 500
POLICY = f'<policy><drive target="vda" limit="{LIMIT}"/></policy>'


def is_tainted(host: Host) -> bool:
    return "custom monitor" in host.virsh("dominfo", "db1")


def test_a_guest_is_held_without_being_tainted(guest: Vm, host: Host) -> None:
    set_metadata(host, "db1", POLICY)
    agent = HostAgent(host)
    allowed = agent.config.read_text()
    agent.config.write_text(allowed.replace("[libvirt]", "[libvirt]\npassthrough = false"))
    assert not is_tainted(host)
    with agent:
        eventually(lambda: 0 < highest_rate(blkdeviotune(host, "db1")) <= 1.1 * LIMIT)
        guest.exec("dd if=/dev/vda of=/dev/null bs=64k count=200 iflag=direct", timeout=60)
        eventually(lambda: agent.drive("db1")["mode"] == "retune")
        assert agent.own_faults() == []
        assert not is_tainted(host)

        agent.stop()
        agent.config.write_text(allowed)
        agent.start()
        eventually(lambda: is_tainted(host))
