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
from iokeel.fleet.etcd import TIMEOUT_S, Etcd
from iokeel.fleet.store import FleetStore
from testing.fleet import etcd as real

#: Returns an open store of a host with a name and an instance, in a prefix.
OpenStore = Callable[..., contextlib.AbstractAsyncContextManager[FleetStore]]
_PREFIXES = count()
_PATIENCE_S = 60.0
_MEMORY = "/dev/shm"  # etcd waits for its disk at each write
T = TypeVar("T")


async def again(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until it is answered: a cluster that has lost its leader first elects another one."""
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            with contextlib.suppress(ConnectionLost):
                return await ask()
            await asyncio.sleep(0.1)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give etcd time to answer: it may be on a busy machine."""
    monkeypatch.setattr("iokeel.fleet.etcd.TIMEOUT_S", 30.0)


@pytest.fixture
def own_timeout(monkeypatch: pytest.MonkeyPatch, patience: None) -> None:
    """Let a member have as long as the agent gives it, in a test of one that gives no answer."""
    monkeypatch.setattr("iokeel.fleet.etcd.TIMEOUT_S", TIMEOUT_S)


@pytest.fixture(scope="session")
def one_etcd() -> Iterator[real.Etcd]:
    """An etcd of one member, which tests leave running. Use `prefix`."""
    with TemporaryDirectory(prefix="iokeel-", dir=_MEMORY) as folder:
        with real.running(real.Etcd(Path(folder))) as etcd:
            yield etcd


@pytest.fixture
def cluster() -> Iterator[real.Etcd]:
    """Three members, which a test may kill."""
    with TemporaryDirectory(prefix="iokeel-", dir=_MEMORY) as folder:
        with real.running(real.Etcd(Path(folder), size=3, options=("--bcrypt-cost=4",))) as etcd:
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
