"""The history of weeks: what each drive and storage did in each hour, in a SQLite file.

An hour is one of the wall clock's, as a number: 3,600 s since 1970 each. The file has a table for
each kind of row, so `sqlite3` reads it too; histograms are packed (histogram.py). Rows of an hour
are written together, which appends to the file. It has no log beside it, because that would be
written twice.
"""

from __future__ import annotations

import contextlib
import heapq
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from iokeel.store.file import readable, told_as_damage
from iokeel.store.histogram import Histogram

HOUR_S = 3600
#: As in the state file (store.py): it only grows if an older agent can't go on with the file.
VERSION = 1
# Of a drive's histograms. With its other columns a row has 178 bytes at most, or 30 KB a week.
_RATES_BYTES, _WAITS_BYTES = 80, 28
# Of the histogram of a storage, of which there are few.
_SUMS_BYTES = 400
#: A storage's drives that took most above what they were owed, of an hour.
MOST_TAKERS = 5
# Rows that are read and written before the ticks may go on: a thread that computes holds them up.
# Each takes 15 and 200 us.
_READ_AT_ONCE, _WRITTEN_AT_ONCE = 200, 20
_PAUSE_S = 0.002


class DriveKey(NamedTuple):
    """A drive over renames of its VM: the VM's UUID, or "name:NAME" without one, and the target."""

    vm: str
    target: str


class DriveAbout(NamedTuple):
    """What is known of a drive beside its hours, as of the last of these.

    domain: its VM's name. uuid: None if it has none. limit_iops: of its policy, over both budgets;
    None: no limit. observed: its policy was only observed.
    """

    domain: str
    uuid: str | None
    storage: str | None
    tenant: str | None
    limit_iops: int | None
    reservation_iops: int
    observed: bool = False


@dataclass(slots=True)
class DriveHour:
    """What a drive did in an hour, or in several.

    rates: its normalized rates, sampled every two seconds. waits: mean waits for the throttle, in
    seconds; empty unless its QEMU counts them. peak_iops: the highest of the rates. held_s: how
    long its limits held it, in seconds; if it is only observed, how long it did more than they
    would have let through. *_kept_s, *_missed_s: how long its reservation and its latency target
    were kept, and missed; neither while it isn't known.
    """

    about: DriveAbout
    rates: Histogram = field(default_factory=Histogram)
    waits: Histogram = field(default_factory=Histogram)
    peak_iops: float = 0.0
    held_s: float = 0.0
    reservation_kept_s: float = 0.0
    reservation_missed_s: float = 0.0
    latency_kept_s: float = 0.0
    latency_missed_s: float = 0.0

    def merge(self, other: DriveHour) -> None:
        """Add what it did in another hour, or in another part of this one. `about` stays."""
        self.rates.merge(other.rates)
        self.waits.merge(other.waits)
        self.peak_iops = max(self.peak_iops, other.peak_iops)
        self.held_s += other.held_s
        self.reservation_kept_s += other.reservation_kept_s
        self.reservation_missed_s += other.reservation_missed_s
        self.latency_kept_s += other.latency_kept_s
        self.latency_missed_s += other.latency_missed_s


@dataclass(slots=True)
class StorageHour:
    """What a storage did in an hour, or in several.

    rates: the sums of its drives' normalized rates at a time, sampled every two seconds.
    usable_iops: the least that its drives could share; None if it wasn't known. reserved_iops: the
    most that was reserved. missed_s: how long a promise on it was missed, in seconds. takers: what
    drives took in that time above what they were owed, in normalized operations, by VM's name and
    target; of an hour in the file, the MOST_TAKERS that took most. most_s: how much of that time
    was in minutes in which a drive took more than the others did.
    """

    rates: Histogram = field(default_factory=Histogram)
    usable_iops: float | None = None
    reserved_iops: float = 0.0
    missed_s: float = 0.0
    takers: dict[tuple[str, str], float] = field(default_factory=dict)
    most_s: dict[tuple[str, str], float] = field(default_factory=dict)

    def merge(self, other: StorageHour) -> None:
        """Add what it did in another hour, or in another part of this one."""
        self.rates.merge(other.rates)
        usable = [each for each in (self.usable_iops, other.usable_iops) if each is not None]
        self.usable_iops = min(usable, default=None)
        self.reserved_iops = max(self.reserved_iops, other.reserved_iops)
        self.missed_s += other.missed_s
        for ours, others in ((self.takers, other.takers), (self.most_s, other.most_s)):
            for drive, more in others.items():
                ours[drive] = ours.get(drive, 0.0) + more


@dataclass(slots=True)
class Hour:
    """An hour. seconds: how long was recorded of it; samples: how many there were."""

    hour: int
    seconds: float = 0.0
    samples: int = 0
    drives: dict[DriveKey, DriveHour] = field(default_factory=dict)
    storages: dict[str, StorageHour] = field(default_factory=dict)

    def merge(self, other: Hour) -> None:
        """Add another part of this hour. What is known of the drives stays as it is here."""
        self.seconds += other.seconds
        self.samples += other.samples
        for key, drive in other.drives.items():
            self.drives.setdefault(key, DriveHour(drive.about)).merge(drive)
        for name, storage in other.storages.items():
            self.storages.setdefault(name, StorageHour()).merge(storage)


class LaterVersion(sqlite3.DatabaseError):
    """A later iokeel wrote the file."""


_TAKERS = msgspec.json.Decoder(list[tuple[str, str, float, float]])
# SQLite keeps any type in any column, so one row of a damaged file may differ from the others.
_UNUSABLE = (ValueError, TypeError, KeyError, OverflowError)
_Drive: TypeAlias = tuple[DriveKey, Sequence[Any]]
# The lowest bits of hour_and_drive are the drive's id. SQLite fills pages best if rows of a table
# with one number as their key are appended.
_MOST_DRIVES = (1 << 24) - 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS hours (hour INTEGER PRIMARY KEY, seconds REAL, samples INTEGER);
CREATE TABLE IF NOT EXISTS drives (
    id INTEGER PRIMARY KEY, vm TEXT, target TEXT, domain TEXT, uuid TEXT, storage TEXT, tenant TEXT,
    UNIQUE (vm, target)
);
CREATE TABLE IF NOT EXISTS drive_hours (
    hour_and_drive INTEGER PRIMARY KEY, rates BLOB, waits BLOB, peak_iops INTEGER, held_s INTEGER,
    reservation_kept_s INTEGER, reservation_missed_s INTEGER,
    latency_kept_s INTEGER, latency_missed_s INTEGER,
    limit_iops INTEGER, reservation_iops INTEGER, observed INTEGER
);
CREATE TABLE IF NOT EXISTS storage_hours (
    hour INTEGER, storage TEXT, rates BLOB, usable_iops INTEGER, reserved_iops INTEGER,
    missed_s INTEGER, takers TEXT,
    PRIMARY KEY (hour, storage)
) WITHOUT ROWID;
"""
_PUT_DRIVE = """
INSERT INTO drives (vm, target, domain, uuid, storage, tenant) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (vm, target) DO UPDATE
SET domain = excluded.domain, storage = excluded.storage, tenant = excluded.tenant
WHERE (domain, storage, tenant) IS NOT (excluded.domain, excluded.storage, excluded.tenant)
"""
_FORGET_DRIVES = f"""
DELETE FROM drives
WHERE id NOT IN (SELECT DISTINCT hour_and_drive & {_MOST_DRIVES} FROM drive_hours)
"""
_INSERT_DRIVE_HOUR = f"INSERT INTO drive_hours VALUES ({', '.join('?' * 12)})"
_DRIVE_HOURS = f"""
SELECT hour_and_drive & {_MOST_DRIVES}, limit_iops, reservation_iops, observed, rates,
    CASE WHEN ? THEN waits END, peak_iops, held_s,
    reservation_kept_s, reservation_missed_s, latency_kept_s, latency_missed_s
FROM drive_hours WHERE hour_and_drive BETWEEN ? AND ?
"""


def read(file: Path, since: int, until: int, *, waits: bool = False) -> Iterator[Hour]:
    """Yield the hours from `since` to before `until`, the earliest first; only those recorded.

    waits: with the drives' waits, which take as long as the rest. Rows that can't be used are left
    out. It lets the ticks go on, so it is for a thread. A file that isn't there has no hours.
    Raises sqlite3.Error, and LaterVersion.
    """
    if not file.exists():
        return
    with _opened(file, writes=False) as database:
        [[version]] = database.execute("PRAGMA user_version")
        if not version:  # a full disk let it be made, but not its tables
            return
        found = database.execute(
            "SELECT hour FROM hours WHERE hour >= ? AND hour < ? ORDER BY hour", (since, until)
        ).fetchall()
        known = database.execute(
            "SELECT id, vm, target, domain, uuid, storage, tenant FROM drives"
        ).fetchall()
        drives = {number: (DriveKey(*about[:2]), about[2:]) for number, *about in known}
        for (hour,) in found:
            one = _hour(database, hour, drives, waits=waits)
            if one is not None:
                yield one


def write(file: Path, hours: Iterable[Hour], keep: int, now: int) -> None:
    """Write hours in place of what the file has of them.

    keep: the most hours that it keeps. Those that are nearest to `now` stay, so a clock that is set
    wrong for a while costs no more hours than it has been so. Raises sqlite3.Error, and
    LaterVersion.
    """
    with _opened(file, writes=True) as database:
        for hour in hours:
            _put(database, hour)
        gone = database.execute(
            "SELECT hour FROM hours ORDER BY abs(hour - ?) LIMIT -1 OFFSET ?", (now, keep)
        ).fetchall()
        for (hour,) in gone:
            database.execute("DELETE FROM hours WHERE hour = ?", (hour,))
            _clear(database, hour)
        if gone:
            database.execute(_FORGET_DRIVES)


@contextlib.contextmanager
def _opened(file: Path, *, writes: bool) -> Iterator[sqlite3.Connection]:
    """Open the file, and a transaction if it `writes`."""
    mode = "rwc" if writes else "ro"
    with told_as_damage():
        database = sqlite3.connect(f"{file.absolute().as_uri()}?mode={mode}", uri=True)
        try:
            database.text_factory = readable
            [[version]] = database.execute("PRAGMA user_version")
            if version > VERSION:
                what = f"a later iokeel wrote it: it has version {version}"
                raise LaterVersion(f"{what}, and this one knows {VERSION}")
            if writes and version < VERSION:
                database.executescript(f"{_SCHEMA} PRAGMA user_version = {VERSION};")
            with database:
                yield database
        finally:
            database.close()


def _put(database: sqlite3.Connection, hour: Hour) -> None:
    abouts = [
        (*key, drive.about.domain, drive.about.uuid, drive.about.storage, drive.about.tenant)
        for key, drive in hour.drives.items()
    ]
    database.executemany(_PUT_DRIVE, abouts)
    found = database.execute("SELECT vm, target, id FROM drives")
    ids = {DriveKey(vm, target): number for vm, target, number in found}
    rows = []
    for count, key in enumerate(sorted(hour.drives, key=lambda key: ids[key]), 1):
        rows.append(_drive_row(hour.hour, ids[key], hour.drives[key]))
        if count % _WRITTEN_AT_ONCE == 0:
            time.sleep(_PAUSE_S)
    _clear(database, hour.hour)
    database.executemany(_INSERT_DRIVE_HOUR, rows)
    database.executemany(
        "INSERT INTO storage_hours VALUES (?, ?, ?, ?, ?, ?, ?)",
        [_storage_row(hour.hour, name, storage) for name, storage in hour.storages.items()],
    )
    database.execute(
        "INSERT OR REPLACE INTO hours VALUES (?, ?, ?)",
        (hour.hour, round(hour.seconds, 1), hour.samples),
    )


def _clear(database: sqlite3.Connection, hour: int) -> None:
    """Remove what drives and storages did in an hour."""
    database.execute("DELETE FROM storage_hours WHERE hour = ?", (hour,))
    database.execute("DELETE FROM drive_hours WHERE hour_and_drive BETWEEN ? AND ?", _keys(hour))


def _keys(hour: int) -> tuple[int, int]:
    """Return the first and the last hour_and_drive of an hour."""
    return hour * (_MOST_DRIVES + 1), hour * (_MOST_DRIVES + 1) + _MOST_DRIVES


def _drive_row(hour: int, number: int, drive: DriveHour) -> tuple[object, ...]:
    about = drive.about
    first, _ = _keys(hour)
    return (
        first + number,
        drive.rates.pack(_RATES_BYTES),
        drive.waits.pack(_WAITS_BYTES) if drive.waits.total else None,
        round(drive.peak_iops),
        round(drive.held_s),
        round(drive.reservation_kept_s),
        round(drive.reservation_missed_s),
        round(drive.latency_kept_s),
        round(drive.latency_missed_s),
        about.limit_iops,
        about.reservation_iops,
        int(about.observed),
    )


def _drive_hour(
    about: Sequence[Any],
    limit_iops: int | None,
    reservation_iops: int,
    observed: int,
    rates: bytes,
    waits: bytes | None,
    *figures: float,
) -> DriveHour:
    """Return a row of _DRIVE_HOURS. Raises one of _UNUSABLE."""
    domain, uuid, storage, tenant = about
    return DriveHour(
        DriveAbout(domain, uuid, storage, tenant, limit_iops, reservation_iops, bool(observed)),
        Histogram.unpack(rates),
        Histogram() if waits is None else Histogram.unpack(waits),
        *map(float, figures),
    )


def _storage_row(hour: int, name: str, storage: StorageHour) -> tuple[object, ...]:
    usable = storage.usable_iops
    most = heapq.nlargest(MOST_TAKERS, storage.takers.items(), key=lambda taker: taker[1])
    takers = [
        (*drive, round(operations), round(storage.most_s.get(drive, 0.0)))
        for drive, operations in most
    ]
    return (
        hour,
        name,
        storage.rates.pack(_SUMS_BYTES),
        None if usable is None else round(usable),
        round(storage.reserved_iops),
        round(storage.missed_s),
        msgspec.json.encode(takers).decode(),
    )


def _hour(
    database: sqlite3.Connection, number: int, drives: Mapping[int, _Drive], *, waits: bool
) -> Hour | None:
    """Return an hour of the file; None if its row can't be used."""
    hour = Hour(number)
    for seconds, samples in database.execute(
        "SELECT seconds, samples FROM hours WHERE hour = ?", (number,)
    ):
        if not (isinstance(seconds, float) and isinstance(samples, int)):
            return None
        hour.seconds, hour.samples = seconds, samples
    rows = database.execute(_DRIVE_HOURS, (waits, *_keys(number))).fetchall()
    for count, row in enumerate(rows, 1):
        with contextlib.suppress(*_UNUSABLE):
            key, about = drives[row[0]]
            hour.drives[key] = _drive_hour(about, *row[1:])
        if count % _READ_AT_ONCE == 0:
            time.sleep(_PAUSE_S)
    for name, rates, usable, reserved, missed, takers in database.execute(
        "SELECT storage, rates, usable_iops, reserved_iops, missed_s, takers"
        " FROM storage_hours WHERE hour = ?",
        (number,),
    ):
        with contextlib.suppress(*_UNUSABLE):
            most = _TAKERS.decode(takers)
            hour.storages[name] = StorageHour(
                Histogram.unpack(rates),
                None if usable is None else float(usable),
                float(reserved),
                float(missed),
                {(vm, target): operations for vm, target, operations, _ in most},
                {(vm, target): seconds for vm, target, _, seconds in most},
            )
    return hour
