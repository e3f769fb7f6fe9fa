"""The facts that Proxmox VE's files tell of a VM.

/etc/pve/qemu-server/VMID.conf has a line `key: value` for each setting, then sections of snapshots,
of changes that wait for the next start, and the like. Lines that begin with # are a user's notes. A
drive is `scsi0: STORAGE:VOLUME,iops=500,size=32G,...`. Pools are in /etc/pve/user.cfg. Sources:
qemu-server's PVE/QemuServer.pm (parse_vm_config) and PVE/QemuServer/Drive.pm, pve-access-control's
PVE/AccessControl.pm.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from iokeel.errors import PolicyError
from iokeel.libvirt_xml.domain import DomainXml, from_libvirt
from iokeel.rules.by_size import SIZE
from iokeel.rules.facts import Facts, drive_texts, known_texts
from iokeel.rules.platform import iotune_facts
from iokeel.words.quoting import shown

_SETTING = re.compile(r"([a-z][a-z_-]*\d*):\s*(\S.*)", re.ASCII)
_DRIVE = re.compile(r"(?:ide|sata|scsi|virtio|efidisk)\d+", re.ASCII)
_VOLUME = re.compile(r"([A-Za-z][\w.-]*):(.+)", re.ASCII)
_SIZE = re.compile(r"(\d{1,15})([KMGT]?)", re.ASCII)
_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_FIGURE = re.compile(r"\d{1,15}(?:\.\d{0,15})?", re.ASCII)
_WAYS = {"": "total", "_rd": "read", "_wr": "write"}
#: libvirt's names of a drive's limits, by Proxmox VE's, and what one of its units is.
_LIMITS = {
    f"{unit}{way}{rest}": (f"{name}_{word}_sec{long}", times)
    for way, name in _WAYS.items()
    for unit, word, times in (("iops", "iops", 1), ("mbps", "bytes", 1 << 20), ("bps", "bytes", 1))
    for rest, long in (("", ""), ("_max", "_max"), ("_max_length", "_max_length"))
}


class ProxmoxDrive(NamedTuple):
    """A drive's setting. volume: the volume's ID, or a path. options: as they are written."""

    volume: str
    options: Mapping[str, str]

    @property
    def is_disk(self) -> bool:
        """Whether it isn't a CD-ROM drive. That of cloud-init is one."""
        return self.options.get("media") != "cdrom"


def proxmox_facts(text: str, vm: DomainXml, where: str) -> Facts:
    """Return the facts of a VM.

    text: the name of its pool, if it has one, on a line of its own, then its VMID.conf. vm: its
    name, and its drives by QEMU's ids. where: its name in errors. Raises PolicyError if a limit
    can't be read.
    """
    pool, _, conf = text.partition("\n")
    settings, drives = settings_of(conf), drives_of(conf)
    smbios = dict(_options(settings.get("smbios1", "")))
    tags = [tag for tag in re.split("[;, ]+", settings.get("tags", "")) if tag]
    about = [
        ("name", vm.name),
        ("uuid", smbios.get("uuid")),
        ("pve.vmid", vm.name),
        ("pve.name", settings.get("name")),
        ("pve.pool", pool),
        ("pve.tags", ";".join(tags)),
        *((f"pve.tag.{tag}", "yes") for tag in tags),
    ]
    found = {
        disk.target: known_texts(
            [*drive_texts(disk), *_drive(drives.get(disk.target), f"{where}, drive {disk.target}")]
        )
        for disk in vm.disks
    }
    return Facts(known_texts(about), found)


def settings_of(conf: str) -> dict[str, str]:
    """Return the settings in force in a VMID.conf. Other lines are left out."""
    found = {}
    for line in conf.split("\n"):
        if line.startswith("["):
            break
        if match := _SETTING.fullmatch(line.rstrip()):
            found[match[1]] = match[2]
    return found


def drives_of(conf: str) -> dict[str, ProxmoxDrive]:
    """Return the drives in a VMID.conf, by QEMU's ids of them."""
    found = {}
    for key, value in settings_of(conf).items():
        if _DRIVE.fullmatch(key):
            options = dict(_options(value))
            volume = options.get("") or options.get("file") or options.get("volume", "")
            found[key] = ProxmoxDrive(volume, options)
    return found


def pools_of(users: str) -> dict[str, str]:
    """Return the pools in a user.cfg, by the VMIDs in them."""
    found = dict[str, str]()
    for line in users.split("\n"):
        kind, _, rest = line.partition(":")
        fields = rest.split(":")  # POOL:COMMENT:VMIDS:STORAGES:
        if kind == "pool" and len(fields) > 2:
            found |= {vmid: fields[0] for vmid in re.split("[;, ]+", fields[2]) if vmid}
    return found


def _options(value: str) -> Iterator[tuple[str, str]]:
    """Yield a setting's options; the one without a name has the name ""."""
    for option in value.split(","):
        name, equals, text = option.partition("=")
        yield (name.strip(), text.strip()) if equals else ("", option.strip())


def _drive(drive: ProxmoxDrive | None, where: str) -> Iterator[tuple[str, str | None]]:
    if drive is None:
        return
    options = drive.options
    if match := _VOLUME.fullmatch(drive.volume):
        yield "pve.storage", match[1]
    yield "pve.volume", drive.volume
    yield "serial", options.get("serial")
    yield "readonly", "yes" if options.get("ro") in ("1", "on", "yes", "true") else "no"
    if size := _SIZE.fullmatch(options.get("size", "")):
        yield SIZE, str(-(-int(size[1]) * _BYTES[size[2]] // (1 << 30)))
    limits: dict[str, int] = {}
    for option, (name, times) in _LIMITS.items():
        figure = options.get(option, "0")
        if not _FIGURE.fullmatch(figure):
            what = f"{option} is {shown(figure)}, which is no number"
            raise PolicyError(where, what, "set it anew, by `qm set` or on the drive's page")
        whole = int(float(figure) * (1 if name.endswith("length") else times))
        limits[name] = whole or limits.get(name, 0)  # mbps= and bps= are of one name
    yield from iotune_facts(from_libvirt(limits))
