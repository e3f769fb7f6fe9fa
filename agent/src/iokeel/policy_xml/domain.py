"""The edge to libvirt's XML: the policy in a domain's metadata, and the domain's disks.

A policy comes in two forms, as libvirt has them: inside a whole domain, and as the bare element
that `virsh metadata` and virDomainGetMetadata give, from which libvirt has taken the namespace
away (its virXMLExtractNamespaceXML).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from urllib.parse import quote

from lxml import etree

from iokeel.core.limits import FIELDS, ThrottleLimits
from iokeel.core.policy import DomainPolicy, DrivePolicy, override
from iokeel.errors import PolicyError
from iokeel.policy_xml.schema import (
    BUDGET,
    DRIVE_ATTRIBUTES,
    NAMESPACE,
    POSITIVE,
    WHOLE,
    at,
    attributes,
    elements,
    line_of,
    local,
    namespace_of,
    validate,
)
from iokeel.words.quoting import shown

# Only before the root element may a DOCTYPE stand.
_DOCTYPE = re.compile(r"(?:\s|<\?.*?\?>|<!--.*?-->)*+<!DOCTYPE", re.DOTALL)
# A namespace as like ours as this is a slip of the pen, and not somebody else's.
_NEAR_RATIO = 0.8


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk of a domain.

    source: its path or URL (a storage pool's volume is volume://POOL/NAME); None where it has
    none. iotune: whether libvirt limits it by <iotune>, and group_name the group of that.
    throttle_groups: the groups of its <throttlefilters>, in their order. alias: what libvirt calls
    its device in QEMU; None where the domain doesn't run.
    """

    target: str
    source: str | None = None
    iotune: bool = False
    throttle_groups: tuple[str, ...] = ()
    group_name: str | None = None
    alias: str | None = None


@dataclass(frozen=True, slots=True)
class DomainXml:
    """What the agent needs of a domain's XML.

    policy_xml: its <metadata>, for `parse_policy`, on the lines where it stood; None where
    nothing in it is iokeel's. throttle_groups: the limits of its <throttlegroups> by name.
    """

    name: str
    uuid: str | None
    disks: tuple[Disk, ...]
    policy_xml: str | None = None
    throttle_groups: Mapping[str, ThrottleLimits] = field(default_factory=dict)
    emulator: str | None = None

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets of its disks, in their order."""
        return tuple(disk.target for disk in self.disks)


def parse_policy(
    xml: str | bytes, classes: Mapping[str, DrivePolicy], where: str
) -> DomainPolicy | None:
    """Return the policy in a domain's XML, or in a bare policy element; None where it has none.

    classes: the known classes by name. where: what to call the XML in an error, such as
    "domain db1". Raises PolicyError, and nothing else, for anything that can't be used.
    """
    policy = _policy_element(_parsed(xml, where), where)
    if policy is None:
        return None
    validate(policy, where)
    name = policy.get("class")
    default = None if name is None else _class(name, classes, at(policy, where))
    drives: dict[str, DrivePolicy] = {}
    lines: dict[str, int] = {}
    for element in elements(policy):
        target, line = element.get("target", ""), at(element, where)
        if target in drives:
            raise PolicyError(
                line, f"drive {target} is named twice, first in line {lines[target]}", "keep one"
            )
        name = element.get("class")
        base = default if name is None else _class(name, classes, line)
        drives[target] = override(base or DrivePolicy(), _given(element), f"{line}, drive {target}")
        lines[target] = line_of(element)
    return DomainPolicy(drives, default, policy.get("tenant"))


def parse_domain(xml: str | bytes) -> DomainXml:
    """Return what the agent needs of a domain's XML; its policy is not looked into.

    Raises PolicyError where it is not a domain's XML.
    """
    where = "domain XML"
    root = _parsed(xml, where)
    name = (root.findtext("name") or "").strip()
    if root.tag != "domain" or not name:
        mend = "give what virsh dumpxml prints"
        raise PolicyError(at(root, where), "not a domain with a name", mend)
    return DomainXml(
        name,
        (root.findtext("uuid") or "").strip() or None,
        tuple(_disks(root)),
        _policy_xml(root),
        dict(_throttle_groups(root)),
        root.findtext("devices/emulator"),
    )


def domain_targets(xml: str | bytes) -> tuple[str, ...]:
    """Return the targets of a domain's disks (not of its CD-ROM and floppy drives), in order.

    There are none in a bare policy. Raises PolicyError where it is not XML.
    """
    return tuple(disk.target for disk in _disks(_parsed(xml, "domain XML")))


def pool_type(xml: str) -> str | None:
    """Return the type of a storage pool by its XML: dir, rbd, logical, ...

    Raises PolicyError where it is not XML.
    """
    return _parsed(xml, "pool XML").get("type")


def missing_targets(policy: DomainPolicy, targets: Collection[str]) -> tuple[str, ...]:
    """Return the drives that a policy names and the domain lacks, sorted.

    That is worth a warning only: the drive may be plugged in later.
    """
    return tuple(sorted(policy.drives.keys() - set(targets)))


def _parsed(xml: str | bytes, where: str) -> etree._Element:
    try:
        # libvirt speaks UTF-8 only. One encoding leaves no other for a DOCTYPE to hide in.
        text = xml.decode() if isinstance(xml, bytes) else xml
        text = text.removeprefix("\ufeff")
        data = text.encode()
    except UnicodeError:
        raise PolicyError(where, "the XML is not UTF-8", "save it as UTF-8") from None
    doctype = _DOCTYPE.match(text)
    if doctype:
        line = doctype[0].count("\n") + 1
        what = "a DOCTYPE, which may define entities, is refused"
        raise PolicyError(f"{where}, line {line}", what, "remove it")
    parser = etree.XMLParser(
        encoding="utf-8",
        resolve_entities=False,
        no_network=True,
        huge_tree=False,
        load_dtd=False,
        dtd_validation=False,
        attribute_defaults=False,
    )
    try:
        root = etree.fromstring(data, parser)
    except etree.XMLSyntaxError as error:
        # "Opening and ending tag mismatch: drive line 2 and policy, line 3, column 10 (<string>..."
        said = re.sub(r", line \d+, column \d+.*", "", str(error.msg), flags=re.DOTALL)
        raise PolicyError(
            f"{where}, line {error.lineno or 1}",
            f"not well-formed XML, {shown(said)[1:-1]}",
            "`xmllint --noout` shows the place",
        ) from None
    if root.getroottree().docinfo.internalDTD is not None:
        raise PolicyError(where, "a DOCTYPE is refused", "remove it")
    return root


def _policy_element(root: etree._Element, where: str) -> etree._Element | None:
    """Return the one <policy> in a domain, a <metadata> or by itself; None where there is none."""
    if root.tag == "policy":
        # As virsh metadata prints it; setting it puts the namespace on whatever has none.
        for element in root.iter():
            if isinstance(element.tag, str) and not element.tag.startswith("{"):
                element.tag = f"{{{NAMESPACE}}}{element.tag}"
        return root
    if root.tag in ("domain", "metadata"):
        all_metadata = [root] if root.tag == "metadata" else root.findall("metadata")
        candidates = [element for each in all_metadata for element in _candidates(each)]
        if not candidates:
            return None
        if len(all_metadata) > 1:
            line = at(all_metadata[1], where)
            raise PolicyError(line, "a second <metadata>, which libvirt drops", "keep one")
    elif _is_candidate(root) or local(root) == "policy":
        candidates = [root]
    else:
        raise PolicyError(
            at(root, where),
            f"element {shown(local(root))} is neither a domain nor a policy",
            "give what virsh dumpxml or virsh metadata prints",
        )
    for policy in candidates:
        _check_root(policy, where)
    if len(candidates) > 1:
        raise PolicyError(
            at(candidates[1], where),
            f"a second policy, after the one in line {line_of(candidates[0])}",
            "keep one",
        )
    return candidates[0]


def _candidates(metadata: etree._Element) -> list[etree._Element]:
    """Return what in the metadata is a policy of ours, or was meant to be one."""
    return [element for element in elements(metadata) if _is_candidate(element)]


def _is_candidate(element: etree._Element) -> bool:
    namespace = namespace_of(element)
    if namespace.startswith("urn:iokeel:policy"):
        return True
    if local(element) != "policy":
        return False
    near = SequenceMatcher(None, namespace[:100].lower(), NAMESPACE).ratio() >= _NEAR_RATIO
    return near or not namespace or "iokeel" in namespace.lower()


def _check_root(policy: etree._Element, where: str) -> None:
    line, name, namespace = at(policy, where), local(policy), namespace_of(policy)
    if not namespace:
        mend = f"write <iokeel:policy xmlns:iokeel='{NAMESPACE}'>"
        raise PolicyError(line, "<policy> is in no namespace, and libvirt drops it", mend)
    if namespace != NAMESPACE:
        what = f"namespace {shown(namespace)} is not known"
        raise PolicyError(line, what, f"write '{NAMESPACE}'")
    if name != "policy":
        raise PolicyError(line, f"element {shown(name)} is not known", "write 'policy'")


def _given(drive: etree._Element) -> dict[str, object]:
    """Return a valid <drive>'s attributes as fields of DrivePolicy."""
    given: dict[str, object] = {}
    for name, value in attributes(drive):
        kind = DRIVE_ATTRIBUTES[name]
        if kind is WHOLE:
            given[name.replace("-", "_")] = int(value)
        elif kind is POSITIVE:
            given[name.replace("-", "_")] = float(value)
        elif kind is BUDGET:
            given["separate_budgets"] = value == "separate"
    return given


def _class(name: str, classes: Mapping[str, DrivePolicy], line: str) -> DrivePolicy:
    try:
        return classes[name]
    except KeyError:
        known = ", ".join(sorted(classes)) or "none"
        mend = f"give one that is: {known}"
        raise PolicyError(line, f"class {shown(name)} is not known", mend) from None


def _disks(domain: etree._Element) -> Iterator[Disk]:
    for disk in domain.iterfind("devices/disk"):
        target = disk.find("target")
        name = None if target is None else target.get("dev")
        # libvirt's default is "disk"; "cdrom" and "floppy" are not ours.
        if not name or disk.get("device", "disk") not in ("disk", "lun"):
            continue
        filters = disk.iterfind("throttlefilters/throttlefilter")
        yield Disk(
            name,
            _source(disk.find("source")),
            disk.find("iotune") is not None,
            tuple(group for each in filters if (group := each.get("group"))),
            disk.findtext("iotune/group_name"),
            None if (alias := disk.find("alias")) is None else alias.get("name"),
        )


def _source(source: etree._Element | None) -> str | None:
    if source is None:
        return None
    for attribute in ("file", "dev", "dir"):
        path = source.get(attribute)
        if path:
            return path
    if source.get("protocol"):
        return _url(source)
    if source.get("pool") and source.get("volume"):
        return f"volume://{source.get('pool')}/{source.get('volume')}"
    if source.get("type") == "unix" and source.get("path"):
        return f"vhost-user+unix:///?socket={quote(source.get('path', ''))}"
    address = source.find("address")
    if source.get("type") == "pci" and address is not None:
        return _nvme(address, source.get("namespace", "1"))
    return None


def _url(source: etree._Element) -> str:
    """Return the URL of a network source, by its first host."""
    protocol, name = source.get("protocol", ""), source.get("name", "").lstrip("/")
    host = source.find("host")
    if host is not None and host.get("transport") == "unix":
        return f"{protocol}+unix:///{name}?socket={quote(host.get('socket', ''))}"
    address = "" if host is None else host.get("name", "")
    if ":" in address:
        address = f"[{address}]"
    if host is not None and host.get("port"):
        address += f":{host.get('port')}"
    return f"{protocol}://{address}/{name}"


def _nvme(address: etree._Element, namespace: str) -> str | None:
    """Return the URL, as QEMU has it, of an NVMe disk by its PCI address."""
    try:
        parts = [int(address.get(name, ""), 16) for name in ("domain", "bus", "slot", "function")]
    except ValueError:
        return None
    domain, bus, slot, function = parts
    return f"nvme://{domain:04x}:{bus:02x}:{slot:02x}.{function:x}/{namespace}"


def _throttle_groups(domain: etree._Element) -> Iterator[tuple[str, ThrottleLimits]]:
    for group in domain.iterfind("throttlegroups/throttlegroup"):
        values = {name: group.findtext(_libvirt_name(name)) or "" for name in FIELDS}
        limits = {name: int(v) for name, v in values.items() if re.fullmatch("[0-9]{1,19}", v)}
        yield group.findtext("group_name") or "", ThrottleLimits.of(limits)


def _libvirt_name(name: str) -> str:
    """Return libvirt's word for a field of ThrottleLimits: total_bytes_sec_max."""
    if name == "iops_size":
        return "size_iops_sec"
    unit, direction, *rest = name.split("_")
    return "_".join([direction, "bytes" if unit == "bps" else unit, "sec", *rest])


def _policy_xml(domain: etree._Element) -> str | None:
    metadata = domain.find("metadata")
    if metadata is None or not _candidates(metadata):
        return None
    # The empty lines let an error name the line of the domain's XML.
    text = etree.tostring(metadata, encoding="unicode", with_tail=False)
    return "\n" * (line_of(metadata) - 1) + text
