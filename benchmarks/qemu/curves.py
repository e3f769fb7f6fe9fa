"""Cost curves, and prices by them: computed here, by other code than QEMU's and the agent's."""

from __future__ import annotations

import bisect
from functools import lru_cache
from typing import Any

from iokeel.core.values.curve import KIB
from testing.hypervisors.dialects import TODAYS

#: (size in bytes, cost in 4 KiB reads), ascending by size.
Curve = tuple[tuple[int, float], ...]

#: The published curve.
CURVE: Curve = (
    (4 * KIB, 1.0),
    (8 * KIB, 1.6),
    (16 * KIB, 2.7),
    (32 * KIB, 5.0),
    (64 * KIB, 10.0),
    (128 * KIB, 19.5),
    (256 * KIB, 39.0),
    (512 * KIB, 76.0),
    (1024 * KIB, 150.0),
)
#: Curves of no device, one for each direction, with points off the powers of two.
OWN_READ: Curve = ((1000, 0.7), (5000, 0.9), (50000, 7.25), (300000, 31.0), (2000000, 400.0))
OWN_WRITE: Curve = ((512, 2.0), (65536, 11.0), (1048576, 333.3))


@lru_cache(maxsize=1 << 16)
def price(curve: Curve, size_bytes: int) -> float:
    """Return the cost of a request: linear between points, and on from the last two."""
    sizes = [point[0] for point in curve]
    if size_bytes <= sizes[0] or len(curve) == 1:
        return curve[0][1]
    i = min(bisect.bisect_right(sizes, size_bytes) - 1, len(curve) - 2)
    (s0, c0), (s1, c1) = curve[i], curve[i + 1]
    return (c0 * (s1 - size_bytes) + c1 * (size_bytes - s0)) / (s1 - s0)


#: ThrottleLimits of QEMU: an int for a limit, and what the patches add.
Limits = dict[str, Any]


def limits_of(limit: int, read: Curve = CURVE, write: Curve = CURVE) -> Limits:
    """Return throttle limits of the patched QEMU: normalized operations a second, by curves."""
    extra = {"cost-read": _points(read), "cost-write": _points(write)}
    return {"iops-total": limit, TODAYS.extra: extra}


def _points(curve: Curve) -> list[dict[str, float]]:
    return [{"size": size, "cost": cost} for size, cost in curve]
