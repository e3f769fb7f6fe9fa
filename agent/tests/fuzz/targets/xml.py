"""The XML of domains: their policies, disks and throttle groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
from xml.sax.saxutils import quoteattr

from iokeel.core.values.policy import BUILTIN_CLASSES, DomainPolicy, DrivePolicy, VmPolicy, checked
from iokeel.errors import PolicyError
from iokeel.host.network_storage import network_place
from iokeel.libvirt_xml.domain import domain_in, parse_domain, pool_type
from iokeel.libvirt_xml.policy import check_targets, parse_policy
from iokeel.libvirt_xml.schema import NAMESPACE
from tests.fuzz.budget import only
from tests.fuzz.targets.target import Target

_WORDS = [
    *(b"domain metadata policy drive target class tenant limit burst reservation weight".split()),
    *(b"burst-seconds latency-target-ms budget shared separate gold silver xmlns iokeel".split()),
    *(b"devices disk source dev file name protocol host port socket transport unix pool".split()),
    *(b"volume type pci address domain bus slot function namespace alias throttlegroups".split()),
    *(b"throttlegroup group_name total_iops_sec read_bytes_sec throttlefilters lun".split()),
    *(b"throttlefilter group emulator rbd iscsi nbd gluster vhostuser disk cdrom".split()),
    NAMESPACE.encode(), b"urn:iokeel:policy:2", b"<!--", b"-->", b"<![CDATA[", b"]]>",
    *(b"<!DOCTYPE a [<!ENTITY b 'c'>]>", b"&b;", b"&#10;", b"&#0;", b"<?xml version='1.0'?>"),
]  # fmt: skip
# What a target does besides is no part of the budget, so it does that with small inputs only.
_MOST_PARSED_TWICE_BYTES = 1 << 14


def policy(data: bytes) -> None:
    """A policy makes sense, and is the same if it is written and read again."""
    with only(PolicyError):
        found = parse_policy(data, BUILTIN_CLASSES, "domain db1")
        if found is None:
            return
        for part in (*found.drives.values(), found.default, found.vm):
            if part is not None:
                checked(part, "")
        if len(data) <= _MOST_PARSED_TWICE_BYTES:
            classes = {"x": found.default} if found.default else {}
            assert parse_policy(_written(found), classes, "") == found
        check_targets(found, (), "domain db1")


def _written(policy: DomainPolicy) -> str:
    """Return a policy as XML, by docs/policy.md. The class of other drives is x."""
    texts = {"class": "x" if policy.default else None, "tenant": policy.tenant}
    texts |= _values(policy.vm) if policy.vm else {}
    drives = []
    for target, drive in policy.drives.items():
        values = _values(drive)
        values["budget"] = "separate" if values.pop("separate-budgets") else "shared"
        if (ms := values["latency-target-ms"]) is not None:
            values["latency-target-ms"] = f"{ms:.9f}"[:16]
        drives.append(f"<drive target={quoteattr(target)} {_attributes(values)}/>")
    return f"<policy xmlns='{NAMESPACE}' {_attributes(texts)}>{''.join(drives)}</policy>"


def _values(part: DrivePolicy | VmPolicy) -> dict[str, Any]:
    return {name.replace("_", "-"): value for name, value in asdict(part).items()}


def _attributes(values: Mapping[str, object]) -> str:
    return " ".join(f"{k}='{v}'" for k, v in values.items() if v is not None)


def domain(data: bytes) -> None:
    """A domain has a name and targets, and no limit of it is below 1."""
    with only(PolicyError):
        found = parse_domain(data)
        assert found.name
        if len(data) <= _MOST_PARSED_TWICE_BYTES:
            assert domain_in(data) == found
        for disk in found.disks:
            assert disk.target
            network_place(disk.path or "")
        for limits in found.throttle_groups.values():
            assert all(value is None or value > 0 for _, value in limits.items())


def pool(data: bytes) -> None:
    """A storage pool has a type or none."""
    with only(PolicyError):
        pool_type(data.decode(errors="surrogateescape"))


def url(data: bytes) -> None:
    """A URL is a storage or not."""
    network_place(data.decode(errors="surrogateescape"))


_URLS = b"rbd: nvme:// iscsi nbd+unix:/// ?socket= %2f volume:// gluster :// [::1] :10809 //"
TARGETS = [
    Target("policy", policy, 1 << 19, _WORDS),
    Target("domain", domain, 1 << 19, _WORDS),
    Target("pool", pool, 1 << 19, _WORDS),
    Target("url", url, 1 << 16, _URLS.split()),
]
