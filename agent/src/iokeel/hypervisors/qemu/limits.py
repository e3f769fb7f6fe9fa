"""Throttle limits in the words of QEMU, stock and patched.

The words that the patches add stand nowhere else in the agent: the traces of each ability in a
QEMU's schema, the fields of ThrottleLimits that stock QEMU lacks, and query-throttle-groups. A new
kind of enforcement in QEMU begins here. Guests go on with the QEMU that they run, so the words of
former patches count too: DIALECTS has both.

There are two tables of names. An object's limits (qom-get, qom-set, query-throttle-groups) are
QAPI's ThrottleLimits: iops-total-max. block_set_io_throttle and query-block shorten them:
iops_max, iops_rd_max. Both have 0 for no limit, and the core has None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

from iokeel.core.values.counters import DriveId, ThrottleCount, ThrottleCounters, Took
from iokeel.core.values.curve import CostCurve
from iokeel.core.values.limits import AVERAGES, FIELDS, STOCK, UNLIMITED, Abilities, ThrottleLimits
from iokeel.errors import ConnectionLost, CurveError, LimitsRejected
from iokeel.hypervisors.qemu.bounds import Cost, Count, Name, Number

# No object of the schema has a tenth as many members.
_MOST_MEMBERS = 5000
# Of requests, a size for each power of two.
_MOST_SIZES = 64
# Tells ThrottleLimits from the schema's other objects.
_ANY_LIMIT = "iops-total"


class CurvePoint(msgspec.Struct, gc=False):
    """A point of a cost curve."""

    size: Count
    cost: Cost


_Value = bool | Number | Cost | list[CurvePoint]
#: QAPI's ThrottleLimits.
ObjectLimits = dict[str, _Value | dict[str, _Value]]


class _Field(NamedTuple):
    """A field of ThrottleLimits that stock QEMU lacks.

    ability: the one of Abilities that it comes with. kinds: the types that QEMU tells it in.
    """

    ability: str
    kinds: tuple[type, ...] = (int,)


_FIELDS = {
    "cost_read": _Field("cost_curve", (list,)),
    "cost_write": _Field("cost_curve", (list,)),
    "idle_credit_ms": _Field("cost_curve"),
    "split_size": _Field("splits"),
    "max_in_flight": _Field("bounds_in_flight", (int, float)),
    "latency": _Field("measures_latency", (bool,)),
}


class Dialect(NamedTuple):
    """The words of one series of patches.

    prefix: before the names that it adds to QEMU's own. fields: those of _FIELDS that it has.
    extra: the member of ThrottleLimits, and of the arguments of block_set_io_throttle, that has
    these; "" if they stand beside stock QEMU's. keeps_levels: what tells this ability among the
    features of ThrottleLimits and these fields.
    """

    prefix: str
    fields: tuple[str, ...]
    extra: str
    keeps_levels: str

    @property
    def query_groups(self) -> str:
        """The command that reads the throttle groups."""
        return f"{self.prefix}query-throttle-groups"

    def abilities(self, schema: Sequence[SchemaEntry]) -> Abilities:
        """Return the abilities that a schema shows in these words."""
        types = {entry.name: {m.name: m.type for m in entry.members} for entry in schema}
        counts, told = False, set()
        for entry in schema:
            members = types[entry.name]
            counts |= entry.meta_type == "command" and entry.name == self.query_groups
            if _ANY_LIMIT in members:
                told |= {*entry.features}
                own = types.get(members.get(self.extra, ""), {}) if self.extra else members
                told |= own.keys()
        able: dict[str, Any] = {"counts": counts, "keeps_levels": self.keeps_levels in told}
        for field, of in _FIELDS.items():
            is_known = field in self.fields and qapi_name(field) in told
            able[of.ability] = is_known and able.get(of.ability, True)
        able["measures_latency"] &= counts
        return Abilities(**able, dialect=self.prefix)


#: By Abilities.dialect, those of today's patches first. The former ones didn't tell that they keep
#: levels. That patch came before the curves', whose last name stands for it.
DIALECTS = {
    dialect.prefix: dialect
    for dialect in (
        Dialect("__iokeel_", tuple(_FIELDS), "__iokeel_extra", "__iokeel_keeps-levels"),
        Dialect("", tuple(_FIELDS)[:4], "", "cost-write"),
    )
}


def dialect_of(abilities: Abilities | None) -> Dialect:
    """Return the words that a QEMU knows, if it knows any of the patches'."""
    return DIALECTS[(abilities or STOCK).dialect]


class Member(msgspec.Struct, gc=False):
    """A member of an object of the schema. type: the name of its entry there."""

    name: str = ""
    type: str = ""


class SchemaEntry(msgspec.Struct):
    """An element of query-qmp-schema. Only commands go by their own names there."""

    name: str = ""
    meta_type: str = msgspec.field(name="meta-type", default="")
    members: Annotated[list[Member], msgspec.Meta(max_length=_MOST_MEMBERS)] = []
    features: Annotated[list[str], msgspec.Meta(max_length=_MOST_MEMBERS)] = []


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
        shown = (dialect.abilities(schema) for dialect in DIALECTS.values())
        throttle = next((found for found in shown if any(found[:-1])), STOCK)
        commands = (entry.name for entry in schema if entry.meta_type == "command")
        return cls(throttle, "device_add" in commands)

    @property
    def counts(self) -> bool:
        """Whether its throttle groups are known to count."""
        return self.throttle is not None and self.throttle.counts

    @property
    def query_groups(self) -> str:
        """The command that reads its throttle groups, if they count."""
        return dialect_of(self.throttle).query_groups


def qapi_name(field: str) -> str:
    """Return the name in QAPI of a field of ThrottleLimits."""
    return field.replace("_", "-")


# Limits

_TODAYS, _FORMER = DIALECTS.values()
# The fields by their names in limits, and in the member that today's patches add to these.
_OUTER_FIELDS = {qapi_name(field): field for field in (*FIELDS, *_FORMER.fields)}
_EXTRA_FIELDS = {qapi_name(field): field for field in _TODAYS.fields}


def patched_values(limits: ThrottleLimits, abilities: Abilities) -> dict[str, Any]:
    """Return the fields that stock QEMU lacks and this one knows, in QAPI's words.

    All of them, since QEMU keeps a field that it isn't given: an empty list removes a curve, and
    0 the split size or the bound in flight.
    """
    values = {
        qapi_name(field): _told(getattr(limits, field), of)
        for field, of in _FIELDS.items()
        if getattr(abilities, of.ability)
    }
    extra = dialect_of(abilities).extra
    return {extra: values} if extra and values else values


def knows_more(abilities: Abilities) -> bool:
    """Return True if a QEMU knows limits that stock QEMU lacks."""
    return bool(patched_values(UNLIMITED, abilities))


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
    kept: dict[str, Any] = {field: getattr(last, field) for field in _FIELDS}
    return read._replace(**kept)


def values_of(limits: ObjectLimits) -> dict[str, Any] | None:
    """Return QAPI's ThrottleLimits by the names of the core's; None if one makes no sense.

    To leave that one out would be to call it unlimited.
    """
    extra = limits.get(_TODAYS.extra, {})
    if not isinstance(extra, dict):
        return None
    found: dict[str, Any] = {}
    for fields, values in ((_OUTER_FIELDS, limits), (_EXTRA_FIELDS, extra)):
        for name, value in values.items():
            if (field := fields.get(name)) is None:
                continue
            kinds = _FIELDS[field].kinds if field in _FIELDS else (int,)
            if list in kinds:
                found[field] = _curve_of(value)
            elif isinstance(value, list | dict) or type(value) not in kinds or value < 0:
                return None
            else:
                found[field] = value
    return found


def _curve_of(points: object) -> CostCurve | None:
    """Return a curve in QAPI's words as a CostCurve; None for none, or one the agent can't use."""
    if not isinstance(points, list) or not points:
        return None
    try:
        return CostCurve(tuple((point.size, point.cost) for point in points))
    except CurveError:  # unlike the agent, QEMU takes a first size of 0
        return None


def _told(value: CostCurve | float | None, of: _Field) -> object:
    if list in of.kinds:
        points = value.points if isinstance(value, CostCurve) else ()
        return [{"size": size, "cost": cost} for size, cost in points]
    return 0 if value is None else value


# query-throttle-groups, which is read at each tick


class SizeCount(msgspec.Struct, gc=False):
    """How many requests had a size, or took a time in ns.

    least: a power of two or 0, the least of the range. Former patches call it size.
    """

    requests: Count
    least: Count = 0
    size: Count = 0


_Histogram = Annotated[list[SizeCount], msgspec.Meta(max_length=_MOST_SIZES)]


class DirectionStats(msgspec.Struct, rename="kebab"):
    """A group's counters in one direction, since it was made.

    ended: how many requests were timed below the throttle; None if it can't time any.
    """

    requests: Count
    bytes: Count
    cost: Cost
    waited: Count
    wait_total_ns: Count
    waiting: Count
    sizes: _Histogram
    ended: Count | None = None
    latency_total_ns: Count = 0
    latencies: _Histogram = []

    def count(self) -> ThrottleCount:
        """Return the same in the core's words."""
        took = None
        if self.ended is not None:
            took = Took(self.ended, self.latency_total_ns, _bins(self.latencies))
        return ThrottleCount(
            self.requests,
            self.bytes,
            self.cost,
            self.waited,
            self.wait_total_ns,
            self.waiting,
            _bins(self.sizes),
            took,
        )


def _bins(histogram: list[SizeCount]) -> tuple[tuple[int, int], ...]:
    return tuple([(each.least or each.size, each.requests) for each in histogram])


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
