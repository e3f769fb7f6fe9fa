"""The throttles of many drives, as a fluid: how much they let through in a step of time.

The same buckets as in throttle.py, for drives that always have a request ready, and whose requests
are small against a bucket. In a step, a bucket lets through what is free in it, and `rate` for the
length of the step. Setting limits empties it; a QEMU that keeps levels leaves it as full as it was,
but for a burst that is new. No timer is late here, so no more than the idle credit is ever free.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from iokeel.core.values.limits import AVERAGES, UNLIMITED, ThrottleLimits
from testing.sim.guests import Kind

Array = np.ndarray[Any, np.dtype[Any]]


class Throttles:
    """The buckets of each drive: one for each average, and one for each burst's rate."""

    def __init__(self, drives: int) -> None:
        buckets = 2 * len(AVERAGES)
        self.limits = [UNLIMITED] * drives
        self._rate = np.full((drives, buckets), np.inf)
        self._size = np.full((drives, buckets), np.inf)
        self._free = np.full((drives, buckets), np.inf)
        self._charge = np.zeros((drives, buckets))

    def set(self, i: int, limits: ThrottleLimits, kind: Kind, exact: bool) -> None:
        """Put limits in force on a drive."""
        part, used = np.ones(self._size.shape[1]), np.zeros(self._size.shape[1])
        if exact:
            known = np.isfinite(self._size[i])
            np.divide(self._free[i], self._size[i], out=part, where=known)
            np.subtract(self._size[i], self._free[i], out=used, where=known)
        credit_s = limits.idle_credit_ms / 1000
        before = self.limits[i]
        self.limits[i] = limits
        self._rate[i] = self._size[i] = np.inf
        for j, name in enumerate(AVERAGES):
            rate = getattr(limits, name)
            burst = getattr(limits, f"{name}_max")
            short = len(AVERAGES) + j
            if not rate:
                continue
            length = getattr(limits, f"{name}_max_length") or 1
            self._rate[i, j] = rate
            self._size[i, j] = burst * length if burst else rate * credit_s
            if burst and length > 1:
                self._rate[i, short] = burst
                self._size[i, short] = burst * credit_s
            if not burst:
                part[j] = min(part[j], part[short])
            elif not getattr(before, f"{name}_max"):
                part[short] = part[j]
                part[j] = max(0.0, 1 - used[j] / self._size[i, j])
        limited = np.isfinite(self._size[i])
        self._free[i] = np.inf
        self._free[i, limited] = part[limited] * self._size[i, limited]
        self.price(i, kind, exact)

    @property
    def are_free(self) -> Array:
        """Return whether each drive has no limits."""
        free: Array = np.isinf(self._rate).all(axis=1)
        return free

    def price(self, i: int, kind: Kind, exact: bool) -> None:
        """From now on, charge a drive for requests of this mix."""
        charges = kind.charges(self.limits[i].iops_size, exact)
        self._charge[i] = charges + charges

    def most(self, step_s: float) -> Array:
        """Return the most that each drive can do in a step, in normalized operations a second."""
        with np.errstate(divide="ignore", invalid="ignore"):
            most = (self._free / step_s + self._rate) / self._charge
        least: Array = np.min(np.where(self._charge > 0, most, np.inf), axis=1)
        return least

    def account(self, did: Array, step_s: float) -> None:
        """Charge each drive for a step. did: normalized operations a second."""
        used = np.where(self._charge > 0, did[:, None] * self._charge, 0.0)
        free = self._free + (self._rate - used) * step_s
        self._free = np.clip(free, 0.0, self._size)
