"""Domains that have changed, and when each of them is read again."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from weakref import WeakValueDictionary

from iokeel.hypervisors.pace import Pace

# As many as have threads (calls.py). One that hangs must not delay the next.
_AT_ONCE = 64


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
        self._tasks: set[asyncio.Task[None]] = set()
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
            for task in self._tasks:
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
            if name in self._stale:  # else it was read meanwhile
                task = asyncio.create_task(self.read(name))
                self._tasks.add(task)
                task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._start()
