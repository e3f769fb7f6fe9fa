"""Throttle limits in QEMU's words, with None for what is not limited."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from iokeel.core.curve import CostCurve

QEMU_IDLE_CREDIT_MS = 100
"""What a bucket without bursts holds in stock QEMU."""


class ThrottleLimits(NamedTuple):
    """The limits of one QEMU throttle group, as in QAPI's ThrottleLimits.

    bps_* are bytes a second, iops_* requests a second (or iops_size-byte units, where a request
    is larger than that), *_max the burst rates and *_max_length their lengths in seconds. None
    means that nothing is limited, or for a length QEMU's own default. cost_*: what an iops limit
    is charged by for reads and for writes; None where it is by the request or by iops_size, as
    always in stock QEMU. split_size: larger reads that have to wait pass in parts of so many
    bytes, each of which waits for its part of the cost; None where they pass whole, as always in
    stock QEMU. idle_credit_ms: how much passes at once after idleness, in milliseconds of I/O at
    the limit, which in stock QEMU is always the same.
    """

    bps_total: int | None = None
    bps_read: int | None = None
    bps_write: int | None = None
    iops_total: int | None = None
    iops_read: int | None = None
    iops_write: int | None = None
    bps_total_max: int | None = None
    bps_read_max: int | None = None
    bps_write_max: int | None = None
    iops_total_max: int | None = None
    iops_read_max: int | None = None
    iops_write_max: int | None = None
    bps_total_max_length: int | None = None
    bps_read_max_length: int | None = None
    bps_write_max_length: int | None = None
    iops_total_max_length: int | None = None
    iops_read_max_length: int | None = None
    iops_write_max_length: int | None = None
    iops_size: int | None = None
    cost_read: CostCurve | None = None
    cost_write: CostCurve | None = None
    split_size: int | None = None
    idle_credit_ms: int = QEMU_IDLE_CREDIT_MS

    @property
    def unlimited(self) -> bool:
        """Whether nothing at all is limited."""
        return not any(getattr(self, name) for name in AVERAGES)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ThrottleLimits:
        """Return limits as QEMU and libvirt report them, in the one form that compares equal.

        0 means none there, but for the idle credit; a burst's length is 1 unless another was
        asked for and 0 or absent where there is no burst, and iops_size says nothing where no
        iops is limited.
        """
        known = {name: value for name in cls._fields if (value := values.get(name))}
        known["idle_credit_ms"] = values.get("idle_credit_ms", QEMU_IDLE_CREDIT_MS)
        for name in AVERAGES:
            if f"{name}_max" not in known or known.get(f"{name}_max_length") == 1:
                known.pop(f"{name}_max_length", None)
        if not any(name.startswith("iops") and name in known for name in AVERAGES):
            known.pop("iops_size", None)
        return cls(**known)

    def items(self) -> list[tuple[str, int | None]]:
        """Return the name and value of every field of stock QEMU, in QAPI's order."""
        return [(name, getattr(self, name)) for name in FIELDS]


#: Those that stock QEMU has too.
FIELDS = ThrottleLimits._fields[: ThrottleLimits._fields.index("cost_read")]
PATCHED_FIELDS = ThrottleLimits._fields[len(FIELDS) :]
AVERAGES = FIELDS[:6]
UNLIMITED = ThrottleLimits()
