"""Drives that libvirt doesn't know, of a QEMU that answers from a table."""

from __future__ import annotations

import json
from typing import Any

import pytest

from iokeel.core.values.counters import DriveId
from iokeel.core.values.limits import STOCK, UNLIMITED, ThrottleLimits
from iokeel.errors import DriveGone, LimitsRejected
from iokeel.hypervisors.libvirt.passthrough import put_past, query_blocks
from iokeel.hypervisors.libvirt.readings import hidden_of, read_counters
from iokeel.hypervisors.qemu.bounds import MOST_DRIVES
from iokeel.libvirt_xml.domain import (
    SCSI_PASSTHROUGH,
    TOO_MANY,
    VHOST_USER,
    Disk,
    DomainXml,
    parse_domain,
)
from testing.hypervisors.qmp_server import qdev

NVME = "/machine/peripheral-anon/device[0]"
# As libvirt 9.0 prints it, from an XML with -drive if=none,id=NVME0 and -device nvme,drive=NVME0.
XML = """
<domain type='qemu' id='1'>
  <name>db1</name>
  <devices>
    <disk type='file' device='disk'>
      <source file='/a.qcow2'/><target dev='vda' bus='virtio'/><alias name='virtio-disk0'/>
    </disk>
    <disk type='file' device='cdrom'><target dev='sda' bus='sata'/><alias name='sata0-0-0'/></disk>
    <disk type='file' device='floppy'><target dev='fda'/><alias name='fdc0-0-0'/></disk>
  </devices>
  <qemu:commandline xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
    <qemu:arg value='-drive'/>
    <qemu:arg value='file=/n.raw,format=raw,if=none,id=NVME0'/>
  </qemu:commandline>
</domain>
"""
STATS = {
    "rd_operations": 1, "rd_bytes": 2, "wr_operations": 3, "wr_bytes": 4,
    "rd_total_time_ns": 5, "wr_total_time_ns": 6, "flush_operations": 7, "flush_total_time_ns": 8,
    "unmap_operations": 9, "unmap_bytes": 10, "unmap_total_time_ns": 11,
}  # fmt: skip


class Qemu:
    """The monitor of the domain."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.devices = {qdev("virtio-disk0"): "", NVME: "NVME0"}
        self.peripheral: list[dict[str, str]] = []
        self.groups = {NVME: "NVME0"}
        self.refusal: str | None = None

    def command(self, _handle: object, text: str, _flags: int) -> str:
        request = json.loads(text)
        self.asked.append(request)
        match request["execute"]:
            case "query-block":
                medium = {"file": "/n.raw", "iops": 7}
                found: object = [
                    {"qdev": path, "device": name, "inserted": medium | self._group(path)}
                    for path, name in self.devices.items()
                ]
            case "query-blockstats":
                found = [
                    {"qdev": path, "device": name, "stats": STATS}
                    for path, name in self.devices.items()
                ]
            case "qom-list":
                found = self.peripheral if "anon" not in request["arguments"]["path"] else []
            case "block_set_io_throttle" if self.refusal is not None:
                return json.dumps({"error": {"class": "GenericError", "desc": self.refusal}})
            case _:
                found = {}
        return json.dumps({"return": found})

    def _group(self, path: str) -> dict[str, str]:
        return {"group": self.groups[path]} if path in self.groups else {}

    def hidden(self, xml: str = XML) -> list[Disk]:
        blocks = query_blocks(None, "db1")
        assert blocks is not None
        return [*hidden_of(None, parse_domain(xml), blocks)]

    def put(self, limits: ThrottleLimits) -> None:
        (disk,) = self.hidden()
        put_past(None, DriveId("db1", disk.target), disk, None, limits, STOCK, None)


@pytest.fixture
def qemu(monkeypatch: pytest.MonkeyPatch) -> Qemu:
    made = Qemu()
    monkeypatch.setattr("libvirt_qemu.qemuMonitorCommand", made.command)
    return made


def test_a_drive_from_the_command_line_goes_by_its_name_in_qemu(qemu: Qemu) -> None:
    assert qemu.hidden() == [Disk("NVME0", "/n.raw", alias="NVME0", hidden=True)]
    qemu.devices = {NVME: ""}  # of -blockdev, which names no drive
    assert [disk.target for disk in qemu.hidden()] == ["device[0]"]
    qemu.devices = {qdev("mine"): "NVME0"}  # -device ...,id=mine
    assert [disk.target for disk in qemu.hidden()] == ["mine"]


def test_what_libvirt_knows_and_what_is_no_guests_drive_is_not_among_them(qemu: Qemu) -> None:
    qemu.devices = {
        qdev("virtio-disk0"): "",
        "/machine/peripheral/sata0-0-0": "drive-sata0-0-0",
        "/machine/peripheral/fdc0-0-0": "drive-fdc0-0-0",
        "/machine/unattached/device[22]": "drive-sata0-0-0",
        "/machine/system.flash0": "pflash0",
        "": "unused",  # -drive if=none without a device
    }
    assert qemu.hidden() == []


def test_a_name_that_is_a_disks_target_already_is_told_apart(qemu: Qemu) -> None:
    qemu.devices = {NVME: "vda"}
    (disk,) = qemu.hidden()
    assert (disk.target, disk.alias) == (NVME, "vda")


def test_the_first_of_too_many_is_told_to_have_no_limits(qemu: Qemu) -> None:
    qemu.devices = {qdev(f"n{number}"): "" for number in range(MOST_DRIVES)}
    assert [disk.unthrottled for disk in qemu.hidden()] == [None] * MOST_DRIVES
    qemu.devices |= {qdev(f"more{number}"): "" for number in range(4)}
    *held, more = qemu.hidden()
    assert [disk.unthrottled for disk in held] == [None] * MOST_DRIVES
    assert (more.target, more.unthrottled) == ("more0", TOO_MANY)


@pytest.mark.parametrize(
    ("kind", "why"), [("vhost-user-blk-pci", VHOST_USER), ("scsi-block", SCSI_PASSTHROUGH)]
)
def test_one_that_qemu_does_not_throttle_is_told_to_be_such(
    qemu: Qemu, kind: str, why: str
) -> None:
    qemu.devices = {}
    qemu.peripheral = [
        {"name": "odd", "type": f"child<{kind}>"},
        {"name": "virtio-disk0", "type": f"child<{kind}>"},  # libvirt's own
        {"name": "pci.1", "type": "child<pcie-root-port>"},
    ]
    assert qemu.hidden() == [Disk("odd", alias="odd", unthrottled=why, hidden=True)]
    without = XML.replace("qemu:commandline", "qemu:other")
    assert qemu.hidden(without) == [], "libvirt plugs in none of its own"


def test_its_limits_are_set_over_qmp_in_one_command(qemu: Qemu) -> None:
    qemu.put(ThrottleLimits(iops_total=500, iops_size=4096))
    last = qemu.asked[-1]
    assert last["execute"] == "block_set_io_throttle"
    assert last["arguments"]["id"] == NVME
    assert (last["arguments"]["iops"], last["arguments"]["iops_size"]) == (500, 4096)
    qemu.put(UNLIMITED)
    assert qemu.asked[-1]["arguments"]["iops"] == 0


def test_a_refusal_leaves_the_old_limits_and_says_so(qemu: Qemu) -> None:
    qemu.refusal = "no\nway"
    with pytest.raises(LimitsRejected, match=r"^db1/NVME0: QEMU refused its limits: no\\nway;"):
        qemu.put(ThrottleLimits(iops_total=500))


def test_one_that_shares_its_group_is_not_limited(qemu: Qemu) -> None:
    qemu.groups[qdev("virtio-disk0")] = "NVME0"
    with pytest.raises(LimitsRejected, match="its throttle group holds virtio-disk0 too"):
        qemu.put(ThrottleLimits(iops_total=500))


def test_one_that_is_gone_is_told_to_be_so(qemu: Qemu) -> None:
    (disk,) = qemu.hidden()
    qemu.devices = {}
    with pytest.raises(DriveGone):
        put_past(None, DriveId("db1", "NVME0"), disk, None, UNLIMITED, STOCK, None)


def test_its_counters_are_those_of_query_blockstats(qemu: Qemu) -> None:
    xml = parse_domain(XML).with_hidden(qemu.hidden())
    ((target, counters),) = read_counters(None, xml).items()
    assert target == "NVME0"
    assert counters[1:] == (1, 2, 3, 4, 5, 6, None, 7, 8, 9, 10, 11)


def test_a_domain_forgets_those_that_have_gone() -> None:
    xml = parse_domain(XML)
    assert xml.has_arguments
    assert xml.aliases == {"virtio-disk0", "sata0-0-0", "fdc0-0-0"}
    both = xml.with_hidden([Disk("NVME0", hidden=True)])
    assert (both.targets, both.with_hidden([]).targets) == (("vda", "NVME0"), ("vda",))
    assert both.hidden == (Disk("NVME0", hidden=True),)
    assert not DomainXml("db1", ()).has_arguments


def test_a_name_that_cant_be_shown_is_another_and_its_alias_stays(qemu: Qemu) -> None:
    qemu.devices = {qdev("v\x1bda"): ""}
    (disk,) = qemu.hidden()
    assert disk.target.startswith("unnamed-")
    assert disk.alias == "v\x1bda"
