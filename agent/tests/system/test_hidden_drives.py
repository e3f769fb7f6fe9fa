"""Drives from QEMU's command line, which libvirt doesn't know."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from testing.agents import HostAgent
from testing.hypervisors.iotune import TOLERANCE
from testing.lab.guests.domain import DiskSpec, DomainOptions, make_disk
from testing.lab.guests.vm import Vm
from testing.lab.host import Host
from testing.waiting import eventually
from tests.system.rig import policy, set_metadata

pytestmark = pytest.mark.timeout(600)

BRONZE = policy(class_="bronze")
# The guest finds n0 first: its slot isn't behind a bridge.
FIO = (
    "fio --name=x --filename=/dev/vda --ioengine=libaio --direct=1 --rw=randread --bs=4k"
    " --iodepth=16 --time_based --runtime=10 --output-format=json"
)


@pytest.fixture(scope="module")
def guest(host: Host) -> Iterator[Vm]:
    known = [DiskSpec("vda", make_disk(host.dir / "a.raw", 8))]
    arguments = []
    for name, device in (
        ("n0", "virtio-blk-pci,addr=0x1a"),
        ("NVME0", "nvme,serial=1,addr=0x1b"),
    ):
        file = make_disk(host.dir / f"{name}.raw", 64)
        arguments += ["-drive", f"file={file},format=raw,if=none,id={name},cache=none"]
        arguments += ["-device", f"{device},drive={name}"]
    with Vm.boot(host, "db1", known, policy=BRONZE, arguments=arguments) as vm:
        yield vm


def media(host: Host, vm: str = "db1") -> dict[str, Any]:
    """Return the drives' media by name, as QEMU tells them."""
    asked = json.dumps({"execute": "query-block"})
    answer = json.loads(host.virsh("qemu-monitor-command", vm, asked))
    return {block["device"]: block["inserted"] for block in answer["return"]}


def targets(agent: HostAgent) -> set[str]:
    (vm,) = agent.ask("/v1/vms")
    return {drive["target"] for drive in vm["drives"]}


def test_they_are_held_like_all_others(guest: Vm, agent: HostAgent) -> None:
    set_metadata(agent.host, "db1", '<policy class="bronze"/>')
    eventually(lambda: targets(agent) == {"vda", "n0", "NVME0"})
    for name in ("n0", "NVME0"):
        eventually(lambda: media(agent.host)[name]["iops"])  # noqa: B023
        eventually(lambda: agent.drive("db1", name)["limit_iops"] == 1000)  # noqa: B023
        assert agent.drive("db1", name)["storage"] == agent.drive("db1")["storage"]
    # No burst: the class has one, and a drive that was idle has saved credit for it.
    own = '<policy class="bronze"><drive target="n0" limit="300" burst="300"/></policy>'
    set_metadata(agent.host, "db1", own)
    eventually(lambda: agent.drive("db1", "n0")["limit_iops"] == 300)
    eventually(lambda: agent.drive("db1", "n0")["allowed_iops"] <= 300)
    pid = guest.start_program(f"{FIO} --output=/tmp/o.json")
    eventually(lambda: (agent.drive("db1", "n0")["normalized_iops"] or 0) > 200)
    guest.wait(pid)
    did = json.loads(guest.read("/tmp/o.json"))["jobs"][0]["read"]["iops"]
    assert did <= 300 * TOLERANCE


def test_they_get_back_their_limits_when_the_policy_goes(guest: Vm, agent: HostAgent) -> None:
    eventually(lambda: media(agent.host)["NVME0"]["iops"])
    named = '<policy><drive target="NVME0" limit="500"/></policy>'
    for text, held in ((named, {"NVME0"}), ("<policy/>", set[str]())):
        set_metadata(agent.host, "db1", text)
        eventually(
            lambda: {n for n, m in media(agent.host).items() if m["iops"]} == held  # noqa: B023
        )
    set_metadata(agent.host, "db1", '<policy class="bronze"/>')


def test_of_260_the_first_256_are_held_and_the_next_is_told(agent: HostAgent) -> None:
    arguments = ["-device", "virtio-scsi-pci,id=scsi,addr=0x1a"]
    for number in range(260):
        drive = f"driver=null-co,read-zeroes=on,size=1M,if=none,id=n{number}"
        device = f"scsi-hd,bus=scsi.0,scsi-id={number // 64},lun={number % 64},drive=n{number}"
        arguments += ["-drive", drive, "-device", device]

    options: DomainOptions = {"policy": BRONZE, "arguments": arguments}
    with Vm.boot(agent.host, "db2", [], ready=False, **options):
        agent.host.virsh("suspend", "db2")  # QEMU has 260 drives to tell, and no guest to emulate
        eventually(lambda: any(m["iops"] for m in media(agent.host, "db2").values()), 120)
        (vm,) = (vm for vm in agent.ask("/v1/vms") if vm["domain"] == "db2")
        assert {drive["target"] for drive in vm["drives"]} == {f"n{n}" for n in range(256)}
        assert "n256 can't be limited" in vm["policy_error"]["what"]
        assert agent.metrics()['iokeel_domain_policy_valid{domain="db2"}'] == 0
    assert agent.log().count("n256 can't be limited") == 1
