"""Disks that share a group of <iotune>, on stock QEMU: each limit holds them all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from iokeel.libvirt_xml.schema import NAMESPACE
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


def no_policy(host: Host) -> None:
    """Remove the policy."""
    words = ("--uri", NAMESPACE, "--remove", "--live", "--config")
    host.virsh("metadata", "gr1", *words)


def tunes(host: Host, *targets: str) -> list[int]:
    """Return drives' limits in requests a second, which have no others; -1 if they have."""
    found = [blkdeviotune(host, "gr1", target) for target in targets]
    return [each["total_iops_sec"] if len(each) == 1 else -1 for each in found]


def held_to(agent: HostAgent, *targets: str) -> int | None:
    """Return which limit QEMU holds drives of a group to; None if it is no policy's.

    targets: by default both.
    """
    first, *others = (blkdeviotune(agent.host, "gr1", target) for target in targets or TARGETS)
    assert others == [first] * len(others)
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


def test_disks_of_one_group_with_two_policies_are_an_error_that_names_the_mend(
    guest: Vm, agent: HostAgent
) -> None:
    (vm,) = [vm for vm in agent.ask("/v1/vms") if vm["domain"] == "gr1"]
    assert (vm["policy_error"]["where"], vm["policy_error"]["mend"]) == (
        "domain gr1",
        "give these disks the same policy, or each a group_name of its own",
    )
    assert "vda and vdb share the <iotune> group 'both'" in vm["policy_error"]["what"]
    same = "".join(f'<drive target="{target}" limit="300"/>' for target in TARGETS)
    set_metadata(agent.host, "gr1", f'<policy tenant="same">{same}</policy>')
    eventually(lambda: agent.drive("gr1")["tenant"] == "same")
    (vm,) = [vm for vm in agent.ask("/v1/vms") if vm["domain"] == "gr1"]
    assert vm["policy_error"] is None
    no_policy(agent.host)
    eventually(lambda: tunes(agent.host, *TARGETS) == [5000, 5000])


def test_the_release_of_one_disk_leaves_the_group_held_until_that_of_the_last(
    guest: Vm, agent: HostAgent
) -> None:
    set_metadata(agent.host, "gr1", '<policy><drive target="vdb" limit="2000"/></policy>')
    eventually(lambda: held_to(agent) == 2000)
    # A policy that vda gets anew must not take the limits of vdb's for those from before.
    set_policy(agent, "t1", 300)
    eventually(lambda: held_to(agent) == 300)
    vda_alone = '<policy tenant="t2"><drive target="vda" limit="300"/></policy>'
    set_metadata(agent.host, "gr1", vda_alone)
    eventually(lambda: agent.drive("gr1")["tenant"] == "t2")
    eventually(lambda: held_to(agent) == 300)
    assert not agent.says("limits set: the drive no longer has a policy")
    no_policy(agent.host)
    eventually(lambda: tunes(agent.host, *TARGETS) == [5000, 5000])


@pytest.mark.parametrize("runs", [True, False], ids=["while it runs", "while no agent runs"])
def test_a_disk_that_moves_to_another_group_leaves_no_limits_in_either(
    host: Host, agent: HostAgent, runs: bool
) -> None:
    groups = {"vda": ("from", 5000), "vdb": ("from", 5000), "vdc": ("to", 700), "vdd": ("to", 700)}
    disks = [
        DiskSpec(
            target,
            make_disk(host.dir / f"{target}.raw", 1),
            iotune={"total_iops_sec": iops, "group_name": group},
        )
        for target, (group, iops) in groups.items()
    ]
    with Vm.boot(host, "gr1", disks, ready=False):
        set_metadata(host, "gr1", '<policy><drive target="vda" limit="300"/></policy>')
        eventually(lambda: held_to(agent) == 300)
        if not runs:
            agent.stop()
        host.virsh("blkdeviotune", "gr1", "vda", "--group-name", "to", "--live")
        if not runs:
            agent.start()
        eventually(lambda: held_to(agent, "vda", "vdc", "vdd") == 300)
        eventually(lambda: tunes(host, "vdb") == [5000])
        no_policy(host)
        eventually(lambda: tunes(host, *groups) == [5000 if t == "vdb" else 700 for t in groups])
    host.virsh("undefine", "gr1")


def test_a_group_whose_held_disk_is_unplugged_gets_its_limits_back_with_the_policy(
    host: Host, agent: HostAgent
) -> None:
    shared: IoTune = {"total_iops_sec": 5000, "group_name": "both"}
    disks = [
        DiskSpec(target, make_disk(host.dir / f"{target}.raw", 8), iotune=shared)
        for target in TARGETS
    ]
    with Vm.boot(host, "gr1", disks) as vm:
        set_metadata(host, "gr1", '<policy><drive target="vdb" limit="300"/></policy>')
        eventually(lambda: held_to(agent) == 300)
        vm.detach("vdb")
        eventually(lambda: agent.says("the policy names vdb, but there is no such drive"))
        assert held_to(agent, "vda") == 300  # vda may have been meant
        no_policy(host)
        eventually(lambda: tunes(host, "vda") == [5000])
    host.virsh("undefine", "gr1")
