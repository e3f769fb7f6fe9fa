"""A running domain as libvirt shows it: its disks, their paths and their limits."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import libvirt

from iokeel.core.counters import DriveId
from iokeel.core.limits import ThrottleLimits
from iokeel.core.policy import UNKNOWN
from iokeel.errors import DriveGone, LimitsRejected, PolicyError
from iokeel.hypervisors.source import VmInfo
from iokeel.policy_xml.domain import VOLUME, Disk, DomainXml, parse_domain, pool_type
from iokeel.policy_xml.iotune import from_libvirt

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Domain:
    """A running domain. reads_groups: whether its throttle groups are read at each tick."""

    xml: DomainXml
    info: VmInfo
    reads_groups: bool = False


def describe(
    connection: Any, name: str
) -> tuple[str, dict[str, ThrottleLimits], dict[str, str | None]]:
    """Return a running domain's XML, and the limits and the paths of its disks by target.

    Raises libvirtError, DriveGone or PolicyError.
    """
    handle = connection.lookupByName(name)
    if not handle.isActive():
        raise DriveGone(name, "does not run")
    text = handle.XMLDesc(0)
    xml = parse_domain(text)
    live = libvirt.VIR_DOMAIN_AFFECT_LIVE
    limits = {
        disk.target: xml.throttle_groups[disk.throttle_groups[0]]
        if disk.throttle_groups
        else from_libvirt(handle.blockIoTune(disk.target, live))
        for disk in xml.disks
    }
    return text, limits, {disk.target: _real_path(connection, disk.path) for disk in xml.disks}


def _real_path(connection: Any, path: str | None) -> str | None:
    """Return a disk's path or URL; if it is a storage pool's volume, that of the volume."""
    if path is None or not path.startswith(VOLUME):
        return path
    pool_name, _, volume = path.removeprefix(VOLUME).partition("/")
    try:
        pool = connection.storagePoolLookupByName(pool_name)
        real = str(pool.storageVolLookupByName(volume).path())
        if real.startswith("/"):
            return real
        kind = pool_type(pool.XMLDesc(0))
    except (libvirt.libvirtError, PolicyError) as error:
        log.debug("%s: %s", path, error)  # the pool was stopped or is no longer there
        return path
    return f"rbd:{real}" if kind == "rbd" else path


def limits_any(info: VmInfo) -> bool:
    """Return True if a policy limits any of a domain's drives, or if it may do so."""
    if info.policy is UNKNOWN:
        return True
    if info.policy is not None and info.policy.vm is not None and info.policy.vm.limit is not None:
        return True
    policies = [info.policy.for_drive(target) for target in info.drives] if info.policy else []
    return any(policy is not None and policy.limit is not None for policy in policies)


def own_group(xml: DomainXml, drive: DriveId, disk: Disk) -> str | None:
    """Return the throttle group that throttles this disk and no other; None if it has none.

    Raises LimitsRejected if all its groups throttle others too.
    """
    if not disk.throttle_groups:
        return None
    others = {g for d in xml.disks if d.target != disk.target for g in d.throttle_groups}
    for group in disk.throttle_groups:
        if group not in others:
            return group
    raise LimitsRejected(
        str(drive),
        f"its throttle groups ({', '.join(disk.throttle_groups)}) throttle other drives too",
        "give it a throttlefilter with a group of its own",
    )
