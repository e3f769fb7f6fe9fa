"""Disks that share a group of <iotune>, on stock QEMU: each limit holds them all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testing.agents import HostAgent
from testing.hypervisors.iotune import TOLERANCE, highest_rate
from testing.lab.guests.domain import DiskSpec, IoTune, make_disk
from testing.lab.guests.vm import Vm
from testing.lab.host import Host
from testing.waiting import eventually
from tests.system.rig import blkdeviotune, set_metadata

pytestmark = pytest.mark.timeout(600)


TARGETS = ("vda", "vdb")
DRIVES = '<drive target="vda" limit="{}"/><drive target="vdb" limit="2000"/>'
POLICY = f'<policy tenant="{{}}">{DRIVES}</policy>'


@pytest.fixture
def guest(host: Host, agent: HostAgent) -> Iterator[Vm]:
    """A guest that begins to boot, with two disks in one group."""
    shared: IoTune = {"total_iops_sec": 5000, "group_name": "both"}
    disks = [
        DiskSpec(target, make_disk(host.dir / f"{target}.raw", 8), iotune=shared)
        for target in TARGETS
    ]
    with Vm.boot(host, "gr1", disks, ready=False) as vm:
        set_policy(agent, "t0", 300)
        eventually(lambda: all(agent.says(f"gr1/{target}: limits set") for target in TARGETS))
        yield vm
    host.virsh("undefine", "gr1")


def set_policy(agent: HostAgent, tenant: str, limit: int) -> None:
    """Set a policy, and wait until the agent has read the domain and looked at its drives."""
    set_metadata(agent.host, "gr1", POLICY.format(tenant, limit))
    eventually(lambda: agent.drive("gr1")["tenant"] == tenant)


def held_to(agent: HostAgent) -> int | None:
    """Return which limit QEMU holds both drives to; None if it is no policy's."""
    first, second = (blkdeviotune(agent.host, "gr1", target) for target in TARGETS)
    assert first == second
    rate = highest_rate(first)
    found = [limit for limit in (200, 300, 2000) if limit / TOLERANCE <= rate <= TOLERANCE * limit]
    return found[0] if found else None


def overwritten(agent: HostAgent) -> list[int]:
    return [agent.drive("gr1", target)["overwritten"] for target in TARGETS]


def test_the_last_limit_that_was_set_counts_and_nobody_has_overwritten_the_other(
    guest: Vm, agent: HostAgent
) -> None:
    last = held_to(agent)
    assert last in (300, 2000)
    for tenant in ("t1", "t2", "t3"):
        set_policy(agent, tenant, 300)
        assert overwritten(agent) == [0, 0]
        assert held_to(agent) == last
    set_policy(agent, "t3", 200)
    eventually(lambda: held_to(agent) == 200)
    set_policy(agent, "t4", 200)
    assert (held_to(agent), overwritten(agent)) == (200, [0, 0])


def test_limits_set_by_hand_are_put_back_once_for_each_disk(guest: Vm, agent: HostAgent) -> None:
    agent.host.virsh("blkdeviotune", "gr1", "vdb", "--total-iops-sec", "55", "--live")
    eventually(lambda: agent.log().count("somebody else changed the limits") == 2)
    for tenant in ("t1", "t2"):
        set_policy(agent, tenant, 300)
        assert held_to(agent)
        assert overwritten(agent) == [1, 1]
