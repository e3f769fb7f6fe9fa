"""What drives had before the agent: what the law's own state says of it, beside the record.

The record is in the domain's metadata (rules/platform.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from iokeel.core.enforce.look import is_ours
from iokeel.core.enforce.pricing import fallback_of
from iokeel.core.values.limits import ThrottleLimits
from iokeel.core.values.state import DriveState, Sent, Verdict
from iokeel.libvirt_xml.domain import DomainXml
from iokeel.rules.platform import Found

#: What the law knows of a domain's drives in its QEMU, by target.
Known = Mapping[str, DriveState]


def held(xml: DomainXml, known: Known) -> dict[str, Found]:
    """Return what drives with limits of ours had before these, by target.

    So it is of all drives of their groups, which have the same limits.
    """
    ours = {t: drive.sent.found for t, drive in known.items() if drive.sent.limits is not None}
    groups = {d.iotune_group: ours[d.target] for d in xml.disks if d.target in ours}
    return ours | {
        disk.target: groups[disk.iotune_group]
        for disk in xml.disks
        if disk.iotune_group in groups and disk.iotune_group and disk.target not in ours
    }


def free(known: Known) -> Collection[str]:
    """Return the targets of drives that certainly have no limits of an agent's."""
    nothing = (Verdict.NO_POLICY, Verdict.NO_LIMIT)
    return {
        target
        for target, drive in known.items()
        if drive.sent.limits is None and drive.finding.verdict in nothing
    }


def set_by_platform(
    xml: DomainXml,
    known: Known,
    last: Mapping[str, ThrottleLimits],
    in_qemu: Mapping[str, ThrottleLimits | None],
    given: Mapping[str, Found],
    events: Mapping[str, Mapping[str, int]],
) -> dict[str, ThrottleLimits]:
    """Return the limits that a platform has set since the agent's were in force, by target.

    last: those that the agent has set last in this QEMU, if any since its start. in_qemu: as QEMU
    tells them. given: what the platform gave before. events: by target or path, what others have
    set by libvirt's events, which the agent's may have overwritten before they were read.

    libvirt and QEMU have to agree, as they don't after a snapshot was reverted, or if limits were
    set past libvirt. And the agent's own have to have been in force in this QEMU: until then,
    another agent's may be. A platform that sets some values only leaves the agent's others in
    place; these aren't its.
    """
    # The law hears a tick later that its orders are in force, and never of those at a stop.
    orders = [Sent(limits) for limits in last.values()]
    orders += [drive.sent for drive in known.values() if drive.sent.limits is not None]
    found = {}
    for disk in xml.drives:
        told, drive = xml.told(disk), known.get(disk.target)
        if told is None or drive is None:
            continue
        ours, seen = last.get(disk.target, drive.sent.carried_out), in_qemu.get(disk.target)
        was = given.get(disk.target) or ThrottleLimits()
        if ours is None or seen is None or seen.stock != told:
            continue
        event = events.get(disk.target) or events.get(disk.path or "") or {}
        if any(is_ours(told, order) for order in orders):
            told = ThrottleLimits.of({**dict(told.items()), **event})
            if any(is_ours(told, order) for order in orders):
                continue
        stock = ours if ours.cost_read is None else fallback_of(ours)
        left = {*told.items()} & ({*ours.items()} | {*stock.items()})
        kept = {name: getattr(was, name) for name, value in left if value is not None}
        found[disk.target] = ThrottleLimits.of({**dict(told.items()), **kept})
    return found
