"""The drives' last ten minutes, in memory.

A sample is one array with the values of all drives. That makes 6 KB a drive: 6 MB with 1,000
drives, 30 MB with 5,000. Samples of the same drives share one tuple of them. The last orders add
4 KB a drive at most.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from iokeel.core.values.counters import NS_PER_S, DriveId
from iokeel.core.values.observation import Reason
from iokeel.report.records import SERIES, SPAN_S, DriveHistory, OrderReport

# Two seconds, less what a tick may come early.
_APART_NS = NS_PER_S * 7 // 4
_MOST_SAMPLES = SPAN_S * NS_PER_S // _APART_NS + 1
# Values are told to the millionth, a microsecond of latency: an array's floats have seven digits in
# all. round() takes three times as long.
_PARTS = 1e6
# Of a drive that is retuned each few seconds, the last minutes.
_MOST_ORDERS = 32


class _Sample(NamedTuple):
    """The values of all drives, one drive after another, at a time of the monotonic clock."""

    at_ns: int
    drives: tuple[DriveId, ...]
    values: array[float]


class History:
    """The samples, oldest first."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=_MOST_SAMPLES)
        self._orders: dict[DriveId, deque[tuple[int, Reason]]] = {}

    def is_due(self, now_ns: int) -> bool:
        """Return whether the last sample is old enough for another."""
        return not self._samples or now_ns >= self._samples[-1].at_ns + _APART_NS

    def add(self, at_ns: int, drives: Iterable[DriveId], values: Iterable[float]) -> None:
        """Keep the drives' values of one moment, and forget those from before SPAN_S.

        at_ns: the monotonic clock. values: those of SERIES for each drive in turn; NaN: not known.
        """
        samples, names = self._samples, tuple(drives)
        if samples and samples[-1].drives == names:
            names = samples[-1].drives
        else:
            self._orders = {drive: self._orders[drive] for drive in names if drive in self._orders}
        samples.append(_Sample(at_ns, names, array("f", values)))
        while samples[0].at_ns < at_ns - SPAN_S * NS_PER_S:
            samples.popleft()

    def add_order(self, at_ns: int, drive: DriveId, reason: Reason) -> None:
        """Keep the moment and the reason of a change of a drive's limits."""
        self._orders.setdefault(drive, deque(maxlen=_MOST_ORDERS)).append((at_ns, reason))

    def orders(self, drive: DriveId, now_ns: int, seconds: float) -> list[OrderReport]:
        """Return a drive's last orders within so many seconds, oldest first."""
        ages_s = (
            ((now_ns - at_ns) / NS_PER_S, reason) for at_ns, reason in self._orders.get(drive, ())
        )
        return [
            OrderReport(age_s=round(age_s, 3), reason=reason.value)
            for age_s, reason in ages_s
            if age_s <= seconds
        ]

    def span(self, now_ns: int, seconds: float) -> Span:
        """Return the last so many seconds."""
        return Span([s for s in self._samples if s.at_ns >= now_ns - seconds * NS_PER_S], now_ns)


class Span:
    """A part of the history, which stays as it is while it is read.

    ages_s: the samples' ages when it was taken. drives: all that are in a sample.
    """

    def __init__(self, samples: Sequence[_Sample], now_ns: int) -> None:
        self.ages_s = [round((now_ns - sample.at_ns) / NS_PER_S, 3) for sample in samples]
        # Samples of the same drives together: each drive's place in them, and their values.
        self._runs: list[tuple[dict[DriveId, int], list[array[float]]]] = []
        for _, group in groupby(samples, key=lambda sample: id(sample.drives)):
            run = list(group)
            places = {drive: place for place, drive in enumerate(run[0].drives)}
            self._runs.append((places, [sample.values for sample in run]))
        self.drives = sorted({drive for places, _ in self._runs for drive in places})

    def report(self, drive: DriveId, series: Iterable[str]) -> DriveHistory:
        """Return some of a drive's series, with a value for each sample.

        None: the drive wasn't there, or the value isn't known.
        """
        found = {name: self._column(drive, SERIES.index(name)) for name in series}
        return DriveHistory(domain=drive.domain, target=drive.target, series=found)

    def _column(self, drive: DriveId, number: int) -> list[float | None]:
        column: list[float | None] = []
        for places, samples in self._runs:
            place = places.get(drive)
            if place is None:
                column += [None] * len(samples)
                continue
            at = place * len(SERIES) + number
            column += [
                int(v * _PARTS + 0.5) / _PARTS if v - v == 0.0 else None  # inf - inf is no number
                for v in [sample[at] for sample in samples]
            ]
        return column
