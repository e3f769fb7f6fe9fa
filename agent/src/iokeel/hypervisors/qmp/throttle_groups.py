"""The words that the patches in qemu-patches add to QMP.

They stand nowhere else in the agent. They are the traces of each ability in a QEMU's schema, the
fields of ThrottleLimits that stock QEMU lacks, and query-throttle-groups. A new kind of enforcement
in QEMU begins here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

from iokeel.core.abilities import STOCK, Abilities
from iokeel.core.counters import DriveId, ThrottleCount, ThrottleCounters
from iokeel.core.curve import CostCurve
from iokeel.core.limits import ThrottleLimits
from iokeel.errors import ConnectionLost, CurveError, LimitsRejected
from iokeel.hypervisors.qmp.bounds import Cost, Count, Name

QUERY_GROUPS = "query-throttle-groups"
#: The same as a request without its id.
ASK_GROUPS = b'"execute":"%b"' % QUERY_GROUPS.encode()

# The fields of ThrottleLimits that come with an ability. They have the same names in the limits
# of an object and in block_set_io_throttle.
_CURVES = ("cost_read", "cost_write")
_CURVE_FIELDS = (*_CURVES, "idle_credit_ms")
_SPLIT_FIELDS = ("split_size",)
# No object of the schema has a tenth as many members.
_MOST_MEMBERS = 5000
# Of requests, a size for each power of two.
_MOST_SIZES = 64
# Tells ThrottleLimits from the schema's other objects.
_ANY_LIMIT = "iops-total"


class Member(msgspec.Struct, gc=False):
    """A member of an object of the schema."""

    name: str = ""


class SchemaEntry(msgspec.Struct):
    """An element of query-qmp-schema. Only commands go by their own names there."""

    name: str = ""
    meta_type: str = msgspec.field(name="meta-type", default="")
    members: Annotated[list[Member], msgspec.Meta(max_length=_MOST_MEMBERS)] = []


class QemuAbilities(NamedTuple):
    """The abilities of a QEMU.

    throttle: those of its throttle groups; None if it doesn't tell now. guest_devices: whether it
    can have some; a storage daemon can't.
    """

    throttle: Abilities | None = STOCK
    guest_devices: bool = True

    @classmethod
    def of(cls, schema: Sequence[SchemaEntry]) -> QemuAbilities:
        """Return the abilities that a schema (query-qmp-schema) shows."""
        commands = {entry.name for entry in schema if entry.meta_type == "command"}
        objects = [{member.name for member in entry.members} for entry in schema]
        limits = [names for names in objects if _ANY_LIMIT in names]

        def known(fields: Sequence[str]) -> bool:
            return any({qapi_name(field) for field in fields} <= names for names in limits)

        return cls(
            Abilities(
                cost_curve=known(_CURVE_FIELDS),
                # This leaves no trace in the schema. Its patch comes before the curve's, so a QEMU
                # that knows curves keeps levels too.
                keeps_levels=known(_CURVES),
                counts=QUERY_GROUPS in commands,
                splits=known(_SPLIT_FIELDS),
            ),
            "device_add" in commands,
        )

    @property
    def counts(self) -> bool:
        """Whether its throttle groups are known to count."""
        return self.throttle is not None and self.throttle.counts


def qapi_name(field: str) -> str:
    """Return the name in QAPI's ThrottleLimits of a field of ThrottleLimits."""
    return field.replace("_", "-")


# Limits


class CurvePoint(msgspec.Struct, gc=False):
    """A point of a cost curve."""

    size: Count
    cost: Cost


def patched_values(limits: ThrottleLimits, abilities: Abilities) -> dict[str, Any]:
    """Return the fields that stock QEMU lacks and this one knows, in QAPI's words.

    All of them, since QEMU keeps a field that it isn't given: an empty list removes a curve, and
    0 the split size.
    """
    values: dict[str, Any] = {}
    if abilities.cost_curve:
        for field, curve in zip(_CURVES, (limits.cost_read, limits.cost_write), strict=True):
            values[qapi_name(field)] = _points(curve)
        values[qapi_name("idle_credit_ms")] = limits.idle_credit_ms
    if abilities.splits:
        values[qapi_name("split_size")] = limits.split_size or 0
    return values


def knows_more(abilities: Abilities) -> bool:
    """Return True if a QEMU knows limits that stock QEMU lacks."""
    return abilities.cost_curve or abilities.splits


def for_curve(drive: DriveId, abilities: Abilities | None) -> Abilities:
    """Return the abilities of a QEMU that is to get limits with a curve.

    Their iops are normalized: without the curve they would let a large request pass as one
    operation. Raises LimitsRejected if the QEMU knows no curves, and ConnectionLost if that isn't
    known.
    """
    if abilities is None:
        what = "it isn't known whether its QEMU has cost curves"
        raise ConnectionLost(str(drive), what, "the old limits still hold")
    if not abilities.cost_curve:
        what = "its QEMU has no cost curves"
        raise LimitsRejected(str(drive), what, "it gets stock limits for now")
    return abilities


def keep_patched(read: ThrottleLimits, last: ThrottleLimits) -> ThrottleLimits:
    """Return limits read from a source that lacks the patches' fields, with those last known."""
    return read._replace(
        cost_read=last.cost_read,
        cost_write=last.cost_write,
        split_size=last.split_size,
        idle_credit_ms=last.idle_credit_ms,
    )


def curve_of(points: int | list[CurvePoint] | None) -> CostCurve | None:
    """Return a curve in QAPI's words as a CostCurve; None for none, or one the agent can't use."""
    if not isinstance(points, list) or not points:
        return None
    try:
        return CostCurve(tuple((point.size, point.cost) for point in points))
    except CurveError:  # unlike the agent, QEMU takes a first size of 0
        return None


def curves_of(values: Mapping[str, int | list[CurvePoint]]) -> dict[str, CostCurve | None]:
    """Return the curves in QAPI's ThrottleLimits by the names of ThrottleLimits."""
    return {field: curve_of(values.get(qapi_name(field))) for field in _CURVES}


def _points(curve: CostCurve | None) -> list[dict[str, float]]:
    return [{"size": size, "cost": cost} for size, cost in curve.points] if curve else []


# query-throttle-groups, which is read at each tick


class SizeCount(msgspec.Struct, gc=False):
    """How many requests had a size. size: a power of two, the least of its range."""

    size: Count
    requests: Count


class DirectionStats(msgspec.Struct, rename="kebab"):
    """A group's counters in one direction, since it was made."""

    requests: Count
    bytes: Count
    cost: Cost
    waited: Count
    wait_total_ns: Count
    waiting: Count
    sizes: Annotated[list[SizeCount], msgspec.Meta(max_length=_MOST_SIZES)]

    def count(self) -> ThrottleCount:
        """Return the same in the core's words."""
        return ThrottleCount(
            self.requests,
            self.bytes,
            self.cost,
            self.waited,
            self.wait_total_ns,
            self.waiting,
            tuple([(each.size, each.requests) for each in self.sizes]),
        )


class GroupMember(msgspec.Struct, gc=False):
    """A member of a group: a throttle node, or a drive with limits of its own."""

    device: Name = ""
    qdev: Name = ""


class Group(msgspec.Struct):
    """A throttle group.

    limits: as they came. They are compared as bytes, and decoded only after a change.
    """

    name: Name
    limits: msgspec.Raw
    read: DirectionStats
    write: DirectionStats
    members: list[GroupMember]

    def counters(self, at_ns: int) -> ThrottleCounters:
        """Return its statistics. at_ns: when they were read, by the monotonic clock."""
        return ThrottleCounters(at_ns, self.read.count(), self.write.count())
