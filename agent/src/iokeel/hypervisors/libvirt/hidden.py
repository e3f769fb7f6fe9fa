"""Drives that libvirt doesn't know: from <qemu:commandline>, or plugged in past libvirt.

They go by the names that they have in QEMU, and have neither libvirt's limits nor its counters. So
QEMU is asked for both. Only domains with a policy are asked, which are tainted (custom-monitor)
already.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Annotated, Any

import msgspec

from iokeel.core.values.counters import Counters
from iokeel.hypervisors.libvirt.passthrough import ask, ask_often
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
from iokeel.libvirt_xml.domain import TOO_MANY, Disk, DomainXml

# A guest's firmware is in a flash of the machine, and does no I/O worth a limit.
_FLASH = "/machine/system.flash"


class _Devices(msgspec.Struct):
    devices: Annotated[list[Object], bounds.LISTED_TOO] = msgspec.field(name="return")


class _Stats(msgspec.Struct):
    drives: Annotated[list[BlockStats], bounds.LISTED] = msgspec.field(name="return")


_DEVICES = bounds.Decoder(_Devices)
_STATS = bounds.Decoder(_Stats, bounds.MOST_DRIVES_BYTES)


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
    answer = ask_often(handle, json.dumps({"execute": "query-blockstats"}), _STATS)
    at_ns = time.monotonic_ns()
    targets = {disk.alias: disk.target for disk in xml.hidden}
    found: dict[str, Counters] = {}
    for drive in answer.drives if answer is not None else ():
        target, stats = targets.get(target_of(drive.qdev, drive.device)), drive.stats
        if target is not None:
            found[target] = Counters(
                at_ns,
                stats.rd_operations,
                stats.rd_bytes,
                stats.wr_operations,
                stats.wr_bytes,
                stats.rd_total_time_ns,
                stats.wr_total_time_ns,
            )
    return found
