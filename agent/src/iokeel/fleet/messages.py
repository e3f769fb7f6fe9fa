"""Requests to etcd's JSON gateway, and its answers.

The gateway's JSON is that of etcd's gRPC messages: bytes in base64, and 64-bit numbers as texts.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import msgspec

#: A request or a part of one, as JSON.
Json = Mapping[str, object]


class Put(NamedTuple):
    """Writes a key. lease: the key goes with that lease; 0 for none."""

    key: str
    value: bytes
    lease: int = 0


class Delete(NamedTuple):
    """Deletes a key."""

    key: str


class Is(NamedTuple):
    """Demands that a key has a value; None: that it isn't there."""

    key: str
    value: bytes | None


class KeyValue(msgspec.Struct):
    """A key as etcd sends it. msgspec decodes the base64, or refuses it."""

    key: bytes
    value: bytes = b""
    lease: int = 0

    @property
    def name(self) -> str:
        """The key as a text. Bytes that are no text can't be ours."""
        return self.key.decode(errors="replace")


class RangeReply(msgspec.Struct):
    """The answer to a Range."""

    kvs: list[KeyValue] = []


class _Response(msgspec.Struct):
    response_range: RangeReply | None = None


class Header(msgspec.Struct):
    """What each answer begins with."""

    cluster_id: int


class TxnReply(msgspec.Struct):
    """The answer to a transaction. succeeded: what it demanded was so."""

    header: Header
    succeeded: bool = False
    responses: list[_Response] = []


class LeaseReply(msgspec.Struct):
    """A lease, with its time to live in seconds: 0 or less if there is none."""

    header: Header
    id: int = msgspec.field(name="ID", default=0)
    ttl: int = msgspec.field(name="TTL", default=0)


class KeepAliveReply(msgspec.Struct):
    """The answer of a stream in which only one was asked for."""

    result: LeaseReply

    @property
    def header(self) -> Header:
        return self.result.header


class AuthReply(msgspec.Struct):
    """A user's token, which has to fit in a header."""

    token: Annotated[str, msgspec.Meta(pattern=r"\A[!-~]+\Z", max_length=1 << 14)]


class Fault(msgspec.Struct):
    """An error. code, grpc_code: gRPC's, by either name. error: a stream's has the error in it."""

    message: str = ""
    error: str | Fault = ""
    code: int = 0
    grpc_code: int = 0

    @property
    def told(self) -> tuple[int, str]:
        """The code and the message."""
        if isinstance(self.error, Fault):
            return self.error.told
        return self.code or self.grpc_code, self.message or self.error


class _Event(msgspec.Struct):
    kv: KeyValue
    type: str = "PUT"


class WatchResult(msgspec.Struct):
    """A part of a watch's answer."""

    events: list[_Event] = []
    created: bool = False
    canceled: bool = False
    compact_revision: int = 0
    cancel_reason: str = ""


class WatchReply(msgspec.Struct):
    """One line of a watch's answer."""

    result: WatchResult | None = None
    error: Fault | None = None


def text(raw: str) -> str:
    """Return bytes as etcd's JSON has them."""
    return b64encode(raw.encode()).decode()


def keys_from(prefix: str) -> Json:
    """Return the range of all keys that begin with a prefix."""
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    return {"key": text(prefix), "range_end": text(end)}


def ranges(keys: Sequence[str], prefixes: Sequence[str]) -> list[Json]:
    """Return a transaction's reads of some keys, and of all keys that begin with some prefixes."""
    asked = [{"key": text(key)} for key in keys] + [keys_from(prefix) for prefix in prefixes]
    return [{"request_range": range_} for range_ in asked]


def reading(keys: Sequence[str], prefixes: Sequence[str], unless: Sequence[Is]) -> Json:
    """Return a transaction that reads both, or the prefixes only if there are demands and all met.

    Without demands, etcd takes them for met.
    """
    return {
        "compare": [_compare(demand) for demand in unless],
        "success": ranges(() if unless else keys, prefixes),
        "failure": ranges(keys, prefixes),
    }


def peeking(keys: Sequence[str], prefix: str) -> Json:
    """Return a transaction that reads some keys, and the first of a prefix without its value."""
    first = {**keys_from(prefix), "limit": "1", "keys_only": True}
    return {"success": [{"request_range": first}, *ranges(keys, ())]}


def transaction(demands: Sequence[Is], changes: Sequence[Put | Delete]) -> Json:
    """Return a transaction that makes changes if all demands are met."""
    return {
        "compare": [_compare(demand) for demand in demands],
        "success": [_change(change) for change in changes],
    }


def _compare(demand: Is) -> Json:
    if demand.value is None:
        what: Mapping[str, str] = {"target": "CREATE", "create_revision": "0"}
    else:
        what = {"target": "VALUE", "value": b64encode(demand.value).decode()}
    return {"key": text(demand.key), "result": "EQUAL", **what}


def _change(change: Put | Delete) -> Json:
    if isinstance(change, Delete):
        return {"request_delete_range": {"key": text(change.key)}}
    value = b64encode(change.value).decode()
    return {"request_put": {"key": text(change.key), "value": value, "lease": str(change.lease)}}
