"""Calls of libvirt from asyncio, each in a thread and on a connection of its own.

libvirt's calls block. One that a hung QEMU keeps waiting also delays the others on its connection:
their replies came only with the next keepalive message, 5 s later (libvirt 9.0). So a connection
serves one call at a time, and a call that takes too long keeps its connection.

A hung QEMU must not keep others from being served:

- Calls about a domain are made one at a time, as libvirt makes them anyway. So a hung one has one
  call under way, and keeps one thread here and one of libvirtd's workers (20 by default), not one
  for each drive and try.
- A domain whose call has timed out is silent. Calls about it fail at once until that call ends, or
  until the domain is heard of: by the tick's sample, which leaves out domains that are busy.
- Calls about domains take turns. One that takes long gives its turn to the next. Those that read a
  domain again, which a QEMU or a user may cause at will, have turns and threads of their own.
- Calls about no single domain, such as a tick's sample, take no turns, and have threads of their
  own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import libvirt

from iokeel.errors import ConnectionLost, DriveGone, IokeelError, LimitsRejected
from iokeel.hypervisors.libvirt.passthrough import PASSES_ON

log = logging.getLogger(__name__)
T = TypeVar("T")
libvirt.registerErrorHandler(lambda *_: None, None)  # its own prints each error as it is

# Calls about domains that have a turn, and those of them that read one again: fewer than libvirtd's
# workers, which serve samples too.
_AT_ONCE = 8
_READINGS_AT_ONCE = 6
# A call that takes longer hangs, or waits for a busy QEMU, and goes on without a turn.
_TURN_S = 0.5
# Of each kind, and as many of other calls. Those without a turn are for calls that hang.
_THREADS = 64
# How long to make no call about a domain that has not been heard of since one timed out. libvirt
# itself waits for 30 s in each.
_SILENT_S = 60.0
# A domain that is busy for long answers no more than one that hangs.
_MEND = (
    "see whether it is migrating or being saved (`virsh domjobinfo`), or whether its QEMU or"
    " libvirt's daemon hangs"
)
_GONE = {libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_OPERATION_INVALID, libvirt.VIR_ERR_INVALID_ARG}
_LOST = {libvirt.VIR_ERR_RPC, libvirt.VIR_ERR_SYSTEM_ERROR, libvirt.VIR_ERR_INTERNAL_ERROR}


class NoAnswer(ConnectionLost):
    """A call took too long, or would. One that was made may still be carried out."""

    def __init__(self, where: str, what: str, mend: str = _MEND) -> None:
        super().__init__(where, what, mend)


class _Turns(NamedTuple):
    """The turns of one kind of calls about domains, and its threads."""

    turns: asyncio.Semaphore
    threads: asyncio.Semaphore


class Calls:
    """Runs calls to one libvirtd. Not for several event loops.

    passes_on: whether calls may send commands past libvirt.
    """

    def __init__(self, uri: str, *, passes_on: bool = True) -> None:
        self._uri, self._passes_on = uri, passes_on
        self._idle: list[Any] = []
        self._threads = asyncio.Semaphore(_THREADS)
        self._orders, self._readings = (
            _Turns(asyncio.Semaphore(at_once), asyncio.Semaphore(_THREADS))
            for at_once in (_AT_ONCE, _READINGS_AT_ONCE)
        )
        self._alone_at: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._under_way: set[str] = set()  # domains with a call in a thread
        self._silent: dict[str, float] = {}  # until when, unless a call is under way for longer

    async def call(self, function: Callable[[Any], T], timeout_s: float) -> T:
        """Run a function of a connection that is about no single domain, and return its result.

        Raises NoAnswer, ConnectionLost, DriveGone or LimitsRejected, depending on libvirt's own
        error.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._threads.acquire()
                return await asyncio.shield(self._in_thread(function, self._uri, self._threads))
        except TimeoutError:
            mend = "see whether libvirt's daemon or a QEMU hangs"
            raise NoAnswer(self._uri, _no_answer_in(timeout_s), mend) from None

    async def call_domain(
        self,
        name: str,
        function: Callable[[Any], T],
        timeout_s: float,
        where: str | None = None,
        *,
        reading: bool = False,
    ) -> T:
        """Run a function of a connection that is about one domain, and return its result.

        where: the subject in errors; None for the domain. reading: it waits for other readings, and
        holds up no other call. Raises as `call`. After a timeout, a call
        that still waits is never made. One that is under way may still be carried out, but before
        any later one about its domain.
        """
        where = where or name
        if self.is_silent(name):
            raise NoAnswer(where, "hasn't answered an earlier call yet")
        try:
            async with asyncio.timeout(timeout_s):
                kind = self._readings if reading else self._orders
                return await self._alone(name, function, where, kind)
        except TimeoutError:
            self._silence(name)
            raise NoAnswer(where, _no_answer_in(timeout_s)) from None

    def is_silent(self, name: str) -> bool:
        """Return whether a call about a domain has timed out, and it hasn't been heard of since."""
        until = self._silent.get(name)
        return until is not None and (name in self._under_way or until > time.monotonic())

    def heard_of(self, names: Collection[str]) -> list[str]:
        """Note that domains answer, and return those that have been silent."""
        if not self._silent:
            return []
        return [name for name in names if self._silent.pop(name, None) is not None]

    def close(self) -> None:
        """Close the connections that no call uses, in a thread, because libvirtd may hang."""
        self._silent.clear()  # libvirtd may be another one next
        idle, self._idle = self._idle, []
        if idle:
            threading.Thread(target=_close_all, args=(idle,), name="libvirt", daemon=True).start()

    def open(self) -> Any:
        """Return a new connection. Blocks. Raises ConnectionLost."""
        try:
            return libvirt.open(self._uri)
        except libvirt.libvirtError as error:
            raise ConnectionLost(
                self._uri,
                str(error.get_error_message()),
                "see that libvirtd or virtqemud runs and that the agent's user may use its socket",
            ) from None

    async def _alone(self, name: str, function: Callable[[Any], T], where: str, kind: _Turns) -> T:
        """Run a function while no other call about its domain is under way."""
        lock = self._alone_at.setdefault(name, asyncio.Lock())
        await lock.acquire()
        call: asyncio.Future[T] | None = None
        try:
            async with kind.turns:
                await kind.threads.acquire()
                call = self._in_thread(function, where, kind.threads)
                self._under_way.add(name)
                call.add_done_callback(partial(self._ended, name, lock))
                await asyncio.wait({call}, timeout=_TURN_S)
        finally:
            if call is None:
                lock.release()
        return await asyncio.shield(call)

    def _ended(self, name: str, lock: asyncio.Lock, call: asyncio.Future[Any]) -> None:
        self._under_way.discard(name)
        if isinstance(call.exception(), NoAnswer):
            self._silence(name)
        elif name in self._silent:  # it may be called again, and still has to be heard of
            self._silent[name] = time.monotonic()
        lock.release()

    def _silence(self, name: str) -> None:
        self._silent[name] = time.monotonic() + _SILENT_S

    def _in_thread(
        self, function: Callable[[Any], T], where: str, threads: asyncio.Semaphore
    ) -> asyncio.Future[T]:
        """Run a function of a connection in a thread, and return its result to come.

        The thread is no executor's, because the process couldn't end before one that hangs.
        threads: what it gives its place back to.
        """
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()
        result.add_done_callback(_consume_error)

        def end(tell: Callable[[], None]) -> None:
            threads.release()
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
        PASSES_ON.set(self._passes_on)  # in this thread
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
        except IokeelError:  # the function's own
            self._idle.append(connection)
            raise
        self._idle.append(connection)
        return result


def _no_answer_in(timeout_s: float) -> str:
    return f"no answer in {timeout_s:g} s"


def _translated(error: Any, where: str) -> IokeelError:
    message = str(error.get_error_message() or error)
    code = error.get_error_code()
    if code in _GONE:
        return DriveGone(where, message)
    if code in _LOST:
        return ConnectionLost(where, message, "trying again")
    if code == libvirt.VIR_ERR_OPERATION_TIMEOUT:  # another call about it takes long
        return NoAnswer(where, message)
    return LimitsRejected(where, message, "the old limits still hold", said=message)


def _consume_error(call: asyncio.Future[Any]) -> None:
    """Fetch the error of a call that nobody may wait for any more, or asyncio would log it."""
    if not call.cancelled():
        call.exception()


def _close_all(connections: Iterable[Any]) -> None:
    for connection in connections:
        close(connection)


def close(connection: Any) -> None:
    """Close a connection. Blocks, for as long as libvirtd doesn't answer."""
    vars(connection).pop("handles", None)  # each keeps it open (readings.py)
    try:
        connection.close()
    except libvirt.libvirtError as error:
        log.debug("closing a connection: %s", error)
