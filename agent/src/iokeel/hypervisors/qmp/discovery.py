"""The questions that a QEMU is asked to find its drives and their limits."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from itertools import islice

from iokeel.hypervisors.qemu.bounds import (
    MOST_DRIVES,
    MOST_DRIVES_BYTES,
    MOST_LISTED,
    MOST_SCHEMA,
    target,
)
from iokeel.hypervisors.qemu.drives import (
    DEVICES,
    Block,
    Node,
    Object,
    QmpDrive,
    drives_of,
    groups_of,
    spelled_out,
)
from iokeel.hypervisors.qemu.limits import (
    DIALECTS,
    Group,
    ObjectLimits,
    QemuAbilities,
    SchemaEntry,
    from_object,
)
from iokeel.hypervisors.qmp.connection import ANYTHING, Channel, decoder
from iokeel.hypervisors.qmp.faults import NO_COMMAND, CommandFailed
from iokeel.libvirt_xml.domain import TOO_MANY

log = logging.getLogger(__name__)

#: As long as an order may take (enforcer.py). A QEMU that takes longer hangs, and is asked again.
ANSWER_TIMEOUT_S = 5.0
#: Also for the counters of a tick.
GROUPS = decoder(list[Group], MOST_LISTED)

# A storage daemon doesn't know it.
_OF_GUESTS = "query-status"
# To read names of so many characters takes some ms.
_MUCH = 64 << 10
_BLOCKS = decoder(list[Block], MOST_LISTED)
_LIMITS = decoder(ObjectLimits)
_OBJECTS = decoder(list[Object], MOST_LISTED)
_DEVICES = decoder(list[Object], 2 * MOST_LISTED)  # controllers and ports, too
_NODES = decoder(list[Node], 2 * MOST_LISTED)  # two a drive, and images
_SCHEMA = decoder(list[SchemaEntry], MOST_SCHEMA)


async def query_abilities(connection: Channel) -> QemuAbilities:
    """Return the abilities of a QEMU, by its schema. Raises MonitorLost.

    If it refuses to tell, those of its throttle groups aren't known. One without the command is
    stock QEMU. A schema takes QEMU 0.1 to 0.2 s. If others wait for that, it is asked only of one
    that knows a command of the patches.
    """
    patched = [dialect.query_groups for dialect in DIALECTS.values()]
    if connection.is_shared and not any([await _knows(connection, each) for each in patched]):
        return QemuAbilities(guest_devices=await _knows(connection, _OF_GUESTS))
    try:
        schema = await connection.execute("query-qmp-schema", {}, _SCHEMA, ANSWER_TIMEOUT_S)
    except CommandFailed as error:
        if error.kind == NO_COMMAND:
            return QemuAbilities()
        log.warning("%s; its drives get limits that hold with any QEMU", error)
        return QemuAbilities(throttle=None)
    return QemuAbilities.of(schema)


async def _knows(connection: Channel, command: str) -> bool:
    """Return whether a QEMU knows a command, which changes nothing. Raises MonitorLost."""
    try:
        await connection.execute(command, {}, ANYTHING, ANSWER_TIMEOUT_S)
    except CommandFailed as error:
        return error.kind != NO_COMMAND
    return True


async def query_drives(
    connection: Channel, *, guest_devices: bool
) -> tuple[list[Block], dict[str, QmpDrive], dict[str, str]]:
    """Return a QEMU's BlockBackends, its first MOST_DRIVES drives, and why the next has no limits.

    Both by target.

    Limits of a drive without a throttle-group object lack the fields of the patches. Raises
    MonitorLost or CommandFailed.
    """
    blocks = await connection.execute(
        "query-block", {}, _BLOCKS, ANSWER_TIMEOUT_S, MOST_DRIVES_BYTES
    )
    if not guest_devices:
        drives = await _daemon_drives(connection)
    elif spelled_out(blocks) > _MUCH:
        drives = await asyncio.to_thread(drives_of, blocks)
    else:
        drives = drives_of(blocks)
    first = [
        replace(drive, target=target(name))
        for name, drive in islice(drives.items(), MOST_DRIVES + 1)
    ]
    followed = [await _with_object_limits(connection, drive) for drive in first[:MOST_DRIVES]]
    left_out = {drive.target: TOO_MANY for drive in first[MOST_DRIVES:]}
    return blocks, {drive.target: drive for drive in followed}, left_out


async def query_devices(connection: Channel) -> list[Object]:
    """Return the devices that a guest was given. Raises MonitorLost or CommandFailed."""
    found: list[Object] = []
    for path in DEVICES:
        place = {"path": path}
        devices = await connection.execute("qom-list", place, _DEVICES, ANSWER_TIMEOUT_S)
        found += devices
    return found


async def query_groups(connection: Channel, abilities: QemuAbilities) -> list[Group]:
    """Return a QEMU's throttle groups, if they count. Raises MonitorLost or CommandFailed."""
    return await connection.execute(abilities.query_groups, {}, GROUPS, ANSWER_TIMEOUT_S)


async def _daemon_drives(connection: Channel) -> dict[str, QmpDrive]:
    place = {"path": "/objects"}
    objects = await connection.execute("qom-list", place, _OBJECTS, ANSWER_TIMEOUT_S)
    flat = {"flat": True}
    nodes = await connection.execute("query-named-block-nodes", flat, _NODES, ANSWER_TIMEOUT_S)
    return groups_of(objects, nodes)


async def _with_object_limits(connection: Channel, drive: QmpDrive) -> QmpDrive:
    """Return a drive with the limits of its throttle-group object, if it has one."""
    if drive.throttle_group is None:
        return drive
    arguments = {"path": f"/objects/{drive.throttle_group}", "property": "limits"}
    try:
        found = await connection.execute("qom-get", arguments, _LIMITS, ANSWER_TIMEOUT_S)
    except CommandFailed:  # a group that is no object can't be set, so the drive itself is limited
        return replace(drive, throttle_group=None, own=None)
    return replace(drive, in_force=drive.with_own(from_object(found)))
