"""Drives that libvirt doesn't know: from <qemu:commandline>, or plugged in past libvirt.

They go by the names that they have in QEMU, and have neither libvirt's limits nor its counters. So
QEMU is asked for both. Only domains with a policy are asked, which are tainted (custom-monitor)
already.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Annotated, Any

import msgspec

from iokeel.core.values.counters import Counters, DriveId
from iokeel.core.values.limits import STOCK, Abilities, ThrottleLimits
from iokeel.errors import DriveGone, LimitsRejected
from iokeel.hypervisors.libvirt.passthrough import Outcome, ask, ask_often, find
from iokeel.hypervisors.qemu import bounds
from iokeel.hypervisors.qemu.drives import (
    DEVICES,
    Block,
    BlockStats,
    Object,
    QmpDrive,
    clearing,
    drives_of,
    setting,
    shared,
    target_of,
    unthrottled_of,
)
from iokeel.hypervisors.qemu.limits import for_curve
from iokeel.libvirt_xml.domain import Disk, DomainXml
from iokeel.words.quoting import shown_path

# A guest's firmware is in a flash of the machine, and does no I/O worth a limit.
_FLASH = "/machine/system.flash"


class _Devices(msgspec.Struct):
    devices: Annotated[list[Object], bounds.LISTED_TOO] = msgspec.field(name="return")


class _Stats(msgspec.Struct):
    drives: Annotated[list[BlockStats], bounds.LISTED] = msgspec.field(name="return")


_DEVICES = bounds.Decoder(_Devices)
_STATS = bounds.Decoder(_Stats, bounds.MOST_DRIVES_BYTES)
_OUTCOME = bounds.Decoder(Outcome)


def hidden_of(handle: Any, xml: DomainXml, blocks: Sequence[Block]) -> tuple[Disk, ...]:
    """Return the drives that a domain's QEMU has and its XML lacks.

    blocks: QEMU's answer to query-block. Raises libvirtError.
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
    return tuple(islice(found.values(), bounds.MOST_DRIVES))


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


def put_hidden(
    handle: Any,
    drive: DriveId,
    disk: Disk,
    limits: ThrottleLimits,
    abilities: Abilities | None,
    reached: QmpDrive | None,
) -> QmpDrive:
    """Set a hidden drive's limits, and return the drive as QMP reaches it.

    reached: as last returned from here; None makes a query. Raises libvirtError, DriveGone,
    LimitsRejected, or ConnectionLost for a curve if it isn't known whether QEMU knows curves.
    """
    if limits.cost_read is not None:
        abilities = for_curve(drive, abilities)
    reached = reached or find(handle, disk, None)
    if reached is None:
        raise DriveGone(str(drive), "is not there")
    if reached.shares:
        raise LimitsRejected(str(drive), *shared(reached))
    known = abilities or STOCK
    for step in filter(None, (setting(reached, limits, known), clearing(reached, known))):
        name, arguments = step
        command = json.dumps({"execute": name, "arguments": arguments})
        outcome = ask(handle, command, _OUTCOME)
        if outcome is None or outcome.error is not None:
            said = shown_path(outcome.error.said) if outcome and outcome.error else "nothing"
            what = f"QEMU refused its limits: {said}"
            raise LimitsRejected(str(drive), what, "the old limits still hold", said=said)
    return reached
