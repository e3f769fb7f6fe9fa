"""Follows changes of keys in etcd.

Nothing is asked of the past, so it doesn't matter what etcd has compacted: a watch begins with
None, and the follower reads all that it needs *after* that. It is the same after each failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import aiohttp
import msgspec

from iokeel.errors import ConnectionLost
from iokeel.fleet.etcd import MOST_REPLY_BYTES, Etcd, lost, not_etcd
from iokeel.fleet.messages import WatchReply, WatchResult, key_of, keys_from, value_of
from iokeel.words.quoting import shown

_REPLY = msgspec.json.Decoder(WatchReply, strict=False)

#: Changed keys with their new values, None for one that was deleted.
Changes = Mapping[str, bytes | None]


async def changes(etcd: Etcd, prefix: str) -> AsyncIterator[Changes | None]:
    """Yield None once etcd watches all keys that begin with a prefix, then their changes.

    Raises ConnectionLost when that ends: the member fails, or has failed others' questions; or
    FleetRefused. A member that hangs is noticed by a question of others, so ask something often.
    """
    url, moved = etcd.member, etcd.moved
    try:
        async for found in _follow(etcd, url, moved, prefix):
            yield found
    except ConnectionLost:
        etcd.forget_token()
        if not moved.is_set():
            etcd.give_up(url)
        raise


async def _follow(
    etcd: Etcd, url: str, moved: asyncio.Event, prefix: str
) -> AsyncIterator[Changes | None]:
    body = {"create_request": keys_from(prefix)}
    headers = await etcd.headers(url)
    try:
        async with etcd.stream(url, "/v3/watch", body, headers) as response:
            if response.status != 200:
                raise etcd.refused(url, await response.content.read(1 << 16), response.status)
            async for line in _lines(response.content, moved):
                result = _result(url, line)
                if result.created:
                    yield None
                if result.events:
                    yield {
                        key_of(event.kv): None if event.type == "DELETE" else value_of(event.kv)
                        for event in result.events
                    }
    except (aiohttp.ClientError, OSError) as error:
        raise lost(url, error) from None
    raise ConnectionLost(url, "has ended the watch")


async def _lines(content: aiohttp.StreamReader, moved: asyncio.Event) -> AsyncIterator[bytes]:
    """Yield an answer's lines until it ends, or another member is asked."""
    left = b""
    gone = asyncio.create_task(moved.wait())
    try:
        while True:
            more = asyncio.create_task(content.readany())
            await asyncio.wait({more, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not more.done():
                more.cancel()
                return
            if not (part := more.result()):
                return
            *lines, left = (left + part).split(b"\n")
            for line in lines:
                yield line
            if len(left) > MOST_REPLY_BYTES:
                return
    finally:
        gone.cancel()


def _result(url: str, line: bytes) -> WatchResult:
    """Return a line's content. Raises ConnectionLost if it ends the watch, or FleetRefused."""
    try:
        reply = _REPLY.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise not_etcd(url, line) from None
    if reply.error is not None:
        said = reply.error.message or reply.error.error
        raise ConnectionLost(url, f"etcd ends the watch: {shown(said)}")
    result = reply.result or WatchResult()
    if result.canceled:
        why = result.cancel_reason or f"compacted at {result.compact_revision}"
        raise ConnectionLost(url, f"etcd ends the watch: {shown(why)}")
    return result
