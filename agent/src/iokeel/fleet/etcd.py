"""etcd's members, asked over their JSON gateway, one at a time.

A read is tried on each member, because it does no harm twice. A write is tried on another member
only if it can't have reached the first. Else its outcome isn't known. OutcomeUnknown says so, and
the caller has to look.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Self, TypeVar

import aiohttp
import msgspec

from iokeel.config.etcd_access import Access
from iokeel.errors import ConfigError, ConnectionLost, FleetRefused, OutcomeUnknown
from iokeel.fleet.messages import (
    AuthReply,
    Delete,
    Fault,
    Is,
    Json,
    KeepAliveReply,
    LeaseReply,
    Put,
    TxnReply,
    peeking,
    reading,
    transaction,
)
from iokeel.words.quoting import reason, shown

# How long a member may take for an answer. Two members that hang are passed well within a term.
TIMEOUT_S = 2.0
# A longer answer is cut off: ten thousand hosts' claims take a few MB.
MOST_REPLY_BYTES = 16 << 20
TOO_MUCH_MEND = "see what else writes below [fleet] prefix, by `etcdctl get --prefix --keys-only`"
_CANCELED, _UNKNOWN, _DEADLINE, _DENIED, _UNAVAILABLE, _UNAUTHENTICATED = 1, 2, 4, 7, 14, 16
_PASSING = frozenset({_CANCELED, _UNKNOWN, _DEADLINE, _UNAVAILABLE})  # as a member that stops
# OpenSSL's codes of a certificate that isn't valid yet, or any more.
_DATES = frozenset({9, 10})
_ERROR = msgspec.json.Decoder(Fault, strict=False)
# etcd's words for a token that isn't valid any more. A JWT isn't after any change of etcd's users.
_TOKEN_REFUSED = (
    "invalid auth token",
    "revision of auth store is old",
    "revision in header is old",
)

log = logging.getLogger(__name__)

T = TypeVar("T", TxnReply, LeaseReply, KeepAliveReply)


def now_ns() -> int:
    """Return the clock that counts while the host is suspended, too."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Found(NamedTuple):
    """Keys and their values at one moment.

    asked_ns: before they were asked for (`now_ns`). unless: whether all demands were met, so that
    only prefixes were read. leases: of the keys that have one.
    """

    values: Mapping[str, bytes]
    asked_ns: int
    unless: bool = False
    leases: Mapping[str, int] = MappingProxyType({})


class TooMuch(FleetRefused):
    """An answer is longer than makes sense. Another member's isn't shorter."""


class Denied(FleetRefused):
    """The user may not do this."""


class TokenRefused(OutcomeUnknown):
    """The user's token isn't valid any more; a new one may be."""


class Etcd:
    """etcd's members. Use as an asynchronous context manager.

    clock: `now_ns`, or another one for tests. most_bytes: of an answer; None: MOST_REPLY_BYTES.
    trips: how many answers there were. failures: how many times a member failed.
    """

    def __init__(
        self, access: Access, clock: Callable[[], int] = now_ns, most_bytes: int | None = None
    ) -> None:
        self.access = access
        self.trips = 0
        self.failures = 0
        self.moved = asyncio.Event()  # replaced whenever another member is asked
        self._clock = clock
        self._most_bytes = most_bytes if most_bytes is not None else MOST_REPLY_BYTES
        self._stamp = access.stamp()
        self._tls = access.tls()
        self._urls = [url.rstrip("/") for url in access.urls]
        random.shuffle(self._urls)  # so that hosts don't all ask one member
        self._token: str | None = None
        self._login: asyncio.Task[str] | None = None
        self._cluster: int | None = None
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def member(self) -> str:
        """The URL of the member that is asked."""
        return self._urls[0]

    # What may be asked

    async def read(
        self, keys: Sequence[str], prefixes: Sequence[str] = (), unless: Sequence[Is] = ()
    ) -> Found:
        """Return some keys, and all that begin with some prefixes, at one moment.

        unless: if there are any demands and all are met, only the prefixes are read.

        It is a moment after the question: the answer has all that was written before it. Raises
        ConnectionLost, TooMuch or FleetRefused.
        """
        return await self._read(reading(keys, prefixes, unless), has_demands=bool(unless))

    async def peek(self, keys: Sequence[str], prefix: str) -> Found:
        """Return some keys, and the first one that begins with a prefix, without its value.

        Raises ConnectionLost or FleetRefused.
        """
        return await self._read(peeking(keys, prefix))

    async def _read(self, body: Json, *, has_demands: bool = False) -> Found:
        error: ConnectionLost | BadMember | None = None
        for _ in range(len(self._urls) + 1):  # the first may only have lost an old connection
            asked_ns = self._clock()
            try:
                reply = await self._ask("/v3/kv/txn", body, TxnReply)
            except (ConnectionLost, BadMember) as lost:
                if not isinstance(error, BadMember):  # that one doesn't pass by itself
                    error = lost
                continue
            found = [kv for r in reply.responses if r.response_range for kv in r.response_range.kvs]
            values = {kv.name: kv.value for kv in found}
            leases = {kv.name: kv.lease for kv in found if kv.lease}
            return Found(values, asked_ns, has_demands and reply.succeeded, leases)
        assert error is not None
        raise error

    async def write(self, demands: Sequence[Is], changes: Sequence[Put | Delete]) -> bool:
        """Make changes at once if all demands are met, and return whether they were.

        Raises OutcomeUnknown, ConnectionLost if nothing was written, or FleetRefused.
        """
        body = transaction(demands, changes)
        return (await self._ask_once("/v3/kv/txn", body, TxnReply)).succeeded

    async def grant_lease(self, ttl_s: int) -> int:
        """Return a new lease."""
        return (await self._ask_once("/v3/lease/grant", {"TTL": str(ttl_s)}, LeaseReply)).id

    async def keep_lease(self, lease: int) -> bool:
        """Prolong a lease, and return whether it is still there."""
        reply = await self._ask("/v3/lease/keepalive", {"ID": str(lease)}, KeepAliveReply)
        return reply.result.ttl > 0

    async def revoke_lease(self, lease: int) -> None:
        """End a lease, and delete its keys."""
        await self._ask_once("/v3/lease/revoke", {"ID": str(lease)}, LeaseReply)

    # A question

    async def _ask_once(self, path: str, body: Json, kind: type[T]) -> T:
        """Ask for something that must not be done twice."""
        for _ in self._urls[1:]:
            try:
                return await self._ask(path, body, kind)
            except OutcomeUnknown:
                raise
            except ConnectionLost:
                continue
        return await self._ask(path, body, kind)

    async def _ask(self, path: str, body: Json, kind: type[T]) -> T:
        """Ask the member. If it fails, the next one will be asked.

        Raises OutcomeUnknown, ConnectionLost if the question hasn't reached it, or FleetRefused.
        """
        url = self.member
        try:
            try:
                return await self._post(url, path, body, kind)
            except TokenRefused:
                return await self._post(url, path, body, kind)
        except TokenRefused:
            raise FleetRefused(
                url, "refuses the user's token", "see that etcd's members have the same users"
            ) from None
        except (ConnectionLost, BadMember):
            self.give_up(url)
            await self._renew()
            raise

    async def _renew(self) -> None:
        """Load the certificates again if they have changed. Files that can't be used are told."""
        stamp = self.access.stamp()
        if stamp == self._stamp:
            return
        self._stamp = stamp  # so that the files are told once, and loaded once
        try:
            self._tls = await asyncio.to_thread(self.access.tls)
        except ConfigError as error:
            log.error("fleet: %s; until it is mended, the certificates from before are used", error)

    def forget_token(self, headers: Mapping[str, str]) -> None:
        """Log in again before the next question, unless that has been done since these headers."""
        if headers.get("Authorization") == self._token:
            self._token = None

    def give_up(self, url: str) -> None:
        """Ask another member from now on, unless that is so already."""
        self.failures += 1
        if url == self.member:
            self._urls.append(self._urls.pop(0))
            self.moved.set()
            self.moved = asyncio.Event()

    def leave_cluster(self) -> None:
        """Ask another member from now on, and take its cluster for the fleet's."""
        self.give_up(self.member)
        self._cluster = None

    async def _post(self, url: str, path: str, body: Json, kind: type[T]) -> T:
        headers = await self.headers(url)
        try:
            raw = await self._exchange(url, path, body, headers)
        except TokenRefused:
            self.forget_token(headers)
            raise
        self.trips += 1
        try:
            reply: T = msgspec.json.decode(raw, type=kind, strict=False)
        except (ValueError, RecursionError):
            raise not_etcd(url, raw) from None
        cluster = reply.header.cluster_id
        if self._cluster is None:
            self._cluster = cluster
        if cluster != self._cluster:
            raise BadMember(
                url,
                f"is a member of etcd's cluster {cluster:x}, and the fleet's is {self._cluster:x}",
                "leave it out of [fleet] etcd, or restart the agent if the fleet has moved there",
            )
        return reply

    async def headers(self, url: str) -> dict[str, str]:
        """Return the headers of a question, with the user's token if there is a user.

        All who need a token share one login, because each costs etcd a bcrypt.
        """
        if self.access.user is None:
            return {}
        token = self._token
        if token is None:
            if self._login is None:
                self._login = asyncio.create_task(self._log_in(url))
                # Those who wait for it may all be cancelled.
                self._login.add_done_callback(lambda login: login.cancelled() or login.exception())
            login = self._login
            await asyncio.wait({login})
            token = login.result()
        return {"Authorization": token}

    async def _log_in(self, url: str) -> str:
        try:
            body = {"name": self.access.user, "password": self.access.password()}
            raw = await self._exchange(url, "/v3/auth/authenticate", body, {})
            try:
                self._token = msgspec.json.decode(raw, type=AuthReply).token
            except (ValueError, RecursionError):
                raise not_etcd(url, raw) from None
            return self._token
        finally:
            self._login = None

    async def _exchange(self, url: str, path: str, body: Json, headers: Mapping[str, str]) -> bytes:
        assert self._session is not None
        data = msgspec.json.encode(body)
        try:
            async with self._session.post(
                url + path, data=data, headers=headers, ssl=self._trusted, allow_redirects=False
            ) as response:
                gathered, most = bytearray(), self._most_bytes
                while not response.content.at_eof() and len(gathered) <= most:
                    gathered += await response.content.read(most + 1 - len(gathered))
                raw = bytes(gathered)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise lost(url, error) from None
        if len(raw) > most and raw.startswith(b'{"header"'):
            raise TooMuch(url, f"answers more than {most >> 20} MiB", TOO_MUCH_MEND)
        if response.status != 200:
            raise self.refused(url, raw, response.status)
        return raw

    def stream(self, url: str, path: str, body: Json, headers: Mapping[str, str]) -> _Stream:
        """Ask for an answer that doesn't end."""
        assert self._session is not None
        return self._session.post(
            url + path,
            data=msgspec.json.encode(body),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT_S),
            ssl=self._trusted,
            allow_redirects=False,
        )

    @property
    def _trusted(self) -> ssl.SSLContext | bool:
        return self._tls if self._tls is not None else True

    def refused(self, url: str, raw: bytes, status: int) -> FleetRefused | OutcomeUnknown:
        """Return the error for an answer that is one."""
        if 300 <= status < 400:
            mend = "give etcd's own client URL: a redirect isn't followed"
            return BadMember(url, "redirects to another address, which etcd never does", mend)
        try:
            code, said = _ERROR.decode(raw).told
        except (ValueError, RecursionError):
            return not_etcd(url, raw)
        is_grpc = 0 < code <= _UNAUTHENTICATED
        if (status < 500 and not is_grpc) or (status == 404 and "etcdserver" not in said):
            return not_etcd(url, raw)  # another program that answers in JSON
        if code == _UNAUTHENTICATED or refuses_token(said):
            return TokenRefused(url, "refuses the user's token")
        if code in _PASSING or (not code and status >= 500):
            mend = "see whether it has a quorum"
            if self.access.is_tls and "connection" in said:
                # With --client-cert-auth, the gateway is a client that shows the server's own.
                mend += ", and that its server certificate has the usage clientAuth, too"
            return OutcomeUnknown(url, f"etcd says {shown(said)}", mend)
        if code == _DENIED:
            mend = f"let its role read and write {self.access.prefix} as docs/fleet.md says"
            return Denied(url, f"etcd says {shown(said)}", mend)
        if "user name" in said or "authentication" in said:
            mend = "see [fleet] user and password_file"
        elif "space exceeded" in said:
            mend = "compact and defragment it, and then `etcdctl alarm disarm`"
        elif "too large" in said or "larger than max" in said:
            mend = "raise --max-request-bytes on each of etcd's members"
        elif "too many requests" in said:
            mend = "see whether its disks keep up"
        else:
            mend = "see that it is etcd 3.4 or later"
        return FleetRefused(url, f"etcd says {shown(said)}", mend)


_Stream = aiohttp.client._RequestContextManager  # aiohttp has no other name for it


class BadMember(FleetRefused):
    """One member can't be used: it isn't the fleet's etcd, or nobody can trust it. Others may."""


def refuses_token(said: str) -> bool:
    """Return whether etcd's words are about a token that isn't valid any more."""
    return any(words in said for words in _TOKEN_REFUSED)


def not_etcd(url: str, raw: bytes) -> BadMember:
    """Return the error for an answer that isn't etcd's."""
    return BadMember(
        url, f"answers {shown(raw[:40])}, which isn't etcd", "see that it is etcd's client URL"
    )


def lost(url: str, error: Exception) -> ConnectionLost | BadMember:
    """Return the error for a connection that failed."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        why = error.certificate_error
        mend = "see that [fleet] ca has signed it, and that it names this address"
        if getattr(why, "verify_code", None) in _DATES:
            mend = "see this host's clock and the certificate's dates"
        return BadMember(url, f"has a certificate that can't be trusted: {why}", mend)
    if isinstance(error, aiohttp.ClientConnectorError):
        return ConnectionLost(url, f"can't be reached: {reason(error.os_error)}")
    if isinstance(error, TimeoutError):
        return OutcomeUnknown(url, f"doesn't answer within {TIMEOUT_S:g} s")
    what = reason(error) if isinstance(error, OSError) else str(error)
    return OutcomeUnknown(url, f"ended the connection: {what}")
