"""How well a drive keeps to its limit, from fio's own log of every completion in the guest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iokeel.core.curve import DEFAULT_MODEL, CostModel

_STEP_S = 0.05
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Completions:
    """Every request of a run: completion time in seconds since the start, and its cost."""

    at_s: Floats
    cost: Floats

    @classmethod
    def parse(cls, log: bytes, model: CostModel = DEFAULT_MODEL) -> Completions:
        """Read fio's log: "milliseconds, value, direction (1 writes), size, offset" a line.

        The first completion counts as 0 s.
        """
        table = np.loadtxt(log.decode().splitlines(), delimiter=",", usecols=(0, 2, 3), ndmin=2)
        writes = table[:, 1] == 1
        sizes, index = np.unique(table[:, 2], return_inverse=True)
        reads_cost = np.array([model.read.cost(size) for size in sizes])[index]
        writes_cost = np.array([model.write.cost(size) for size in sizes])[index]
        order = np.argsort(table[:, 0], kind="stable")
        cost = np.where(writes, writes_cost, reads_cost)
        return cls(table[order, 0] / 1000 - cls.begun_s(log), cost[order])

    @staticmethod
    def begun_s(log: bytes) -> float:
        """Return when the first request of a log ended, on the clock that it was written by."""
        return float(log[: log.index(b",")]) / 1000

    def rate(self, start_s: float, end_s: float) -> float:
        """Return normalized I/O operations a second in [start, end)."""
        first, last = np.searchsorted(self.at_s, [start_s, end_s])
        return float(self.cost[first:last].sum()) / (end_s - start_s)

    def seconds(self, start_s: float, end_s: float) -> list[float]:
        """Return the rate of each whole second from start to end."""
        return [self.rate(start_s + i, start_s + i + 1) for i in range(int(end_s - start_s))]

    def worst_window(self, start_s: float, end_s: float) -> float:
        """Return the highest rate of any window of a second within [start, end], 50 ms apart."""
        total = np.concatenate([[0.0], np.cumsum(self.cost)])
        begins = np.arange(start_s, max(end_s - 1, start_s) + 1e-9, _STEP_S)
        first, last = (np.searchsorted(self.at_s, begins + add) for add in (0, 1))
        return float((total[last] - total[first]).max())


@dataclass(frozen=True)
class Conformance:
    """One drive in one phase, each figure as a ratio of its limit but recovered_s.

    recovered_s: when the last second that counts and was off by more than `within_ratio` ended,
    counted from the shift. mean: from `settled_s` after the shift to the phase's end. worst_window:
    the highest window of a second that ends in the phase. seconds: the rate of each.
    """

    phase: str
    limit: float
    recovered_s: float
    mean_ratio: float
    worst_window_ratio: float
    seconds_ratio: list[float]

    def kept(self, within: dict[str, float]) -> bool:
        """Whether the phase is within bounds: those of the scenario."""
        return (
            self.recovered_s <= within["settled_s"]
            and abs(self.mean_ratio - 1) <= within["mean_ratio"]
            and self.worst_window_ratio <= within["window_ratio"]
        )

    def values(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return asdict(self)


def phase_conformance(
    done: Completions,
    name: str,
    start_s: float,
    end_s: float,
    limit: float,
    within: dict[str, float],
    new_limit: bool = False,
    stolen: Sequence[tuple[float, float]] = (),
) -> Conformance:
    """Return how a drive kept to a limit in a phase.

    new_limit: the limit is another than before, so that windows count only from a second on
    (what is under way when it changes was allowed). stolen: from when to when the machine stood
    still: a second doesn't count in which requests ended late for that, nor the one after it.
    """
    seconds = [rate / limit for rate in done.seconds(start_s, end_s)]
    off = [
        i + 1.0
        for i, ratio in enumerate(seconds)
        if abs(ratio - 1) > within["within_ratio"] and _counts(start_s + i, stolen)
    ]
    return Conformance(
        name,
        limit,
        max(off, default=0.0),
        done.rate(start_s + within["settled_s"], end_s) / limit,
        done.worst_window(start_s + 1 if new_limit else max(0.0, start_s - 1), end_s) / limit,
        _rounded(seconds),
    )


def _counts(second_s: float, stolen: Sequence[tuple[float, float]]) -> bool:
    """Whether the machine ran in the second that begins then, and in the one before it."""
    return not any(begin < second_s + 1 and second_s - 1 < end for begin, end in stolen)


def _rounded(ratios: Sequence[float]) -> list[float]:
    return [round(ratio, 4) for ratio in ratios]
