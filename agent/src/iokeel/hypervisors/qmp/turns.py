"""A monitor that has another owner: the agent connects, asks what it has to, and hangs up.

QEMU serves one client of a monitor at a time. Others get a connection, but no greeting before the
one is gone. The kernel lets two of them wait, and refuses the third (EAGAIN), because QEMU listens
with a backlog of 1. A client that gives up keeps its place until QEMU comes to it. So before each
turn the agent looks whether anybody is connected, and then doesn't even stand in the queue.

A turn is over when nothing waits to be asked, or after TURN_S, but for one question: what is left
takes another turn, after those who wait by then. QEMU's events between turns aren't seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from iokeel.host.process import is_stopped
from iokeel.hypervisors.qemu.bounds import Budget
from iokeel.hypervisors.qmp.connection import Channel, QmpConnection, Reply, Request, connect
from iokeel.hypervisors.qmp.faults import CommandFailed, MonitorLost, clients, stopped

#: No question is begun later in a turn. An owner waits for that, and for the last answer.
TURN_S = 0.02
# So many VMs at once: what one of them answers waits while others' answers are read.
_AT_ONCE = 16
# All of these are shorter than those who ask wait, or these would tell of it in other words.
_BUSY_S, _GREETING_S, _ANSWER_S = 4.0, 3.0, 4.0
# As long as it may take until the process that listens is known.
_PROCESS_S = 1.0
# Pauses between looks at a monitor that somebody uses.
_LEAST_S, _MOST_S = 0.01, 0.4
# The kernel's list of sockets is read for many VMs at once.
_LIST_S = 0.005


class Others:
    """The clients that monitors have. One for all VMs. slots: for turns at the same time."""

    def __init__(self) -> None:
        self.slots = asyncio.Semaphore(_AT_ONCE)
        #: Why the last turn failed at sockets that have had a client since: it may be that turn's.
        self.missed: dict[Path, MonitorLost] = {}
        self._folders: dict[str, set[str]] = {}  # of sockets with clients, by their last part
        self._read_at = -_LIST_S

    def use(self, path: Path) -> bool:
        """Return whether a socket has a client, or one that waits."""
        if (now := time.monotonic()) >= self._read_at + _LIST_S:
            self._read_at, found = now, defaultdict[str, set[str]](set)
            for client in clients():
                folder, name = os.path.split(client)
                found[name].add(folder)
            self._folders = found
        folders = self._folders.get(path.name, ())
        return any(_real(folder) == _real(str(path.parent)) for folder in folders)

    async def leave(self, path: Path) -> None:
        """Wait until a socket has no client. Raises MonitorLost if that takes long."""
        ends, pause_s = time.monotonic() + _BUSY_S, _LEAST_S
        while self.use(path):
            if time.monotonic() >= ends:
                if (missed := self.missed.get(path)) is not None:
                    raise missed
                what = "another client has it all the time, so the limits in force stay as they are"
                mend = f"see which, and let it hang up: ss -xp | grep {path.name}"
                raise MonitorLost("busy", str(path), what, mend)
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, _MOST_S)
        self.missed.pop(path, None)


class Turns(Channel):
    """A monitor that is asked by turns. It is lost once a turn fails, or another QEMU listens."""

    is_shared = True
    _or_else = ", or another client has the monitor"

    def __init__(
        self, path: Path, on_event: Callable[[str], None], budget: Budget, others: Others
    ) -> None:
        super().__init__(path, budget)
        self._path, self._on_event, self._others = path, on_event, others
        self._last: QmpConnection | None = None
        self._taking: asyncio.Task[None] | None = None
        self._more = asyncio.Event()
        self._together = 0

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Keep a turn between questions in this context."""
        self._together += 1
        try:
            yield
        finally:
            self._together -= 1
            self._more.set()

    def _send_next(self) -> None:
        self._more.set()
        if self._taking is None:
            self._taking = asyncio.get_running_loop().create_task(self._take_turns())

    def _fail(self, kind: str, what: str, mend: str) -> None:
        if not self.lost.done():
            self._end(self._error(kind, what, mend))
            if self._taking is not None:
                self._taking.cancel()

    async def _take_turns(self) -> None:
        try:
            while self._waiting:
                await self._others.leave(self._path)
                async with self._others.slots:
                    await self._take_turn()
        except (MonitorLost, CommandFailed) as error:
            lost = self._error(error.kind, error.what, error.mend)
            if lost.kind == "timeout":
                self._others.missed[self._path] = lost
            if not self.lost.done():
                self._end(lost)
        finally:
            self._taking = None

    async def _take_turn(self) -> None:
        ends, asked = time.monotonic() + TURN_S, False
        connection = await connect(
            self._path, self._on_event, self._budget, self._last, _GREETING_S, 0.0
        )
        try:
            if self._last is None:  # nobody is to wait while the process is looked at
                connection.close("left")
            elif connection.listener != self._last.listener:
                raise self._error("closed", "another process listens now", "")
            while not connection.lost.done() and (time.monotonic() < ends or not asked):
                if self._waiting:
                    asked = True
                    await self._ask(connection, self._waiting.popleft())
                elif self._together and time.monotonic() < ends:
                    self._more.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(max(0.0, ends - time.monotonic())):
                            await self._more.wait()
                else:
                    break
        finally:
            connection.close("left")
        if (lost := connection.lost.result()).kind != "left":
            raise lost
        if connection.looking is not None:
            await asyncio.wait({connection.looking}, timeout=_PROCESS_S)
        self._last, self.process = connection, connection.process
        self.has_booted = connection.has_booted

    async def _ask(self, connection: QmpConnection, request: Request) -> None:
        """Ask, and hang up with the answer if nothing else is to be asked."""
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        take = request.take

        def taken(reply: Reply[Any] | MonitorLost) -> None:
            if not (self._waiting or self._together):
                connection.close("left")  # before whoever waits for the answer goes on
            take(reply)
            if not answered.done():
                answered.set_result(None)

        request.take = taken
        connection.pass_on(request)
        try:
            async with asyncio.timeout(_ANSWER_S):
                await answered
        except TimeoutError:
            if (listener := connection.listener) is not None and is_stopped(listener.pid):
                raise stopped(self._where, listener.pid) from None
            what = f"no answer in {_ANSWER_S:g} s"
            raise self._error("timeout", what, "see whether its storage hangs") from None


@lru_cache(1024)
def _real(folder: str) -> str:
    return os.path.realpath(folder)
