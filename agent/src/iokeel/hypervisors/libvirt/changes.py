"""Domains to be read again: those that have changed, and those whose counters don't come.

libvirt skips a domain that another call keeps busy, and says as little of a QEMU that refuses to
tell its counters.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from weakref import WeakValueDictionary

from iokeel.hypervisors.pace import Pace

# As many as have threads (calls.py). One that hangs must not delay the next, so it counts once.
_AT_ONCE = 64
log = logging.getLogger(__name__)

#: Longer than most calls keep a domain busy.
LATE_S = 60.0


class Changes:
    """Has domains read that have changed: at once, unless they change all the time.

    A domain that changes several times before it is read is read once. So a QEMU that sends events
    without end has its domain read once a second, and no other waits for that.

    read: reads a domain, and raises nothing.
    """

    def __init__(self, read: Callable[[str], Awaitable[None]]) -> None:
        self._read = read
        self._stale: set[str] = set()
        self._due: deque[str] = deque()  # those that needn't wait any more
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()  # those that are due while they are being read
        self._is_followed = False
        self._reading: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._pace = Pace()

    def add(self, name: str) -> None:
        """Have a domain read soon."""
        if name in self._stale:
            return
        self._stale.add(name)
        if wait_s := self._pace.wait_s(name):
            asyncio.get_running_loop().call_later(wait_s, self._put, name)
        else:
            self._put(name)

    def forget(self, name: str) -> None:
        """Note that a domain has gone."""
        self._pace.forget(name)

    async def follow(self) -> None:
        """Read domains as they change, until cancelled."""
        self._is_followed = True
        try:
            self._start()
            await asyncio.Event().wait()
        finally:
            self._is_followed = False
            for task in self._tasks.values():
                task.cancel()

    async def read(self, name: str) -> None:
        """Read a domain now.

        Of several readings each begins after the one before, so that the latest is what stays.
        """
        async with self._reading.setdefault(name, asyncio.Lock()):
            self._stale.discard(name)
            await self._read(name)

    def _put(self, name: str) -> None:
        self._due.append(name)
        self._start()

    def _start(self) -> None:
        while self._is_followed and self._due and len(self._tasks) < _AT_ONCE:
            name = self._due.popleft()
            if name in self._tasks:
                self._again.add(name)
            elif name in self._stale:  # else it was read meanwhile
                self._tasks[name] = task = asyncio.create_task(self.read(name))
                task.add_done_callback(partial(self._ended, name))

    def _ended(self, name: str, _task: asyncio.Task[None]) -> None:
        del self._tasks[name]
        if name in self._again:
            self._again.discard(name)
            self._due.append(name)
        self._start()


class Uncounted:
    """The domains that samples leave out, by when each did first or was last told of."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._told: set[str] = set()

    def note(self, missing: Collection[str], now_s: float) -> int:
        """Note the domains that a sample left out, and return how many it has for LATE_S.

        Each counts once in that time, and the log tells of it once until its counters come.
        """
        self._since = {name: self._since.get(name, now_s) for name in missing}
        late = [name for name, since in self._since.items() if now_s - since >= LATE_S]
        for name in late:
            self._since[name] = now_s
            if name not in self._told:
                log.error(
                    "%s: no counters for %g s, so its drives keep the limits that they have; see"
                    " whether it is migrating or being saved (`virsh domjobinfo`), or its QEMU"
                    " refuses query-blockstats (its log)",
                    name,
                    LATE_S,
                )
        self._told = (self._told | {*late}) & self._since.keys()
        return len(late)
