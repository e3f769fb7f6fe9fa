"""The port of /metrics: who may ask there, by TLS or a password, and bounds for all others."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import bcrypt
from aiohttp import BasicAuth, web

from iokeel.config.tables import Address
from iokeel.config.web_file import Web, load_web
from iokeel.errors import ConfigError
from iokeel.host.threads import beside
from iokeel.report.metrics.prometheus import Metrics
from iokeel.words.log_lines import Sparing
from iokeel.words.quoting import reason

log = logging.getLogger(__name__)
# Anybody may connect, and each connection costs a file of the agent's.
_MOST_CONNECTIONS = 32
# So many are taken at once before any of them is closed.
_BACKLOG = 8
# A TLS handshake takes up to 5 ms of the event loop, so anybody can have a tenth of its time.
_PAUSE_S = 0.05
_HANDSHAKE_S = 10.0
# The peer has this long to say that it has seen the end.
_SHUTDOWN_S = 2.0
# If no file is left for a connection, the next one is taken after this.
_ACCEPT_AGAIN_S = 0.1
# Wrong passwords are checked for this part of the time, all together.
_CHECKS_RATIO = 0.1
# bcrypt looks at no more of a password.
_PASSWORD_BYTES = 72


class Port:
    """The port: its connections, and what its web configuration file says now."""

    def __init__(self, address: Address, file: Path | None, metrics: Metrics) -> None:
        """file: the web configuration; None: without TLS, for anybody. metrics: counts errors."""
        self._address, self._file, self._metrics = address, file, metrics
        self._web = Web(None, {}, (), {})
        self._reading: asyncio.Future[Web | ConfigError] | None = None
        self._told = ""
        # Connections that aren't the server's yet, the oldest first.
        self._greeted: dict[asyncio.Task[None], None] = {}
        self._refused = Sparing(1, 3600.0)
        self._checks = ThreadPoolExecutor(1, "password")
        # By user, what was right last: a hash of the password and of its bcrypt hash.
        self._right: dict[str, bytes] = {}

    async def open(
        self,
        stack: contextlib.AsyncExitStack,
        server: web.Server,
        busy: Mapping[asyncio.BaseProtocol, None],
    ) -> None:
        """Serve the port until the stack ends. Raises ConfigError.

        busy: the connections whose requests are being answered, the longest one first.
        """
        host = self._address.host
        if self._file is not None:
            reading = beside(partial(self._load, self._file), "web configuration")
            try:
                read = await asyncio.wait_for(reading, _HANDSHAKE_S)
            except TimeoutError:
                mend = "see what holds the disk up"
                raise ConfigError(str(self._file), "its disk doesn't answer", mend) from None
            if isinstance(read, ConfigError):
                raise read
            self._take(read)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listener = socket.create_server(self._address, family=family, backlog=_BACKLOG)
        except OSError as error:
            what = f"{host} port {self._address.port} can't be served, {reason(error)}"
            mend = "free the port or give another; the socket has the metrics, too"
            raise ConfigError("[agent] metrics_address", what, mend) from None
        listener.setblocking(False)
        stack.callback(self._checks.shutdown, wait=False, cancel_futures=True)
        task = asyncio.create_task(self._accept(listener, server, busy))
        stack.callback(task.cancel)

    @web.middleware
    async def asked(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Answer those that may ask. What the file says now counts, also for old connections."""
        now = await self._now()
        if now.users and not await self._is_known(now, request.headers.get("Authorization", "")):
            refused = web.Response(status=401, headers={"WWW-Authenticate": "Basic"})
            self._tell_refused(request.remote, "no known user and password")
            refused.force_close()  # so that each guess takes a connection of its own
            return refused
        response = await handler(request)
        if request.get_extra_info("sslcontext") is not now.tls:
            response.force_close()
        return response

    async def _accept(
        self,
        listener: socket.socket,
        server: web.Server,
        busy: Mapping[asyncio.BaseProtocol, None],
    ) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                try:
                    connection, (peer, *_) = await loop.sock_accept(listener)
                except OSError:
                    await asyncio.sleep(_ACCEPT_AGAIN_S)
                    continue
                self._make_room(server, busy)
                task = asyncio.create_task(self._greet(connection, peer, server))
                self._greeted[task] = None
                task.add_done_callback(lambda done: self._greeted.pop(done, None))
                if self._web.tls is not None:
                    await asyncio.sleep(_PAUSE_S)

    async def _greet(self, connection: socket.socket, peer: str, server: web.Server) -> None:
        """Give a connection to the server, after its TLS handshake if there is TLS."""
        try:
            tls = (await self._now()).tls
        except BaseException:
            connection.close()
            raise
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                server,
                connection,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else _HANDSHAKE_S,
                ssl_shutdown_timeout=None if tls is None else _SHUTDOWN_S,
            )
        except ssl.SSLError as error:  # the peer isn't told, because asyncio sends no alert
            said = (error.reason or "no TLS").replace("_", " ").lower()
            self._tell_refused(peer, said)
        except OSError:  # it went, or took too long
            pass

    def _make_room(self, server: web.Server, busy: Mapping[asyncio.BaseProtocol, None]) -> None:
        """Close a connection if there are too many.

        That is the oldest one in its handshake if these are half of all. Else it is the oldest one
        without a whole request, or the one that takes longest to read its answer. So whoever holds
        connections open doesn't keep Prometheus out.
        """
        there = [
            (known, its)
            for known in server.connections
            if (its := known.transport) is not None and not its.is_closing()
        ]
        if len(self._greeted) >= _MOST_CONNECTIONS // 2:
            oldest_task = next(iter(self._greeted))
            del self._greeted[oldest_task]
            oldest_task.cancel()
        elif there and len(there) + len(self._greeted) >= _MOST_CONNECTIONS:
            order = {known: place for place, known in enumerate(busy)}
            _, oldest = min(there, key=lambda each: order.get(each[0], -1))
            oldest.abort()

    def _tell_refused(self, peer: str | None, why: str) -> None:
        if self._refused.may(why):
            log.warning("metrics: %s was refused, %s; told once an hour", peer, why)

    async def _now(self) -> Web:
        """Return what the file says now, or said last if it can't be used any more."""
        if self._file is None:
            return self._web
        if self._reading is None or self._reading.done():
            again = partial(self._load, self._file, self._web)
            self._reading = beside(again, "web configuration")
        read = await asyncio.shield(self._reading)
        if isinstance(read, Web):
            if read is not self._web:
                self._take(read)
                log.info("metrics: %s: was read again", self._file)
        elif str(read) != self._told:
            self._told = str(read)
            self._metrics.errors["config"] += 1
            log.error("metrics: %s; until it is mended, what the files said before counts", read)
        return self._web

    def _load(self, file: Path, known: Web | None = None) -> Web | ConfigError:
        """Return what a file says, or why it can't be used. known: if it hasn't changed since."""
        try:
            if known is not None and not known.has_changed():
                return known
            return load_web(file, self._address)
        except ConfigError as error:
            return error

    def _take(self, new: Web) -> None:
        for doubt in new.doubts:
            if doubt not in self._web.doubts:
                log.warning("metrics: %s", doubt)
        self._web, self._told, self._right = new, "", {}

    async def _is_known(self, now: Web, header: str) -> bool:
        """Return whether a request's Authorization is a user's. An unknown user takes as long."""
        try:
            user, password, _ = BasicAuth.decode(header, "utf-8")
        except ValueError:
            return False
        secret = password.encode()[:_PASSWORD_BYTES]
        hashed = now.users.get(user) or next(iter(now.users.values()))
        seen = hashlib.sha256(hashed + secret).digest()
        if hmac.compare_digest(seen, self._right.get(user, b"")):
            return True
        loop = asyncio.get_running_loop()
        is_right = await loop.run_in_executor(self._checks, _is_right, secret, hashed)
        if not is_right or user not in now.users:
            return False
        if now is self._web:
            self._right[user] = seen
        return True


def _is_right(secret: bytes, hashed: bytes) -> bool:
    """Return whether a password is the hash's. A wrong one blocks for ten times as long."""
    began = time.monotonic()
    with contextlib.suppress(ValueError):  # a byte that bcrypt doesn't take
        if bcrypt.checkpw(secret, hashed):
            return True
    time.sleep((time.monotonic() - began) / _CHECKS_RATIO)
    return False
