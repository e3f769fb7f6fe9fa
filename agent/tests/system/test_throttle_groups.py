"""Drives in throttle groups of their domain (libvirt 11.2 and later)."""

from collections.abc import Iterator

import pytest

from iokeel.core.enforce.envelope import limits_for
from iokeel.core.values.curve import DEFAULT_MODEL
from testing.agents import HostAgent
from testing.lab.guests.domain import DiskSpec, make_disk
from testing.lab.guests.vm import Vm
from testing.lab.host import PROJECT, Host
from testing.waiting import eventually
from tests.system.rig import policy, set_metadata

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with Host.trixie(requirements=PROJECT / "agent/requirements.lock") as made:
        made.start_libvirtd()
        yield made


@pytest.fixture(scope="module")
def guest(host: Host) -> Iterator[Vm]:
    disks = [
        DiskSpec("vda", make_disk(host.dir / "a.raw", 8), throttle_groups=["own"]),
        DiskSpec("vdb", make_disk(host.dir / "b.raw", 8), throttle_groups=["both"]),
        DiskSpec("vdc", make_disk(host.dir / "c.raw", 8), throttle_groups=["both"]),
    ]
    groups = {"own": {"total_iops_sec": 50}, "both": {"total_iops_sec": 60}}
    wanted = policy('target="vda" limit="2000"', 'target="vdb" limit="1000"')
    with Vm.boot(host, "db1", disks, policy=wanted, throttle_groups=groups) as vm:
        yield vm


def shown(host: Host, group: str) -> dict[str, int]:
    """Return the limits that virsh shows for a throttle group, without zeros."""
    lines = host.virsh("domthrottlegroupinfo", "db1", group).splitlines()
    pairs = [line.split(":") for line in lines if ":" in line]
    return {k.strip(): int(v) for k, v in pairs if v.strip().isdigit() and int(v)}


def in_force(host: Host, limit: int) -> bool:
    limits = limits_for(DEFAULT_MODEL, limit)
    wanted = {"total_iops_sec": limits.iops_total, "size_iops_sec": limits.iops_size}
    return wanted.items() <= shown(host, "own").items()


def test_a_drive_is_held_through_its_own_group(guest: Vm, agent: HostAgent) -> None:
    eventually(lambda: in_force(agent.host, 2000))
    set_metadata(agent.host, "db1", '<policy><drive target="vda" limit="900"/></policy>')
    eventually(lambda: in_force(agent.host, 900))


def test_a_group_that_throttles_others_too_is_not_touched(guest: Vm, agent: HostAgent) -> None:
    set_metadata(agent.host, "db1", '<policy><drive target="vdb" limit="900"/></policy>')
    eventually(lambda: agent.drive("db1", "vdb")["errors"] >= 1)
    assert shown(agent.host, "both") == {"total_iops_sec": 60}
    assert "throttle other drives too" in agent.drive("db1", "vdb")["error"]["what"]


def test_a_group_gets_back_what_it_had_when_the_policy_goes(guest: Vm, agent: HostAgent) -> None:
    host = agent.host
    set_metadata(host, "db1", '<policy><drive target="vda" limit="900"/></policy>')
    eventually(lambda: in_force(host, 900))
    host.virsh("metadata", "db1", "--uri", "urn:iokeel:policy:1", "--remove", "--live")
    eventually(lambda: not in_force(host, 900))
    assert shown(host, "own") == {"total_iops_sec": 50}


def test_a_group_changed_by_hand_is_put_back(guest: Vm, agent: HostAgent) -> None:
    host = agent.host
    set_metadata(host, "db1", '<policy><drive target="vda" limit="900"/></policy>')
    eventually(lambda: in_force(host, 900))
    host.virsh("domthrottlegroupset", "db1", "own", "--total-iops-sec", "77", "--live")
    eventually(lambda: agent.drive("db1")["overwritten"] >= 1, 90)
    eventually(lambda: in_force(host, 900))
