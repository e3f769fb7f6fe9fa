"""A QMP connection over a unix socket, made for asking many QEMUs for little, often.

qemu.qmp is the library for this, and what it does at each query (a message object, a queue and
two tasks) costs many times what the query is worth: with 100 QEMUs 220 us of CPU for each drive
and second, against 31 us for all of QmpSource (benchmarks/results/qmp-path.json), of an agent
that may use 100 us in all. So here is the part of QMP that the agent needs, and no more: a line
of JSON a message, one command at a time, replies matched by their id, a callback for events.
Replies are decoded straight into typed values with msgspec, which skips what is not asked for.

One command at a time is no loss, since QEMU carries out one after the other anyway; and a QEMU
that hangs is sent nothing more, so that what waits for it can still be withdrawn.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import pwd
import socket
import stat
import struct
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import msgspec

from iokeel.errors import ConnectionLost, IokeelError
from iokeel.host.process import Process, peer
from iokeel.words.quoting import shown

#: A reply larger than this ends the connection. A drive takes 2 kB, a backing file 1 kB more.
MOST_REPLY_BYTES = 8 << 20
_GREETING_TIMEOUT_S = 5.0
# One buffer for all connections: it is read and emptied in one step of the event loop.
_BUFFER = bytearray(256 << 10)
_VIEW = memoryview(_BUFFER)

T = TypeVar("T")


class MonitorLost(ConnectionLost):
    """A QMP socket can't be used now.

    kind: "missing", "stale", "permission", "busy", "timeout", "protocol", "closed" or "connect".
    """

    def __init__(self, kind: str, where: str, what: str, mend: str) -> None:
        super().__init__(where, what, mend)
        self.kind = kind


class CommandFailed(IokeelError):
    """QEMU answered with an error. kind: its class, such as DeviceNotFound."""

    def __init__(self, kind: str, where: str, what: str) -> None:
        super().__init__(where, what)
        self.kind = kind


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


Decoder = msgspec.json.Decoder[Reply[T]]
Take = Callable[[Reply[Any] | MonitorLost], None]


def decoder(answer: type[T]) -> Decoder[T]:
    """Return what decodes the reply to a command whose "return" is of the type `answer`."""
    return msgspec.json.Decoder(Reply[answer])  # type: ignore[valid-type]


ANYTHING: Decoder[Any] = decoder(Any)


class _Request:
    __slots__ = ("decoder", "id", "kept", "line", "take")

    def __init__(self, number: int, line: bytes, decoder: Decoder[Any], take: Take) -> None:
        self.kept = False  # whether the reply is used after `take`: then not in the shared buffer
        self.id = number
        self.line = line
        self.decoder = decoder
        self.take = take


class QmpConnection(asyncio.BufferedProtocol):
    """A connection to one QMP monitor. Made by `connect`."""

    def __init__(self, path: Path, on_event: Callable[[str], None]) -> None:
        self.lost: asyncio.Future[MonitorLost] = asyncio.get_running_loop().create_future()
        #: The QEMU that listens; None where what listens is no QEMU.
        self.process: Process | None = None
        self._where = str(path)
        self._on_event = on_event
        self._greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._partial = bytearray()
        self._numbers = 0
        self._sent: _Request | None = None
        self._waiting: deque[_Request] = deque()

    # Asking

    def ask(self, command: bytes, decoder: Decoder[Any], take: Take) -> _Request:
        """Send a command, or have it wait for those before it; `take` gets what comes of it.

        command: "execute" and its arguments, as JSON without the outer braces. `take` is called
        once, in the event loop, with the reply (an error is one too) or with MonitorLost. What the
        reply has as msgspec.Raw is good until `take` returns.
        """
        self._numbers += 1
        line = b'{%b,"id":%d}\n' % (command, self._numbers)
        request = _Request(self._numbers, line, decoder, take)
        if self.lost.done():
            asyncio.get_running_loop().call_soon(take, self.lost.result())
        elif self._sent is None:
            self._send(request)
        else:
            self._waiting.append(request)
        return request

    async def execute(
        self,
        command: str,
        arguments: Mapping[str, Any],
        decoder: Decoder[T],
        timeout_s: float,
    ) -> T:
        """Return the answer to a command. Raises CommandFailed or MonitorLost.

        After a timeout a command that was not sent yet never will be; one that was sent may
        still be carried out, and its reply is dropped.
        """
        parts = b'"execute":%b' % json.dumps(command).encode()
        if arguments:
            parts += b',"arguments":%b' % json.dumps(arguments).encode()
        answer: asyncio.Future[Reply[Any]] = asyncio.get_running_loop().create_future()
        request = self.ask(parts, decoder, partial(_settle, answer))
        request.kept = True
        try:
            async with asyncio.timeout(timeout_s):
                reply = await answer
        except TimeoutError:
            raise self._error(
                "timeout",
                f"no answer to {command} in {timeout_s:g} s",
                "see whether QEMU is stopped or its storage hangs",
            ) from None
        finally:
            if request in self._waiting:
                self._waiting.remove(request)
        if reply.error is not None:
            raise CommandFailed(reply.error.kind, self._where, _one_line(reply.error.text))
        return cast(T, reply.answer)

    def close(self) -> None:
        """End the connection; what was asked and not answered gets MonitorLost."""
        self._fail("closed", "closed by the agent", "")

    def _send(self, request: _Request) -> None:
        assert self._transport is not None
        self._sent = request
        self._transport.write(request.line)

    # Being answered

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over a transport (asyncio calls this)."""
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> bytearray:
        """Return where to put what comes (asyncio calls this)."""
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        """Take what came (asyncio calls this)."""
        if not self._partial and _BUFFER.find(b"\n", 0, nbytes) == nbytes - 1:
            self._take(_VIEW[:nbytes])  # as nearly always: one whole line
            return
        searched, taken = len(self._partial), 0
        self._partial += _VIEW[:nbytes]
        while (end := self._partial.find(b"\n", searched)) >= 0 and not self.lost.done():
            self._take(bytes(self._partial[taken:end]))
            searched = taken = end + 1
        del self._partial[:taken]
        if len(self._partial) > MOST_REPLY_BYTES:
            self._fail("protocol", f"a line of more than {MOST_REPLY_BYTES} bytes", _NOT_QMP)

    def connection_lost(self, exc: Exception | None) -> None:
        """Take note that the connection has ended (asyncio calls this)."""
        middle = " in the middle of a reply" if self._partial else ""
        self._fail("closed", f"the connection has ended{middle}", "has QEMU ended?")

    def _take(self, line: bytes | memoryview) -> None:
        sent = self._sent
        try:
            if sent is not None and sent.kept:
                line = bytes(line)
            reply = (sent.decoder if sent else ANYTHING).decode(line)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            if bytes(line).strip():
                what = f"{shown(bytes(line[:80]))[1:]} is no QMP message ({_one_line(str(error))})"
                self._fail("protocol", what, _NOT_QMP)
            return
        if reply.event is not None:
            self._on_event(reply.event)
        elif reply.answer is not msgspec.UNSET or reply.error is not None:
            if sent is None or reply.id != sent.id:
                self._fail("protocol", f"a reply to what was not asked, id {reply.id}", _NOT_QMP)
                return
            self._sent = None
            if self._waiting:
                self._send(self._waiting.popleft())
            sent.take(reply)
        elif reply.greeting is not None and not self._greeted.done():
            self._greeted.set_result(None)
        else:
            self._fail("protocol", "neither a reply nor an event", _NOT_QMP)

    def _fail(self, kind: str, what: str, mend: str) -> None:
        if self.lost.done():
            return
        error = self._error(kind, what, mend)
        self.lost.set_result(error)
        if self._transport is not None:
            self._transport.abort()
        if not self._greeted.done():
            self._greeted.set_result(None)
        requests = [self._sent] if self._sent else []
        requests += self._waiting
        self._sent = None
        self._waiting.clear()
        for request in requests:
            request.take(error)

    def _error(self, kind: str, what: str, mend: str) -> MonitorLost:
        return MonitorLost(kind, self._where, what, mend)


_NOT_QMP = "it has to be a QMP monitor of QEMU's, without pretty=on"


async def connect(path: Path, on_event: Callable[[str], None]) -> QmpConnection:
    """Return a connection to a QMP monitor, ready for commands.

    on_event: called with each event's name. Raises MonitorLost or CommandFailed, within 10 s.
    """
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    except OSError as error:  # too many open files
        raise _refused(path, error) from None
    try:
        # asyncio takes EAGAIN for a connection under way, which it never is on a unix socket.
        sock.connect(str(path))
    except OSError as error:
        sock.close()
        raise _refused(path, error) from None
    connection = QmpConnection(path, on_event)
    connection.process = peer(sock)
    await asyncio.get_running_loop().create_unix_connection(lambda: connection, sock=sock)
    try:
        async with asyncio.timeout(_GREETING_TIMEOUT_S):
            await connection._greeted
        await connection.execute("qmp_capabilities", {}, ANYTHING, _GREETING_TIMEOUT_S)
    except TimeoutError:
        silent = _silent(path, sock)
        connection.close()
        raise silent from None
    except BaseException:
        connection.close()
        raise
    return connection


def _settle(answer: asyncio.Future[Reply[Any]], reply: Reply[Any] | MonitorLost) -> None:
    if answer.done():
        return
    if isinstance(reply, MonitorLost):
        answer.set_exception(reply)
    else:
        answer.set_result(reply)


def _one_line(text: str) -> str:
    return " ".join(text[:300].split())


# What is wrong with a socket, in words


def _refused(path: Path, error: OSError) -> MonitorLost:
    where = str(path)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        mend = f"start the VM with -qmp unix:{path},server=on,wait=off, or correct the path"
        return MonitorLost("missing", where, "no such socket", mend)
    if error.errno == errno.ECONNREFUSED:
        if path.is_socket():
            what, mend = "nobody listens any more", "start the VM, or remove it from the agent's"
            return MonitorLost("stale", where, what, f"{mend} configuration")
        return MonitorLost("stale", where, "not a socket", "correct the path")
    if error.errno in (errno.EACCES, errno.EPERM):
        user = _user(os.geteuid())
        mend = f"run the agent as root, or let {user} use it (setfacl -m u:{user}:rw)"
        return MonitorLost("permission", where, f"permission denied: {_owner(path)}", mend)
    if error.errno == errno.EAGAIN:
        return MonitorLost("busy", where, "other clients wait for this monitor already", _OWN)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return MonitorLost("connect", where, "too many open files", "raise LimitNOFILE")
    return MonitorLost("connect", where, error.strerror or str(error), "correct the path")


_OWN = "QEMU serves one client at a time: give the agent a -qmp socket of its own"


def _silent(path: Path, sock: socket.socket) -> MonitorLost:
    """Tell a monitor that serves another client from a QEMU that hangs."""
    where = str(path)
    states = [fields[5] for fields in _unix_sockets() if len(fields) > 7 and fields[7] == where]
    if "03" in states:  # accepted: by QEMU's own account, another one is being served
        return MonitorLost("busy", where, "another client uses this monitor", _OWN)
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid = struct.unpack("3i", raw)[0]
    what = f"no greeting in {_GREETING_TIMEOUT_S:g} s from process {pid}"
    if not states:  # it listens under another name of the same path
        return MonitorLost("timeout", where, what, f"it hangs, or serves another client; {_OWN}")
    if _stopped(pid):
        return MonitorLost("timeout", where, what, f"it is stopped: kill -CONT {pid}")
    return MonitorLost("timeout", where, what, "it hangs: see whether its storage does")


def _unix_sockets() -> list[list[str]]:
    """Return /proc/net/unix; the sixth field is 01 listening, 02 waiting, 03 accepted."""
    try:
        lines = Path("/proc/net/unix").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    return [line.split(maxsplit=7) for line in lines]


def _stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except (OSError, IndexError):
        return False


def _owner(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return "a folder on its path is closed to the agent"
    return f"it belongs to {_user(found.st_uid)}, mode {stat.S_IMODE(found.st_mode):04o}"


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
