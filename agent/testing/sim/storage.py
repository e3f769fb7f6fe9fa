"""Simulated disks: what many drives get of them at once, and how long a request takes.

A disk serves at most its capacity C (normalized operations a second, by the same cost curve). With
u the part of C that is used, a request takes

    W(u) = base * (1 + u**knee / (1 - u))

Each drive has at most `depth` requests in flight, so that it does at most depth * cost / W, cost
being the mean cost of its requests: where they ask for more than there is, drives get it by what
they have in flight, and W is what makes it so. That fixes u, found by halving log(1 - u).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from iokeel.core.sharing.storage import StoragePolicy

Array = np.ndarray[Any, np.dtype[Any]]

# log(1 - u) is found to within 17 / 2^18.
_HALVINGS = 18
_LEAST_LEFT = 1e-7


@dataclass
class Disk:
    """A simulated disk, and what the agent is told of it.

    capacity: normalized operations a second, by the time in seconds. base_s: the time of a
    request where nothing else is done. noise: sigma of the lognormal factor that the mean
    latency of a tick has. counted: whether it has counters of its own.
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
    """Return what each drive does, and each disk's latency in seconds and its u.

    asked: what each drive would do on a disk that takes no time; pressure: depth * cost; disk: the
    number of its disk. The other three are by disk.
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
