"""Real etcds, and stores in them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import pytest

from iokeel.config.etcd_access import Access
from iokeel.core.fleet.host import Me
from iokeel.errors import ConnectionLost
from iokeel.fleet.etcd import Etcd
from iokeel.fleet.store import FleetStore
from testing.fleet import etcd as real

#: Returns an open store of a host with a name and an instance, in a prefix.
OpenStore = Callable[..., contextlib.AbstractAsyncContextManager[FleetStore]]
_PREFIXES = count()
_PATIENCE_S = 60.0
T = TypeVar("T")


async def again(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until it is answered: a cluster that has lost its leader first elects another one."""
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            with contextlib.suppress(ConnectionLost):
                return await ask()
            await asyncio.sleep(0.1)


@pytest.fixture(scope="session")
def one_etcd() -> Iterator[real.Etcd]:
    """An etcd of one member, which tests leave running. Use `prefix`."""
    with TemporaryDirectory(prefix="iokeel-") as folder:
        with real.running(real.Etcd(Path(folder))) as etcd:
            yield etcd


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[real.Etcd]:
    """Three members, which a test may kill."""
    with real.running(real.Etcd(tmp_path / "etcd", size=3)) as etcd:
        yield etcd


@pytest.fixture
def prefix() -> str:
    """A prefix that no other test has."""
    return f"/test{next(_PREFIXES)}/"


@pytest.fixture
async def etcd(one_etcd: real.Etcd, prefix: str) -> AsyncIterator[Etcd]:
    """A connection to the etcd of one member."""
    async with Etcd(Access(one_etcd.urls, prefix=prefix)) as etcd:
        yield etcd


@pytest.fixture
def store_of(one_etcd: real.Etcd, prefix: str) -> OpenStore:
    """Open stores of hosts in one prefix."""

    @contextlib.asynccontextmanager
    async def open_store(
        name: str, instance: str = "i", urls: tuple[str, ...] = one_etcd.urls
    ) -> AsyncIterator[FleetStore]:
        async with Etcd(Access(urls, prefix=prefix)) as etcd:
            store = FleetStore(etcd, Me(name, instance))
            await store.open()
            yield store

    return open_store
