"""Simulated disks: the rates of many drives at once, and the latency of their requests.

A disk serves at most its capacity C, in normalized operations a second. If a part u of C is used, a
request takes

    W(u) = base * (1 + u**knee / (1 - u))

Each drive has at most `depth` requests in flight, so it does at most depth * cost / W, with the
mean cost of its requests. W rises until the drives together do no more than the disk serves. That
fixes u, which is found by bisecting log(1 - u).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from iokeel.core.values.storage import StoragePolicy

Array = np.ndarray[Any, np.dtype[Any]]

# 18 halvings find log(1 - u) to within 17 / 2^18.
_HALVINGS = 18
_LEAST_LEFT = 1e-7  # of 1 - u


@dataclass
class Disk:
    """A simulated disk, and its configuration for the agent.

    capacity: normalized operations a second, as a function of time in seconds. base_s: the time of
    a request on the idle disk. noise: sigma of a lognormal factor on each tick's mean latency.
    counted: whether the disk has counters of its own.
    """

    policy: StoragePolicy
    capacity: Callable[[float], float]
    base_s: float = 0.0002
    knee: float = 1.0
    noise: float = 0.0
    counted: bool = True


def steady(capacity: float) -> Callable[[float], float]:
    """Return a capacity that never changes."""
    return lambda at_s: capacity


def latency(u: Array, base_s: Array, knee: Array) -> Array:
    """Return W(u)."""
    waits: Array = base_s * (1 + u**knee / (1 - u))
    return waits


def serve(
    asked: Array, pressure: Array, disk: Array, capacity: Array, base_s: Array, knee: Array
) -> tuple[Array, Array, Array]:
    """Return each drive's rate, and each disk's latency in seconds and its u.

    By drive, asked: its rate on a disk that takes no time; pressure: depth * cost; disk: the index
    of its disk. By disk, capacity, base_s and knee: see Disk.
    """
    count = len(capacity)
    low = np.full(count, np.log(_LEAST_LEFT))
    high = np.zeros(count)
    active = np.flatnonzero(asked)
    asked_here, pressure_here, disk_here = asked[active], pressure[active], disk[active]
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        used = 1 - np.exp(middle)
        waits = latency(used, base_s, knee)
        done = np.minimum(asked_here, pressure_here / waits[disk_here])
        more = np.bincount(disk_here, done, count) > used * capacity
        low, high = np.where(more, low, middle), np.where(more, middle, high)
    used = 1 - np.exp((low + high) / 2)
    waits = latency(used, base_s, knee)
    return np.minimum(asked, pressure / waits[disk]), waits, used
