"""What drives would have been held to, and how much more storages can promise, by the history.

A drive *would have been held* by a limit while its rate was at least FULL_RATIO of it: a bound
counts as full from there on, and so it counts as held when it really is (core/measure/demand.py).
What its requests would have done then isn't known. A guest that waits for each request before the
next one asks for less, and is held for as long or less; one whose requests come whatever happens
has them queued, and is held for longer. Credit for bursts isn't counted, so it can only be less.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from iokeel.core.measure.demand import FULL_RATIO
from iokeel.core.values.claimant import budgets
from iokeel.core.values.policy import DrivePolicy
from iokeel.report.records import DriveUse, RecommendReport, StorageUse
from iokeel.store.weeks import HOUR_S, DriveHour, DriveKey, Hour, StorageHour

_PARTS = (0.5, 0.95, 0.99, 1.0)
# Drives that are summed up before the ticks may go on, as in store/weeks.py.
_AT_A_TIME, _PAUSE_S = 10, 0.002


@dataclass(slots=True)
class _Sum:
    """A drive's hours together. seconds: how long it was recorded; last: its last hour."""

    use: DriveHour
    seconds: float = 0.0
    last: int = 0


@dataclass(slots=True)
class Sums:
    """Some hours together. seconds: how long was recorded; last: the last hour."""

    seconds: float = 0.0
    last: int = 0
    drives: dict[DriveKey, _Sum] = field(default_factory=dict)
    storages: dict[str, StorageHour] = field(default_factory=dict)

    def add(self, hour: Hour) -> None:
        """Add an hour; the earliest comes first."""
        self.seconds += hour.seconds
        self.last = hour.hour
        a_sample_s = hour.seconds / hour.samples if hour.samples else 0.0
        for key, use in hour.drives.items():
            known = self.drives.setdefault(key, _Sum(DriveHour(use.about)))
            known.use.merge(use)
            known.use.about = use.about
            known.seconds += a_sample_s * use.rates.total
            known.last = hour.hour
        for name, storage in hour.storages.items():
            self.storages.setdefault(name, StorageHour()).merge(storage)

    def uses(
        self, limits: Mapping[str, int], domains: Collection[str] = ()
    ) -> Iterator[tuple[DriveHour, DriveUse]]:
        """Yield all hours of each drive, and what it did in them; as `recommend` does."""
        for count, (key, one) in enumerate(self.drives.items(), 1):
            if not domains or one.use.about.domain in domains:
                yield one.use, _drive(key, one, limits, self.last)
            if count % _AT_A_TIME == 0:
                time.sleep(_PAUSE_S)

    def storage_uses(self) -> list[StorageUse]:
        """Return what storages did, by name."""
        return [_storage(name, self.storages[name]) for name in sorted(self.storages)]


def limits_of(classes: Mapping[str, DrivePolicy]) -> dict[str, int]:
    """Return the limits of classes by name, over both budgets; only of those with a limit."""
    return {
        name: policy.limit * budgets(policy)
        for name, policy in classes.items()
        if policy.limit is not None
    }


def recommend(
    hours: Iterable[Hour], limits: Mapping[str, int], domains: Collection[str] = ()
) -> RecommendReport:
    """Return what drives did in some hours, and for which part of them limits would have held them.

    limits: by name. domains: only VMs that have these names now; () for all. Takes long, and lets
    the ticks go on, so it is for a thread.
    """
    sums = Sums()
    for hour in hours:
        sums.add(hour)
    found = (use for _, use in sums.uses(limits, domains))
    return RecommendReport(
        seconds=sums.seconds,
        limits=dict(limits),
        drives=sorted(found, key=lambda use: (use.domain, use.target)),
        storages=sums.storage_uses(),
    )


def _drive(key: DriveKey, one: _Sum, limits: Mapping[str, int], last: int) -> DriveUse:
    use, about = one.use, one.use.about
    # A bucket's upper end may be above the highest rate in it.
    p50, p95, p99, _ = (min(part, use.peak_iops) for part in use.rates.quantiles(_PARTS))
    return DriveUse(
        domain=about.domain,
        target=key.target,
        uuid=about.uuid,
        storage=about.storage,
        tenant=about.tenant,
        seconds=one.seconds,
        until_s=None if one.last == last else (one.last + 1) * HOUR_S,
        p50_iops=p50,
        p95_iops=p95,
        p99_iops=p99,
        peak_iops=use.peak_iops,
        limit_iops=about.limit_iops,
        observed=about.observed,
        held_ratio=min(1.0, use.held_s / one.seconds) if one.seconds else 0.0,
        would_hold={
            name: use.rates.part_above(FULL_RATIO * limit) for name, limit in limits.items()
        },
    )


def _storage(name: str, storage: StorageHour) -> StorageUse:
    p50, p95, p99, peak = storage.rates.quantiles(_PARTS)
    usable = storage.usable_iops
    return StorageUse(
        storage=name,
        p50_iops=p50,
        p95_iops=p95,
        p99_iops=p99,
        peak_iops=peak,
        usable_iops=usable,
        reserved_iops=storage.reserved_iops,
        more_iops=None if usable is None else max(0.0, usable - p99),
        missed_s=storage.missed_s,
    )
