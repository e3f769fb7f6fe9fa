"""The XML of a lab guest's disks."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

from testing.lab.guests.domain import DiskSpec, disk_element, domain_xml
from testing.lab.image import Image

IMAGE = Image(Path("/k"), Path("/i"))


def driver(spec: DiskSpec) -> ET.Element:
    found = disk_element(spec).find("driver")
    assert found is not None
    return found


def bus(target: str) -> str | None:
    element = disk_element(DiskSpec(target, Path("/x"))).find("target")
    assert element is not None
    return element.get("bus")


def test_a_disk_is_on_the_bus_that_its_name_says() -> None:
    assert [bus(target) for target in ("vda", "sda", "hda")] == ["virtio", "scsi", "ide"]


def test_an_export_is_a_network_disk() -> None:
    disk = disk_element(DiskSpec("vda", Path("/run/nbd.sock"), export="a"))
    assert disk.get("type") == "network"
    source, host = disk.find("source"), disk.find("source/host")
    assert source is not None
    assert (source.get("protocol"), source.get("name")) == ("nbd", "a")
    assert host is not None
    assert host.get("socket") == "/run/nbd.sock"


def test_one_iothread_serves_a_disk_and_several_its_queues() -> None:
    assert driver(DiskSpec("vda", Path("/x"))).get("iothread") is None
    assert driver(DiskSpec("vda", Path("/x"), iothreads=(1,))).get("iothread") == "1"
    mapped = driver(DiskSpec("vda", Path("/x"), iothreads=(1, 2)))
    assert mapped.get("queues") == "2"
    assert [thread.get("id") for thread in mapped.findall("iothreads/iothread")] == ["1", "2"]


def test_an_iothread_of_a_scsi_disk_is_its_controllers() -> None:
    spec = DiskSpec("sda", Path("/x"), iothreads=(1,))
    assert driver(spec).get("iothread") is None
    domain = ET.fromstring(domain_xml("g", [spec], image=IMAGE, folder=Path("/f")))
    assert domain.findtext("iothreads") == "1"
    controller = domain.find("devices/controller[@type='scsi']/driver")
    assert controller is not None
    assert controller.get("iothread") == "1"


def test_the_machine_pc_has_no_ports_of_pci_express() -> None:
    spec = DiskSpec("hda", Path("/x"))
    domain = ET.fromstring(domain_xml("g", [spec], image=IMAGE, folder=Path("/f"), machine="pc"))
    kind = domain.find("os/type")
    assert kind is not None
    assert kind.get("machine") == "pc"
    assert domain.find("devices/controller[@model='pcie-root-port']") is None
