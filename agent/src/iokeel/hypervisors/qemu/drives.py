"""QEMU's account of a VM's drives, in the core's words; and the command to limit one.

QEMU makes a block node's json: name from the options that opened the node (qapi/block-core.json,
BlockdevOptions), as a tree or with flat keys like "server.path".

A drive is a BlockBackend with a medium, as query-block lists them. Its throttle is its own (set by
block_set_io_throttle), or a throttle filter node below it whose group is an object (-object
throttle-group). Such a filter shows in the file name that QEMU makes up for the chain of nodes:
json:{"driver": "throttle", "throttle-group": "NAME", "file": {...}} (qemu(1), "json:").

A drive may have both: somebody may limit it beside its filter, or the agent itself may have while a
snapshot was above the filter, which held only reads of the backing file then. So limits of its own
are dropped when those of its group are set.

A storage daemon has no guest, so no such drives. Each of its throttle-group objects counts as a
drive, by the object's name, whatever is exported through it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from iokeel.core.values.counters import Counters, ThrottleCounters
from iokeel.core.values.limits import AVERAGES, UNLIMITED, Abilities, ThrottleLimits
from iokeel.host.network_storage import address, socket_url
from iokeel.hypervisors.qemu.bounds import Count, Name, Number
from iokeel.hypervisors.qemu.bounds import Path as FilePath
from iokeel.hypervisors.qemu.limits import block_values, from_block, object_values
from iokeel.libvirt_xml.domain import SCSI_PASSTHROUGH, VHOST_USER

# As deep as server.0.host.
_DEEPEST = 3
_PERIPHERAL = "/machine/peripheral/"
_ANONYMOUS = "/machine/peripheral-anon/"
#: Where the devices are that were plugged in, with an id and without.
DEVICES = (_PERIPHERAL.rstrip("/"), _ANONYMOUS.rstrip("/"))
_SPELLED_OUT = "json:"
# Of the drives that share limits with one, about so many are named.
_MOST_SHARES = 10


def node_url(node: Mapping[str, Any]) -> str | None:
    """Return the path or URL that the lowest node of a drive reaches; None if unknown."""
    options = dict(_flat(node))
    driver = options.get("driver", "")
    if filename := options.get("filename"):
        return filename
    host = _server(options, "server.0" if driver in ("gluster", "rbd") else "server")
    match driver:
        case "nbd" if "path" in options or "server.path" in options:
            socket = options.get("server.path") or options["path"]
            return socket_url("nbd", socket, options.get("export", ""))
        case "nbd":
            return f"nbd://{host}/{options.get('export', '')}"
        case "rbd":
            return f"rbd://{host}/{options.get('pool', '')}/{options.get('image', '')}"
        case "iscsi":
            at = options.get("portal", "")
            return f"iscsi://{at}/{options.get('target', '')}/{options.get('lun', '0')}"
        case "gluster":
            return f"gluster://{host}/{options.get('volume', '')}/{options.get('path', '')}"
        case "nfs" | "ssh":
            return f"{driver}://{host}/{options.get('path', '').lstrip('/')}"
        case "nvme":
            return f"nvme://{options.get('device', '')}/{options.get('namespace', '1')}"
        case "http" | "https" | "ftp" | "ftps":
            return options.get("url")
        case "virtio-blk-vhost-user":
            return socket_url("vhost-user", options.get("path", ""))
        case "nvme-io_uring":
            return options.get("path")
    return None


def _flat(node: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Return a node's texts and numbers with their flat keys."""
    found: list[tuple[str, str]] = []
    for key, value in node.items():
        if isinstance(value, list):
            value = {str(i): each for i, each in enumerate(value)}
        if isinstance(value, str | int):
            found.append((before + key, str(value)))
        elif isinstance(value, dict) and before.count(".") < _DEEPEST:
            found += _flat(value, f"{before}{key}.")
    return found


def _server(options: Mapping[str, str], at: str) -> str:
    host = options.get(f"{at}.host") or options.get("host", "")
    return address(host, options.get(f"{at}.port") or options.get("port"))


class FormatData(msgspec.Struct, gc=False, rename="kebab"):
    """What only images of one format have. data_file: qcow2's, by the image's folder."""

    data_file: FilePath | None = None


class Format(msgspec.Struct, gc=False):
    """An image's format."""

    data: FormatData | None = None


class Image(msgspec.Struct, gc=False):
    """An image, and the one beneath it."""

    filename: FilePath = ""
    format: Format | None = msgspec.field(default=None, name="format-specific")
    backing: Image | None = msgspec.field(default=None, name="backing-image")


class Medium(msgspec.Struct, gc=False):
    """A drive's medium in query-block, as far as the agent uses it, with the drive's limits.

    The rest, most of which tells of each image beneath it, takes no memory.
    """

    file: FilePath = ""
    node_name: Name = msgspec.field(default="", name="node-name")
    group: Name | None = None
    bps: Number = 0
    bps_rd: Number = 0
    bps_wr: Number = 0
    iops: Number = 0
    iops_rd: Number = 0
    iops_wr: Number = 0
    bps_max: Number = 0
    bps_rd_max: Number = 0
    bps_wr_max: Number = 0
    iops_max: Number = 0
    iops_rd_max: Number = 0
    iops_wr_max: Number = 0
    bps_max_length: Number = 0
    bps_rd_max_length: Number = 0
    bps_wr_max_length: Number = 0
    iops_max_length: Number = 0
    iops_rd_max_length: Number = 0
    iops_wr_max_length: Number = 0
    iops_size: Number = 0
    image: Image | None = None


class Block(msgspec.Struct):
    """A drive in query-block."""

    device: Name = ""
    qdev: Name = ""
    inserted: Medium | None = None


class Stats(msgspec.Struct, gc=False):
    """A drive's counters in query-blockstats, as far as the agent uses them."""

    rd_operations: Count
    rd_bytes: Count
    wr_operations: Count
    wr_bytes: Count
    rd_total_time_ns: Count
    wr_total_time_ns: Count
    flush_operations: Count | None = None
    flush_total_time_ns: Count | None = None
    unmap_operations: Count | None = None
    unmap_bytes: Count | None = None
    unmap_total_time_ns: Count | None = None


class Node(msgspec.Struct, gc=False):
    """A node in query-named-block-nodes."""

    drv: Name = ""
    file: FilePath = ""
    backing_file: FilePath | None = None
    image: Image | None = None


class BlockStats(msgspec.Struct, gc=False):
    """A drive in query-blockstats. node_name: of its topmost image or filter."""

    stats: Stats
    qdev: Name = ""
    device: Name = ""
    node_name: Name = msgspec.field(default="", name="node-name")

    def counters(self, at_ns: int, throttle: ThrottleCounters | None = None) -> Counters:
        """Return its counters as the law reads them, with those of its throttle group."""
        stats = self.stats
        return Counters(
            at_ns,
            stats.rd_operations,
            stats.rd_bytes,
            stats.wr_operations,
            stats.wr_bytes,
            stats.rd_total_time_ns,
            stats.wr_total_time_ns,
            throttle,
            stats.flush_operations,
            stats.flush_total_time_ns,
            stats.unmap_operations,
            stats.unmap_bytes,
            stats.unmap_total_time_ns,
        )


class Object(msgspec.Struct, gc=False):
    """A property of an object in qom-list."""

    name: Name
    type: Name


@dataclass(frozen=True, slots=True)
class QmpDrive:
    """A drive as QMP reaches it.

    qdev, device: QEMU's names of it; one may be empty. path: the file or URL behind it, of the
    topmost image if there are several; None if it has none. throttle_group: the throttle-group
    object that limits it; None if block_set_io_throttle does. shares: the targets of other drives
    that the same limits would hold, or a few of them. in_force: its limits; None if unknown. own:
    those of block_set_io_throttle beside those of throttle_group; None if it has none. below: the
    groups of filters in its backing files. beneath: the files or URLs of these, and of data files;
    "" for one that isn't known. group: QEMU's group of its limits if block_set_io_throttle
    sets them; None if it has none.
    """

    target: str
    qdev: str
    device: str
    path: str | None = None
    throttle_group: str | None = None
    shares: tuple[str, ...] = ()
    in_force: ThrottleLimits | None = None
    own: ThrottleLimits | None = None
    below: tuple[str, ...] = ()
    beneath: tuple[str, ...] = ()
    group: str | None = None

    def with_own(self, limits: ThrottleLimits | None) -> ThrottleLimits | None:
        """Return limits of its group together with its own: of each bound the lower one.

        If they can't be told as one (a total beside reads or writes, another size or curve), they
        are its group's, which are set, and given back in the end.
        """
        own = self.own
        if limits is None or own is None:
            return limits
        if (limits.iops_size, limits.cost_read) != (own.iops_size, own.cost_read):
            return limits
        both: dict[str, int | None] = {}
        for average in AVERAGES:
            sides = [side for side in (limits, own) if getattr(side, average) is not None]
            for field in (average, f"{average}_max", f"{average}_max_length"):
                values = [getattr(side, field) for side in sides]
                both[field] = None if None in values else min(values, default=None)
        for total in ("bps", "iops"):
            if both[f"{total}_total"] and (both[f"{total}_read"] or both[f"{total}_write"]):
                return limits
        return limits.with_fields(both)


def drives_of(blocks: Sequence[Block]) -> dict[str, QmpDrive]:
    """Return the drives in query-block, by target.

    A target is `target_of` its names, or the device's whole QOM path if another drive has that
    target already.
    """
    found: dict[str, QmpDrive] = {}
    groups: dict[str, tuple[str, ...]] = {}
    for block in blocks:
        if block.inserted is None or not (block.qdev or block.device):
            continue
        target = target_of(block.qdev, block.device)
        if target in found:
            target = block.qdev or f"device {block.device}"
        found[target], groups[target] = _drive(target, block, block.inserted)
    members: dict[str, list[str]] = {}
    for target, names in groups.items():
        for name in {*names}:
            members.setdefault(name, []).append(target)
    return {t: _in_groups(drive, groups[t], members) for t, drive in found.items()}


def spelled_out(blocks: Sequence[Block]) -> int:
    """Return how many characters of file names have to be read as trees of nodes."""
    names = [block.inserted.file for block in blocks if block.inserted]
    for block in blocks:
        image = block.inserted.image if block.inserted else None
        while image is not None:
            names.append(image.filename)
            image = image.backing
    return sum(len(name) for name in names if name.startswith(_SPELLED_OUT))


def unthrottled_of(devices: Sequence[Object], blocks: Sequence[Block]) -> dict[str, str]:
    """Return the drives that QEMU can't throttle, by target, each with the reason.

    devices: qom-list of DEVICES. blocks: query-block. It lacks vhost-user disks.
    """
    targets = {target_of(b.qdev, ""): target_of(b.qdev, b.device) for b in blocks if b.qdev}
    found = {}
    for device in devices:
        kind = device.type.removeprefix("child<")
        if kind.startswith("vhost-user-blk"):
            found[device.name] = VHOST_USER
        elif kind.startswith(("scsi-block", "scsi-generic")):  # their SG_IO passes no throttle
            found[targets.get(device.name, device.name)] = SCSI_PASSTHROUGH
    return found


def empty_of(blocks: Sequence[Block]) -> frozenset[str]:
    """Return the targets of the drives in query-block that have no medium."""
    return frozenset(target_of(b.qdev, b.device) for b in blocks if b.inserted is None)


def _drive(target: str, block: Block, medium: Medium) -> tuple[QmpDrive, tuple[str, ...]]:
    """Return a drive, and the groups that limit it: those of its filters, or else its own."""
    chain = _chain(medium.file)
    filters = tuple(name for node in chain if (name := _text(node, "throttle-group")))
    own, in_force = medium.group, from_block(msgspec.structs.asdict(medium))
    drive = QmpDrive(
        target,
        block.qdev,
        block.device,
        _path(medium.file, chain),
        filters[0] if filters else None,
        (),
        in_force,
        in_force if filters and own is not None else None,
        tuple(name for node in chain for name in _groups_of_backing(node)),
        tuple(dict.fromkeys(_beneath(medium.image))),
        None if filters else own,
    )
    return drive, filters or (() if own is None else (own,))


def _in_groups(
    drive: QmpDrive, groups: Sequence[str], members: Mapping[str, Sequence[str]]
) -> QmpDrive:
    """Return a drive with the group that limits it alone, or with those that share its limits.

    members: the targets in each group.
    """
    mine = next((name for name in groups if len(members[name]) == 1), None)
    if mine is None and groups:
        shares = members[groups[0]][: _MOST_SHARES + 1]
        return replace(drive, shares=tuple(t for t in shares if t != drive.target))
    return replace(drive, throttle_group=mine if drive.throttle_group else None)


def shared(drive: QmpDrive) -> tuple[str, str]:
    """Return what is wrong with a drive that shares its limits with others, and the mend."""
    return (
        f"its throttle group holds {', '.join(drive.shares)} too, so limits would hold them all",
        "give each drive a group of its own",
    )


def target_of(qdev: str, device: str) -> str:
    """Return a device's id, else its drive's name, else the last part of its QOM path."""
    if qdev.startswith(_PERIPHERAL):
        return qdev.removeprefix(_PERIPHERAL).partition("/")[0]
    if qdev and not qdev.startswith("/"):
        return qdev
    if device:
        return device
    if qdev.startswith(_ANONYMOUS):
        return qdev.removeprefix(_ANONYMOUS).partition("/")[0]
    return qdev.rpartition("/")[2] or qdev


def groups_of(objects: Sequence[Object], nodes: Sequence[Node]) -> dict[str, QmpDrive]:
    """Return a storage daemon's drives by target.

    objects: qom-list of /objects. nodes: its block nodes. A drive's path is that of the file below
    the group's throttle node; None if the group has several. Which images are beneath it isn't
    known if the daemon has any.
    """
    paths: dict[str, set[str | None]] = {}
    for node in nodes:
        chain = _chain(node.file)
        if chain and node.drv == "throttle" and (group := _text(chain[0], "throttle-group")):
            paths.setdefault(group, set()).add(_path(node.file, chain))
    beneath = ("",) if any(map(_has_others, nodes)) else ()
    found = {}
    for each in objects:
        if each.type == "child<throttle-group>":
            below = paths.get(each.name, set())
            path = next(iter(below)) if len(below) == 1 else None
            found[each.name] = QmpDrive(
                each.name, "", "", path, each.name, (), ThrottleLimits(), beneath=beneath
            )
    return found


def clearing(drive: QmpDrive, abilities: Abilities) -> tuple[str, dict[str, object]] | None:
    """Return the command that drops a drive's own limits beside its group's; None for none."""
    if drive.own is None:
        return None
    return setting(replace(drive, throttle_group=None), UNLIMITED, abilities)


def setting(
    drive: QmpDrive, limits: ThrottleLimits, abilities: Abilities
) -> tuple[str, dict[str, object]]:
    """Return the command, and its arguments, that puts every field of limits in force."""
    if drive.throttle_group is not None:
        return "qom-set", {
            "path": f"/objects/{drive.throttle_group}",
            "property": "limits",
            "value": object_values(limits, abilities),
        }
    # Without `group`, the drive stays in the group that it is in.
    name = {"id": drive.qdev} if drive.qdev else {"device": drive.device}
    return "block_set_io_throttle", name | block_values(limits, abilities)


def _chain(name: str) -> list[Mapping[str, Any]]:
    """Return the nodes in a file name, from the top to the file; none unless it spells them out."""
    if not name.startswith(_SPELLED_OUT):
        return []
    try:
        return list(_down(json.loads(name.removeprefix(_SPELLED_OUT))))
    except (ValueError, RecursionError):  # QEMU cuts names that are too long
        return []


def _down(node: Any) -> Iterator[Mapping[str, Any]]:
    while isinstance(node, dict):
        yield node
        node = node.get("file")


def _groups_of_backing(node: Mapping[str, Any]) -> Iterator[str]:
    for below in _down(node.get("backing")):
        if (name := _text(below, "throttle-group")) is not None:
            yield name
        yield from _groups_of_backing(below)


def _beneath(top: Image | None) -> Iterator[str]:
    """Yield the images beneath one in query-block, and data files; "" for one that isn't known."""
    image = top
    while image is not None:
        path = _path(image.filename, _chain(image.filename)) or ""
        if image is not top:
            yield path
        if image.format and image.format.data and image.format.data.data_file:
            yield os.path.join(os.path.dirname(path), image.format.data.data_file)
        image = image.backing


def _has_others(node: Node) -> bool:
    """Return whether a block node has an image beneath it, or a data file."""
    return bool(node.backing_file) or any(_beneath(node.image))


def _path(name: str, chain: Sequence[Mapping[str, Any]]) -> str | None:
    if name.startswith(_SPELLED_OUT):
        return node_url(chain[-1]) if chain else None
    return name.removeprefix("file:") or None


def _text(values: Mapping[str, Any], name: str) -> str | None:
    value = values.get(name)
    return value if isinstance(value, str) else None
