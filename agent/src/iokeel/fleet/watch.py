"""Follows changes of keys in etcd.

A watch asks for nothing of the past, so compaction doesn't matter. It begins with None, and the
follower reads all that it needs *after* that. After a failure it begins again in the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import Self

import aiohttp
import msgspec

from iokeel.errors import ConnectionLost, IokeelError
from iokeel.fleet.etcd import (
    MOST_REPLY_BYTES,
    BadMember,
    Etcd,
    TokenRefused,
    lost,
    not_etcd,
    refuses_token,
)
from iokeel.fleet.messages import WatchReply, WatchResult, keys_from
from iokeel.hypervisors.pace import delays
from iokeel.words.quoting import shown

_REPLY = msgspec.json.Decoder(WatchReply, strict=False)

#: Changed keys with their new values, None for one that was deleted.
Changes = Mapping[str, bytes | None]


async def changes(etcd: Etcd, prefix: str) -> AsyncIterator[Changes | None]:
    """Yield None once etcd watches all keys that begin with a prefix, then their changes.

    Raises FleetRefused, or ConnectionLost when the watch ends: the member has failed, here or with
    another question. Only other questions show that a member hangs, so ask something often.
    """
    url, moved = etcd.member, etcd.moved
    try:
        async for found in _follow(etcd, url, moved, prefix):
            yield found
    except TokenRefused:
        raise
    except (ConnectionLost, BadMember):
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
                        event.kv.name: None if event.type == "DELETE" else event.kv.value
                        for event in result.events
                    }
    except TokenRefused:
        etcd.forget_token(headers)
        raise
    except (aiohttp.ClientError, OSError) as error:
        raise lost(url, error) from None
    raise ConnectionLost(url, "has ended the watch")


async def _lines(content: aiohttp.StreamReader, moved: asyncio.Event) -> AsyncIterator[bytes]:
    """Yield an answer's lines until it ends, or another member is asked."""
    left = b""
    gone = asyncio.create_task(moved.wait())
    more: asyncio.Task[bytes] | None = None
    try:
        while True:
            more = asyncio.create_task(content.readany())
            await asyncio.wait({more, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not more.done() or not (part := more.result()):
                return
            *lines, left = (left + part).split(b"\n")
            for line in lines:
                yield line
            if len(left) > MOST_REPLY_BYTES:
                return
    finally:
        gone.cancel()
        if more is not None:
            more.cancel()


def _result(url: str, line: bytes) -> WatchResult:
    """Return a line's content. Raises ConnectionLost if it ends the watch, or FleetRefused."""
    try:
        reply = _REPLY.decode(line)
    except (ValueError, RecursionError):
        raise not_etcd(url, line) from None
    if reply.error is not None:
        _, said = reply.error.told
        raise ConnectionLost(url, f"etcd ends the watch: {shown(said)}")
    result = reply.result or WatchResult()
    if result.canceled:
        why = result.cancel_reason or f"compacted at {result.compact_revision}"
        if refuses_token(why):
            raise TokenRefused(url, "refuses the user's token")
        raise ConnectionLost(url, f"etcd ends the watch: {shown(why)}")
    return result


class Watches:
    """Follows some prefixes, each again whenever that has failed. An asynchronous context manager.

    changed: called with a prefix and the keys below it that have changed; None: any may have.
    """

    def __init__(self, etcd: Etcd, changed: Callable[[str, Collection[str] | None], None]) -> None:
        self._etcd = etcd
        self._changed = changed
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [*self._tasks.values()]
        self.follow(())
        await asyncio.gather(*tasks, return_exceptions=True)

    def follow(self, prefixes: Collection[str]) -> None:
        """Follow these prefixes, and no others."""
        for prefix in self._tasks.keys() - set(prefixes):
            self._tasks.pop(prefix).cancel()
        for prefix in set(prefixes) - self._tasks.keys():
            self._tasks[prefix] = asyncio.create_task(self._keep_following(prefix))

    async def _keep_following(self, prefix: str) -> None:
        waits = delays()
        while True:
            try:
                async for found in changes(self._etcd, prefix):
                    waits = delays()
                    self._changed(prefix, found)
            except IokeelError:
                pass  # the caller's own questions meet the same, and tell it
            await asyncio.sleep(next(waits))
