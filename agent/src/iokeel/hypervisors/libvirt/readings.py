"""The statistics of running domains, read at each tick, also of drives that libvirt doesn't know.

Those of all domains come in one call, with NOWAIT: it skips a domain that another call keeps
busy, such as one whose QEMU hangs. After that, throttle groups are read from the domains that
answered, if their QEMU counts and a policy limits one of their drives.

A guest in post-copy runs on the host that it migrates to, while its counters here stand still. It
isn't idle, so it counts as not read, and keeps its reservation of the storage that both hosts
reach. One that is paused otherwise runs nowhere: also if post-copy has failed, or after a restore.

Drives that libvirt doesn't know come from <qemu:commandline>, or were plugged in past libvirt. They
go by the names that they have in QEMU, and have neither libvirt's limits nor its counters. So QEMU
is asked for both. Only domains with a policy are asked, which are tainted (custom-monitor) already.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Annotated, Any, NamedTuple

import libvirt
import msgspec

from iokeel.core.values.counters import Counters, DriveId
from iokeel.errors import IokeelError
from iokeel.hypervisors.libvirt.calls import Calls
from iokeel.hypervisors.libvirt.domain import Domain
from iokeel.hypervisors.libvirt.passthrough import ask, ask_often, read_groups
from iokeel.hypervisors.qemu import bounds
from iokeel.hypervisors.qemu.drives import (
    DEVICES,
    Block,
    BlockStats,
    Object,
    drives_of,
    target_of,
    unthrottled_of,
)
from iokeel.hypervisors.qemu.limits import Group
from iokeel.libvirt_xml.domain import TOO_MANY, Disk, DomainXml

log = logging.getLogger(__name__)

_STATS_FLAGS = (
    libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_RUNNING
    | libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_PAUSED
    | libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT
)
_STATS = libvirt.VIR_DOMAIN_STATS_STATE | libvirt.VIR_DOMAIN_STATS_BLOCK
# libvirt pauses a guest so that its memory is written: for an internal snapshot or an external one
# with memory, by `virsh save`, or by `virsh dump`. A guest that starts may be one that is restored,
# whose QEMU reads its memory; none does any I/O of its own yet.
_MOVING_MEMORY = {
    libvirt.VIR_DOMAIN_PAUSED_SAVE,
    libvirt.VIR_DOMAIN_PAUSED_SNAPSHOT,
    libvirt.VIR_DOMAIN_PAUSED_DUMP,
    libvirt.VIR_DOMAIN_PAUSED_STARTING_UP,
}


class Reading(NamedTuple):
    """A domain's block statistics, and its throttle groups by target; None if not read.

    groups: see read_groups. Times are by the monotonic clock.
    """

    at_ns: int
    values: Mapping[str, Any]
    groups_at_ns: int
    groups: Mapping[str, Group | None] | None

    @property
    def is_busy(self) -> bool:
        """Whether libvirt didn't ask its QEMU, because another call about it is under way."""
        return not _counted(self.values)

    @property
    def runs_elsewhere(self) -> bool:
        """Whether it is in post-copy, and has left this host."""
        return self._paused_for in {libvirt.VIR_DOMAIN_PAUSED_POSTCOPY}

    @property
    def is_saving(self) -> bool:
        """Whether it is paused while its memory is written to storage, or read from there."""
        return self._paused_for in _MOVING_MEMORY

    @property
    def _paused_for(self) -> object:
        is_paused = self.values.get("state.state") == libvirt.VIR_DOMAIN_PAUSED
        return self.values.get("state.reason") if is_paused else None


def read_all(
    connection: Any, names: Collection[str] | None, domains: Mapping[str, Domain]
) -> dict[str, Reading]:
    """Return the readings of all running domains (None), or of some.

    domains: those whose throttle groups are read too. Raises libvirtError.
    """
    # Each costs a call of libvirtd, so a connection keeps those that have just answered.
    kept: dict[str, Any] = vars(connection).get("handles", {})
    if names is None:
        found = connection.getAllDomainStats(_STATS, _STATS_FLAGS)
    else:
        handles = [kept.get(name) or _handle(connection, name) for name in names]
        there = [handle for handle in handles if handle is not None]
        found = connection.domainListGetStats(there, _STATS, _STATS_FLAGS) if there else []
        kept = {name: handle for name, handle in kept.items() if name not in names}
    at_ns = time.monotonic_ns()
    readings = {}
    for handle, values in found:
        name = handle.name()
        kept[name] = handle
        groups = None
        if name in domains and _counted(values):  # else it is busy, perhaps for long
            try:
                domain = domains[name]
                groups = read_groups(handle, domain.xml, domain.abilities)
            except libvirt.libvirtError as error:
                log.debug("%s: %s", name, error)  # most likely it has just gone
        readings[name] = Reading(at_ns, values, time.monotonic_ns(), groups)
    vars(connection)["handles"] = kept
    return readings


def _handle(connection: Any, name: str) -> Any:
    """Return libvirt's handle of a domain; None if it has just gone. Raises libvirtError."""
    try:
        return connection.lookupByName(name)
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
            raise
    return None


def _counted(values: Mapping[str, Any]) -> list[str]:
    """Return the beginnings of the names of the disks' values, of disks that have counters.

    A domain that was busy has none, and a vhost-user disk never has any.
    """
    disks = (f"block.{i}." for i in range(values.get("block.count", 0)))
    return [disk for disk in disks if disk + "rd.reqs" in values]


def counters_of(reading: Reading) -> list[tuple[str, Counters]]:
    """Return the counters of a domain's disks, with their targets; none if it runs elsewhere."""
    found: list[tuple[str, Counters]] = []
    values = reading.values
    if reading.runs_elsewhere:
        return found
    for at in _counted(values):
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
                    values.get(at + "fl.reqs"),
                    values.get(at + "fl.times"),
                ),
            )
        )
    return found


def sizes_of(reading: Reading) -> dict[str, int]:
    """Return the sizes of a domain's disks in bytes, as its guest sees them, by target."""
    values = reading.values
    disks = [f"block.{i}." for i in range(values.get("block.count", 0))]
    return {values[d + "name"]: values[d + "capacity"] for d in disks if d + "capacity" in values}


class HiddenCounters:
    """Reads them. domains: those that run, by name, as their reader keeps them."""

    def __init__(self, domains: Mapping[str, Domain], calls: Calls) -> None:
        self._domains = domains
        self._calls = calls

    async def read(
        self, readings: Mapping[str, Reading], timeout_s: float
    ) -> dict[DriveId, Counters]:
        """Return the counters of the domains with such drives. readings: libvirt's of all domains.

        A domain that doesn't answer in time is left out.
        """
        due = {
            name: domain
            for name, reading in readings.items()
            if (domain := self._domains.get(name)) is not None and _is_due(domain, reading)
        }
        found: dict[DriveId, Counters] = {}
        if due:
            asked = (self._ask(name, due[name], readings[name], timeout_s) for name in due)
            for counters in await asyncio.gather(*asked):
                found |= counters
        return found

    async def _ask(
        self, name: str, domain: Domain, reading: Reading, timeout_s: float
    ) -> dict[DriveId, Counters]:
        try:
            read = await self._calls.call_domain(
                name,
                lambda connection: read_counters(connection.lookupByName(name), domain.xml),
                timeout_s,
            )
        except IokeelError as error:
            log.debug("%s", error)
            return {}
        found = {}
        for target, counters in read.items():
            if (group := (reading.groups or {}).get(target)) is not None:
                counters = counters._replace(throttle=group.counters(reading.groups_at_ns))
            found[DriveId(name, target)] = counters
        return found


def _is_due(domain: Domain, reading: Reading) -> bool:
    """Return whether a domain has such drives, runs here, and isn't busy.

    One that has no others can't be told to be busy.
    """
    hidden = domain.xml.hidden
    if not hidden or not domain.is_held or reading.runs_elsewhere:
        return False
    return not reading.is_busy or len(hidden) == len(domain.xml.disks)


# A guest's firmware is in a flash of the machine, and does no I/O worth a limit.
_FLASH = "/machine/system.flash"


class _Devices(msgspec.Struct):
    devices: Annotated[list[Object], bounds.LISTED_TOO] = msgspec.field(name="return")


class _Stats(msgspec.Struct):
    drives: Annotated[list[BlockStats], bounds.LISTED] = msgspec.field(name="return")


_DEVICES = bounds.Decoder(_Devices)
_BLOCK_STATS = bounds.Decoder(_Stats, bounds.MOST_DRIVES_BYTES)


def hidden_of(handle: Any, xml: DomainXml, blocks: Sequence[Block]) -> tuple[Disk, ...]:
    """Return the drives that a domain's QEMU has and its XML lacks.

    blocks: QEMU's answer to query-block. Of too many drives, the first one that isn't followed is
    there as a drive that can't be limited. Raises libvirtError.
    """
    devices = _devices(handle) if xml.has_arguments else []
    unthrottled = unthrottled_of(devices, blocks)
    taken = {disk.target for disk in xml.disks if not disk.hidden}
    found = {
        alias: Disk(
            bounds.target(drive.qdev if alias in taken else alias),
            drive.path,
            alias=alias,
            unthrottled=unthrottled.get(alias),
            beneath=drive.beneath,
            hidden=True,
        )
        for alias, drive in drives_of(blocks).items()
        if drive.qdev and not drive.qdev.startswith(_FLASH) and not _is_libvirts(xml, alias)
    }
    for alias, why in unthrottled.items():  # query-block lacks vhost-user disks
        if alias not in found and not _is_libvirts(xml, alias):
            found[alias] = Disk(alias, alias=alias, unthrottled=why, hidden=True)
    followed = tuple(islice(found.values(), bounds.MOST_DRIVES + 1))
    if len(followed) <= bounds.MOST_DRIVES:
        return followed
    return (*followed[:-1], replace(followed[-1], unthrottled=TOO_MANY))


def _is_libvirts(xml: DomainXml, alias: str) -> bool:
    return alias in xml.aliases or alias.removeprefix("drive-") in xml.aliases


def _devices(handle: Any) -> list[Object]:
    found: list[Object] = []
    for path in DEVICES:
        command = {"execute": "qom-list", "arguments": {"path": path}}
        if (answer := ask(handle, json.dumps(command), _DEVICES)) is not None:
            found += answer.devices
    return found


def read_counters(handle: Any, xml: DomainXml) -> Mapping[str, Counters]:
    """Return the counters of a domain's hidden drives, by target. Raises libvirtError."""
    answer = ask_often(handle, json.dumps({"execute": "query-blockstats"}), _BLOCK_STATS)
    at_ns = time.monotonic_ns()
    targets = {disk.alias: disk.target for disk in xml.hidden}
    asked = {targets.get(target_of(d.qdev, d.device)): d for d in answer.drives} if answer else {}
    return {target: drive.counters(at_ns) for target, drive in asked.items() if target is not None}
