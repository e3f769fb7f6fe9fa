"""A domain's XML: its name, its disks, their limits and throttle groups."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lxml import etree

from iokeel.core.values.limits import FIELDS, UNLIMITED, ThrottleLimits
from iokeel.errors import PolicyError
from iokeel.host.network_storage import address, socket_url
from iokeel.libvirt_xml.xml import at, images_beneath, metadata_of, parsed
from iokeel.words.quoting import shown

#: Begins the URL of a storage pool's volume: volume://POOL/NAME.
VOLUME = "volume://"
_ARGUMENTS = "{http://libvirt.org/schemas/domain/qemu/1.0}commandline"
#: Why QEMU can't throttle a disk.
VHOST_USER = "the I/O of a vhost-user disk doesn't pass QEMU"
SCSI_PASSTHROUGH = "QEMU doesn't throttle SCSI passthrough"
#: Why the agent limits no more disks of a QEMU; `check_throttled` has the mend.
TOO_MANY = "the agent takes only the first 256 drives of a QEMU"


def _libvirt_name(key: str) -> str:
    """Return libvirt's name of a key of ThrottleLimits: bps_read_max is read_bytes_sec_max."""
    if key == "iops_size":
        return "size_iops_sec"
    unit, direction, *rest = key.split("_")
    return "_".join([direction, "bytes" if unit == "bps" else unit, "sec", *rest])


#: libvirt's names of the fields of ThrottleLimits. It has none for the patches' fields.
LIBVIRT_NAMES = {key: _libvirt_name(key) for key in FIELDS}


def to_libvirt(limits: ThrottleLimits) -> dict[str, int]:
    """Return every key, 0 for none: libvirt keeps a value that it isn't given."""
    return {name: getattr(limits, key) or 0 for key, name in LIBVIRT_NAMES.items()}


def from_libvirt(values: Mapping[str, object]) -> ThrottleLimits | None:
    """Return limits from values by libvirt's names; None (unknown) if one makes no sense.

    Other names are ignored.
    """
    numbers: dict[str, int] = {}
    for key, name in LIBVIRT_NAMES.items():
        number = values.get(name, 0)
        if not isinstance(number, int) or number < 0:
            return None
        numbers[key] = number
    return ThrottleLimits.of(numbers)


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk of a domain.

    path: the path or URL behind it; None if it has none. throttle_groups: the groups of its
    <throttlefilters>, in their order. alias: libvirt's name of its device in QEMU; None if the
    domain doesn't run. unthrottled: why QEMU can't throttle it; None if it can. beneath: the local
    paths of the images beneath the topmost and of data files, as far as libvirt tells them; "" for
    one that isn't known. iotune_group: the group_name of its <iotune>; None if it has none.
    iotune: the limits that libvirt was told last; None if they make no sense. hidden: libvirt
    doesn't know it, because it is from QEMU's command line; then it isn't in the XML.
    """

    target: str
    path: str | None = None
    throttle_groups: tuple[str, ...] = ()
    alias: str | None = None
    unthrottled: str | None = None
    beneath: tuple[str, ...] = ()
    iotune_group: str | None = None
    iotune: ThrottleLimits | None = UNLIMITED
    hidden: bool = False

    @property
    def group(self) -> str | None:
        """The group that <iotune> limits, "" if it is its own; None if throttlefilters limit it."""
        return None if self.throttle_groups else self.iotune_group or ""


@dataclass(frozen=True, slots=True)
class DomainXml:
    """A domain's XML, as far as the agent needs it.

    throttle_groups: the limits of its <throttlegroups>, by name; without those that make no sense.
    uuid: None if it has none, as before it is defined. aliases: libvirt's names of all its devices
    in QEMU. has_arguments: it gives QEMU arguments of its own, which libvirt doesn't understand.
    """

    name: str
    disks: tuple[Disk, ...]
    throttle_groups: Mapping[str, ThrottleLimits] = field(default_factory=dict)
    uuid: str | None = None
    aliases: frozenset[str] = frozenset()
    has_arguments: bool = False

    def told(self, disk: Disk) -> ThrottleLimits | None:
        """Return a disk's limits as libvirt was told them last; None if unknown."""
        if not disk.throttle_groups:
            return disk.iotune
        return self.throttle_groups.get(own_group(self.disks, disk) or disk.throttle_groups[0])

    @property
    def hidden(self) -> tuple[Disk, ...]:
        """The disks that libvirt doesn't know."""
        return tuple(disk for disk in self.disks if disk.hidden)

    def with_hidden(self, disks: Iterable[Disk]) -> DomainXml:
        """Return the domain with these disks as those that libvirt doesn't know."""
        known = (disk for disk in self.disks if not disk.hidden)
        return replace(self, disks=(*known, *disks))

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets of its disks, in their order."""
        return tuple(disk.target for disk in self.disks)

    @property
    def drives(self) -> tuple[Disk, ...]:
        """The disks that QEMU can throttle."""
        return tuple(disk for disk in self.disks if disk.unthrottled is None)


def parse_domain(xml: str | bytes, where: str = "domain XML") -> DomainXml:
    """Return a domain by its XML, without its policy.

    where: the XML's name in errors. Metadata that is too large doesn't matter, nor any other fault
    of it. Raises PolicyError if the rest is no domain's.
    """
    try:
        root = parsed(xml, where)
    except PolicyError:
        root = parsed(metadata_of(xml)[1], where, has_metadata=False)
    name = root.findtext("name")
    if root.tag != "domain" or not name:
        mend = "give what virsh dumpxml prints"
        raise PolicyError(at(root, where), "not a domain with a name", mend)
    return _domain(root, name)


def _domain(root: etree._Element, name: str) -> DomainXml:
    """Return a <domain> of a name. Its disks are without its CD-ROM and floppy drives, in order."""
    return DomainXml(
        name,
        tuple(_disks(root)),
        dict(_throttle_groups(root)),
        (root.findtext("uuid") or "").strip() or None,
        frozenset(alias.get("name", "") for alias in root.iterfind("devices/*/alias")),
        root.find(_ARGUMENTS) is not None,
    )


def domain_in(xml: str | bytes) -> DomainXml | None:
    """Return a domain by its XML, perhaps with "" for its name.

    None if it is no whole domain, but a bare policy, say. Raises PolicyError if the text is not
    XML.
    """
    root = parsed(xml, "domain XML")
    return _domain(root, root.findtext("name") or "") if root.tag == "domain" else None


def own_group(disks: Iterable[Disk], disk: Disk) -> str | None:
    """Return the first group of a disk's throttlefilters that is its alone; None if none is.

    disks: those of its domain.
    """
    others = {g for d in disks if d.target != disk.target for g in d.throttle_groups}
    return next((group for group in disk.throttle_groups if group not in others), None)


def unlimited_for(disks: Sequence[Disk]) -> dict[str, str]:
    """Return why disks of a domain can't be limited, by target, of those that can't."""
    found = {disk.target: disk.unthrottled for disk in disks if disk.unthrottled is not None}
    members = Counter(group for disk in disks for group in {*disk.throttle_groups})
    for disk in disks:
        if disk.throttle_groups and all(members[group] > 1 for group in disk.throttle_groups):
            groups = ", ".join(map(shown, disk.throttle_groups))
            found.setdefault(disk.target, f"each of its throttle groups, {groups}, has other disks")
    return found


def pool_type(xml: str) -> str | None:
    """Return the type of a storage pool by its XML: dir, rbd, logical, ...

    Raises PolicyError if the text is not XML.
    """
    return parsed(xml, "pool XML").get("type")


def _disks(domain: etree._Element) -> Iterator[Disk]:
    for disk in domain.iterfind("devices/disk"):
        target = disk.find("target")
        name = None if target is None else target.get("dev")
        # libvirt's default is "disk"; "cdrom" and "floppy" are not ours.
        if target is None or not name or disk.get("device", "disk") not in ("disk", "lun"):
            continue
        filters = disk.iterfind("throttlefilters/throttlefilter")
        yield Disk(
            name,
            _path(disk.find("source")),
            tuple(group for each in filters if (group := each.get("group"))),
            None if (alias := disk.find("alias")) is None else alias.get("name"),
            _unthrottled(disk, target),
            (*_data_files(disk), *images_beneath(disk)),
            disk.findtext("iotune/group_name") or None,
            UNLIMITED if (iotune := disk.find("iotune")) is None else _limits(iotune),
        )


def _data_files(disk: etree._Element) -> Iterator[str]:
    """Yield the path of the topmost image's data file, if it has one."""
    for source in disk.iterfind("source/dataStore/source"):
        yield _path(source) or ""


def _unthrottled(disk: etree._Element, target: etree._Element) -> str | None:
    """Return why QEMU can't throttle a disk; None if it can, as far as the XML tells."""
    if disk.get("type") == "vhostuser":
        return VHOST_USER
    # scsi-block sends reads and writes by SG_IO, which passes no throttle group. virtio-blk
    # doesn't: there "lun" only lets the guest send SCSI commands besides.
    if disk.get("device") == "lun" and target.get("bus") != "virtio":
        return SCSI_PASSTHROUGH
    return None


def _path(source: etree._Element | None) -> str | None:
    """Return the path or URL that a <source> names; None if it names none."""
    if source is None:
        return None
    for attribute in ("file", "dev", "dir"):
        path = source.get(attribute)
        if path:
            return path
    if source.get("protocol"):
        return _url(source)
    if source.get("pool") and source.get("volume"):
        return f"{VOLUME}{source.get('pool')}/{source.get('volume')}"
    if source.get("type") == "unix" and source.get("path"):
        return socket_url("vhost-user", source.get("path", ""))
    pci = source.find("address")
    if source.get("type") == "pci" and pci is not None:
        return _nvme(pci, source.get("namespace", "1"))
    return None


def _url(source: etree._Element) -> str:
    """Return the URL of a network source, by its first host."""
    protocol, name = source.get("protocol", ""), source.get("name", "").lstrip("/")
    host = source.find("host")
    if host is None:
        return f"{protocol}:///{name}"
    if host.get("transport") == "unix":
        return socket_url(protocol, host.get("socket", ""), name)
    return f"{protocol}://{address(host.get('name', ''), host.get('port'))}/{name}"


def _nvme(pci: etree._Element, namespace: str) -> str | None:
    """Return QEMU's URL of an NVMe disk at a PCI address; None if that makes no sense."""
    try:
        parts = [int(pci.get(name, ""), 16) for name in ("domain", "bus", "slot", "function")]
    except ValueError:
        return None
    domain, bus, slot, function = parts
    return f"nvme://{domain:04x}:{bus:02x}:{slot:02x}.{function:x}/{namespace}"


def _throttle_groups(domain: etree._Element) -> Iterator[tuple[str, ThrottleLimits]]:
    """Yield the limits of throttle groups by name, of those whose limits make sense."""
    for group in domain.iterfind("throttlegroups/throttlegroup"):
        group_name, limits = group.findtext("group_name"), _limits(group)
        if group_name and limits is not None:
            yield group_name, limits


def _limits(parent: etree._Element) -> ThrottleLimits | None:
    """Return the limits in an <iotune> or <throttlegroup>; None (unknown) if one makes no sense.

    To leave that one out would be to call it unlimited.
    """
    return limits_in({str(child.tag): child.text or "" for child in parent})


def limits_in(texts: Mapping[str, str]) -> ThrottleLimits | None:
    """Return limits from texts by libvirt's names; None (unknown) if one makes no sense."""
    values = {name: texts[name] for name in LIBVIRT_NAMES.values() if name in texts}
    if not all(re.fullmatch("[0-9]{1,19}", text) for text in values.values()):
        return None
    return from_libvirt({name: int(text) for name, text in values.items()})
