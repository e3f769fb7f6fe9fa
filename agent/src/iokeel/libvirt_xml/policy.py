"""The policy in a domain's metadata.

It comes in two forms: inside a whole domain, and as the bare element of `virsh metadata` and
virDomainGetMetadata, from which libvirt has removed the namespace (its
virXMLExtractNamespaceXML).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import islice
from math import inf

from lxml import etree

from iokeel.core.values.policy import DomainPolicy, DrivePolicy, checked_job_bps, with_implied
from iokeel.errors import PolicyError, TargetsMissing
from iokeel.libvirt_xml.domain import TOO_MANY, Disk, unlimited_for
from iokeel.libvirt_xml.schema import (
    BUDGET,
    BYTES,
    DRIVE_ATTRIBUTES,
    NAMESPACE,
    POLICY_ATTRIBUTES,
    POSITIVE,
    WHOLE,
    Kind,
    field_of,
    validate,
)
from iokeel.libvirt_xml.written import Written, WrittenDrive
from iokeel.libvirt_xml.xml import (
    TooLarge,
    at,
    attributes,
    elements,
    line_of,
    local,
    metadata_of,
    namespace_of,
    parsed,
)
from iokeel.words.quoting import shown
from iokeel.words.units import parse_bps

# A namespace this close to ours is a misspelt one, and not somebody else's.
_NEAR_RATIO = 0.8
# Begins the namespaces of all versions.
_ANY_VERSION = NAMESPACE.rpartition(":")[0]
# Hardly a policy names so many drives, and no metadata has so many policies. A drive with all
# attributes takes libxml2 0.6 ms.
_MOST_ELEMENTS = 200
_MEND_OF_GROUPS = "give each a throttlefilter with a group of its own"
_MOST_POLICIES = 100


def parse_policy(
    xml: str | bytes, classes: Mapping[str, DrivePolicy], where: str
) -> DomainPolicy | None:
    """Return the policy in a domain's XML, or in a bare policy element; None if it has none.

    classes: the known classes by name. where: the XML's name in errors, such as "domain db1".
    Raises PolicyError, and nothing else, if anything can't be used.
    """
    written = written_policy(xml, where)
    return None if written is None else written.resolved(classes)


def written_policy(xml: str | bytes, where: str) -> Written | None:
    """Return the same as it is written. Raises PolicyError, but for an unknown class."""
    try:
        root = parsed(xml, where)
    except TooLarge:  # perhaps by its disks
        metadata, _ = metadata_of(xml)
        if not metadata:
            raise
        root = parsed(metadata, where)
    policy = _policy_element(root, where)
    if policy is None:
        return None
    validate(policy, where)
    drives: dict[str, WrittenDrive] = {}
    lines: dict[str, int] = {}
    for element in elements(policy):
        target, line = element.get("target", ""), at(element, where)
        if target in drives:
            raise PolicyError(
                line, f"drive {target} is named twice, first in line {lines[target]}", "keep one"
            )
        given = with_implied(_given(element, DRIVE_ATTRIBUTES))
        drives[target] = WrittenDrive(given, element.get("class"), line)
        lines[target] = line_of(element)
    given, line = _given(policy, POLICY_ATTRIBUTES), at(policy, where)
    job_bps = checked_job_bps(given.pop("job_bps", None), f"{line}, <policy>")
    serial = None if given.pop("serial", None) is None else int(policy.attrib["serial"])
    mode = policy.get("mode")
    return Written(
        drives, policy.get("class"), policy.get("tenant"), given, job_bps, serial, line, mode
    )


def check_targets(policy: DomainPolicy, targets: Collection[str], where: str) -> None:
    """Raise TargetsMissing if a policy names drives that the domain lacks.

    targets: those of the domain. where: its name in errors.
    """
    if missing := sorted(policy.drives.keys() - set(targets)):
        raise TargetsMissing(where, missing, [*targets])


def check_serial(policy: DomainPolicy | None, last: DomainPolicy, where: str) -> None:
    """Raise PolicyError if a policy is older than the last good one, as after a snapshot's revert.

    policy: None if there is none now. where: the domain's name in errors.
    """
    if last.serial is None:
        return
    was = f"one with serial {last.serial} has been in force"
    if policy is None:
        mend = f"set that again; to remove it, set <policy serial='{last.serial + 1}'/>"
        raise PolicyError(where, f"it has no policy any more, but {was}", mend)
    if policy.serial is None or policy.serial < last.serial:
        what = "no serial" if policy.serial is None else f"serial {policy.serial}"
        raise PolicyError(
            where,
            f"the policy has {what}, but {was}, so an old one may have come back",
            "set the latest policy again; a new one has a higher serial",
        )


def check_throttled(policy: DomainPolicy, disks: Sequence[Disk], where: str) -> None:
    """Raise PolicyError if a policy covers disks that QEMU doesn't throttle, or only with others.

    disks: those of the domain. where: its name in errors.
    """
    in_vain = {
        target: f"{target} can't be limited ({why})"
        for target, why in unlimited_for(disks).items()
        if policy.for_drive(target) is not None
    }
    if in_vain:
        reasons = {disk.unthrottled for disk in disks if disk.target in in_vain}
        mend = _MEND_OF_GROUPS
        if TOO_MANY in reasons:
            mend = "give it fewer; those after it have no limits either"
        elif any(reasons):
            mend = "attach another kind of disk if it has to be limited"
        raise PolicyError(where, ", ".join(in_vain.values()), mend)


def check_groups(policy: DomainPolicy, disks: Iterable[Disk], where: str) -> None:
    """Raise PolicyError if disks of one <iotune> group have policies that differ.

    disks: those of the domain. Those without a policy don't count. where: its name in errors.
    """
    for group, targets in _at_odds(policy, disks):
        raise PolicyError(
            where,
            f"{', '.join(targets[:-1])} and {targets[-1]} share the <iotune> group {shown(group)},"
            " but their policies differ, and a limit holds all of them together, so the lowest"
            " counts for each",
            "give these disks the same policy, or each a group_name of its own",
        )


def with_lowest(policy: DomainPolicy, disks: Iterable[Disk]) -> DomainPolicy:
    """Return a policy that is the same for disks of one <iotune> group: that with the lowest limit.

    Each limit that is set on one of them holds them all, and the last one counts.
    """
    lowest: dict[str, DrivePolicy] = {}
    for _, targets in _at_odds(policy, disks):
        policies = [each for target in targets if (each := policy.for_drive(target)) is not None]
        lowest |= dict.fromkeys(targets, min(policies, key=_ceiling))
    return replace(policy, drives={**policy.drives, **lowest}) if lowest else policy


def _at_odds(policy: DomainPolicy, disks: Iterable[Disk]) -> Iterator[tuple[str, list[str]]]:
    """Yield the <iotune> groups whose disks have policies that differ, with these targets."""
    groups: dict[str, list[str]] = {}
    for disk in disks:
        if disk.group and policy.for_drive(disk.target) is not None:
            groups.setdefault(disk.group, []).append(disk.target)
    for group, targets in groups.items():
        if any(policy.for_drive(target) != policy.for_drive(targets[0]) for target in targets):
            yield group, targets


def _ceiling(policy: DrivePolicy) -> tuple[float, float]:
    limit = inf if policy.limit is None else policy.limit
    return limit, limit if policy.burst is None else policy.burst


def _policy_element(root: etree._Element, where: str) -> etree._Element | None:
    """Return the only <policy> in a domain or a <metadata>, or the root; None if there is none."""
    if root.tag == "policy":
        # As `virsh metadata` prints it. `virsh metadata --set` adds the namespace again.
        _check_length(root, where)
        for element in root.iter():
            if isinstance(element.tag, str) and not element.tag.startswith("{"):
                _put_into_namespace(element, where)
        return root
    if root.tag in ("domain", "metadata"):
        all_metadata = [root] if root.tag == "metadata" else root.findall("metadata")
        candidates = [element for each in all_metadata for element in _candidates(each, where)]
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
        _check_length(policy, where)
    if len(candidates) > 1:
        raise PolicyError(
            at(candidates[1], where),
            f"a second policy, after the one in line {line_of(candidates[0])}",
            "keep one",
        )
    return candidates[0]


def _put_into_namespace(element: etree._Element, where: str) -> None:
    try:
        element.tag = f"{{{NAMESPACE}}}{element.tag}"
    except ValueError:  # a name with several colons, which the parser takes
        what = f"element {shown(element.tag)} is not known"
        raise PolicyError(at(element, where), what, "write 'drive'") from None


def _candidates(metadata: etree._Element, where: str) -> list[etree._Element]:
    """Return the elements of a <metadata> that are our policies, or were meant to be."""
    named = [e for e in elements(metadata) if _is_ours(e) or local(e) == "policy"]
    if len(named) > _MOST_POLICIES:
        line = at(named[_MOST_POLICIES], where)
        raise PolicyError(line, f"more than {_MOST_POLICIES} policies", "keep one")
    return [element for element in named if _is_candidate(element)]


def _is_ours(element: etree._Element) -> bool:
    return namespace_of(element).startswith(_ANY_VERSION)


def _is_candidate(element: etree._Element) -> bool:
    if _is_ours(element):
        return True
    if local(element) != "policy":
        return False
    namespace = namespace_of(element)
    near = SequenceMatcher(None, namespace[:100].lower(), NAMESPACE).ratio() >= _NEAR_RATIO
    return near or not namespace or "iokeel" in namespace.lower()


def _check_length(policy: etree._Element, where: str) -> None:
    if next(islice(policy.iter(), _MOST_ELEMENTS, None), None) is not None:
        what = f"a policy of more than {_MOST_ELEMENTS} elements"
        raise PolicyError(at(policy, where), what, "give its drives a class in common")


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


def _given(element: etree._Element, known: Mapping[str, Kind]) -> dict[str, object]:
    """Return a valid element's attributes as fields of DrivePolicy or VmPolicy."""
    given: dict[str, object] = {}
    for name, value in attributes(element):
        kind = known[name]
        if kind is WHOLE:
            given[field_of(name)] = int(value)
        elif kind is BYTES:
            given[field_of(name)] = parse_bps(value)
        elif kind is POSITIVE:
            given[field_of(name)] = float(value)
        elif kind is BUDGET:
            given[field_of(name)] = value == "separate"
    return given
