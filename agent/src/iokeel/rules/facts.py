"""The facts in a domain's XML, as a flat map of texts.

They are read from the XML that the agent has anyway. Only what stands where a platform writes it
counts: an element in the platform's namespace, directly below <metadata>.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from lxml import etree

from iokeel.errors import PolicyError
from iokeel.host.network_storage import network_place
from iokeel.libvirt_xml.domain import VOLUME, Disk, DomainXml
from iokeel.libvirt_xml.xml import TooLarge, metadata_of, parsed
from iokeel.rules.by_size import SIZE
from iokeel.rules.platform import Found, iotune_facts, recorded

_NOVA = "{http://openstack.org/xmlns/libvirt/nova/1.1}"
_OVIRT = "{http://ovirt.org/vm/1.0}"
_ONE = "{http://opennebula.org/xmlns/libvirt/1.0}"
_KUBEVIRT = "{http://kubevirt.io}"
# A longer value is no name, size or path; a pattern would take long over it.
_MOST_CHARACTERS = 4096

_Texts = Iterator[tuple[str, str | None]]


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a VM, by the names in known.py: texts as the platform wrote them.

    A fact that isn't there isn't known. drives: those of each drive by target, without the VM's.
    found: the limits on record (platform.py), by target. given: those that the platform gave, as
    far as they are known. told: those that libvirt was told last.
    """

    vm: Mapping[str, str]
    drives: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    found: Mapping[str, Found] = field(default_factory=dict)
    given: Mapping[str, Found] = field(default_factory=dict)
    told: Mapping[str, Found] = field(default_factory=dict)

    def of_drive(self, target: str) -> Mapping[str, str]:
        """Return the facts of a drive, with those of its VM."""
        return {**self.vm, **self.drives.get(target, {})}


def facts_of(
    xml: str | bytes,
    domain: DomainXml,
    where: str,
    *,
    held: Mapping[str, Found] | None = None,
    adopted: Mapping[str, Found] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Facts:
    """Return the facts of a domain.

    xml: its whole XML. domain: the same as parsed; drives that only QEMU knows of may be added.
    where: its name in errors. held: what drives with limits of this agent's had before these, by
    target; it isn't on record yet. adopted: what the platform has set since. sizes: of drives by
    target, in bytes; None if nobody asks. Raises PolicyError if it can't be read: then no fact is
    known.
    """
    metadata, rest = metadata_of(xml)
    try:
        root = parsed(xml, where)
        about = root.find("metadata")
    except TooLarge:  # perhaps by its disks
        about = parsed(metadata or "<metadata/>", where)
        root = parsed(rest, where, has_metadata=False)
    if root.tag != "domain":
        what = "its metadata is too large to be read, so no rule can tell whether it fits"
        raise PolicyError(where, what, "shorten what other programs write there")
    disks = {name: disk for disk in root.iterfind("devices/disk") if (name := _target(disk))}
    ovirt = {} if about is None else dict(_ovirt_drives(about))
    was = recorded(about)
    there = {disk.target: domain.told(disk) for disk in domain.disks if not disk.hidden}
    given = {
        target: {**there, **(held or {}), **was, **(adopted or {})}[target] for target in there
    }
    drives = {
        disk.target: known_texts(
            [
                *drive_texts(disk, disks.get(disk.target)),
                *ovirt.get(disk.target, ()),
                *iotune_facts(given.get(disk.target)),
                *_size((sizes or {}).get(disk.target)),
            ]
        )
        for disk in domain.disks
    }
    vm = known_texts([*_domain(root, domain), *_platforms(about, root, domain.name)])
    return Facts(vm, drives, was, given, there)


def known_texts(texts: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """Return the facts that are there. Of several with one name, the first counts."""
    found: dict[str, str] = {}
    for name, text in texts:
        if text is not None and (text := text.strip()) and len(text) <= _MOST_CHARACTERS:
            found.setdefault(name, text)
    return found


def _domain(root: etree._Element, domain: DomainXml) -> _Texts:
    yield "name", domain.name
    yield "uuid", domain.uuid
    yield "title", root.findtext("title")
    yield "partition", root.findtext("resource/partition")


def _platforms(about: etree._Element | None, root: etree._Element, name: str) -> _Texts:
    """Yield what the platforms say of a VM. about: its <metadata>; None if it has none."""
    if about is not None:
        if (nova := about.find(f"{_NOVA}instance")) is not None:
            yield from _nova(nova)
        if (ovirt := about.find(f"{_OVIRT}vm")) is not None:
            yield "ovirt.cluster", ovirt.findtext(f"{_OVIRT}clusterVersion")
            yield from _children("ovirt.custom.", ovirt.find(f"{_OVIRT}custom"))
        if (one := about.find(f"{_ONE}vm")) is not None:
            for key in ("gname", "gid", "uname", "uid", "name"):
                yield f"one.{key}", one.findtext(f"{_ONE}{key}")
            yield "one.datastore", one.findtext(f"{_ONE}system_datastore")
        if about.find(f"{_KUBEVIRT}kubevirt") is not None and "_" in name:
            # A namespace has no underscore.
            yield from zip(("kubevirt.namespace", "kubevirt.name"), name.split("_", 1), strict=True)
    maker = root.findtext("sysinfo/system/entry[@name='manufacturer']")
    parts = name.split("-")  # i-ACCOUNT-VM-INSTANCE
    if maker == "Apache Software Foundation" and parts[0] == "i" and len(parts) == 4:
        yield "cloudstack.account", parts[1]


def _nova(nova: etree._Element) -> _Texts:
    yield "nova.name", nova.findtext(f"{_NOVA}name")
    if (flavor := nova.find(f"{_NOVA}flavor")) is not None:
        yield "nova.flavor", flavor.get("name")
        yield "nova.flavor.id", flavor.get("id")
        for extra in flavor.iterfind(f"{_NOVA}extraSpecs/{_NOVA}extraSpec"):
            yield f"nova.extra.{extra.get('name', '').strip()}", extra.text
    for who in ("user", "project"):
        if (owner := nova.find(f"{_NOVA}owner/{_NOVA}{who}")) is not None:
            yield f"nova.{who}", owner.get("uuid")
            yield f"nova.{who}.name", owner.text
    if (boot := nova.find(f"{_NOVA}root[@type='image']")) is not None:
        yield "nova.image", boot.get("uuid")


def _children(prefix: str, parent: etree._Element | None) -> _Texts:
    for child in parent if parent is not None else ():
        if isinstance(child.tag, str):
            yield f"{prefix}{child.tag.rpartition('}')[2]}", child.text


def _target(disk: etree._Element) -> str | None:
    target = disk.find("target")
    return None if target is None else target.get("dev")


def drive_texts(disk: Disk, element: etree._Element | None = None) -> _Texts:
    """Yield the facts of a drive. element: its <disk>; None if libvirt doesn't know it."""
    yield "target", disk.target
    yield "alias", disk.alias
    yield "source", disk.path
    if disk.path is not None and "://" in disk.path and not disk.path.startswith(VOLUME):
        place = network_place(disk.path)
        yield "storage", None if place is None else place.name
    if element is None:
        return
    if (target := element.find("target")) is not None:
        yield "bus", target.get("bus")
    yield "serial", element.findtext("serial")
    if (source := element.find("source")) is not None:
        yield "pool", source.get("pool")
        yield "volume", source.get("volume")
    if (boot := element.find("boot")) is not None:
        yield "boot", boot.get("order")
    for flag in ("readonly", "shareable"):
        yield flag, "no" if element.find(flag) is None else "yes"


def _size(size_bytes: int | None) -> _Texts:
    if size_bytes is not None:
        yield SIZE, str(-(-size_bytes // (1 << 30)))


def _ovirt_drives(about: etree._Element) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """Yield what vdsm says of drives, by target."""
    for device in about.iterfind(f"{_OVIRT}vm/{_OVIRT}device[@devtype='disk']"):
        parts = {"ovirt.domain": "domainID", "ovirt.image": "imageID"}
        texts = [(name, device.findtext(f"{_OVIRT}{tag}")) for name, tag in parts.items()]
        yield device.get("name", ""), texts
