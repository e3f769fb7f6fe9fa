"""A running domain in libvirt's words and in the core's: what it is, what it did, its limits."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import libvirt

from iokeel.core.counters import Counters, DriveId
from iokeel.core.limits import FIELDS, ThrottleLimits
from iokeel.errors import DriveGone, LimitsRejected, PolicyError
from iokeel.hypervisors.libvirt.passthrough import read_groups
from iokeel.hypervisors.qmp.throttle_groups import Group
from iokeel.hypervisors.source import VmInfo
from iokeel.policy_xml.domain import DomainXml, parse_domain, pool_type

log = logging.getLogger(__name__)

_VOLUME = "volume://"
_STATS_FLAGS = (
    libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_RUNNING
    | libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_PAUSED
    | libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT
)


def _libvirt_name(field: str) -> str:
    """Return libvirt's name of a ThrottleLimits field: bps_read_max is read_bytes_sec_max."""
    if field == "iops_size":
        return "size_iops_sec"
    unit, direction, *rest = field.split("_")
    kind = "bytes" if unit == "bps" else "iops"
    return "_".join([direction, kind, "sec", *rest])


_NAMES = {_libvirt_name(field): field for field in FIELDS}


@dataclass(frozen=True, slots=True)
class Domain:
    """A running domain. groups: whether its throttle groups are to be read."""

    xml: DomainXml
    info: VmInfo
    groups: bool = False


class Reading(NamedTuple):
    """A domain's block statistics, and its throttle groups by target; None where not read."""

    at_ns: int
    values: Mapping[str, Any]
    groups_at_ns: int
    groups: Mapping[str, Group] | None


def read_all(
    connection: Any, names: Collection[str] | None, xmls: Mapping[str, DomainXml]
) -> dict[str, Reading]:
    """Return the readings of all running domains, or of some; throttle groups of `xmls` only."""
    kind = libvirt.VIR_DOMAIN_STATS_BLOCK
    if names is None:
        found = connection.getAllDomainStats(kind, _STATS_FLAGS)
    else:
        handles = [connection.lookupByName(name) for name in names]
        found = connection.domainListGetStats(handles, kind, _STATS_FLAGS)
    at_ns = time.monotonic_ns()
    readings = {}
    for handle, values in found:
        name = handle.name()
        groups = None
        if name in xmls and "block.0.rd.reqs" in values:  # else it is busy, perhaps for long
            try:
                groups = read_groups(handle, xmls[name])
            except libvirt.libvirtError as error:
                log.debug("%s: %s", name, error)  # gone by now, most likely
        readings[name] = Reading(at_ns, values, time.monotonic_ns(), groups)
    return readings


def describe(
    connection: Any, name: str
) -> tuple[str, dict[str, ThrottleLimits], dict[str, str | None]]:
    """Return a running domain's XML, and the limits and the paths of its disks by target."""
    handle = connection.lookupByName(name)
    if not handle.isActive():
        raise DriveGone(name, "does not run")
    text = handle.XMLDesc(0)
    xml = parse_domain(text)
    live = libvirt.VIR_DOMAIN_AFFECT_LIVE
    tunes = {
        disk.target: xml.throttle_groups[disk.throttle_groups[0]]
        if disk.throttle_groups
        else from_libvirt(handle.blockIoTune(disk.target, live))
        for disk in xml.disks
    }
    return text, tunes, {disk.target: _path(connection, disk.path) for disk in xml.disks}


def _path(connection: Any, source: str | None) -> str | None:
    """Return a disk's path or URL; of a storage pool's volume, that of what it is."""
    if source is None or not source.startswith(_VOLUME):
        return source
    pool_name, _, volume = source.removeprefix(_VOLUME).partition("/")
    try:
        pool = connection.storagePoolLookupByName(pool_name)
        path = str(pool.storageVolLookupByName(volume).path())
        if path.startswith("/"):
            return path
        kind = pool_type(pool.XMLDesc(0))
    except (libvirt.libvirtError, PolicyError) as error:
        log.debug("%s: %s", source, error)  # the pool was stopped or is no longer there
        return source
    return f"rbd:{path}" if kind == "rbd" else source


def counters_of(reading: Reading) -> list[tuple[str, Counters]]:
    """Return the counters of each of a domain's disks by target."""
    found = []
    values = reading.values
    for i in range(values.get("block.count", 0)):
        at = f"block.{i}."
        if at + "rd.reqs" not in values:  # a domain that was busy shows no counters
            continue
        target = values[at + "name"]
        group = reading.groups.get(target) if reading.groups else None
        found.append(
            (
                target,
                Counters(
                    reading.at_ns,
                    values[at + "rd.reqs"],
                    values[at + "rd.bytes"],
                    values[at + "wr.reqs"],
                    values[at + "wr.bytes"],
                    values.get(at + "rd.times", 0),
                    values.get(at + "wr.times", 0),
                    group.counters(reading.groups_at_ns) if group else None,
                ),
            )
        )
    return found


def limits_any(info: VmInfo) -> bool:
    """Whether a policy limits any of a domain's drives."""
    policies = [info.policy.for_drive(target) for target in info.drives] if info.policy else []
    return any(policy is not None and policy.limit is not None for policy in policies)


def own_group(xml: DomainXml, drive: DriveId) -> str:
    """Return the throttle group that throttles this drive and no other."""
    for disk in xml.disks:
        if disk.target == drive.target:
            groups = disk.throttle_groups
    others = {g for d in xml.disks if d.target != drive.target for g in d.throttle_groups}
    for group in groups:
        if group not in others:
            return group
    raise LimitsRejected(
        str(drive),
        f"its throttle groups ({', '.join(groups)}) throttle other drives too",
        "give it a throttlefilter with a group of its own",
    )


def to_libvirt(limits: ThrottleLimits) -> dict[str, int]:
    """Return every value, 0 for none: libvirt keeps what it is not given."""
    return {name: getattr(limits, field) or 0 for name, field in _NAMES.items()}


def from_libvirt(values: Mapping[str, Any]) -> ThrottleLimits:
    """Return limits from libvirt's own names."""
    return ThrottleLimits.of({_NAMES[k]: int(v) for k, v in values.items() if k in _NAMES})
