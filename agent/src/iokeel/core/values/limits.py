"""Describes throttle limits in QEMU's words, and what a QEMU is able to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from iokeel.core.values.curve import CostCurve

#: The size of a bucket without bursts in stock QEMU, in seconds at its limit (throttle.c,
#: throttle_compute_wait: avg / 10). An emptied bucket lets as much through at once.
BUCKET_S = 0.1
QEMU_IDLE_CREDIT_MS = round(1000 * BUCKET_S)
#: The most that QEMU takes for a rate, and for the rate of a burst times its length
#: (throttle.h, THROTTLE_VALUE_MAX).
MOST = 10**15


class Abilities(NamedTuple):
    """The abilities of a QEMU's throttle groups; stock QEMU has none of them.

    cost_curve: they charge each request by a cost curve, and limit the credit after idleness.
    keeps_levels: a change of limits leaves the buckets' levels as they are. Stock QEMU empties the
    buckets, so each change lets a tenth of a second through for nothing. counts: they tell their
    charges, waits and request sizes. splits: large reads may wait in pieces. measures_latency: they
    tell how long requests took below them. bounds_in_flight: they bound the requests there.
    dialect: the words in which an edge speaks to the QEMU; they mean nothing to the law.
    """

    cost_curve: bool = False
    keeps_levels: bool = False
    counts: bool = False
    splits: bool = False
    measures_latency: bool = False
    bounds_in_flight: bool = False
    dialect: str = ""


#: What isn't known is None, and never STOCK: stock limits are looser by up to 8 % with any QEMU.
STOCK = Abilities()


class ThrottleLimits(NamedTuple):
    """The limits of one QEMU throttle group, as in QAPI's ThrottleLimits.

    bps_* are bytes a second. iops_* are requests a second; a request larger than iops_size counts
    as size / iops_size requests. *_max are the burst rates, *_max_length their lengths in seconds.
    None means no limit; for a length, QEMU's own default.

    Stock QEMU has none of the rest. cost_read, cost_write: the curves by which the iops limits are
    charged; None if they are charged by the request. split_size: larger reads wait in pieces of so
    many bytes; None if they wait whole. idle_credit_ms: how much passes at once after idleness, in
    milliseconds at the limit; stock QEMU always lets QEMU_IDLE_CREDIT_MS through. max_in_flight: so
    many requests at most are below the throttle, on average. latency: QEMU times requests there.
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
    max_in_flight: float | None = None
    latency: bool = False

    @property
    def unlimited(self) -> bool:
        """Nothing at all is limited."""
        return not any(getattr(self, name) for name in AVERAGES)

    @property
    def stock(self) -> ThrottleLimits:
        """The fields that stock QEMU has too. libvirt tells no others."""
        return UNLIMITED.with_fields(dict(self.items()))

    @property
    def budgets(self) -> int:
        """How many there are: one, or one for reads and one for writes."""
        split = self.bps_read or self.bps_write or self.iops_read or self.iops_write
        return 2 if split else 1

    @classmethod
    def of(cls, values: Mapping[str, float | CostCurve | None]) -> ThrottleLimits:
        """Return limits as QEMU and libvirt report them, in one form that compares equal.

        There, 0 means none, except for the idle credit. A burst's length is 1 unless another was
        set, and 0 or absent without a burst. iops_size means nothing without an iops limit.
        """
        known: dict[str, float | CostCurve | None]
        known = {name: value for name in cls._fields if (value := values.get(name))}
        known["idle_credit_ms"] = values.get("idle_credit_ms", QEMU_IDLE_CREDIT_MS)
        for name in AVERAGES:
            if f"{name}_max" not in known or known.get(f"{name}_max_length") == 1:
                known.pop(f"{name}_max_length", None)
        if not any(name.startswith("iops") and name in known for name in AVERAGES):
            known.pop("iops_size", None)
        return cls(**known)  # type: ignore[arg-type]

    def with_fields(self, values: Mapping[str, int | None]) -> ThrottleLimits:
        """Return these limits with some of stock QEMU's fields changed, by name."""
        return self._replace(**values)  # type: ignore[arg-type]

    def items(self) -> list[tuple[str, int | None]]:
        """Return the name and value of every field of stock QEMU, in QAPI's order."""
        return [(name, getattr(self, name)) for name in FIELDS]


#: The fields that stock QEMU has too.
FIELDS = ThrottleLimits._fields[: ThrottleLimits._fields.index("cost_read")]
AVERAGES = FIELDS[:6]
UNLIMITED = ThrottleLimits()
