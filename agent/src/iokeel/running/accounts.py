"""Adds up what drives do, and for how long promises to them are kept."""

from __future__ import annotations

from collections.abc import Iterable

from iokeel.core.measure.drive import operations
from iokeel.core.promises import kept
from iokeel.core.values.counters import NS_PER_S, DriveId
from iokeel.core.values.state import NEW, State
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
        for drive in seen:
            known, was = after.drives[drive], before.drives.get(drive, NEW)
            measured = known.measured
            if not measured.rate or measured.rates is None or measured is was.measured:
                continue
            limits = was.sent.limits
            charged = limits is not None and limits.cost_read is not None
            account = self.get(drive) or self.setdefault(drive, Account())
            reads, writes = operations(measured, charged=charged)
            account.reads += reads
            account.writes += writes
            elapsed_s = measured.rates.elapsed_s
            storage = after.storages.get(known.storage or "")
            for name, is_kept in kept(drive, was, known, storage):
                kept_s, missed_s = account.promises.get(name, (0.0, 0.0))
                if is_kept:
                    account.promises[name] = Kept(kept_s + elapsed_s, missed_s)
                else:
                    account.promises[name] = Kept(kept_s, missed_s + elapsed_s)
        if gone := self.keys() - after.drives.keys():
            self._gone = {drive: self._gone.get(drive, now_ns) for drive in gone}
            for drive, since_ns in self._gone.items():
                if now_ns - since_ns > SPAN_S * NS_PER_S:
                    del self[drive]
        else:
            self._gone = {}
