"""A drive's requests, from fio's own log of every completion in the guest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from iokeel.core.values.curve import DEFAULT_MODEL, CostModel

Floats = NDArray[np.float64]
WINDOW_STEP_S = 0.05


@dataclass(frozen=True)
class GuestClock:
    """How far a guest's clock is ahead of the host's, measured at two or more host times.

    readings: the host's time, and how far the guest is ahead then, both in seconds. Under
    emulation a guest's clock may run fast or slow, so one measurement isn't enough. It stands
    still while the guest is suspended.
    """

    readings: tuple[tuple[float, float], ...]

    def to_host(self, guest_s: Floats) -> Floats:
        """Return the host's time at times of the guest's clock, between the first and the last."""
        host_s, ahead_s = np.array(sorted(self.readings)).T
        return np.asarray(np.interp(guest_s, host_s + ahead_s, host_s))


@dataclass(frozen=True)
class Completions:
    """Every request of a run in the order of completion.

    at_s: when it ended, in seconds. cost: in normalized I/O operations. size: in bytes.
    """

    at_s: Floats
    cost: Floats
    size: Floats
    is_write: NDArray[np.bool_]

    @classmethod
    def parse(
        cls, log: bytes, clock: GuestClock | None = None, model: CostModel = DEFAULT_MODEL
    ) -> Self:
        """Read fio's log: "milliseconds, value, direction (1 writes), size, offset" a line.

        With a clock, times are the host's epoch. Without one, the first completion counts as 0 s.
        """
        table = np.loadtxt(log.decode().splitlines(), delimiter=",", usecols=(0, 2, 3), ndmin=2)
        table = table[np.argsort(table[:, 0], kind="stable")]
        is_write = table[:, 1] == 1
        sizes, index = np.unique(table[:, 2], return_inverse=True)
        reads_cost = np.array([model.read.cost(size) for size in sizes])[index]
        writes_cost = np.array([model.write.cost(size) for size in sizes])[index]
        at_s = table[:, 0] / 1000
        at_s = at_s - at_s[0] if clock is None else clock.to_host(at_s)
        return cls(at_s, np.where(is_write, writes_cost, reads_cost), table[:, 2], is_write)

    def after(self, zero_s: float) -> Self:
        """Return the same requests, with their times counted from `zero_s`."""
        return type(self)(self.at_s - zero_s, self.cost, self.size, self.is_write)

    def rate(self, start_s: float, end_s: float) -> float:
        """Return normalized I/O operations a second in [start, end)."""
        first, last = np.searchsorted(self.at_s, [start_s, end_s])
        return float(self.cost[first:last].sum()) / (end_s - start_s)

    def seconds(self, start_s: float, end_s: float) -> list[float]:
        """Return the rate of each whole second from start to end."""
        return [self.rate(start_s + i, start_s + i + 1) for i in range(int(end_s - start_s))]

    def worst_window(self, start_s: float, end_s: float) -> float:
        """Return the highest rate of any window of a second within [start, end]."""
        return max(self.rate(begin, begin + 1) for begin in window_starts(start_s, end_s))


def window_starts(start_s: float, end_s: float) -> list[float]:
    """Return where windows of a second within [start, end] begin, 50 ms apart."""
    steps = max(0, int((end_s - 1 - start_s) / WINDOW_STEP_S + 1e-6))
    return [start_s + WINDOW_STEP_S * i for i in range(steps + 1)]
