"""Watches: what they tell, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator

import pytest

from iokeel.config.etcd_access import Access
from iokeel.errors import ConnectionLost
from iokeel.fleet.etcd import Etcd
from iokeel.fleet.messages import Delete, Put
from iokeel.fleet.watch import Changes, Watches, changes
from testing.fleet import etcd as real
from tests.edges.fleet.conftest import again

_PATIENCE_S = 30.0


@contextlib.asynccontextmanager
async def watching(etcd: Etcd, prefix: str) -> AsyncIterator[AsyncIterator[Changes | None]]:
    """Begin a watch, and end it."""
    watch = changes(etcd, prefix)
    try:
        assert await following(watch) is None
        yield watch
    finally:
        await watch.aclose()  # type: ignore[attr-defined]


async def following(watch: AsyncIterator[Changes | None]) -> Changes | None:
    return await asyncio.wait_for(anext(watch), _PATIENCE_S)


async def test_tells_what_was_written_and_deleted(etcd: Etcd, prefix: str) -> None:
    async with watching(etcd, f"{prefix}a/") as watch:
        await etcd.write([], [Put(f"{prefix}a/1", b"x"), Put(f"{prefix}b", b"not this")])
        assert await following(watch) == {f"{prefix}a/1": b"x"}
        await etcd.write([], [Delete(f"{prefix}a/1")])
        assert await following(watch) == {f"{prefix}a/1": None}
    assert etcd.failures == 0


async def test_keys_of_a_lease_that_ends_are_told(etcd: Etcd, prefix: str) -> None:
    lease = await etcd.grant_lease(60)
    await etcd.write([], [Put(f"{prefix}a", b"x", lease)])
    async with watching(etcd, prefix) as watch:
        await etcd.revoke_lease(lease)
        assert await following(watch) == {f"{prefix}a": None}


async def test_a_watch_that_is_given_up_leaves_no_error_in_the_log(
    etcd: Etcd, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    begun = asyncio.Event()
    async with Watches(etcd, lambda *_: begun.set()) as watches:
        watches.follow({prefix})
        await asyncio.wait_for(begun.wait(), _PATIENCE_S)
    await asyncio.sleep(0.1)
    gc.collect()
    assert not caplog.records


async def test_a_long_value_is_told_whole(etcd: Etcd, prefix: str) -> None:
    value = bytes(range(256)) * 4000
    async with watching(etcd, prefix) as watch:
        await etcd.write([], [Put(f"{prefix}a", value)])
        assert await following(watch) == {f"{prefix}a": value}


async def test_a_compaction_is_of_no_concern(one_etcd: real.Etcd, etcd: Etcd, prefix: str) -> None:
    def compact() -> None:
        status = one_etcd.ctl("get", "any")
        revision = status.split('"revision":')[1].split(",")[0]
        one_etcd.ctl("compact", revision)

    async with watching(etcd, prefix) as watch:
        for number in range(5):
            await etcd.write([], [Put(f"{prefix}a", b"%d" % number)])
        await asyncio.to_thread(compact)
        seen: dict[str, bytes | None] = {}
        while seen != {f"{prefix}a": b"4"}:
            seen |= await following(watch) or {}
    async with watching(etcd, prefix):
        assert (await etcd.read([f"{prefix}a"])).values == seen


async def test_a_member_that_is_killed_ends_it_and_the_next_one_goes_on(
    cluster: real.Etcd,
) -> None:
    async with Etcd(Access(cluster.urls)) as etcd:
        await again(lambda: etcd.read(["/a"]))  # it has a leader
        async with watching(etcd, "/a") as watch:
            next(member for member in cluster.members if member.url == etcd.member).kill()
            with pytest.raises(ConnectionLost):
                await following(watch)
        await again(lambda: etcd.read(["/a"]))
        async with watching(etcd, "/a") as watch:
            await again(lambda: etcd.write([], [Put("/a", b"x")]))
            assert await following(watch) == {"/a": b"x"}


@pytest.mark.usefixtures("own_timeout")
async def test_a_member_that_hangs_ends_it_once_a_read_has_moved_on(cluster: real.Etcd) -> None:
    async with Etcd(Access(cluster.urls)) as etcd:
        await again(lambda: etcd.read(["/a"]))  # it has a leader
        async with watching(etcd, "/a") as watch:
            next(member for member in cluster.members if member.url == etcd.member).stop()
            await again(lambda: etcd.read(["/a"]))
            with pytest.raises(ConnectionLost):
                await following(watch)
