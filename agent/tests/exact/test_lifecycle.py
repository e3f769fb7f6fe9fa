"""Guests with a cost curve: saved and restored, with new images, without their disks."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from xml.etree import ElementTree as ET

import pytest

from iokeel.core.enforce.envelope import limits_for_any_size
from iokeel.core.values.curve import DEFAULT_MODEL
from testing.agents import HostAgent
from testing.lab.guests.domain import DiskSpec, make_disk
from testing.lab.guests.vm import Vm
from testing.lab.host import Host
from testing.lab.qemu import patched
from testing.waiting import eventually
from tests.exact.guests import exact, groups
from tests.system.rig import policy

pytestmark = pytest.mark.timeout(1800)  # the first run builds a QEMU
LIMIT = 300


@pytest.fixture(scope="module")
def guest(host: Host) -> Iterator[Vm]:
    """A guest whose every drive has a limit."""
    drives = [DiskSpec("vda", make_disk(host.dir / "disk.raw", 64))]
    wanted = policy(class_="exact")
    with Vm.boot(host, "db1", drives, policy=wanted, emulator=patched(host)) as vm:
        yield vm
    host.virsh("undefine", "db1")


@pytest.fixture
def agent(host: Host) -> Iterator[HostAgent]:
    with HostAgent(host, f"[classes.exact]\nlimit = {LIMIT}\n") as running:
        yield running


def load(guest: Vm, target: str, seconds: int) -> int:
    """Start more I/O in the guest than its limit allows, and return once requests wait."""
    options = "--direct=1 --ioengine=libaio --iodepth=8 --rw=randread --bs=64k --time_based"
    pid = guest.start_program(
        f"fio --name=a --filename=/dev/{target} {options} --runtime={seconds} --output=/dev/null"
    )
    eventually(lambda: any(group["read"]["waiting"] > 0 for group in groups(guest.host)))
    return pid


def libvirts_limit(host: Host, target: str) -> str | None:
    """Return the limit that libvirt itself has for a disk, in operations a second."""
    running = ET.fromstring(host.virsh("dumpxml", "db1"))
    return running.findtext(f"devices/disk/target[@dev='{target}']/../iotune/total_iops_sec")


def test_a_guest_saved_while_requests_wait_has_its_curve_when_restored(
    guest: Vm, agent: HostAgent
) -> None:
    host = agent.host
    eventually(lambda: exact(host, LIMIT))
    running = load(guest, "vda", 5)
    with guest.saved():
        pass
    eventually(lambda: exact(host, LIMIT))
    assert guest.wait(running, 60).status == 0, "no request was lost"
    assert eventually(lambda: agent.drive("db1"))["mode"] == "exact"


def test_a_guest_restored_while_no_agent_runs_is_held_without_a_curve(
    guest: Vm, agent: HostAgent
) -> None:
    host = agent.host
    eventually(lambda: exact(host, LIMIT))
    agent.stop(signal.SIGKILL)
    with guest.saved():
        pass
    held = limits_for_any_size(DEFAULT_MODEL, LIMIT)
    (group,) = groups(host)
    shown = group["limits"]
    assert (shown["iops-total"], shown["iops-size"]) == (held.iops_total, held.iops_size)
    assert not shown.get("cost-read")
    agent.start()
    eventually(lambda: exact(host, LIMIT))


def test_a_snapshot_and_a_commit_while_requests_wait_leave_the_curve(
    guest: Vm, agent: HostAgent
) -> None:
    host = agent.host
    eventually(lambda: exact(host, LIMIT))
    before = eventually(lambda: agent.drive("db1"))["overwritten"]
    running = load(guest, "vda", 8)
    overlay = host.dir / "overlay.qcow2"
    spec = f"vda,file={overlay}"
    options = ["--disk-only", "--atomic", "--no-metadata", "--diskspec", spec]
    host.virsh("snapshot-create-as", "db1", "s1", *options)
    assert exact(host, LIMIT)
    guest.exec("dd if=/dev/urandom of=/dev/vda bs=64k count=16 oflag=direct", timeout=60)
    host.virsh("blockcommit", "db1", "vda", "--active", "--pivot", "--wait")
    assert exact(host, LIMIT)
    assert guest.wait(running, 60).status == 0
    guest.exec("dd if=/dev/vda of=/dev/null bs=64k count=4 iflag=direct", timeout=60)
    assert agent.drive("db1")["overwritten"] == before


def test_a_disk_that_goes_while_requests_wait_has_its_curve_when_it_comes_back(
    guest: Vm, agent: HostAgent
) -> None:
    host = agent.host
    eventually(lambda: exact(host, LIMIT))
    second = DiskSpec("vdb", make_disk(host.dir / "second.raw", 64))
    for _ in range(2):
        guest.attach(second)
        eventually(lambda: exact(host, LIMIT, 2))
        assert libvirts_limit(host, "vdb"), "libvirt limits it by them in the next QEMU"
        running = load(guest, "vdb", 6)
        guest.detach("vdb")
        eventually(lambda: exact(host, LIMIT, 1), 5)
        assert b"vdb" not in guest.exec("ls /sys/block").stdout
        guest.wait(running, 60)
    guest.exec("dd if=/dev/vda of=/dev/null bs=64k count=4 iflag=direct", timeout=60)
    assert [drive["error"] for vm in agent.stats() for drive in vm["drives"]] == [None]
