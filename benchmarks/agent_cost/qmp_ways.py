"""Ways of asking many QEMUs for their counters, for qmp_path.py."""

from __future__ import annotations

import asyncio
import json
import select
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from iokeel.config.settings import VmConfig
from iokeel.core.values.counters import Counters
from iokeel.core.values.policy import DomainPolicy
from iokeel.hypervisors.qemu.drives import BlockStats
from iokeel.hypervisors.qmp.source import QmpSource

QUERY = b'{"execute":"query-blockstats","id":1}\n'
CAPABILITIES = b'{"execute":"qmp_capabilities"}\n'
#: Returns the counters of a reply's drives.
Decode = Callable[[bytes], list[Counters]]
#: Asks all sockets once; returns how many drives answered.
Tick = Callable[[], Awaitable[int]]
#: Connects to sockets.
Way = Callable[[Sequence[str], Decode], Awaitable[Tick]]


# Decoders


def _plain(loads: Callable[[bytes], Any]) -> Decode:
    def decode(line: bytes) -> list[Counters]:
        return _from_dicts(loads(line)["return"])

    return decode


def _from_dicts(drives: list[dict[str, Any]]) -> list[Counters]:
    now_ns = time.monotonic_ns()
    return [
        Counters(
            now_ns, s["rd_operations"], s["rd_bytes"], s["wr_operations"], s["wr_bytes"],
            s["rd_total_time_ns"], s["wr_total_time_ns"],
        )
        for drive in drives
        for s in (drive["stats"],)
    ]  # fmt: skip


class Reply(msgspec.Struct, gc=False):
    """A reply to query-blockstats, or an event."""

    answer: list[BlockStats] = msgspec.field(name="return", default=[])
    id: int | None = None
    event: str = ""


def _typed() -> Decode:
    decoder = msgspec.json.Decoder(Reply)

    def decode(line: bytes) -> list[Counters]:
        now_ns = time.monotonic_ns()
        return [
            Counters(
                now_ns, s.rd_operations, s.rd_bytes, s.wr_operations, s.wr_bytes,
                s.rd_total_time_ns, s.wr_total_time_ns,
            )
            for drive in decoder.decode(line).answer
            for s in (drive.stats,)
        ]  # fmt: skip

    return decode


def decoder(name: str) -> Decode:
    """Return the decoder that uses json, orjson or msgspec."""
    if name == "json":
        return _plain(json.loads)
    if name == "orjson":
        return _plain(import_module("orjson").loads)
    return _typed()


# Connections


class Round:
    """The replies that a tick waits for; each is decoded when it comes."""

    def __init__(self, decode: Decode) -> None:
        self.decode = decode
        self.outstanding = 0
        self.drives = 0
        self.done: asyncio.Future[None] | None = None

    def begin(self, replies: int) -> asyncio.Future[None]:
        """Return a future that is done when so many replies have come."""
        self.outstanding, self.drives = replies, 0
        self.done = asyncio.get_running_loop().create_future()
        return self.done

    def line(self, line: bytes) -> None:
        """Take one reply; events are skipped."""
        if b'"event"' in line[:80]:
            return
        self.drives += len(self.decode(line))
        self.outstanding -= 1
        if not self.outstanding and self.done is not None:
            self.done.set_result(None)


class _Lines:
    """Lines over an asyncio transport."""

    transport: asyncio.WriteTransport

    def __init__(self, round_: Round) -> None:
        self.round = round_
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self.transport = transport

    def take(self, data: bytes | bytearray) -> None:
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        for line in lines:
            self.round.line(line)


class Lean(_Lines, asyncio.Protocol):
    """A transport that hands over bytes of its own."""

    def data_received(self, data: bytes) -> None:
        self.take(data)


class Buffered(_Lines, asyncio.BufferedProtocol):
    """A transport that reads into one buffer, shared by all connections."""

    shared = bytearray(1 << 18)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.shared

    def buffer_updated(self, nbytes: int) -> None:
        self.take(self.shared[:nbytes])


async def qemu_qmp(paths: Sequence[str], _: Decode) -> Tick:
    """The library: a QMPClient a socket, one execute() each, gathered."""
    clients = [import_module("qemu.qmp").QMPClient(path) for path in paths]
    for client, path in zip(clients, paths, strict=True):
        await client.connect(path)

    async def tick() -> int:
        replies = await asyncio.gather(*(c.execute("query-blockstats") for c in clients))
        return sum(len(_from_dicts(reply)) for reply in replies)

    return tick


def transports(protocol: type[Lean | Buffered]) -> Way:
    """asyncio transports with a protocol of our own; one Future for all replies."""

    async def connect(paths: Sequence[str], decode: Decode) -> Tick:
        loop = asyncio.get_running_loop()
        greetings, round_ = Round(lambda _: []), Round(decode)
        connections = []
        for path in paths:
            _, connection = await loop.create_unix_connection(lambda: protocol(greetings), path)
            greeted = greetings.begin(2)
            connection.transport.write(CAPABILITIES)
            await greeted
            connection.round = round_
            connections.append(connection)

        async def tick() -> int:
            done = round_.begin(len(connections))
            for connection in connections:
                connection.transport.write(QUERY)
            await done
            return round_.drives

        return tick

    return connect


async def one_epoll(paths: Sequence[str], decode: Decode) -> Tick:
    """Plain sockets under an epoll of our own, which is one file to asyncio's loop."""
    loop = asyncio.get_running_loop()
    poll, round_ = select.epoll(), Round(decode)
    sockets: dict[int, socket.socket] = {}
    buffers: dict[int, bytes] = {}
    for path in paths:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(path)
        sock.recv(65536)
        sock.sendall(CAPABILITIES)
        sock.recv(65536)
        sock.setblocking(False)
        poll.register(sock.fileno(), select.EPOLLIN)
        sockets[sock.fileno()], buffers[sock.fileno()] = sock, b""

    def readable() -> None:
        for fd, _ in poll.poll(0):
            data = sockets[fd].recv(65536)
            *lines, buffers[fd] = (buffers[fd] + data).split(b"\n")
            for line in lines:
                round_.line(line)

    loop.add_reader(poll.fileno(), readable)

    async def tick() -> int:
        done = round_.begin(len(sockets))
        for sock in sockets.values():
            sock.send(QUERY)
        await done
        return round_.drives

    return tick


async def agent(paths: Sequence[str], _: Decode) -> Tick:
    """The agent's own: iokeel.hypervisors.qmp.source, with all that makes it robust."""
    vms = [VmConfig(Path(path).stem, Path(path), DomainPolicy({})) for path in paths]
    source = QmpSource(vms)
    task = asyncio.create_task(source.run())
    while len(source.vms()) < len(vms):
        await asyncio.sleep(0.1)

    async def tick() -> int:
        assert not task.done()
        return len(await source.sample(None, 5.0))

    return tick


#: Each way and the decoder that it uses.
WAYS: dict[str, tuple[Way, str]] = {
    "qemu.qmp": (qemu_qmp, "json"),
    "asyncio.Protocol + json": (transports(Lean), "json"),
    "asyncio.Protocol + orjson": (transports(Lean), "orjson"),
    "asyncio.Protocol + msgspec": (transports(Lean), "msgspec"),
    "asyncio.BufferedProtocol + json": (transports(Buffered), "json"),
    "asyncio.BufferedProtocol + msgspec": (transports(Buffered), "msgspec"),
    "the agent's QmpSource": (agent, "msgspec"),
    "one epoll + json": (one_epoll, "json"),
    "one epoll + msgspec": (one_epoll, "msgspec"),
}
