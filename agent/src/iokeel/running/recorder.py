"""Records the history of weeks beside the ticks: samples become minutes, and minutes hours.

Samples are those of the history of ten minutes. Each minute a thread counts them, and appends them
to a journal, from which the next agent goes on if this one is killed. The journal is beside the
socket, which is in memory on a host with systemd. It has the hour that isn't over; an hour that is
over is written to the file of weeks, once.

If the clock is set back, no hour is counted twice: one that has all its seconds takes no more. What
can't be written waits in memory, and is tried again each minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import glob
import heapq
import logging
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec

from iokeel.core.values.counters import NS_PER_S
from iokeel.errors import StateNotWritten
from iokeel.report.metrics.prometheus import Metrics
from iokeel.running.minutes import Minute, Samples, Seen
from iokeel.store.file import damaged, set_aside
from iokeel.store.histogram import Histogram
from iokeel.store.weeks import HOUR_S, DriveHour, Hour, LaterVersion, StorageHour, read, write
from iokeel.words.quoting import reason

log = logging.getLogger(__name__)

#: A killed agent forgets this much at most. What isn't seen for longer isn't counted.
MINUTE_S = 60.0
# An hour may have a sample more than its seconds.
_TOLERANCE_S = 5.0
# What waits in memory: minutes while a disk hangs, and hours while it is full.
_MOST_MINUTES, _MOST_HOURS = 60, 48
# Each has 8 MB for 1,000 drives. There is more than one only while hours can't be written.
_MOST_JOURNALS = 4
_LENGTH_BYTES = 4
_WITHOUT = "hours wait in memory"
_FORGETS = "an agent that is killed forgets the hour"
_MINUTE = msgspec.msgpack.Decoder(Minute)


class Recorder:
    """Records into a file, which keeps so many hours."""

    def __init__(self, file: Path, socket: Path, metrics: Metrics, keep_hours: int) -> None:
        """socket: the agent's; journals are beside it. keep_hours: 0 records nothing."""
        self.file = file
        self.keep_hours = keep_hours
        self._socket = socket
        self._metrics = metrics
        self._sampled_ns: int | None = None
        self._samples: Samples | None = None
        self._minutes: deque[Samples] = deque(maxlen=_MOST_MINUTES)
        self._recording: asyncio.Task[None] | None = None
        self._lock = threading.Lock()  # of the hours
        self._hours: deque[Hour] = deque(maxlen=_MOST_HOURS)  # the last one isn't over
        self._unread: set[int] = set()
        self._named: object = None  # the hour and the drives that a journal has named last
        self._told: set[Path] = set()
        self._is_new, self._has_file, self._off = True, False, False

    def sample(self, at_ns: int, now_s: float, seen: Seen) -> bool:
        """Take a sample. Return whether `record` is due.

        at_ns: the monotonic clock; now_s: the wall clock, in seconds since 1970.
        """
        if not self.keep_hours:
            return False
        last, self._sampled_ns = self._sampled_ns, at_ns
        seconds = min(MINUTE_S, (at_ns - last) / NS_PER_S) if last is not None else 0.0
        hour, names, samples = int(now_s) // HOUR_S, tuple(seen.drives), self._samples
        if samples is not None and (
            (samples.hour, samples.drives, samples.uuids) != (hour, names, seen.uuids)
            or samples.seconds >= MINUTE_S
        ):
            self._minutes.append(samples)
            samples = None
        if samples is None:
            before = self._samples
            first, kept = seen, {}
            if before is not None:
                first = before.last if before.drives == names else seen
                kept = {drive: was for drive, was in before.kept.items() if drive in seen.drives}
            samples = self._samples = Samples(hour, names, dict(seen.uuids), first, seen, kept)
        samples.add(seen, seconds)
        return bool(self._minutes)

    async def record(self) -> None:
        """Record the minutes that are over, in a thread. Returns at once if that goes on already.

        What can't be written is told once.
        """
        if self._recording is None or self._recording.done():
            self._recording = asyncio.create_task(asyncio.to_thread(self.record_now))
            await self._recording

    async def stop(self, timeout_s: float) -> None:
        """Record all there is. A disk that hangs isn't waited for."""
        self.finish()
        if self._recording is not None:
            await asyncio.wait([self._recording], timeout=timeout_s)
        if self._recording is None or self._recording.done():
            ending = asyncio.create_task(asyncio.to_thread(self.record_now, ends=True))
            await asyncio.wait([ending], timeout=timeout_s)

    def finish(self) -> None:
        """End the minute now."""
        if self._samples is not None:
            self._minutes.append(self._samples)
            self._samples = None

    def record_now(self, *, ends: bool = False) -> None:
        """Record the minutes that are over. ends: write the hour that isn't over, too."""
        if self._is_new:
            self._is_new = False
            self._go_on()
        while self._minutes:
            minute = self._minutes.popleft().minute()
            if not self._off and self._fold(minute):
                self._append(minute)
        if self._off:
            return
        try:
            self._write_hours(ends=ends)
        except LaterVersion as error:
            self._off = True
            mend = "nothing is recorded until that iokeel is back or the file is moved away"
            self._tell(self.file, f"{self.file}: stays as it is: {error}; {mend}")
        except sqlite3.OperationalError as error:
            self._tell(self.file, str(StateNotWritten(str(self.file), str(error), _WITHOUT)))
        except sqlite3.DatabaseError as error:
            set_aside(self.file)
            aside = f"it was set aside as {damaged(self.file).name}, and a new one is begun"
            self._tell(self.file, f"{self.file}: {error}; {aside}; see what damaged it")
        else:
            self._tell(self.file, None)

    def hours(self, since: int, until: int, *, waits: bool = False) -> Iterator[Hour]:
        """Yield hours, as `read` does, with those that aren't in the file yet.

        Raises sqlite3.Error.
        """
        ours = {}
        with self._lock:
            for hour in self._hours:
                if since <= hour.hour < until:
                    ours[hour.hour] = Hour(hour.hour)
                    ours[hour.hour].merge(hour)
        kept = (h for h in read(self.file, since, until, waits=waits) if h.hour not in ours)
        yield from heapq.merge(kept, ours.values(), key=lambda hour: hour.hour)

    # Hours

    def _fold(self, minute: Minute, *, again: bool = False) -> bool:
        """Add a minute to its hour; return False if that has all its seconds, or this minute.

        again: it comes from the journal.
        """
        assert minute.drives is not None
        with self._lock:
            hour = self._hour_of(minute.hour)
            if not again:
                minute.at_s = hour.seconds
            elif minute.at_s + minute.seconds <= hour.seconds + _TOLERANCE_S / 2:
                return False
            if hour.seconds + minute.seconds > HOUR_S + _TOLERANCE_S:
                return False
            hour.seconds += minute.seconds
            hour.samples += minute.samples
            rates, waits = (memoryview(each).cast("H") for each in (minute.rates, minute.waits))
            peaks = memoryview(minute.peaks).cast("f")
            for place, (key, about) in enumerate(minute.drives):
                drive = hour.drives.setdefault(key, DriveHour(about))
                drive.about = about
                drive.rates.add(rates[place :: len(minute.drives)])
                drive.peak_iops = max(drive.peak_iops, peaks[place])
                if waits:
                    drive.waits.add(waits[place :: len(minute.drives)])
                if (figures := minute.figures.get(place)) is not None:
                    drive.merge(DriveHour(about, Histogram(), Histogram(), 0.0, *figures))
            for name, found in minute.storages.items():
                one = StorageHour(
                    Histogram(),
                    found.usable_iops,
                    found.reserved_iops,
                    found.missed_s,
                    {(domain, target): more for domain, target, more in found.takers},
                )
                if found.takers:
                    one.most_s[max(found.takers, key=lambda taker: taker[2])[:2]] = found.missed_s
                one.rates.add(memoryview(found.rates).cast("H"))
                hour.storages.setdefault(name, StorageHour()).merge(one)
        return True

    def _hour_of(self, number: int) -> Hour:
        """Return an hour, which isn't over then."""
        found = next((each for each in self._hours if each.hour == number), None)
        if found is None:
            found = Hour(number)
            self._unread.add(number)
            with contextlib.suppress(sqlite3.Error):  # told when it is written
                self._reread(found)
        else:
            self._hours.remove(found)
        self._hours.append(found)
        return found

    def _reread(self, hour: Hour) -> None:
        """Add what the file has of an hour: it may have begun before the agent, or twice."""
        if hour.hour in self._unread:
            for before in [*read(self.file, hour.hour, hour.hour + 1, waits=True)]:
                if before.seconds + hour.seconds > HOUR_S + _TOLERANCE_S:
                    hour.seconds, hour.samples, hour.drives, hour.storages = 0.0, 0, {}, {}
                hour.merge(before)
            self._unread.discard(hour.hour)

    def _write_hours(self, *, ends: bool) -> None:
        """Write the hours that are over, or all of them at the end. Raises sqlite3.Error."""
        over = [*self._hours] if ends else [*self._hours][:-1]
        if (over or not self._has_file) and self._hours:
            with self._lock:
                for hour in over:
                    self._reread(hour)
            write(self.file, over, self.keep_hours, self._hours[-1].hour)
            self._has_file = True
            with self._lock:
                for hour in over:
                    self._hours.remove(hour)
            for hour in over:
                with contextlib.suppress(OSError):  # then the file has what it has
                    self._journal(hour.hour).unlink(missing_ok=True)

    # The journal

    def _journal(self, hour: int) -> Path:
        return self._socket.with_name(f"{self._socket.name}.{hour}.journal")

    def _journals(self) -> list[Path]:
        return sorted(self._socket.parent.glob(f"{glob.escape(self._socket.name)}.*.journal"))

    def _append(self, minute: Minute) -> None:
        """Append a minute to its hour's journal. What fails is told."""
        named = (minute.hour, minute.drives)
        if named == self._named:
            minute.drives = None
        data = msgspec.msgpack.encode(minute)
        path = self._journal(minute.hour)
        try:
            if not path.exists():
                for old in self._journals()[: 1 - _MOST_JOURNALS]:
                    old.unlink(missing_ok=True)
            with open(path, "ab", opener=_private) as file:
                begin = file.tell()
                try:
                    file.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
                    file.flush()
                except OSError:
                    file.truncate(begin)
                    raise
        except OSError as error:
            self._named = None
            failed = StateNotWritten(str(path.parent), reason(error), _FORGETS)
            self._tell(path.parent, str(failed))
        else:
            self._named = named
            self._tell(path.parent, None)

    def _go_on(self) -> None:
        """Take over what an agent that was killed has left in its journals."""
        for path in self._journals():
            with contextlib.suppress(OSError):
                for minute in _minutes_of(path):
                    self._fold(minute, again=True)

    def _tell(self, where: Path, text: str | None) -> None:
        """Log once that something can't be written, or that it could be again."""
        if text is not None:
            self._metrics.errors["store"] += 1
            if where not in self._told:
                log.error("%s", text)
            self._told.add(where)
        elif where in self._told:
            self._told.discard(where)
            log.info("%s: the history is written again", where)


def _minutes_of(path: Path) -> Iterator[Minute]:
    """Yield the minutes of a journal, and cut off the end of one that a kill has left half done.

    Raises OSError.
    """
    drives = None
    with path.open("rb+") as file:
        while True:
            begin = file.tell()
            length = int.from_bytes(file.read(_LENGTH_BYTES), "big")
            try:
                minute = _MINUTE.decode(file.read(length))
            except msgspec.MsgspecError:
                file.truncate(begin)
                return
            drives = minute.drives = drives if minute.drives is None else minute.drives
            if drives is not None:
                yield minute


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
