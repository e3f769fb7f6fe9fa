"""A QMP connection over a unix socket, made for asking many QEMUs for little, often.

The library for this is qemu.qmp. At each query it makes a message object, a queue and two tasks,
which costs too much here: with 100 QEMUs 220 us of CPU for each drive and second, against 31 us
for all of QmpSource (benchmarks/results/qmp-path.json). The whole agent may use 100 us. So this is
the part of QMP that the agent needs, and no more: a line of JSON a message, one command at a time,
replies matched by their id, a callback for events. msgspec decodes replies straight into typed
values and skips the rest.

One command at a time loses nothing, because QEMU carries them out one after the other. And a QEMU
that hangs is sent no more commands, so those that wait can still be withdrawn.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, cast

import msgspec

from iokeel.host.foreign_paths import open_trusted
from iokeel.host.process import Process, has_booted, peer, process, qemu
from iokeel.host.threads import beside
from iokeel.hypervisors.qemu import bounds
from iokeel.hypervisors.qemu.bounds import MOST_DRIVES_BYTES, MOST_REPLY_BYTES, Budget
from iokeel.hypervisors.qmp.faults import NOT_QMP, CommandFailed, MonitorLost, refused, silent
from iokeel.words.quoting import shown

# QEMU greets at once, unless it hangs or serves another client (`silent` in faults.py).
_GREETING_TIMEOUT_S = 5.0
# As long as guests may wait for their limits until it is known which process their QEMU is.
_PROCESS_TIMEOUT_S = 1.0
_TAKEN_OVER = f"{NOT_QMP}, or its guest has taken it over: see what that runs"
_TOO_MANY_IMAGES = "merge its drives' backing files (block-stream or block-commit)"
# One buffer for all connections: it is filled and emptied in one step of the event loop.
_BUFFER = bytearray(256 << 10)
_VIEW = memoryview(_BUFFER)
# Any number of empty lines costs next to nothing.
_LINE = re.compile(rb"\S(?:[^\n]*\S)?")

T = TypeVar("T")


class _Error(msgspec.Struct):
    kind: str = msgspec.field(name="class")
    text: str = msgspec.field(name="desc")


class Reply(msgspec.Struct, Generic[T]):
    """What QEMU sends: a reply (answer or error, and id), an event, or the greeting."""

    answer: T | msgspec.UnsetType = msgspec.field(name="return", default=msgspec.UNSET)
    error: _Error | None = None
    id: int | None = None
    event: str | None = None
    greeting: dict[str, Any] | None = msgspec.field(name="QMP", default=None)


Decoder = bounds.Decoder[Reply[T]]
Take = Callable[[Reply[Any] | MonitorLost], None]


def decoder(answer: type[T], most: int | None = None) -> Decoder[T]:
    """Return a decoder of replies whose "return" is of the type `answer`.

    most: the longest list that it may be; None for any.
    """
    listed = Annotated[answer, msgspec.Meta(max_length=most)]  # type: ignore[valid-type]
    return bounds.Decoder(Reply[listed], MOST_DRIVES_BYTES)  # a request may have less


ANYTHING: Decoder[Any] = decoder(Any)


class Request:
    """A command that waits for its reply. kept: the reply is used after `take`."""

    __slots__ = ("decoder", "id", "kept", "line", "most_bytes", "take")

    def __init__(
        self, number: int, line: bytes, decoder: Decoder[Any], take: Take, most_bytes: int
    ) -> None:
        self.kept = False  # if the reply is used after `take`, it can't stay in the shared buffer
        self.id = number
        self.line = line
        self.decoder = decoder
        self.take = take
        self.most_bytes = most_bytes


class Channel:
    """What a monitor is asked through: one connection, or one for each turn (turns.py).

    budget: of what its QEMU may send.
    """

    #: Whether others use the monitor, too.
    is_shared = False
    _or_else = ""

    def __init__(self, path: Path, budget: Budget | None = None) -> None:
        self.lost: asyncio.Future[MonitorLost] = asyncio.get_running_loop().create_future()
        #: The QEMU that listens; None if the listener is no QEMU, or isn't known yet.
        self.process: Process | None = None
        #: Whether its guest has booted in it. False as long as it isn't known.
        self.has_booted = False
        self._where = str(path)
        self._budget = budget or Budget()
        self._numbers = 0
        self._waiting: deque[Request] = deque()

    def ask(
        self,
        command: bytes,
        decoder: Decoder[Any],
        take: Take,
        most_bytes: int = MOST_REPLY_BYTES,
    ) -> Request:
        """Send a command, or let it wait for those before it.

        command: "execute" and its arguments, as JSON without the outer braces. take: called once,
        in the event loop, with the reply (an error is one too) or with MonitorLost. A msgspec.Raw
        in the reply is valid until `take` returns. most_bytes: a larger reply ends the connection.
        """
        self._numbers += 1
        line = b'{%b,"id":%d}\n' % (command, self._numbers)
        request = Request(self._numbers, line, decoder, take, most_bytes)
        self.pass_on(request)
        return request

    def pass_on(self, request: Request) -> None:
        """Send a request, or let it wait for those before it."""
        if self.lost.done():
            asyncio.get_running_loop().call_soon(request.take, self.lost.result())
        else:
            self._waiting.append(request)
            self._send_next()

    def together(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which one question follows another soon."""
        return contextlib.nullcontext()

    async def execute(
        self,
        command: str,
        arguments: Mapping[str, object],
        decoder: Decoder[T],
        timeout_s: float,
        most_bytes: int = MOST_REPLY_BYTES,
    ) -> T:
        """Return the answer to a command. Raises CommandFailed or MonitorLost.

        most_bytes: a larger reply ends the connection.

        After a timeout, a command that still waits is never sent. One that was sent may still be
        carried out; its reply is dropped.
        """
        parts = b'"execute":%b' % json.dumps(command).encode()
        if arguments:
            parts += b',"arguments":%b' % json.dumps(arguments).encode()
        answer: asyncio.Future[Reply[Any]] = asyncio.get_running_loop().create_future()
        request = self.ask(parts, decoder, partial(_settle, answer), most_bytes)
        request.kept = True
        try:
            async with asyncio.timeout(timeout_s):
                reply = await answer
        except TimeoutError:
            raise self._error(
                "timeout",
                f"no answer to {command} in {timeout_s:g} s",
                "see whether QEMU is stopped or its storage hangs" + self._or_else,
            ) from None
        finally:
            if request in self._waiting:
                self._waiting.remove(request)
        if reply.error is not None:
            text = _one_line(reply.error.text)
            raise CommandFailed(self._where, command, reply.error.kind, text)
        return cast(T, reply.answer)

    def close(
        self, kind: str = "closed", what: str = "closed by the agent", mend: str = ""
    ) -> None:
        """End the connection. Requests without an answer get MonitorLost, of these values."""
        self._fail(kind, what, mend)

    def charge(self, nbytes: int = 0, events: int = 0, names: int = 0) -> None:
        """Charge the QEMU's budget. If it has none left, that ends the connection."""
        if (much := self._budget.spend(nbytes, events, names)) is not None:
            self._fail("flood", f"it sends {much}", _TAKEN_OVER)

    def _send_next(self) -> None:
        """Send a request that waits, if it can be sent now."""
        raise NotImplementedError

    def _fail(self, kind: str, what: str, mend: str) -> None:
        raise NotImplementedError

    def _end(self, error: MonitorLost, *unanswered: Request) -> None:
        """Note why the channel has ended, and tell those who wait."""
        self.lost.set_result(error)
        requests = [*unanswered, *self._waiting]
        self._waiting.clear()
        for request in requests:
            request.take(error)

    def _error(self, kind: str, what: str, mend: str) -> MonitorLost:
        return MonitorLost(kind, self._where, what, mend)


class QmpConnection(asyncio.BufferedProtocol, Channel):
    """A connection to one QMP monitor. Made by `connect`.

    listener: the process that listens. looking: for whether that is a QEMU, whose guest has booted;
    None if it is known.
    """

    def __init__(
        self, path: Path, on_event: Callable[[str], None], budget: Budget | None = None
    ) -> None:
        super().__init__(path, budget)
        self.listener: Process | None = None
        self.looking: asyncio.Future[tuple[Process | None, bool]] | None = None
        self._on_event = on_event
        self._greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._partial = bytearray()
        self._sent: Request | None = None

    def _send_next(self) -> None:
        if self._sent is None and self._waiting:
            assert self._transport is not None
            self._sent = self._waiting.popleft()
            self._transport.write(self._sent.line)

    # Being answered

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over a transport (asyncio calls this)."""
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> bytearray:
        """Return the buffer to read into (asyncio calls this)."""
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        """Take the bytes that were read into the buffer (asyncio calls this)."""
        self.charge(nbytes=nbytes)
        if self.lost.done():
            return
        if not self._partial and _BUFFER.find(b"\n", 0, nbytes) == nbytes - 1:
            self._take(_VIEW[:nbytes])  # nearly always it is one whole line
            return
        searched = len(self._partial)
        self._partial += _VIEW[:nbytes]
        if end := self._partial.rfind(b"\n", searched) + 1:
            whole = bytes(self._partial[:end])
            del self._partial[:end]
            for line in _LINE.finditer(whole):
                if self.lost.done():
                    break
                self._take(line[0])
        most = self._sent.most_bytes if self._sent else MOST_REPLY_BYTES
        if len(self._partial) > most:
            what = f"a line of more than {most >> 20} MiB"
            mend = NOT_QMP if most == MOST_REPLY_BYTES else _TOO_MANY_IMAGES
            self._fail("protocol", what, mend)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection has ended (asyncio calls this)."""
        middle = " in the middle of a reply" if self._partial else ""
        self._fail("closed", f"the connection has ended{middle}", "has QEMU ended?")

    def _take(self, line: bytes | memoryview) -> None:
        sent = self._sent
        try:
            if sent is not None and sent.kept:
                line = bytes(line)
            reply = (sent.decoder if sent else ANYTHING).decode(line)
        except (ValueError, RecursionError) as error:
            if bytes(line).strip():
                begins = shown(bytes(line[:80]))[1:]
                what = f"{begins} is not a QMP message ({_one_line(str(error))})"
                self._fail("protocol", what, NOT_QMP if sent is None else _TAKEN_OVER)
            return
        if reply.event is not None:
            self.charge(events=1)
            self._on_event(reply.event)
        elif reply.answer is not msgspec.UNSET or reply.error is not None:
            if sent is None or reply.id != sent.id:
                self._fail("protocol", f"a reply to no request, id {reply.id}", NOT_QMP)
                return
            self._sent = None
            self._send_next()
            sent.take(reply)
        elif reply.greeting is not None and not self._greeted.done():
            self._greeted.set_result(None)
        else:
            self._fail("protocol", "neither a reply nor an event", NOT_QMP)

    def _fail(self, kind: str, what: str, mend: str) -> None:
        if self.lost.done():
            return
        if self._transport is not None:
            self._transport.abort()
        if not self._greeted.done():
            self._greeted.set_result(None)
        sent, self._sent = self._sent, None
        self._end(self._error(kind, what, mend), *([sent] if sent else []))


async def connect(
    path: Path,
    on_event: Callable[[str], None],
    budget: Budget | None = None,
    last: QmpConnection | None = None,
    greeting_s: float = _GREETING_TIMEOUT_S,
    process_s: float = _PROCESS_TIMEOUT_S,
) -> QmpConnection:
    """Return a connection to a QMP monitor, ready for commands.

    on_event: called with each event's name. budget: of what its QEMU may send. last: the one
    before; if the same process listens, it isn't looked at again. greeting_s, process_s: how long
    to wait for the greeting, and until it is known which process listens. Raises MonitorLost or
    CommandFailed.
    """
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    except OSError as error:  # too many open files
        raise refused(path, error) from None
    try:
        # Past no link of another user's, who could have it lead to another VM's monitor. asyncio
        # would read EAGAIN as a connection under way, which a unix socket doesn't have.
        found = open_trusted(str(path))
        try:
            sock.connect(f"/proc/self/fd/{found}")
        finally:
            os.close(found)
    except OSError as error:
        sock.close()
        raise refused(path, error) from None
    connection = QmpConnection(path, on_event, budget)
    pid = peer(sock).pid  # the socket may be closed once the greeting is missed
    connection.listener = process(pid)
    if last is not None and connection.listener == last.listener:
        connection.process, connection.has_booted = last.process, last.has_booted
    else:  # /proc tells a program only while its memory map isn't being changed, which may last
        connection.looking = beside(lambda: (qemu(pid), has_booted(pid)), "qmp-process")
        connection.looking.add_done_callback(partial(_note_process, connection))
    await asyncio.get_running_loop().create_unix_connection(lambda: connection, sock=sock)
    ends = time.monotonic() + greeting_s
    try:
        async with asyncio.timeout(greeting_s):
            await connection._greeted
        left_s = round(ends - time.monotonic(), 3)
        await connection.execute("qmp_capabilities", {}, ANYTHING, left_s)
        if connection.looking is not None and process_s:
            await asyncio.wait({connection.looking}, timeout=process_s)
    except TimeoutError:
        why = await asyncio.to_thread(silent, path, pid, greeting_s)
        connection.close()
        raise why from None
    except BaseException:
        connection.close()
        raise
    return connection


def _note_process(
    connection: QmpConnection, told: asyncio.Future[tuple[Process | None, bool]]
) -> None:
    connection.process, connection.has_booted = told.result()


def _settle(answer: asyncio.Future[Reply[Any]], reply: Reply[Any] | MonitorLost) -> None:
    if answer.done():
        return
    if isinstance(reply, MonitorLost):
        answer.set_exception(reply)
    else:
        answer.set_result(reply)


def _one_line(text: str) -> str:
    return " ".join(text[:300].split())
