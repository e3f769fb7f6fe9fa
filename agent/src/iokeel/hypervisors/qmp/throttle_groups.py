"""What a QEMU with cost curves says of its throttle groups, in the core's words.

query-throttle-groups is read at each tick, so nothing is taken apart that need not be: limits are
compared as the bytes that came, and looked into where those have changed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from iokeel.core.counters import ThrottleCount, ThrottleCounters
from iokeel.core.curve import CostCurve
from iokeel.core.limits import FIELDS, ThrottleLimits
from iokeel.errors import CurveError

QUERY_GROUPS = b'"execute":"query-throttle-groups"'
#: What a field of ThrottleLimits is in QAPI's ThrottleLimits.
_ALL_NAMES = {field: field.replace("_", "-") for field in ThrottleLimits._fields}
OBJECT_NAMES = {field: _ALL_NAMES[field] for field in FIELDS}


class SizeCount(msgspec.Struct, gc=False):
    """Requests of a range of sizes."""

    size: int
    requests: int


class DirectionStats(msgspec.Struct, rename="kebab"):
    """What a group has done in one direction."""

    requests: int
    bytes: int
    cost: float
    waited: int
    wait_total_ns: int
    waiting: int
    sizes: list[SizeCount]

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


class GroupMember(msgspec.Struct, rename="kebab", gc=False):
    """A member of a group: a throttle node, or a drive with limits of its own."""

    node_name: str = ""
    device: str = ""
    qdev: str = ""


class Group(msgspec.Struct):
    """A throttle group in query-throttle-groups."""

    name: str
    limits: msgspec.Raw
    read: DirectionStats
    write: DirectionStats
    members: list[GroupMember]

    def counters(self, at_ns: int) -> ThrottleCounters:
        """Return its statistics, as read at a time of the monotonic clock."""
        return ThrottleCounters(at_ns, self.read.count(), self.write.count())


class CurvePoint(msgspec.Struct, gc=False):
    """A point of a cost curve."""

    size: int
    cost: float


#: QAPI's ThrottleLimits.
Limits = dict[str, int | list[CurvePoint]]
_LIMITS = msgspec.json.Decoder(Limits)


def group_limits(raw: msgspec.Raw | bytes) -> ThrottleLimits | None:
    """Return a group's limits; None where they make no sense, so that they aren't known."""
    try:
        return object_limits(_LIMITS.decode(raw))
    except msgspec.ValidationError:
        return None


def object_limits(values: Limits) -> ThrottleLimits:
    """Return the limits of a throttle-group object, as qom-get reads them."""
    found = {field: values.get(name) for field, name in _ALL_NAMES.items()}
    numbers = {field: n for field, n in found.items() if isinstance(n, int)}
    curves = {field: _curve(found[field]) for field in ("cost_read", "cost_write")}
    return ThrottleLimits.of(numbers | curves)


def patched_values(limits: ThrottleLimits) -> dict[str, Any]:
    """Return the fields that stock QEMU hasn't in QAPI's words.

    What is none there, such as an empty list for no curve, removes what there was.
    """
    curves = {
        name: [{"size": size, "cost": cost} for size, cost in curve.points] if curve else []
        for name, curve in (("cost-read", limits.cost_read), ("cost-write", limits.cost_write))
    }
    numbers = {"split-size": limits.split_size or 0, "idle-credit-ms": limits.idle_credit_ms}
    return {**curves, **numbers}


def _curve(points: int | list[CurvePoint] | None) -> CostCurve | None:
    if not isinstance(points, list) or not points:
        return None
    try:
        return CostCurve(tuple((point.size, point.cost) for point in points))
    except CurveError:  # QEMU takes what we don't: a first size of 0
        return None
