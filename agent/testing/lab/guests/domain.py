"""Domain XML: a guest that boots the lab's image, with a test's disks."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict
from xml.etree import ElementTree as ET

from testing.lab.image import AGENT_PORT, Image

# no_timer_check: on a busy machine ticks come too late for the kernel's check, and it panics.
CMDLINE = (
    "console=ttyS0 quiet panic=-1 tsc=reliable mitigations=off random.trust_cpu=on no_timer_check"
)
SPARE_PORTS = 4
_BUSES = {"sd": "scsi", "hd": "ide"}
_QEMU = "http://libvirt.org/schemas/domain/qemu/1.0"

IoTune = Mapping[str, int | str]
"""Limits in libvirt's own words, e.g. {"total_iops_sec": 100, "size_iops_sec": 4096}."""


@dataclass(frozen=True)
class DiskSpec:
    """One disk of a guest.

    target: the guest's name for it; vdX is virtio-blk, sdX is on a virtio-scsi controller, hdX is
        IDE (a domain of the machine "pc").
    path: an image file, a block device of the host, or the socket of an NBD server.
    export: the server's export, if it is one.
    iotune: libvirt's limits on the device itself; excludes throttle_groups.
    throttle_groups: names of the domain's groups that it passes through, in order (libvirt
        11.2 and later).
    serial: the serial number that the guest sees.
    iothreads: the domain's threads that serve it; with more than one, each serves some of its
        queues (libvirt 10.0 and later). On virtio-scsi the first one serves all disks.
    discard: whether the guest's discards reach the image.
    """

    target: str
    path: Path
    iotune: IoTune | None = None
    throttle_groups: Sequence[str] = ()
    serial: str | None = None
    format: str = "raw"
    cache: str = "none"
    io: str = "native"
    export: str | None = None
    iothreads: Sequence[int] = ()
    discard: bool = False


def make_disk(path: Path, size_mib: int) -> Path:
    """Write a raw image full of data that is not zero, and return its path.

    QEMU does not throttle reads of areas that it knows to be zero, so a sparse file would measure
    nothing. One random block, repeated, is enough.
    """
    block = os.urandom(1 << 20)
    with path.open("wb") as disk:
        for _ in range(size_mib):
            disk.write(block)
    return path


@contextmanager
def folder_in_memory(name: str) -> Iterator[Path]:
    """A folder for images, in memory if there is room; on the host's disk if not."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 4 << 30
    with tempfile.TemporaryDirectory(
        prefix=f"iokeel-{name}-", dir=memory if roomy else None, ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


class DomainOptions(TypedDict, total=False):
    """What else a domain may have; see domain_xml."""

    policy: str | None
    throttle_groups: Mapping[str, IoTune] | None
    memory_mib: int
    emulator: Path | None
    monitor: Path | None
    arguments: Sequence[str]
    machine: str


def domain_xml(
    name: str,
    drives: Sequence[DiskSpec],
    *,
    image: Image,
    folder: Path,
    policy: str | None = None,
    throttle_groups: Mapping[str, IoTune] | None = None,
    memory_mib: int = 384,
    emulator: Path | None = None,
    monitor: Path | None = None,
    arguments: Sequence[str] = (),
    machine: str = "q35",
) -> str:
    """Return the XML of a domain that boots `image` under emulation.

    folder: for its console's log `NAME.console` and its agent's socket `NAME.agent`.
    policy: XML to put into <metadata>.
    throttle_groups: name -> limits of the domain's throttle groups (libvirt 11.2 and later).
    emulator: a QEMU other than the host's own.
    monitor: the socket of a QMP monitor beside libvirt's.
    arguments: of QEMU's command line, which libvirt passes on without a look at them.
    machine: QEMU's; "pc" has IDE, and no room to hot-plug disks by PCI Express.
    """
    domain = ET.Element("domain", type="qemu")
    _add(domain, "name", name)
    if policy:
        _add(domain, "metadata").append(ET.fromstring(policy))
    _add(domain, "memory", str(memory_mib), unit="MiB")
    # With two, QEMU's emulation crashes or hangs now and then while the guest sets up PCI
    # (10.0: "iotlb_to_section: Assertion `section_index < d->map.sections_nb' failed").
    _add(domain, "vcpu", "1")
    if threads := max((thread for drive in drives for thread in drive.iothreads), default=0):
        _add(domain, "iothreads", str(threads))
    if throttle_groups:
        groups = _add(domain, "throttlegroups")
        for group, limits in throttle_groups.items():
            _limits(_add(groups, "throttlegroup"), {"group_name": group, **limits})
    system = _add(domain, "os")
    _add(system, "type", "hvm", arch="x86_64", machine=machine)
    _add(system, "kernel", str(image.kernel))
    _add(system, "initrd", str(image.initramfs))
    _add(system, "cmdline", CMDLINE)
    _add(_add(domain, "features"), "acpi")
    _add(domain, "cpu", mode="maximum")
    _add(domain, "on_poweroff", "destroy")
    _add(domain, "on_reboot", "destroy")  # or a guest that panics starts again for ever
    devices = _add(domain, "devices")
    if emulator:
        _add(devices, "emulator", str(emulator))
    for drive in drives:
        devices.append(disk_element(drive))
    if scsi := [drive for drive in drives if drive.target.startswith("sd")]:
        controller = _add(devices, "controller", type="scsi", model="virtio-scsi")
        if threads := next((drive.iothreads[0] for drive in scsi if drive.iothreads), 0):
            _add(controller, "driver", iothread=str(threads))
    _add(devices, "controller", type="usb", model="none")
    if machine == "q35":
        for index in range(1, len(drives) + SPARE_PORTS + 4):  # room to hot-plug disks
            _add(devices, "controller", type="pci", model="pcie-root-port", index=str(index))
    console = _add(devices, "serial", type="file")
    _add(console, "source", path=str(folder / f"{name}.console"))
    agent = _add(devices, "channel", type="unix")
    _add(agent, "source", mode="bind", path=str(folder / f"{name}.agent"))
    _add(agent, "target", type="virtio", name=AGENT_PORT)
    _add(devices, "memballoon", model="none")
    if monitor:
        socket = f"socket,id=lab,path={monitor},server=on,wait=off"
        arguments = (*arguments, "-chardev", socket, "-mon", "chardev=lab,mode=control")
    if arguments:
        ET.register_namespace("qemu", _QEMU)
        line = _add(domain, f"{{{_QEMU}}}commandline")
        for word in arguments:
            _add(line, f"{{{_QEMU}}}arg", value=word)
    ET.indent(domain)
    return ET.tostring(domain, encoding="unicode")


def disk_element(spec: DiskSpec) -> ET.Element:
    """Return the <disk> element of one disk, for a domain or to attach to one that runs."""
    disk = ET.Element("disk", type="file", device="disk")
    options = {"name": "qemu", "type": spec.format, "cache": spec.cache, "io": spec.io}
    if spec.discard:
        options["discard"] = "unmap"
    driver = _add(disk, "driver", **options)
    bus = _BUSES.get(spec.target[:2], "virtio")
    if bus == "virtio" and len(spec.iothreads) == 1:
        driver.set("iothread", str(spec.iothreads[0]))
    elif bus == "virtio" and spec.iothreads:
        driver.set("queues", str(len(spec.iothreads)))
        threads = _add(driver, "iothreads")
        for thread in spec.iothreads:
            _add(threads, "iothread", id=str(thread))
    if spec.export is not None:
        disk.set("type", "network")
        source = _add(disk, "source", protocol="nbd", name=spec.export)
        _add(source, "host", transport="unix", socket=str(spec.path))
    elif spec.path.is_block_device():
        disk.set("type", "block")
        _add(disk, "source", dev=str(spec.path))
    else:
        _add(disk, "source", file=str(spec.path))
    _add(disk, "target", dev=spec.target, bus=bus)
    if spec.iotune:
        _limits(_add(disk, "iotune"), spec.iotune)
    if spec.throttle_groups:
        filters = _add(disk, "throttlefilters")
        for group in spec.throttle_groups:
            _add(filters, "throttlefilter", group=group)
    if spec.serial:
        _add(disk, "serial", spec.serial)
    return disk


def _limits(parent: ET.Element, limits: IoTune) -> None:
    for name, value in limits.items():
        _add(parent, name, str(value))


def _add(parent: ET.Element, tag: str, text: str | None = None, **attributes: str) -> ET.Element:
    child = ET.SubElement(parent, tag, attributes)
    child.text = text
    return child
