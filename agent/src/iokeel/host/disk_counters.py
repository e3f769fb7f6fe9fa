"""The counters of the host's block devices (/proc/diskstats), and the host's pressure for I/O.

One reading a tick serves all storages. A storage without a device of this host, such as one over
a network, has no counters here; only its guests know its load.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from iokeel.core.values.storage import Place, StorageCounters, StorageId
from iokeel.host.kernel import number_of, read_text

log = logging.getLogger(__name__)

_NS_PER_MS = 1_000_000
# Fields of a line after the name (Documentation/admin-guide/iostats.rst).
_READS, _READ_SECTORS, _READ_MS, _WRITES, _WRITE_SECTORS, _WRITE_MS = 0, 2, 3, 4, 6, 7
_IN_FLIGHT, _BUSY_MS = 8, 9
_SECTOR_BYTES = 512
_FIELDS = 11
_BLANKS = re.compile(" +")
# No device has more requests in flight. Some kernels have shown 2^32 - 1 for none.
_MOST_IN_FLIGHT = 1 << 24
# What guests write reaches the device within 30 s, by Linux' defaults, whatever caches it
# (vm.dirty_expire_centisecs). So its counters stand still if they show none of so many writes.
_STILL_NS, _STILL_WRITES = 60_000_000_000, 100
# So many requests take a millisecond together on any device, the kernel's unit.
_TIMED_REQUESTS = 10_000


@dataclass(frozen=True, slots=True)
class Pressure:
    """Parts of the last 10 s in which some or all of the host's tasks waited for I/O, 0 to 1."""

    some_ratio: float
    full_ratio: float


class _Still(NamedTuple):
    """A device's writes and those of the guests on it, when the first were last seen to change."""

    at_ns: int
    writes: int
    guests_writes: int


class DiskStats:
    """Reads the counters of storages' devices.

    A device has none here if they can't be trusted: they are off, stand still or measure no time.
    The log says so once, and once that a device has vanished or counts anew, until it counts again.
    """

    def __init__(self, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> None:
        self._file = proc / "diskstats"
        self._sys = sys
        self._before: dict[str, str] = {}
        self._last: dict[str, StorageCounters] = {}
        self._still: dict[str, _Still] = {}
        self._told: set[str] = set()

    def read(
        self, devices: Mapping[StorageId, Place], writes: Mapping[StorageId, int] | None = None
    ) -> dict[StorageId, StorageCounters]:
        """Return the counters of the storages whose devices count.

        writes: how many each storage's guests have done so far, at least.
        """
        wanted = {place.number: place.name for place in devices.values() if place.number}
        if not wanted:
            return {}
        try:
            text = self._file.read_bytes().decode(errors="surrogateescape")
        except OSError as error:
            self._tell(str(self._file), f"can't be read ({error.strerror})")
            return {}
        at_ns = time.monotonic_ns()
        by_guests: Counter[str] = Counter()
        for name, count in (writes or {}).items():
            if name in devices and (number := devices[name].number) is not None:
                by_guests[number] += count
        lines: dict[str, str] = {}
        found: dict[str | None, StorageCounters] = {}
        for line in text.split("\n"):  # a name may have any other character that ends lines
            major, minor, device, rest = (_BLANKS.split(line.lstrip(" "), 3) + [""] * 4)[:4]
            number = f"{major}:{minor}"
            if number in wanted and (counters := _counters(rest, at_ns)) is not None:
                lines[number] = rest
                changed = rest != self._before.get(number)
                if (changed or self._counts(number, device)) and self._is_sound(
                    number, device, counters, by_guests[number]
                ):
                    found[number] = counters
                    self._told.discard(device)
        for number in self._last.keys() - lines.keys():
            del self._last[number]
            self._still.pop(number, None)
            if number in wanted:
                self._tell(wanted[number], "has vanished from /proc/diskstats; see dmesg")
        self._before = lines
        return {name: found[p.number] for name, p in devices.items() if p.number in found}

    def _is_sound(
        self, number: str, device: str, counters: StorageCounters, guests_writes: int
    ) -> bool:
        """Return whether a device's counters can be what it does, and tell if not.

        One that counts anew is told too. Its first reading is as good as any.
        """
        before = self._last.get(number)
        self._last[number] = counters
        if before is not None and (
            counters.read_requests < before.read_requests
            or counters.write_requests < before.write_requests
        ):
            log.warning(
                "%s: its counters have gone back, as of another device of that number; its latency"
                " is unknown until the next tick",
                device,
            )
        requests = counters.read_requests + counters.write_requests
        if requests >= _TIMED_REQUESTS and counters.read_time_ns + counters.write_time_ns == 0:
            self._tell(device, f"its counters show {requests} requests but no time of any")
            return False
        still = self._still.get(number)
        if still is None or counters.write_requests != still.writes:
            now = _Still(counters.at_ns, counters.write_requests, guests_writes)
            self._still[number] = still = now
        unseen = guests_writes - still.guests_writes
        if unseen >= _STILL_WRITES and counters.at_ns - still.at_ns >= _STILL_NS:
            self._tell(device, f"its counters stand still, though guests have done {unseen} writes")
            return False
        return True

    def _counts(self, number: str, device: str) -> bool:
        """Return True if a device counts, which its counters don't show while they stand still."""
        # A partition has no such file, nor has a device that has just gone.
        off = read_text(self._sys / "dev/block" / number / "queue/iostats") == "0"
        if off:
            switch = f"/sys/block/{device}/queue/iostats"
            self._tell(device, f"its counters are off; echo 1 >{switch} turns them on")
        return not off

    def _tell(self, where: str, what: str) -> None:
        if where not in self._told:
            self._told.add(where)
            log.warning("%s: %s; until then its latency is unknown", where, what)


def read_pressure(proc: Path = Path("/proc")) -> Pressure | None:
    """Return the host's pressure for I/O (PSI); None if its kernel doesn't tell."""
    # None if it is not built in, or switched off (EOPNOTSUPP).
    text = read_text(proc / "pressure/io") or ""
    percent = dict(re.findall(r"^(some|full) avg10=([0-9]{1,3}\.[0-9]+) ", text, re.MULTILINE))
    if percent.keys() != {"some", "full"}:
        return None
    return Pressure(float(percent["some"]) / 100, float(percent["full"]) / 100)


def _counters(rest: str, at_ns: int) -> StorageCounters | None:
    """Return the counters in a line; None if it makes no sense."""
    fields = rest.split(None, _FIELDS)
    numbers = [n for field in fields[:_FIELDS] if (n := number_of(field)) is not None]
    if len(numbers) < _FIELDS or numbers[_IN_FLIGHT] > _MOST_IN_FLIGHT:
        return None
    return StorageCounters(
        at_ns,
        numbers[_READS],
        numbers[_READ_MS] * _NS_PER_MS,
        numbers[_WRITES],
        numbers[_WRITE_MS] * _NS_PER_MS,
        numbers[_IN_FLIGHT],
        numbers[_BUSY_MS] * _NS_PER_MS,
        numbers[_READ_SECTORS] * _SECTOR_BYTES,
        numbers[_WRITE_SECTORS] * _SECTOR_BYTES,
    )
