"""When domains that have changed are read again."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator

from iokeel.hypervisors.libvirt.changes import Changes
from testing.waiting import until


class Reader:
    """Counts how often each domain was read; those in `hangs` don't answer before `go_on`."""

    def __init__(self) -> None:
        self.reads: Counter[str] = Counter()
        self.go_on = asyncio.Event()
        self.hangs: set[str] = set()

    async def read(self, name: str) -> None:
        self.reads[name] += 1
        if name in self.hangs:
            await self.go_on.wait()


@contextlib.asynccontextmanager
async def followed(changes: Changes) -> AsyncIterator[None]:
    task = asyncio.create_task(changes.follow())
    await asyncio.sleep(0)
    yield
    task.cancel()
    await asyncio.wait([task])


async def test_a_domain_that_changes_all_the_time_is_read_about_once_a_second() -> None:
    reader = Reader()
    changes = Changes(reader.read)
    began = time.monotonic()
    async with followed(changes):
        for _ in range(300):
            changes.add("db1")
            await asyncio.sleep(0.002)
        changes.add("web")
        await until(lambda: reader.reads["web"])
        assert 3 <= reader.reads["db1"] <= 4 + (time.monotonic() - began)
        await until(lambda: not changes._stale)  # the last change is read, too


async def test_changes_while_a_domain_is_read_have_it_read_once_more() -> None:
    reader = Reader()
    reader.hangs = {"db1"}
    changes = Changes(reader.read)
    async with followed(changes):
        changes.add("db1")
        await until(lambda: reader.reads["db1"] == 1)
        for _ in range(100):
            changes.add("db1")
        changes.add("web")
        await until(lambda: reader.reads["web"])
        assert reader.reads["db1"] == 1
        reader.go_on.set()
        await until(lambda: reader.reads["db1"] == 2)
        assert not changes._stale


async def test_domains_that_hang_and_go_on_to_change_keep_no_other_waiting() -> None:
    reader = Reader()
    names = [f"db{i}" for i in range(40)]
    reader.hangs = {*names}
    changes = Changes(reader.read)
    async with followed(changes):
        for _ in range(2):
            for name in names:
                changes.add(name)
            await asyncio.sleep(0)
        changes.add("web")
        await until(lambda: reader.reads["web"])
        assert reader.reads == dict.fromkeys([*names, "web"], 1)
        reader.go_on.set()
        await until(lambda: reader.reads == {**dict.fromkeys(names, 2), "web": 1})


async def test_however_many_names_are_told_few_are_read_at_once_and_none_is_lost() -> None:
    reader = Reader()
    names = {f"db{i}" for i in range(1000)}
    reader.hangs = names
    changes = Changes(reader.read)
    before = len(asyncio.all_tasks())
    async with followed(changes):
        for name in names:
            changes.add(name)
        await until(lambda: reader.reads.total() >= 64)
        assert len(asyncio.all_tasks()) <= before + 65
        reader.go_on.set()
        await until(lambda: reader.reads == dict.fromkeys(names, 1))


async def test_what_changes_before_anybody_follows_is_read_then() -> None:
    reader = Reader()
    changes = Changes(reader.read)
    changes.add("db1")
    await asyncio.sleep(0)
    assert not reader.reads
    async with followed(changes):
        await until(lambda: reader.reads == {"db1": 1})
