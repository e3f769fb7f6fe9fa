"""Calls of libvirt from asyncio, each in a thread and on a connection of its own.

libvirt's calls block. One that a hung QEMU keeps waiting also delays the others on its connection:
their replies came only with the next keepalive message, 5 s later (libvirt 9.0). So a connection
serves one call at a time, and a call that takes too long keeps its connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import libvirt

from iokeel.errors import ConnectionLost, DriveGone, IokeelError, LimitsRejected

log = logging.getLogger(__name__)
T = TypeVar("T")

_AT_ONCE = 8
# The threads beyond _AT_ONCE are for calls that hang.
_THREADS = 64
_GONE = {libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_OPERATION_INVALID, libvirt.VIR_ERR_INVALID_ARG}
_LOST = {libvirt.VIR_ERR_RPC, libvirt.VIR_ERR_SYSTEM_ERROR, libvirt.VIR_ERR_INTERNAL_ERROR}


class NoAnswer(ConnectionLost):
    """A call took longer than timeout_s. It may still be carried out."""

    def __init__(self, where: str, timeout_s: float) -> None:
        super().__init__(
            where, f"no answer in {timeout_s:g} s", "see whether its QEMU or libvirtd hangs"
        )
        self.timeout_s = timeout_s


class Calls:
    """Runs calls to one libvirtd. Not for several event loops."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._idle: list[Any] = []
        self._threads = asyncio.Semaphore(_THREADS)
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def call(
        self, function: Callable[[Any], T], timeout_s: float, where: str | None = None
    ) -> T:
        """Run a function of a connection, and return its result.

        where: the subject of the call in errors; None for the connection. Raises NoAnswer,
        ConnectionLost, DriveGone or LimitsRejected, depending on libvirt's own error.
        """
        where = where or self._uri
        try:
            async with asyncio.timeout(timeout_s), self._turns:
                await self._threads.acquire()
                return await asyncio.shield(self._in_thread(function, where))
        except TimeoutError:
            raise NoAnswer(where, timeout_s) from None

    def close(self) -> None:
        """Close the connections that no call uses."""
        while self._idle:
            close(self._idle.pop())

    def open(self) -> Any:
        """Return a new connection. Blocks. Raises ConnectionLost."""
        try:
            return libvirt.open(self._uri)
        except libvirt.libvirtError as error:
            raise ConnectionLost(
                self._uri,
                str(error.get_error_message()),
                "see that libvirtd runs and that the agent's user may use its socket",
            ) from None

    def _in_thread(self, function: Callable[[Any], T], where: str) -> asyncio.Future[T]:
        """Run a function of a connection in a thread, and return its result to come.

        The thread is no executor's, because the process couldn't end before one that hangs.
        """
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()
        result.add_done_callback(_consume_error)

        def end(tell: Callable[[], None]) -> None:
            self._threads.release()
            tell()

        def run() -> None:
            try:
                tell = partial(result.set_result, self._run(function, where))
            except BaseException as error:
                tell = partial(result.set_exception, error)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(end, tell)

        threading.Thread(target=run, name="libvirt", daemon=True).start()
        return result

    def _run(self, function: Callable[[Any], T], where: str) -> T:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self.open()
        try:
            result = function(connection)
        except libvirt.libvirtError as error:
            failed = _translated(error, where)
            if isinstance(failed, ConnectionLost):
                close(connection)
            else:
                self._idle.append(connection)
            raise failed from None
        self._idle.append(connection)
        return result


class Turns:
    """Lets orders for one drive be carried out one at a time, and an outdated one not at all.

    An order that has timed out may still be under way. It must not be the last to take effect.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: object = None

    def last(
        self, function: Callable[[Any], T], where: str, timeout_s: float
    ) -> Callable[[Any], T]:
        """Return a function that runs `function` in its turn. Not for several threads.

        It raises LimitsRejected, with `where`, if there is a later one by then, or if an earlier
        one has not ended in timeout_s.
        """
        order = self._last = object()

        def run(connection: Any) -> T:
            if not self._lock.acquire(timeout=timeout_s):
                raise LimitsRejected(where, "an earlier order is still under way")
            try:
                if self._last is not order:
                    raise LimitsRejected(where, "a later order has replaced this one")
                return function(connection)
            finally:
                self._lock.release()

        return run


def _translated(error: Any, where: str) -> IokeelError:
    message = str(error.get_error_message() or error)
    code = error.get_error_code()
    if code in _GONE:
        return DriveGone(where, message)
    if code in _LOST:
        return ConnectionLost(where, message, "trying again")
    return LimitsRejected(where, message, "the old limits still hold", said=message)


def _consume_error(call: asyncio.Future[Any]) -> None:
    """Fetch the error of a call that nobody may wait for any more, or asyncio would log it."""
    if not call.cancelled():
        call.exception()


def close(connection: Any) -> None:
    """Close a connection. Blocks, on one that is lost as long as a keepalive."""
    try:
        connection.close()
    except libvirt.libvirtError as error:
        log.debug("closing a connection: %s", error)
