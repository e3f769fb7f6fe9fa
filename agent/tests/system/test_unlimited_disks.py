"""A disk that can't be limited, beside another of its guest."""

import subprocess
from collections.abc import Iterator
from xml.etree import ElementTree as ET

import pytest

from testing.agents import HostAgent
from testing.lab.guests.domain import DiskSpec, domain_xml, make_disk
from testing.lab.guests.vm import Vm
from testing.lab.host import Host
from testing.lab.image import image
from testing.waiting import eventually
from tests.system.rig import blkdeviotune, policy

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def guest(host: Host) -> Iterator[Vm]:
    """A paused guest with two disks, both covered by its policy. The first is one of vhost-user."""
    socket = host.dir / "vhost-user.sock"
    disks = [DiskSpec("vdb", make_disk(host.dir / "b.raw", 8))]
    text = domain_xml("db1", disks, image=image(), folder=host.dir, policy=policy(class_="bronze"))
    domain = ET.fromstring(text)
    memory = ET.SubElement(domain, "memoryBacking")
    ET.SubElement(memory, "source", type="memfd")
    ET.SubElement(memory, "access", mode="shared")
    disk = ET.Element("disk", type="vhostuser", device="disk")
    ET.SubElement(disk, "driver", name="qemu", type="raw")
    ET.SubElement(disk, "source", type="unix", path=str(socket))
    ET.SubElement(disk, "target", dev="vda", bus="virtio")
    devices = domain.find("devices")
    assert devices is not None
    devices.insert(0, disk)
    blockdev = f"file,node-name=a,filename={make_disk(host.dir / 'a.raw', 8)}"
    export = f"vhost-user-blk,id=a,node-name=a,addr.type=unix,addr.path={socket}"
    daemon = host.popen(
        ["qemu-storage-daemon", "--blockdev", blockdev, "--export", export],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    eventually(socket.exists, process=daemon)
    with Vm(host, "db1") as vm:
        vm.define(ET.tostring(domain, encoding="unicode"))
        host.virsh("start", "db1", "--paused")
        yield vm
    daemon.kill()
    daemon.wait()


def test_a_vhost_user_disk_is_told_and_the_others_are_limited(guest: Vm, agent: HostAgent) -> None:
    eventually(lambda: blkdeviotune(agent.host, "db1", "vdb"))
    assert agent.drive("db1", "vdb")["limit_iops"] == 1000
    (vm,) = agent.stats("db1")
    assert {drive["target"] for drive in vm["drives"]} == {"vdb"}
    assert "vda can't be limited" in vm["policy_error"]["what"]
    assert agent.log().count("vda can't be limited") == 1
