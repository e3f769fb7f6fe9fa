"""Throttle limits in libvirt's words: in <iotune> and <throttlegroup>, and in its API."""

from __future__ import annotations

from collections.abc import Mapping

from iokeel.core.limits import FIELDS, ThrottleLimits


def _libvirt_name(field: str) -> str:
    """Return libvirt's name of a field of ThrottleLimits: bps_read_max is read_bytes_sec_max."""
    if field == "iops_size":
        return "size_iops_sec"
    unit, direction, *rest = field.split("_")
    return "_".join([direction, "bytes" if unit == "bps" else unit, "sec", *rest])


#: libvirt's names of the fields of ThrottleLimits. It has none for the patches' fields.
LIBVIRT_NAMES = {field: _libvirt_name(field) for field in FIELDS}


def to_libvirt(limits: ThrottleLimits) -> dict[str, int]:
    """Return every field, 0 for none: libvirt keeps a value that it isn't given."""
    return {name: getattr(limits, field) or 0 for field, name in LIBVIRT_NAMES.items()}


def from_libvirt(values: Mapping[str, object]) -> ThrottleLimits | None:
    """Return limits from values by libvirt's names; None (unknown) if one makes no sense.

    Other names are ignored.
    """
    numbers: dict[str, int] = {}
    for field, name in LIBVIRT_NAMES.items():
        number = values.get(name, 0)
        if not isinstance(number, int) or number < 0:
            return None
        numbers[field] = number
    return ThrottleLimits.of(numbers)
