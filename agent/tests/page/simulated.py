"""The API of a simulated host, served by a thread while a test looks at the page."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from iokeel.report.snapshot import Snapshot
from testing.sim.guests import Guest
from testing.simulated_api import SimulatedApi

Served = Callable[[Path], "contextlib.AbstractAsyncContextManager[None]"]


@contextlib.contextmanager
def served(serving: Served, socket: Path) -> Iterator[None]:
    """Serve in a thread of its own, so that a test may wait for the browser."""
    ready, end = threading.Event(), threading.Event()

    async def run() -> None:
        async with serving(socket):
            ready.set()
            await asyncio.to_thread(end.wait)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert ready.wait(30)
        yield
    finally:
        end.set()
        thread.join()


class OtherStorage(SimulatedApi):
    """A simulated host that tells something else of its storage than what is so.

    told: fields of the storage's record.
    """

    def __init__(self, guests: Sequence[Guest], told: Mapping[str, object]) -> None:
        super().__init__(guests)
        self.told = told

    def snapshot(self, domains: Collection[str] | None = None) -> Snapshot:
        """Return a snapshot of the host, with what is told of its storage."""
        found = super().snapshot(domains)
        storages = {
            name: storage._replace(report=msgspec.structs.replace(storage.report, **self.told))
            for name, storage in found.storages.items()
        }
        return replace(found, storages=storages)


def passing(host: SimulatedApi) -> Served:
    """Return what serves a simulated host whose time passes, a second each second."""

    @contextlib.asynccontextmanager
    async def serving(socket: Path) -> AsyncIterator[None]:
        async with host.served(socket):
            task = asyncio.create_task(_pass(host))
            yield
            task.cancel()

    return serving


async def _pass(host: SimulatedApi) -> None:
    while True:
        await asyncio.sleep(1)
        host.run(1)
