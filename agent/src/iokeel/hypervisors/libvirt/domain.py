"""A running domain as libvirt shows it: its disks, their paths and their limits."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import libvirt

from iokeel.core.values.counters import DriveId
from iokeel.core.values.limits import Abilities, ThrottleLimits
from iokeel.core.values.policy import ToldPolicy
from iokeel.errors import DriveGone, IokeelError, LimitsRejected, PolicyError
from iokeel.hypervisors.libvirt.passthrough import put_patched
from iokeel.hypervisors.qemu.drives import QmpDrive
from iokeel.hypervisors.qemu.limits import for_curve, knows_more
from iokeel.hypervisors.source import VmInfo
from iokeel.libvirt_xml.domain import (
    VOLUME,
    Disk,
    DomainXml,
    own_group,
    parse_domain,
    pool_type,
    to_libvirt,
)
from iokeel.libvirt_xml.schema import NAMESPACE
from iokeel.libvirt_xml.xml import TooLarge, metadata_of, parsed

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Domain:
    """A running domain.

    id: libvirt's number of it, another one at each start. abilities: those of its QEMU; None if
    that hasn't been asked. refused: why it didn't tell its limits; None if it did, or wasn't asked.
    """

    xml: DomainXml
    info: VmInfo
    id: int
    abilities: Abilities | None = None
    refused: IokeelError | None = None

    @property
    def is_held(self) -> bool:
        """Whether its QEMU may be asked for its limits: it has been asked before."""
        return self.abilities is not None and has_policy(self.info.policy, self.info.drives)

    @property
    def reads_groups(self) -> bool:
        """Whether its throttle groups are read at each tick."""
        return self.is_held and self.abilities is not None and self.abilities.counts

    @property
    def has_policy(self) -> bool:
        """Whether any of its drives has a policy, or may have one."""
        return has_policy(self.info.policy, self.info.drives)


class Description(NamedTuple):
    """A running domain's XML and number, and the limits of its drives by target.

    text: the XML that has its policy. limits: as libvirt was told them last; None if unknown. QEMU
    has others if they were set past libvirt (`read_limits` in passthrough.py).
    """

    xml: DomainXml
    text: str
    id: int
    limits: dict[str, ThrottleLimits | None]


def describe(connection: Any, name: str) -> Description:
    """Return a running domain as libvirt describes it, without asking QEMU.

    libvirt's blockIoTune would have QEMU list all its disks for each one: 10 s for 200 disks.
    Raises libvirtError, DriveGone or PolicyError.
    """
    handle = connection.lookupByName(name)
    if not handle.isActive():
        raise DriveGone(name, "does not run")
    text = handle.XMLDesc(0)
    xml = parse_domain(text, f"domain {name}")
    # Its XML may not have the name to the letter: a carriage return in it reads as a line's end.
    xml = replace(xml, name=name)
    limits = {disk.target: xml.told(disk) for disk in xml.drives}
    return Description(xml, _with_policy(handle, text), handle.ID(), limits)


def _with_policy(handle: Any, text: str) -> str:
    """Return a domain's XML, or its policy alone if other programs' metadata makes it too large."""
    try:
        parsed(metadata_of(text)[0] or "<metadata/>", "metadata")
    except TooLarge:
        with contextlib.suppress(libvirt.libvirtError):  # it has no policy
            own = handle.metadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, NAMESPACE)
            # libvirt takes the namespace out.
            return str(own).replace("<policy", f"<policy xmlns='{NAMESPACE}'", 1)
    except PolicyError:
        pass  # as is told when the policy is read
    return text


def is_volume(disk: Disk) -> bool:
    """Return whether a disk is a volume of a storage pool."""
    return disk.path is not None and disk.path.startswith(VOLUME)


def volume_paths(connection: Any, xml: DomainXml) -> dict[str, str]:
    """Return the real paths or URLs of a domain's volumes by target, without those not found.

    Blocks, for long if a pool hangs.
    """
    found = {
        disk.target: _real_path(connection, disk.path)
        for disk in xml.disks
        if disk.path is not None and is_volume(disk)
    }
    return {target: path for target, path in found.items() if path is not None}


def _real_path(connection: Any, path: str) -> str | None:
    """Return the path or URL of a storage pool's volume; its own if the pool tells no other.

    None if the pool can't be read. It may be stopped while guests run.
    """
    pool_name, _, volume = path.removeprefix(VOLUME).partition("/")
    try:
        pool = connection.storagePoolLookupByName(pool_name)
        real = str(pool.storageVolLookupByName(volume).path())
        if real.startswith("/"):
            return real
        kind = pool_type(pool.XMLDesc(0))
    except (libvirt.libvirtError, PolicyError) as error:
        log.debug("%s: %s", path, error)
        return None
    return f"rbd:{real}" if kind == "rbd" else path


def has_policy(policy: ToldPolicy | None, targets: Collection[str]) -> bool:
    """Return True if any of a domain's drives has a policy, or if it may have one."""
    return policy is not None and any(policy.for_drive(t) is not None for t in targets)


def group_of(xml: DomainXml, drive: DriveId, disk: Disk) -> str | None:
    """Return the group of its throttlefilters that throttles this disk and no other.

    None if it has no throttlefilters: iotune limits it. Raises LimitsRejected if all its groups
    throttle others too.
    """
    if not disk.throttle_groups:
        return None
    if (own := own_group(xml.disks, disk)) is not None:
        return own
    raise LimitsRejected(
        str(drive),
        f"its throttle groups ({', '.join(disk.throttle_groups)}) throttle other drives too",
        "give it a throttlefilter with a group of its own",
    )


def put_limits(
    handle: Any,
    drive: DriveId,
    disk: Disk,
    group: str | None,
    limits: ThrottleLimits,
    abilities: Abilities | None,
    reached: QmpDrive | None,
    fallback: ThrottleLimits | None = None,
) -> QmpDrive | None:
    """Put a drive's limits in force. Blocks.

    Raises libvirtError, or LimitsRejected, or ConnectionLost for a curve if it isn't known whether
    QEMU knows curves.

    A QEMU that knows curves gets all fields in one command. libvirt gets limits without a curve
    only: the fallback before it, if that is new, or limits that need none after it. By then QEMU
    has no curve, which it would refuse together with an iops-size.

    group, reached: see put_patched. abilities: QEMU's; None if they aren't known. fallback: limits
    for libvirt itself if `limits` have a curve; None if it has them already (limits.py).
    """
    if limits.cost_read is not None:
        abilities = for_curve(drive, abilities)
        if fallback is not None:
            first = fallback._replace(idle_credit_ms=limits.idle_credit_ms)
            reached = put_limits(handle, drive, disk, group, first, abilities, reached)
        return put_patched(handle, drive, disk, group, limits, abilities, reached)
    found = None
    if abilities is not None and knows_more(abilities):
        found = put_patched(handle, drive, disk, group, limits, abilities, reached)
    if group is not None:
        handle.setThrottleGroup(group, to_libvirt(limits), libvirt.VIR_DOMAIN_AFFECT_LIVE)
    else:
        handle.setBlockIoTune(drive.target, to_libvirt(limits), libvirt.VIR_DOMAIN_AFFECT_LIVE)
    return found
