"""A guest for machines that emulate: a boot sector that reads its disk without end.

It needs no kernel, so it works at once, also in a machine that is emulated itself.
"""

from __future__ import annotations

import struct
import time

from testing.machines.host import Host
from testing.waiting import eventually

IMAGES = "/var/lib/libvirt/images"
COST = 5
"""The cost of its requests by the published curve."""
_SIZE_BYTES = 32 << 10  # SeaBIOS splits larger ones
_SECTOR_BYTES = 512
# Once it has read so much, it has booted: its firmware reads a few sectors.
_BOOTED_BYTES, _BOOT_S = 8 * _SIZE_BYTES, 300.0
# 16-bit code: read by the BIOS, from the packet behind it. Let go of what is to be unplugged, by
# the slots' bits in the i440FX's registers (QEMU's docs/specs/acpi_pci_hotplug.rst). Begin again.
_CODE = bytes.fromhex("31c0 8ed8 be187c b442 cd13 52 ba04ae 66ed b208 66ef 5a ebec")
# One partition of Linux in its second MiB. Nova refuses a disk that has none.
_TABLE = struct.pack("<B3xB3xII48x", 0x80, 0x83, 2048, 2048)
_TABLE_AT = _SECTOR_BYTES - 2 - len(_TABLE)


def boot_sector(size_bytes: int) -> bytes:
    """Return a boot sector that reads the disk's second MiB, in requests of one size."""
    count, place, lba = size_bytes // _SECTOR_BYTES, (0x0000, 0x1000), (1 << 20) // _SECTOR_BYTES
    packet = struct.pack("<BBHHHQ", 16, 0, count, *place, lba)
    return (_CODE + packet).ljust(_TABLE_AT, b"\0") + _TABLE + b"\x55\xaa"


def domain(name: str, metadata: str = "") -> str:
    """Return the definition of a guest with one disk, vda. metadata: an element, such as a policy.

    Its disk is NAME.img in the folder of images.
    """
    metadata = f"<metadata>{metadata}</metadata>" if metadata else ""
    return f"""
        <domain type='qemu'>
          <name>{name}</name>
          <memory unit='MiB'>32</memory>
          <os><type arch='x86_64' machine='q35'>hvm</type><boot dev='hd'/></os>
          {metadata}
          <devices>
            <disk type='file' device='disk'>
              <driver name='qemu' type='raw'/>
              <source file='{IMAGES}/{name}.img'/>
              <target dev='vda' bus='virtio'/>
            </disk>
          </devices>
        </domain>"""


def define(machine: Host, name: str) -> None:
    """Define a guest with one disk, vda, and start it.

    It reads without end, so it has only the time that nobody else wants. QEMU is in a session of
    its own, and Linux divides a processor by sessions (sched(7), autogroup).
    """
    write_disk(machine, f"{IMAGES}/{name}.img")
    machine.run("virsh", "define", "/dev/stdin", input=domain(name))
    machine.run("virsh", "start", name)
    machine.sh(f"""
        group=/proc/$(pgrep --full '^/usr/bin/qemu.* guest={name},')/autogroup
        [ ! -e $group ] || echo 19 >$group""")


def write_disk(machine: Host, disk: str) -> None:
    """Write the guest's disk into a file."""
    machine.sh(f"""
        head -c 4M /dev/urandom >{disk}
        printf '{"".join(f"{chr(92)}{byte:03o}" for byte in boot_sector(_SIZE_BYTES))}' |
            dd of={disk} conv=notrunc status=none""")


def rate(machine: Host, name: str) -> float:
    """Return a guest's normalized rate over ten seconds, by its QEMU's own count of requests.

    Its firmware reads with other sizes, and takes a while in a machine that is emulated itself.
    """
    eventually(
        lambda: _reads(machine, name)[1] > _BOOTED_BYTES, _BOOT_S, what=f"{name} reads its disk"
    )
    began, before = time.monotonic(), _reads(machine, name)
    time.sleep(10)
    requests, size = (now - then for now, then in zip(_reads(machine, name), before, strict=True))
    assert size == _SIZE_BYTES * requests
    return COST * requests / (time.monotonic() - began)


def rate_above(machine: Host, name: str, least: float) -> float:
    """Return a guest's rate once it is above `least`: it has only time that nobody else wants."""

    def found() -> float:
        now = rate(machine, name)
        return now if now > least else 0.0

    return eventually(found, _BOOT_S, what=f"{name} does more than {least}")


def _reads(machine: Host, name: str) -> tuple[int, int]:
    """Return the number of requests and of bytes so far."""
    lines = machine.run("virsh", "domblkstat", name, "vda").splitlines()
    counts = dict(line.split()[1:3] for line in lines if line)
    return int(counts["rd_req"]), int(counts["rd_bytes"])


def limits(machine: Host, name: str, flag: str = "--live", target: str = "vda") -> dict[str, str]:
    """Return what libvirt shows of a disk's limits, without zeros."""
    lines = machine.run("virsh", "blkdeviotune", name, target, flag).splitlines()
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    found = {key.strip(): value.strip() for key, value in pairs}
    return {key: value for key, value in found.items() if value not in ("0", "")}
