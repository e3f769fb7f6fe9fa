"""Calls of libvirt's from asyncio: each in a thread and on a connection of its own.

libvirt's calls block, and one that a hung QEMU keeps waiting keeps the others on its connection
waiting too: their replies came only with the next keepalive message, 5 s later (libvirt 9.0). So
a connection serves one call at a time, and one whose call takes too long is left to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import libvirt

from iokeel.errors import ConnectionLost, DriveGone, IokeelError, LimitsRejected

log = logging.getLogger(__name__)
T = TypeVar("T")

_AT_ONCE = 8
# Threads beyond that are for calls that hang, and for what goes on beside them.
_THREADS = 64
_GONE = {libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_OPERATION_INVALID, libvirt.VIR_ERR_INVALID_ARG}
_LOST = {libvirt.VIR_ERR_RPC, libvirt.VIR_ERR_SYSTEM_ERROR, libvirt.VIR_ERR_INTERNAL_ERROR}


class NoAnswer(ConnectionLost):
    """A call took too long. What it was to do may still be done."""


class Calls:
    """Runs calls to one libvirtd. Not for several event loops."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._idle: list[Any] = []
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="libvirt")
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def call(
        self, function: Callable[[Any], T], timeout_s: float, where: str | None = None
    ) -> T:
        """Run a function of a connection, and return what it returns.

        where: what the call is about, for errors. Raises NoAnswer, ConnectionLost, DriveGone and
        LimitsRejected, whichever libvirt's own error comes to.
        """
        where = where or self._uri
        try:
            async with asyncio.timeout(timeout_s), self._turns:
                call = asyncio.get_running_loop().run_in_executor(
                    self._threads, self._run, function, where
                )
                call.add_done_callback(_take_note)
                return await asyncio.shield(call)
        except TimeoutError:
            raise NoAnswer(
                where, f"no answer in time ({timeout_s:g} s)", "is its QEMU or libvirtd stuck?"
            ) from None

    def close(self) -> None:
        """Close the connections that no call uses."""
        while self._idle:
            _close(self._idle.pop())

    def open(self) -> Any:
        """Return a new connection; blocks. Raises ConnectionLost."""
        try:
            return libvirt.open(self._uri)
        except libvirt.libvirtError as error:
            raise ConnectionLost(
                self._uri,
                str(error.get_error_message()),
                "see that libvirtd runs and that the agent's user may use its socket",
            ) from None

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
                _close(connection)
            else:
                self._idle.append(connection)
            raise failed from None
        self._idle.append(connection)
        return result


def _translated(error: Any, where: str) -> IokeelError:
    message = str(error.get_error_message() or error)
    code = error.get_error_code()
    if code in _GONE:
        return DriveGone(where, message)
    if code in _LOST:
        return ConnectionLost(where, message, "trying again")
    return LimitsRejected(where, message, "the limits that held still hold")


def _take_note(call: asyncio.Future[Any]) -> None:
    """Look at how a call ended for which nobody may be waiting any more."""
    if not call.cancelled():
        call.exception()


def _close(connection: Any) -> None:
    try:
        connection.close()
    except libvirt.libvirtError as error:
        log.debug("closing a connection: %s", error)
