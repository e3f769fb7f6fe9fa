"""QMP commands that libvirt has no API for, past libvirt.

Such a command marks the domain as tainted (custom-monitor). So none is sent to a domain unless one
of its drives has a policy, or had one; without that there is no curve to set. If the configuration
forbids them, none is sent at all.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Annotated, Any, TypeVar

import libvirt
import libvirt_qemu
import msgspec

from iokeel.core.values.counters import DriveId
from iokeel.core.values.limits import STOCK, Abilities, ThrottleLimits
from iokeel.errors import DriveGone, IokeelError, LimitsRejected
from iokeel.hypervisors.qemu.bounds import LISTED, MOST_DRIVES_BYTES, MOST_SCHEMA, Decoder
from iokeel.hypervisors.qemu.drives import (
    Block,
    QmpDrive,
    clearing,
    drives_of,
    setting,
    shared,
    target_of,
)
from iokeel.hypervisors.qemu.limits import (
    Group,
    ObjectLimits,
    QemuAbilities,
    SchemaEntry,
    dialect_of,
    for_curve,
    from_object,
)
from iokeel.hypervisors.qmp.faults import NO_COMMAND
from iokeel.libvirt_xml.domain import Disk, DomainXml, own_group
from iokeel.words.log_lines import Sparing
from iokeel.words.quoting import shown_path

T = TypeVar("T")
log = logging.getLogger(__name__)

#: Whether this thread may send commands past libvirt.
PASSES_ON = ContextVar("passes_on", default=True)
_QUERY_SCHEMA = json.dumps({"execute": "query-qmp-schema"})
_QUERY_BLOCK = json.dumps({"execute": "query-block"})
# Before the name of a domain's throttle group, in the id of its object.
_OBJECT_PREFIX = "throttle-"
# What libvirt answers if it doesn't pass commands on at all, or not for the agent.
_PASSES_NONE_ON = {
    libvirt.VIR_ERR_NO_SUPPORT,
    libvirt.VIR_ERR_OPERATION_UNSUPPORTED,
    libvirt.VIR_ERR_OPERATION_DENIED,
    libvirt.VIR_ERR_ACCESS_DENIED,
}


class Forbidden(libvirt.libvirtError):  # type: ignore[misc]
    """The configuration forbids commands past libvirt."""

    def get_error_code(self) -> int:
        """Return what libvirt returns if it passes none on."""
        return int(libvirt.VIR_ERR_OPERATION_DENIED)


_NONSENSE = Sparing(1, 3600.0)
_TOLD = "limits are taken to be those that libvirt was told last; see QEMU's own log"


class QueryRefused(IokeelError):
    """QEMU refuses to tell of its drives."""


class Refusal(msgspec.Struct):
    """QEMU's error, in its own words."""

    said: str = msgspec.field(name="desc")


class Outcome(msgspec.Struct):
    """QEMU's answer to a command, without what it returns."""

    error: Refusal | None = None


class _Groups(msgspec.Struct):
    groups: Annotated[list[Group], LISTED] = msgspec.field(name="return")


class _Object(msgspec.Struct):
    limits: ObjectLimits = msgspec.field(name="return")


class _Error(msgspec.Struct):
    kind: str = msgspec.field(name="class")


class _Blocks(Outcome):
    blocks: Annotated[list[Block], LISTED] | None = msgspec.field(name="return", default=None)


class _Schema(msgspec.Struct):
    entries: Annotated[list[SchemaEntry], msgspec.Meta(max_length=MOST_SCHEMA)] | None = (
        msgspec.field(name="return", default=None)
    )
    error: _Error | None = None


_OUTCOME = Decoder(Outcome)
_GROUPS = Decoder(_Groups)
_OBJECT = Decoder(_Object)
_BLOCKS = Decoder(_Blocks, MOST_DRIVES_BYTES)
_SCHEMA = Decoder(_Schema)


def ask_abilities(handle: Any) -> Abilities | None:
    """Return the abilities of the QEMU that runs a domain. Raises libvirtError.

    None if its answer makes no sense: it may have cost curves. The emulator in the domain's XML
    doesn't tell: an upgrade puts another one in its place. If libvirt passes no commands on, QEMU
    can't be sent a curve either, and counts as stock.
    """
    try:
        schema = ask(handle, _QUERY_SCHEMA, _SCHEMA)
    except libvirt.libvirtError as error:
        if not passes_none_on(error):
            raise
        if not isinstance(error, Forbidden):
            log.warning("%s: can't ask its QEMU (%s); using stock limits", handle.name(), error)
        return STOCK
    if schema is not None and schema.entries is not None:
        return QemuAbilities.of(schema.entries).throttle
    if schema is not None and schema.error is not None and schema.error.kind == NO_COMMAND:
        return STOCK  # QEMU tells of its schema since 2.5
    log.warning("%s: its QEMU's answer to query-qmp-schema makes no sense", handle.name())
    return None


def read_groups(
    handle: Any, xml: DomainXml, abilities: Abilities | None
) -> dict[str, Group | None] | None:
    """Return a domain's throttle groups, each by the only drive that it throttles.

    A drive that shares its group has None: the group's counters and limits aren't its own. None if
    QEMU's answer makes no sense. Raises libvirtError.
    """
    command = json.dumps({"execute": dialect_of(abilities).query_groups})
    answer = ask_often(handle, command, _GROUPS)
    if answer is None:
        return None
    groups = {group.name: group for group in answer.groups if group.members}
    by_alias = {
        target_of(member.qdev, member.device): group
        for group in groups.values()
        for member in group.members
    }
    found: dict[str, Group | None] = {}
    for disk in xml.disks:
        names = [_OBJECT_PREFIX + name for name in disk.throttle_groups]
        its = [groups[name] for name in names if name in groups]
        if (group := by_alias.get(disk.alias or "")) is not None:
            its.append(group)
        if its:
            found[disk.target] = next((group for group in its if len(group.members) == 1), None)
    return found


def query_blocks(handle: Any, name: str) -> list[Block] | None:
    """Return QEMU's account of a domain's drives. name: the domain's.

    None if libvirt passes no commands on. Raises libvirtError, or QueryRefused.
    """
    try:
        answer = ask(handle, _QUERY_BLOCK, _BLOCKS)
    except libvirt.libvirtError as error:
        if not passes_none_on(error):
            raise
        return None
    if answer is None or answer.blocks is None:
        raise QueryRefused(name, f"query-block: {said(answer)}", _TOLD)
    return answer.blocks


def read_limits(
    handle: Any, xml: DomainXml, blocks: Sequence[Block]
) -> dict[str, ThrottleLimits | None]:
    """Return the limits that QEMU has of a domain's drives by target, without the patches' fields.

    blocks: of query_blocks. There is a question for each throttle group that is a drive's own.
    Raises libvirtError.
    """
    tuned = {disk.alias: disk.target for disk in xml.drives if not disk.throttle_groups}
    found = drives_of(blocks)
    told = {tuned[alias]: found[alias].in_force for alias in found if alias in tuned}
    for disk in xml.drives:
        group = own_group(xml.disks, disk)
        limits = None if group is None else _ask_group(handle, group)
        if limits is not None:
            told[disk.target] = limits.stock
    return told


def _ask_group(handle: Any, group: str) -> ThrottleLimits | None:
    """Return the limits of a throttle group; None if QEMU's answer makes no sense."""
    arguments = {"path": f"/objects/{_OBJECT_PREFIX}{group}", "property": "limits"}
    answer = ask(handle, json.dumps({"execute": "qom-get", "arguments": arguments}), _OBJECT)
    # QEMU tells each field. None at all would be to call it unlimited.
    return from_object(answer.limits) if answer is not None and answer.limits else None


def put_patched(
    handle: Any,
    drive: DriveId,
    disk: Disk,
    throttle_group: str | None,
    limits: ThrottleLimits,
    abilities: Abilities,
    reached: QmpDrive | None,
) -> QmpDrive | None:
    """Set a drive's limits, all fields in one command.

    throttle_group: the group of its throttlefilter that is its own; None if iotune limits it.
    reached: the drive as QMP reaches it, as last returned from here; None makes a query. Returns
    None if there was nothing to set. Raises LimitsRejected or libvirtError.
    """
    if throttle_group is None and limits.unlimited:
        return None  # it leaves its group, and so its curve
    reached = reached or find(handle, disk, throttle_group)
    if reached is None or reached.shares:
        if limits.cost_read is None:
            return None
        raise LimitsRejected(
            str(drive),
            "it has no throttle group of its own, so it gets no cost curve",
            "give it a group_name that no other disk has; it gets stock limits for now",
        )
    step = setting(reached, limits, abilities)
    _carry_out(handle, drive, step, "QEMU took no cost curve", "it gets stock limits for now")
    return reached


def put_past(
    handle: Any,
    drive: DriveId,
    disk: Disk,
    throttle_group: str | None,
    limits: ThrottleLimits,
    abilities: Abilities | None,
    reached: QmpDrive | None,
) -> QmpDrive:
    """Set a drive's limits without a word to libvirt, and return the drive as QMP reaches it.

    throttle_group, reached: as of put_patched. Raises libvirtError, DriveGone, LimitsRejected, or
    ConnectionLost for a curve if it isn't known whether QEMU knows curves.
    """
    if limits.cost_read is not None:
        abilities = for_curve(drive, abilities)
    reached = reached or find(handle, disk, throttle_group)
    if reached is None:
        raise DriveGone(str(drive), "is not there")
    if reached.shares:
        raise LimitsRejected(str(drive), *shared(reached))
    known = abilities or STOCK
    for step in filter(None, (setting(reached, limits, known), clearing(reached, known))):
        _carry_out(handle, drive, step, "QEMU refused its limits", "the old limits still hold")
    return reached


def _carry_out(
    handle: Any, drive: DriveId, step: tuple[str, dict[str, object]], what: str, mend: str
) -> None:
    """Have QEMU execute a command. what, mend: of the LimitsRejected if it refuses."""
    name, arguments = step
    command = json.dumps({"execute": name, "arguments": arguments})
    outcome = ask(handle, command, _OUTCOME)
    if outcome is None or outcome.error is not None:
        words = said(outcome)
        raise LimitsRejected(str(drive), f"{what}: {words}", mend, said=words)


def is_migrating(handle: Any) -> bool:
    """Return whether a domain leaves for another host. libvirt changes no limits meanwhile.

    False if libvirt doesn't tell, or passes no commands on. Raises libvirtError.
    """
    if not PASSES_ON.get():
        return False
    # No event tells that a migration begins: the first one comes with the guest's memory, after its
    # storage has been copied. The call takes 0.05 ms, and setting limits by libvirt 2 to 4 ms.
    try:
        operation = handle.jobStats().get("operation")
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:
            raise
        return False
    return bool(operation == libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT)


def find(handle: Any, disk: Disk, throttle_group: str | None) -> QmpDrive | None:
    """Return a disk as QMP reaches it; None if QEMU doesn't tell."""
    if throttle_group is not None:
        return QmpDrive(disk.target, "", "", throttle_group=_OBJECT_PREFIX + throttle_group)
    answer = ask(handle, _QUERY_BLOCK, _BLOCKS)
    blocks = answer.blocks if answer is not None else None
    return None if blocks is None else drives_of(blocks).get(disk.alias or "")


def said(answer: _Blocks | Outcome | None) -> str:
    """Return QEMU's words for a refusal."""
    if answer is None or answer.error is None:
        return "its answer makes no sense"
    return shown_path(answer.error.said)


def passes_none_on(error: libvirt.libvirtError) -> bool:
    """Return whether libvirt passes no commands on, or not for the agent."""
    return error.get_error_code() in _PASSES_NONE_ON


def ask(handle: Any, command: str, decoder: Decoder[T]) -> T | None:
    """Return QEMU's answer to a command; None if it makes no sense. Raises libvirtError."""
    if not PASSES_ON.get():
        raise Forbidden("[libvirt] passthrough is false")
    try:
        return decoder.decode(libvirt_qemu.qemuMonitorCommand(handle, command, 0))
    except (ValueError, RecursionError):
        return None


def ask_often(handle: Any, command: str, decoder: Decoder[T]) -> T | None:
    """Do what `ask` does, and tell of an answer that makes no sense, at most once an hour."""
    answer = ask(handle, command, decoder)
    if answer is None and _NONSENSE.may((name := handle.name(), command)):
        question = json.loads(command)["execute"]
        log.error(
            "%s: its QEMU's answer to %s makes no sense, so it counts for nothing", name, question
        )
    return answer
