"""A guest that is reverted to a snapshot, and so to the policy that it had then."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from iokeel.libvirt_xml.schema import NAMESPACE
from testing.agents import HostAgent
from testing.hypervisors.iotune import TOLERANCE, highest_rate
from testing.lab.guests.domain import DiskSpec
from testing.lab.guests.vm import Vm
from testing.lab.host import Host
from testing.waiting import eventually
from tests.system.rig import blkdeviotune, set_metadata

pytestmark = pytest.mark.timeout(600)
POLICY = '<policy><drive target="vda" limit="{}"/></policy>'
GONE = "domain sn1: it has no policy any more"


@pytest.fixture
def guest(host: Host) -> Iterator[Vm]:
    """A guest that begins to boot. Its image can hold snapshots."""
    image = host.dir / "vda.qcow2"
    host.run(["qemu-img", "create", "-q", "-f", "qcow2", image, "8M"])
    drives = [DiskSpec("vda", image, format="qcow2")]
    with Vm.boot(host, "sn1", drives, ready=False) as vm:
        yield vm
    host.virsh("undefine", "sn1", "--snapshots-metadata")


def is_held(agent: HostAgent, limit: int) -> bool:
    """Return whether the agent knows this limit, and QEMU has it."""
    drive, shown = agent.drive("sn1"), blkdeviotune(agent.host, "sn1")
    known = drive["limit_iops"] == limit and drive["limits_in_force"]["iops_total"]
    if not known or known != shown["total_iops_sec"]:
        return False
    return limit / TOLERANCE <= highest_rate(shown) <= TOLERANCE * limit


def hold(agent: HostAgent, limit: int) -> None:
    """Set a limit, and wait until it is in force."""
    set_metadata(agent.host, "sn1", POLICY.format(limit))
    eventually(lambda: is_held(agent, limit))


def test_the_agent_follows_the_policy_that_comes_back(guest: Vm, agent: HostAgent) -> None:
    hold(agent, 900)
    agent.host.virsh("snapshot-create-as", "sn1", "before")
    hold(agent, 300)
    agent.host.virsh("snapshot-revert", "sn1", "before")
    eventually(lambda: is_held(agent, 900))
    hold(agent, 300)
    assert GONE not in agent.log()
    assert agent.drive("sn1")["overwritten"] == 0


def test_a_revert_to_no_policy_is_told_and_takes_the_limits(guest: Vm, agent: HostAgent) -> None:
    host = agent.host
    host.virsh("snapshot-create-as", "sn1", "before")
    hold(agent, 300)
    host.virsh("snapshot-revert", "sn1", "before")
    eventually(lambda: agent.says(GONE))
    eventually(lambda: blkdeviotune(host, "sn1") == {})
    assert NAMESPACE not in host.virsh("dumpxml", "sn1")
    hold(agent, 300)
    assert agent.log().count(GONE) == 1
