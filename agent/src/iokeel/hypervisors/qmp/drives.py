"""What QEMU says of a VM's drives over QMP, in the core's words, and limits in QEMU's.

A drive is a BlockBackend with a medium, as query-block lists them. Its throttle is its own (the
one that block_set_io_throttle sets), or a throttle filter node below it whose group is an object
(-object throttle-group), which is known from the file name that QEMU makes up for such a chain of
nodes: json:{"driver": "throttle", "throttle-group": "NAME", "file": {...}} (qemu(1), "json:").

A storage daemon has no guest and so no such drives: there, each throttle-group object is one, by
its own name, whatever is exported through it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from iokeel.core.limits import AVERAGES, FIELDS, ThrottleLimits
from iokeel.hypervisors.qmp.nodes import node_url
from iokeel.hypervisors.qmp.throttle_groups import OBJECT_NAMES, patched_values

_PERIPHERAL = "/machine/peripheral/"
_ANONYMOUS = "/machine/peripheral-anon/"


class Block(msgspec.Struct):
    """A drive in query-block."""

    device: str = ""
    qdev: str = ""
    inserted: dict[str, Any] | None = None


class Stats(msgspec.Struct, gc=False):
    """A drive's counters; those in query-blockstats that the agent uses."""

    rd_operations: int
    rd_bytes: int
    wr_operations: int
    wr_bytes: int
    rd_total_time_ns: int
    wr_total_time_ns: int


class BlockStats(msgspec.Struct, gc=False):
    """A drive in query-blockstats."""

    stats: Stats
    qdev: str = ""
    device: str = ""


class Object(msgspec.Struct, gc=False):
    """A property of an object in qom-list."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class QmpDrive:
    """A drive as it is reached by QMP.

    qdev, device: what QEMU calls it; one may be empty. path: the file or URL behind it (of the
    topmost image, where there are several); None where it has none. throttle_group: the
    throttle-group object that limits it; None where block_set_io_throttle does. shares: other
    drives that the same limits would hold, by target.
    in_force: its limits; None where they are not known.
    """

    target: str
    qdev: str
    device: str
    path: str | None
    throttle_group: str | None
    shares: tuple[str, ...]
    in_force: ThrottleLimits | None


def drives_of(blocks: Sequence[Block]) -> dict[str, QmpDrive]:
    """Return the drives among the elements of query-block by target.

    A target is the id of the device, else the name of the drive, else the last part of the
    device's QOM path; the whole path where another drive has that name already.
    """
    chains = {block.qdev or block.device: _chain(block.inserted or {}) for block in blocks}
    groups: dict[str, tuple[str, ...]] = {}  # by target, those of its filters or its own one
    found: dict[str, QmpDrive] = {}
    for block in blocks:
        if block.inserted is None or not (block.qdev or block.device):
            continue
        target = target_of(block.qdev, block.device)
        if target in found:
            target = block.qdev or f"device {block.device}"
        chain = chains[block.qdev or block.device]
        own = block.inserted.get("group")
        filters = tuple(name for node in chain if (name := _text(node, "throttle-group")))
        groups[target] = filters or ((own,) if isinstance(own, str) else ())
        found[target] = QmpDrive(
            target,
            block.qdev,
            block.device,
            _path(block.inserted, chain),
            filters[0] if filters else None,
            (),
            _limits(block.inserted),
        )
    used = Counter(group for names in groups.values() for group in names)
    for target, names in groups.items():
        mine = next((name for name in names if used[name] == 1), None)
        if mine is not None or not names:
            throttle_group = mine if found[target].throttle_group else None
            found[target] = replace(found[target], throttle_group=throttle_group)
        else:
            shares = tuple(t for t in groups if t != target and names[0] in groups[t])
            found[target] = replace(found[target], shares=shares)
    return found


def target_of(qdev: str, device: str) -> str:
    """Return the id of a guest device, else the name of its drive, else what its path ends in."""
    if qdev.startswith(_PERIPHERAL):
        return qdev.removeprefix(_PERIPHERAL).partition("/")[0]
    if qdev and not qdev.startswith("/"):
        return qdev
    if device:
        return device
    if qdev.startswith(_ANONYMOUS):
        return qdev.removeprefix(_ANONYMOUS).partition("/")[0]
    return qdev.rpartition("/")[2] or qdev


def groups_of(objects: Sequence[Object], nodes: Sequence[dict[str, Any]]) -> dict[str, QmpDrive]:
    """Return a storage daemon's drives by target, from qom-list of /objects and its block nodes.

    The path is that of the file below the group's throttle node; None where it has several.
    """
    paths: dict[str, set[str | None]] = {}
    for node in nodes:
        chain = _chain(node)
        if chain and node.get("drv") == "throttle" and (group := _text(chain[0], "throttle-group")):
            paths.setdefault(group, set()).add(_path(node, chain))
    found = {}
    for each in objects:
        if each.type == "child<throttle-group>":
            (path,) = paths.get(each.name, {None}) if len(paths.get(each.name, ())) < 2 else {None}
            found[each.name] = QmpDrive(each.name, "", "", path, each.name, (), ThrottleLimits())
    return found


def setting(
    drive: QmpDrive, limits: ThrottleLimits, *, exact: bool = False
) -> tuple[str, dict[str, Any]]:
    """Return the command, and its arguments, that puts every field of limits in force.

    exact: whether QEMU has the patches, and so has to be told what stock QEMU hasn't too.
    """
    patched = patched_values(limits) if exact else {}
    if drive.throttle_group is not None:
        return "qom-set", {
            "path": f"/objects/{drive.throttle_group}",
            "property": "limits",
            "value": _values(limits, OBJECT_NAMES) | patched,
        }
    who = {"id": drive.qdev} if drive.qdev else {"device": drive.device}
    return "block_set_io_throttle", who | _values(limits, _BLOCK_NAMES) | patched


def _block_name(field: str) -> str:
    """Return query-block's name of a field: bps_total is bps, iops_read_max is iops_rd_max."""
    return field.replace("_total", "").replace("_read", "_rd").replace("_write", "_wr")


_BLOCK_NAMES = {field: _block_name(field) for field in FIELDS}


def _values(limits: ThrottleLimits, names: Mapping[str, str]) -> dict[str, Any]:
    """Return all fields, 0 for none; a burst's length is 1 then, for QEMU refuses 0."""
    values = {name: getattr(limits, field) or 0 for field, name in names.items()}
    for field in AVERAGES:
        length = names[f"{field}_max_length"]
        values[length] = values[length] or 1
    if not any(getattr(limits, field) for field in AVERAGES if field.startswith("iops")):
        values[names["iops_size"]] = 0  # refused without an iops limit
    return values


def _limits(values: Mapping[str, Any]) -> ThrottleLimits:
    numbers = {field: values.get(name) for field, name in _BLOCK_NAMES.items()}
    return ThrottleLimits.of({f: n for f, n in numbers.items() if isinstance(n, int)})


def _chain(top: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the nodes below one, from the top to the file, where QEMU had to spell them out."""
    name = _text(top, "file") or ""
    if not name.startswith("json:"):
        return []
    try:
        return list(_down(json.loads(name.removeprefix("json:"))))
    except (ValueError, RecursionError):  # QEMU cuts names that are too long
        return []


def _down(node: Any) -> Iterator[Mapping[str, Any]]:
    while isinstance(node, dict):
        yield node
        node = node.get("file")


def _path(inserted: Mapping[str, Any], chain: Sequence[Mapping[str, Any]]) -> str | None:
    name = _text(inserted, "file") or ""
    if name.startswith("json:"):
        return node_url(chain[-1]) if chain else None
    return name.removeprefix("file:") or None


def _text(values: Mapping[str, Any], name: str) -> str | None:
    value = values.get(name)
    return value if isinstance(value, str) else None
