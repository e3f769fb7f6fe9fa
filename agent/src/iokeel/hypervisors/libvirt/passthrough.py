"""What the agent asks of QEMU past libvirt where QEMU has cost curves, which libvirt knows not of.

libvirt's passthrough of QMP commands marks a domain as tainted (custom-monitor), so nothing is
asked for a domain unless a policy limits one of its drives: a curve can't be set otherwise.
"""

from __future__ import annotations

import json
from typing import Any

import libvirt_qemu
import msgspec

from iokeel.core.counters import DriveId
from iokeel.core.limits import ThrottleLimits
from iokeel.errors import LimitsRejected
from iokeel.hypervisors.qmp.drives import QmpDrive, setting, target_of
from iokeel.hypervisors.qmp.throttle_groups import QUERY_GROUPS, Group
from iokeel.policy_xml.domain import DomainXml

_QUERY = f"{{{QUERY_GROUPS.decode()}}}"


class _Groups(msgspec.Struct):
    groups: list[Group] = msgspec.field(name="return")


_DECODER = msgspec.json.Decoder(_Groups)


def read_groups(handle: Any, xml: DomainXml) -> dict[str, Group] | None:
    """Return a domain's throttle groups by the drive that they throttle, and only that one.

    None where QEMU's answer is not what it should be. Raises libvirtError.
    """
    try:
        answer = _DECODER.decode(libvirt_qemu.qemuMonitorCommand(handle, _QUERY, 0))
    except msgspec.DecodeError:
        return None
    groups = {group.name: group for group in answer.groups if len(group.members) == 1}
    by_alias = {
        target_of(member.qdev, member.device): group
        for group in groups.values()
        for member in group.members
    }
    found = {}
    for disk in xml.disks:
        names = [f"throttle-{name}" for name in disk.throttle_groups]
        filters = [groups[name] for name in names if name in groups]
        group = filters[0] if filters else by_alias.get(disk.alias or "")
        if group is not None:
            found[disk.target] = group
    return found


def set_curve(handle: Any, xml: DomainXml, drive: DriveId, limits: ThrottleLimits) -> None:
    """Set a drive's curve with its limits, which hold already, in one command of QEMU's own."""
    group = (read_groups(handle, xml) or {}).get(drive.target)
    if group is None:
        if limits.cost_read is None:
            return
        raise LimitsRejected(
            str(drive),
            "it has no throttle group of its own, so it gets no cost curve",
            "give it a group_name that no other disk has",
        )
    (member,) = group.members
    own = member.qdev or member.device  # else it is a filter, and its group an object
    throttled = QmpDrive(
        drive.target, member.qdev, member.device, None, None if own else group.name, (), limits
    )
    name, arguments = setting(throttled, limits, exact=True)
    if own:
        arguments["group"] = group.name  # or it would leave it for one of its own name
    command = json.dumps({"execute": name, "arguments": arguments})
    answer = json.loads(libvirt_qemu.qemuMonitorCommand(handle, command, 0))
    if "error" in answer:
        raise LimitsRejected(
            str(drive), f"QEMU took no cost curve: {answer['error']['desc']}", "trying again later"
        )
