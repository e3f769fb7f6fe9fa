"""The report of weeks: what people should know of them, in the order of what to do about it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from iokeel.core.measure.demand import FULL_RATIO
from iokeel.report.recommend import Sums
from iokeel.report.records import DriveUse, SectionReport, StoragePlot, StorageUse, WeeksReport
from iokeel.store.weeks import HOUR_S, DriveHour, Hour, StorageHour
from iokeel.words.quoting import shown_path
from iokeel.words.units import duration, iops, percent, percent_kept, rate

# A page for people: the rows of a table, and the plots.
_MOST_ROWS = 10
# "Always" at the limit is for more than this part of the time, and "never near it" is less than
# this part of it.
_HALF = 0.5
# What isn't recorded for less isn't told.
_MINUTE_S = 60


def weeks_report(hours: Iterable[Hour], since: int, until: int) -> WeeksReport:
    """Return the report of the hours from `since` to before `until`, which isn't over.

    Takes long, and lets the ticks go on, so it is for a thread.
    """
    sums, recorded_s = Sums(), dict[int, float]()
    by_hour: dict[str, dict[int, StorageHour]] = {}
    for hour in hours:
        sums.add(hour)
        recorded_s[hour.hour] = hour.seconds
        for name, one in hour.storages.items():
            by_hour.setdefault(name, {})[hour.hour] = one
    first = min(recorded_s, default=since)
    notes = _lacks(recorded_s, since, until)
    drives = [*sums.uses({})]
    if gone := sum(use.until_s is not None for _, use in drives):
        there = f"{_drives(gone)} left this host in that time"
        notes.append(f"{there}: limits are judged only of those that are here")
    here = [use for _, use in drives if use.until_s is None and use.limit_iops is not None]
    storages = sorted(sums.storage_uses(), key=_full, reverse=True)
    return WeeksReport(
        span=f"since {_time(first)}; recorded: {duration(sums.seconds)}",
        since_s=first * HOUR_S,
        until_s=until * HOUR_S,
        notes=notes,
        sections=[
            _neighbours(sums),
            _at_limit(here),
            _promises(drives),
            _storages(storages),
            _far_below(here),
        ]
        if recorded_s
        else [],
        plots=[
            _plot(storage, by_hour[storage.storage], first, until)
            for storage in storages[:_MOST_ROWS]
        ],
    )


def _lacks(recorded_s: dict[int, float], since: int, until: int) -> list[str]:
    """Return what the history lacks; of the first hour and the last one, nothing is asked."""
    if not recorded_s:
        return ["no history yet: it begins a minute after the agent's start"]
    notes = []
    if (first := min(recorded_s)) > since:
        notes.append(f"there is no history from before {_time(first)}")
    off_s = sum(HOUR_S - recorded_s.get(hour, 0.0) for hour in range(first + 1, until - 1))
    if off_s >= _MINUTE_S:
        off = f"{duration(off_s)} of that time were not recorded"
        notes.append(f"{off}, for example because the agent was off")
    return notes


def _neighbours(sums: Sums) -> SectionReport:
    """Tell who took most while promises were missed."""
    slow = {name: one for name, one in sums.storages.items() if one.missed_s}
    most = [
        (seconds, drive, name, one)
        for name, one in slow.items()
        for drive, seconds in one.most_s.items()
        if seconds
    ]
    most.sort(key=lambda taker: taker[0], reverse=True)
    finding = "No promise was missed."
    if most:
        seconds, drive, name, one = most[0]
        finding = (
            f"{_name(*drive)} took most above what it was owed in"
            f" {_part_of(seconds, one.missed_s)} in which promises on {shown_path(name)} were"
            " missed."
        )
    elif slow:
        name = max(slow, key=lambda name: slow[name].missed_s)
        finding = (
            f"Promises on {shown_path(name)} were missed for {duration(slow[name].missed_s)}, and"
            " nobody took more than it was owed."
        )
    rows = [
        [
            *drive,
            name,
            rate(seconds / 60),
            rate(one.missed_s / 60),
            percent(min(1.0, seconds / one.missed_s)),
            rate(one.takers.get(drive, 0.0) / one.missed_s),
        ]
        for seconds, drive, name, one in most
    ]
    headings = ["VM", "drive", "storage", "minutes", "of missed", "part", "above, iops"]
    return _section("Noisy neighbours", finding, headings, rows)


def _at_limit(here: Sequence[DriveUse]) -> SectionReport:
    """Tell which drives were held; first those that were sold too little."""
    held = [use for use in here if use.held_ratio]
    held.sort(key=lambda use: (_sold_too_little(use), use.held_ratio), reverse=True)
    sold = sum(map(_sold_too_little, held))
    finding = "No drive was held." if here else "No drive has a limit."
    if held:
        use = held[0]
        longest = f"{_name(use.domain, use.target)} was held longest, for {_time_part(use)}."
        finding = f"No drive was at its limit for more than half of the time. {longest}"
        if sold:
            was = "would have been" if use.observed else "was"
            finding = (
                f"{_name(use.domain, use.target)} was sold too little: it {was} at its limit of"
                f" {iops(use.limit_iops or 0)} for {_time_part(use)}."
            )
        if sold > 1:
            finding += f" So were {sold - 1} more, for more than half of the time."
    rows = [
        [
            *(use.domain, use.target),
            use.storage or "-",
            *map(rate, (use.limit_iops or 0, use.p50_iops, use.p95_iops, use.peak_iops)),
            percent(use.held_ratio) + (" (observed)" if use.observed else ""),
        ]
        for use in held
    ]
    headings = ["VM", "drive", "storage", "limit", "p50", "p95", "peak", "held"]
    return _section("Drives at their limit", finding, headings, rows)


def _sold_too_little(use: DriveUse) -> bool:
    """Return whether a drive was always held by its own limit, not by what its storage could do."""
    return use.held_ratio > _HALF and use.p95_iops >= FULL_RATIO * (use.limit_iops or 0)


def _promises(drives: Sequence[tuple[DriveHour, DriveUse]]) -> SectionReport:
    """Tell which promises were kept, and which were missed."""
    found = []
    for did, use in drives:
        missed_s = did.reservation_missed_s + did.latency_missed_s
        known_s = missed_s + did.reservation_kept_s + did.latency_kept_s
        if known_s:
            found.append((missed_s, known_s, did, use))
    found.sort(key=lambda one: one[0], reverse=True)
    finding = "No drive was promised a reservation or a latency target."
    if found:
        missed_s, _, _, use = found[0]
        kept = 1 - sum(one[0] for one in found) / sum(one[1] for one in found)
        finding = f"All promises to {_drives(len(found))} were kept."
        if missed_s:
            finding = (
                f"Promises were kept for {percent_kept(kept)} of the time. Those to"
                f" {_name(use.domain, use.target)} were missed longest, for {duration(missed_s)}."
            )
    rows = [
        [
            *(use.domain, use.target),
            use.storage or "-",
            _missed(did.reservation_kept_s, did.reservation_missed_s),
            _missed(did.latency_kept_s, did.latency_missed_s),
            percent_kept(1 - missed_s / known_s),
        ]
        for missed_s, known_s, did, use in found
    ]
    headings = ["VM", "drive", "storage", "reservation missed", "latency missed", "kept"]
    return _section("Promises", finding, headings, rows)


def _missed(kept_s: float, missed_s: float) -> str:
    return duration(missed_s) if kept_s or missed_s else "-"


def _storages(storages: Sequence[StorageUse]) -> SectionReport:
    """Tell how full storages were, the fullest one first."""
    finding = "No storage's capacity is known; `iokeel calibrate` measures it."
    if storages and storages[0].usable_iops:
        finding = (
            f"{shown_path(storages[0].storage)} was fullest: for 95 % of the time, its drives did"
            f" {percent(_full(storages[0]))} of what it can serve, or less."
        )
    rows = [
        [
            one.storage,
            *map(rate, (one.p50_iops, one.p95_iops, one.peak_iops)),
            rate(one.usable_iops) if one.usable_iops is not None else "-",
            percent(_full(one)) if one.usable_iops else "-",
            duration(one.missed_s) if one.missed_s else "-",
        ]
        for one in storages
    ]
    headings = ["storage", "p50", "p95", "peak", "usable", "full", "missed"]
    return _section("Storages", finding, headings, rows)


def _full(storage: StorageUse) -> float:
    return storage.p95_iops / storage.usable_iops if storage.usable_iops else 0.0


def _plot(
    storage: StorageUse, hours: dict[int, StorageHour], first: int, until: int
) -> StoragePlot:
    found = [hours.get(hour) for hour in range(first, until)]
    return StoragePlot(
        storage=storage.storage,
        p95_iops=[None if one is None else one.rates.quantiles([0.95])[0] for one in found],
        missed_s=[one.missed_s if one else 0.0 for one in found],
        usable_iops=storage.usable_iops,
    )


def _far_below(here: Sequence[DriveUse]) -> SectionReport:
    """Tell which drives could do with less."""
    found = [
        (use.limit_iops, use)
        for use in here
        if use.limit_iops is not None and use.peak_iops < _HALF * use.limit_iops
    ]
    found.sort(key=lambda one: one[0] - one[1].peak_iops, reverse=True)
    finding = (
        "Each drive with a limit did half of it, or more." if here else "No drive has a limit."
    )
    if found:
        finding = f"{len(found)} of {_drives(len(here))} with a limit never did half of it."
    rows = [
        [
            *(use.domain, use.target),
            use.storage or "-",
            *map(rate, (limit, use.p95_iops, use.peak_iops)),
            percent(use.peak_iops / limit),
        ]
        for limit, use in found
    ]
    headings = ["VM", "drive", "storage", "limit", "p95", "peak", "used at most"]
    return _section("Drives far below their limit", finding, headings, rows)


def _section(
    title: str, finding: str, headings: list[str], rows: Sequence[list[str]]
) -> SectionReport:
    if more := len(rows[_MOST_ROWS:]):
        finding += f" The first {_MOST_ROWS} are shown, and {more} are not."
    return SectionReport(title=title, finding=finding, headings=headings, rows=[*rows[:_MOST_ROWS]])


def _name(domain: str, target: str) -> str:
    return shown_path(f"{domain}/{target}")


def _drives(count: int) -> str:
    return f"{count} drive{'' if count == 1 else 's'}"


def _time_part(use: DriveUse) -> str:
    return f"{percent(use.held_ratio)} of the time"


def _part_of(part_s: float, whole_s: float) -> str:
    """Return how much of a time it is: 312 of the 340 minutes."""
    unit_s, unit = (60, "minutes") if whole_s >= 2 * _MINUTE_S else (1, "seconds")
    return f"{min(part_s, whole_s) / unit_s:.0f} of the {whole_s / unit_s:.0f} {unit}"


def _time(hour: int) -> str:
    """Return an hour's begin, in local time."""
    return time.strftime("%b %d %H:%M", time.localtime(hour * HOUR_S))
