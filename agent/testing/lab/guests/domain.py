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
_QEMU = "http://libvirt.org/schemas/domain/qemu/1.0"

IoTune = Mapping[str, int | str]
"""Limits in libvirt's own words, e.g. {"total_iops_sec": 100, "size_iops_sec": 4096}."""


@dataclass(frozen=True)
class DiskSpec:
    """One disk of a guest.

    target: the guest's name for it; vdX is virtio-blk, sdX is on a virtio-scsi controller.
    path: an image file, or a block device of the host.
    iotune: libvirt's limits on the device itself; excludes throttle_groups.
    throttle_groups: names of the domain's groups that it passes through, in order (libvirt
        11.2 and later).
    serial: the serial number that the guest sees.
    """

    target: str
    path: Path
    iotune: IoTune | None = None
    throttle_groups: Sequence[str] = ()
    serial: str | None = None
    format: str = "raw"
    cache: str = "none"
    io: str = "native"


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
) -> str:
    """Return the XML of a domain that boots `image` under emulation.

    folder: for its console's log `NAME.console` and its agent's socket `NAME.agent`.
    policy: XML to put into <metadata>.
    throttle_groups: name -> limits of the domain's throttle groups (libvirt 11.2 and later).
    emulator: a QEMU other than the host's own.
    monitor: the socket of a QMP monitor beside libvirt's.
    arguments: of QEMU's command line, which libvirt passes on without a look at them.
    """
    domain = ET.Element("domain", type="qemu")
    _add(domain, "name", name)
    if policy:
        _add(domain, "metadata").append(ET.fromstring(policy))
    _add(domain, "memory", str(memory_mib), unit="MiB")
    # With two, QEMU's emulation crashes or hangs now and then while the guest sets up PCI
    # (10.0: "iotlb_to_section: Assertion `section_index < d->map.sections_nb' failed").
    _add(domain, "vcpu", "1")
    if throttle_groups:
        groups = _add(domain, "throttlegroups")
        for group, limits in throttle_groups.items():
            _limits(_add(groups, "throttlegroup"), {"group_name": group, **limits})
    system = _add(domain, "os")
    _add(system, "type", "hvm", arch="x86_64", machine="q35")
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
    if any(drive.target.startswith("sd") for drive in drives):
        _add(devices, "controller", type="scsi", model="virtio-scsi")
    _add(devices, "controller", type="usb", model="none")
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
    block = spec.path.is_block_device()
    disk = ET.Element("disk", type="block" if block else "file", device="disk")
    _add(disk, "driver", name="qemu", type=spec.format, cache=spec.cache, io=spec.io)
    _add(disk, "source", **{"dev" if block else "file": str(spec.path)})
    _add(disk, "target", dev=spec.target, bus="scsi" if spec.target.startswith("sd") else "virtio")
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
