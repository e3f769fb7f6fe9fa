"""What is recorded of a minute: samples of all drives, and the promises that were kept in it."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import NamedTuple

import msgspec

from iokeel.core.measure.demand import FULL_RATIO
from iokeel.core.measure.drive import operations
from iokeel.core.promises import LATENCY_TARGET, RESERVATION, kept
from iokeel.core.values.claimant import budgets
from iokeel.core.values.counters import NS_PER_S, DriveId
from iokeel.core.values.state import NEW, DriveState, Share, State, StorageState
from iokeel.core.values.storage import StorageId
from iokeel.report.records import SERIES, SPAN_S, Above, Account, Kept
from iokeel.report.snapshot import usable
from iokeel.store.histogram import INFINITE, buckets
from iokeel.store.weeks import DriveAbout, DriveKey

_RATE, _WAIT = SERIES.index("normalized_iops"), SERIES.index("wait_s")


class Seen(NamedTuple):
    """What is sampled: the law's memory, with observed drives as they would be.

    values: those of records.SERIES for each drive in turn. uuids: of VMs by name; "" if it has
    none. above: of the observed drives. accounts: of the others.
    """

    drives: Mapping[DriveId, DriveState]
    storages: Mapping[StorageId, StorageState]
    values: array[float]
    uuids: Mapping[str, str]
    above: Mapping[DriveId, Above]
    accounts: Mapping[DriveId, Account]

    def held_s(self, drive: DriveId) -> float:
        """Return for how long a drive was held, or would have been, since the agent's start."""
        if (above := self.above.get(drive)) is not None:
            return above.seconds
        return self.drives[drive].demand.throttled_s


def owed(known: DriveState) -> float:
    """Return the rate that a drive is owed of its storage: its share, or else its reservation."""
    share = known.share
    if isinstance(share, Share) and isfinite(share.by_weight):
        return share.most
    return float(known.policy.reservation) if known.policy is not None else 0.0


class StorageMinute(msgspec.Struct, array_like=True):
    """What a storage did in a minute; see StorageHour. rates: the bucket of each sample."""

    rates: bytes
    usable_iops: float | None
    reserved_iops: float
    missed_s: float
    takers: list[tuple[str, str, float]]


class Minute(msgspec.Struct, array_like=True):
    """A minute of the journal.

    at_s: how much of the hour is recorded before it. rates, waits: the buckets of all drives' in
    one sample after another; waits is empty if none is known. peaks: the drives' highest rates, as
    32-bit floats. figures: of a drive by its place, what isn't 0: held_s, and its promises' four
    figures as in DriveHour. drives: None if they are those of the minute before.
    """

    hour: int
    at_s: float
    seconds: float
    samples: int
    drives: list[tuple[DriveKey, DriveAbout]] | None
    rates: bytes
    waits: bytes
    peaks: bytes
    figures: dict[int, tuple[float, float, float, float, float]]
    storages: dict[str, StorageMinute]


@dataclass
class Samples:
    """Samples of the same drives, of a minute or less.

    hour: of the wall clock. first: the sample before them, if that has the same drives. kept: for
    how long promises to drives had been kept and missed at the last sample. promises: four figures,
    as in DriveHour, of the drives that had a promise at the first sample.
    """

    hour: int
    drives: tuple[DriveId, ...]
    uuids: Mapping[str, str]
    first: Seen
    last: Seen
    kept: dict[DriveId, dict[str, Kept]]
    seconds: float = 0.0
    values: list[array[float]] = field(default_factory=list)
    promises: dict[DriveId, list[float]] = field(init=False)
    missed: dict[StorageId, float] = field(default_factory=dict)
    takers: dict[StorageId, dict[DriveId, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.promises = {
            drive: [0.0] * 4
            for drive, known in self.last.drives.items()
            if (policy := known.policy) is not None
            and (policy.reservation or policy.latency_target_ms)
        }

    def add(self, seen: Seen, seconds: float) -> None:
        """Add a sample, which stands for so many seconds."""
        self.last = seen
        self.seconds += seconds
        self.values.append(seen.values)
        missed = {n for n, each in seen.storages.items() if each.division.kept < FULL_RATIO}
        for drive, figures in self.promises.items():
            storage = seen.drives[drive].storage
            if self._add_promises(drive, figures, seen.accounts.get(drive)) and storage is not None:
                missed.add(storage)
        for name in missed:
            self.missed[name] = self.missed.get(name, 0.0) + seconds
        if missed:
            self._add_takers(seen, missed, seconds)

    def _add_promises(self, drive: DriveId, figures: list[float], account: Account | None) -> bool:
        """Add for how long a drive's promises were kept and missed; return whether one was."""
        now = {} if account is None else dict(account.promises)
        before, self.kept[drive] = self.kept.get(drive, now), now
        is_missed = False
        for place, promise in ((0, RESERVATION), (2, LATENCY_TARGET)):
            kept_s, missed_s = now.get(promise, Kept())
            was = before.get(promise, Kept())
            if kept_s < was.kept_s or missed_s < was.missed_s:  # the account has begun anew
                was = Kept()
            figures[place] += kept_s - was.kept_s
            figures[place + 1] += missed_s - was.missed_s
            is_missed |= missed_s > was.missed_s
        return is_missed

    def _add_takers(self, seen: Seen, missed: Collection[StorageId], seconds: float) -> None:
        """Add what drives took above what they were owed, on storages with a missed promise."""
        for drive, known in seen.drives.items():
            name, rate = known.storage, known.measured.rate
            if name is not None and name in missed and rate is not None:
                more = rate - owed(known)
                if more > 0:
                    takers = self.takers.setdefault(name, {})
                    takers[drive] = takers.get(drive, 0.0) + more * seconds

    def minute(self) -> Minute:
        """Return what is recorded of them."""
        count = len(self.drives)
        values = array("f")
        for sample in self.values:
            values.extend(sample)
        rates, waits = values[_RATE :: len(SERIES)], buckets(values[_WAIT :: len(SERIES)])
        if min(memoryview(waits).cast("H"), default=INFINITE) >= INFINITE:
            waits = b""
        figures = {}
        on: dict[str, list[int]] = {}
        for place, drive in enumerate(self.drives):
            before_s, now_s = self.first.held_s(drive), self.last.held_s(drive)
            held_s = now_s - before_s if now_s >= before_s else now_s
            promises = self.promises.get(drive)
            if held_s or promises is not None:
                a, b, c, d = promises or (0.0,) * 4
                figures[place] = (held_s, a, b, c, d)
            if (storage := self.last.drives[drive].storage) is not None:
                on.setdefault(storage, []).append(place)
        samples = [rates[at : at + count] for at in range(0, len(rates), count or 1)]
        return Minute(
            self.hour,
            0.0,
            self.seconds,
            len(self.values),
            [(self._key(drive), self._about(drive)) for drive in self.drives],
            buckets(rates),
            waits,
            array("f", [_highest(rates[place::count]) for place in range(count)]).tobytes(),
            figures,
            {_text(name): self._storage(name, places, samples) for name, places in on.items()},
        )

    def _key(self, drive: DriveId) -> DriveKey:
        uuid = self.uuids.get(drive.domain)
        return DriveKey(_text(uuid or f"name:{drive.domain}"), _text(drive.target))

    def _about(self, drive: DriveId) -> DriveAbout:
        known = self.last.drives[drive]
        policy = known.policy
        limit = policy.limit * budgets(policy) if policy and policy.limit is not None else None
        return DriveAbout(
            _text(drive.domain),
            self.uuids.get(drive.domain) or None,
            known.storage and _text(known.storage),
            known.tenant and _text(known.tenant),
            limit,
            policy.reservation if policy else 0,
            drive in self.last.above,
        )

    def _storage(
        self, name: StorageId, places: Sequence[int], samples: Sequence[array[float]]
    ) -> StorageMinute:
        sums = [sum(v for at in places if (v := rates[at]) == v) for rates in samples]  # not NaN
        known = self.last.storages.get(name)
        return StorageMinute(
            buckets(array("f", sums)),
            usable(known) if known else None,
            known.promised if known else 0.0,
            self.missed.get(name, 0.0),
            [
                (_text(drive.domain), _text(drive.target), more)
                for drive, more in self.takers.get(name, {}).items()
            ],
        )


def _highest(rates: array[float]) -> float:
    """Return the highest rate; 0 if none is known."""
    highest = max(rates)
    if highest == highest:
        return highest
    return max((rate for rate in rates if rate == rate), default=0.0)  # NaN: not known


def _text(name: str) -> str:
    """Return a name as SQLite can have it."""
    return name.encode(errors="replace").decode()


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
