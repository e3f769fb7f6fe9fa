"""Throttle limits in the words of QMP's commands.

There are two tables of names. An object's limits (qom-get, qom-set, query-throttle-groups) are
QAPI's ThrottleLimits: iops-total-max. block_set_io_throttle and query-block shorten them:
iops_max, iops_rd_max. Both have 0 for no limit, and the core has None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from iokeel.core.abilities import Abilities
from iokeel.core.limits import AVERAGES, FIELDS, ThrottleLimits
from iokeel.hypervisors.qmp.throttle_groups import (
    ObjectLimits,
    patched_values,
    qapi_name,
    values_of,
)

_DECODER = msgspec.json.Decoder(ObjectLimits)


def _block_name(field: str) -> str:
    """Return block_set_io_throttle's name of a field: bps_total is bps there."""
    return field.replace("_total", "").replace("_read", "_rd").replace("_write", "_wr")


_OBJECT_NAMES = {field: qapi_name(field) for field in FIELDS}
_BLOCK_NAMES = {field: _block_name(field) for field in FIELDS}


def object_values(limits: ThrottleLimits, abilities: Abilities) -> dict[str, Any]:
    """Return limits as the `limits` of a throttle-group object."""
    return _values(limits, _OBJECT_NAMES) | patched_values(limits, abilities)


def block_values(limits: ThrottleLimits, abilities: Abilities) -> dict[str, Any]:
    """Return limits as arguments of block_set_io_throttle."""
    return _values(limits, _BLOCK_NAMES) | patched_values(limits, abilities)


def from_object(values: ObjectLimits) -> ThrottleLimits | None:
    """Return the limits of a throttle-group object; None (unknown) if they make no sense."""
    found = values_of(values)
    return None if found is None else ThrottleLimits.of(found)


def from_group(raw: msgspec.Raw | bytes) -> ThrottleLimits | None:
    """Return the limits in query-throttle-groups; None (unknown) if they make no sense."""
    try:
        return from_object(_DECODER.decode(raw))
    except (ValueError, RecursionError):
        return None


def from_block(values: Mapping[str, Any]) -> ThrottleLimits | None:
    """Return a drive's limits in query-block, which leaves out the fields of the patches.

    None (unknown) if they make no sense.
    """
    named = {_OBJECT_NAMES[f]: values[name] for f, name in _BLOCK_NAMES.items() if name in values}
    return from_object(named)


def _values(limits: ThrottleLimits, names: Mapping[str, str]) -> dict[str, Any]:
    """Return every field, since QEMU keeps an object's field that it isn't given."""
    values = {name: getattr(limits, field) or 0 for field, name in names.items()}
    for field in AVERAGES:
        length = names[f"{field}_max_length"]
        values[length] = values[length] or 1  # QEMU refuses 0
    if not any(getattr(limits, field) for field in AVERAGES if field.startswith("iops")):
        values[names["iops_size"]] = 0  # QEMU refuses it without an iops limit
    return values
