"""Adds up what drives do, and for how long promises to them are kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from iokeel.core.measure.drive import operations
from iokeel.core.promises import LIMIT, kept
from iokeel.core.values.counters import NS_PER_S, DriveId
from iokeel.core.values.state import NEW, DriveState, State
from iokeel.report.records import SPAN_S, Account, Kept


class Accounts(dict[DriveId, Account]):
    """The drives' accounts, since the agent has known them.

    A drive that goes keeps its account for as long as its history, so that a restart of its guest
    doesn't begin it anew.
    """

    def __init__(self) -> None:
        super().__init__()
        self._gone: dict[DriveId, int] = {}  # since when

    def look(self, before: State, after: State, seen: Iterable[DriveId], now_ns: int) -> None:
        """Add the intervals that end with a look at some drives. before, after: that look."""
        for drive, was, known, elapsed_s in _intervals(before, after, seen):
            limits = was.sent.limits
            charged = limits is not None and limits.cost_read is not None
            account = self.get(drive) or self.setdefault(drive, Account())
            reads, writes = operations(known.measured, charged=charged)
            account.reads += reads
            account.writes += writes
            storage = after.storages.get(known.storage or "")
            _add(account, kept(drive, was, known, storage), elapsed_s)
        if gone := self.keys() - after.drives.keys():
            self._gone = {drive: self._gone.get(drive, now_ns) for drive in gone}
            for drive, since_ns in self._gone.items():
                if now_ns - since_ns > SPAN_S * NS_PER_S:
                    del self[drive]
        else:
            self._gone = {}

    def observe(self, before: State, after: State, drives: Iterable[DriveId]) -> None:
        """Add how promises to drives that are only observed were kept in the same intervals.

        No limits hold them, so they do less than is reserved only if their storage holds them up,
        and of their limits nothing was promised. before, after: as if their policies were enforced.
        """
        for drive, was, known, elapsed_s in _intervals(before, after, drives):
            free = known._replace(demand=known.demand._replace(backlogged=False))
            storage = after.storages.get(known.storage or "")
            found = [one for one in kept(drive, was, free, storage) if one[0] != LIMIT]
            _add(self.get(drive) or self.setdefault(drive, Account()), found, elapsed_s)


def _intervals(
    before: State, after: State, drives: Iterable[DriveId]
) -> Iterator[tuple[DriveId, DriveState, DriveState, float]]:
    """Yield each drive whose last reading ended an interval in which it did something.

    That is: the drive, its states before and after that reading, and the interval in seconds.
    """
    for drive in drives:
        known, was = after.drives[drive], before.drives.get(drive, NEW)
        measured = known.measured
        if measured.rate and measured.rates is not None and measured is not was.measured:
            yield drive, was, known, measured.rates.elapsed_s


def _add(account: Account, found: Iterable[tuple[str, bool]], elapsed_s: float) -> None:
    """Add an interval to promises that were kept in it, or missed."""
    for name, is_kept in found:
        kept_s, missed_s = account.promises.get(name, (0.0, 0.0))
        if is_kept:
            account.promises[name] = Kept(kept_s + elapsed_s, missed_s)
        else:
            account.promises[name] = Kept(kept_s, missed_s + elapsed_s)
