"""The API of a simulated host, served by a thread while a test looks at the page."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from iokeel.report.records import BudgetInFleet, FleetBudgetReport, FleetSnapshot
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

    told: fields of the storage's record. is_shared: whether it is the fleet's.
    """

    def __init__(
        self, guests: Sequence[Guest], told: Mapping[str, object], *, is_shared: bool = False
    ) -> None:
        super().__init__(guests)
        self.told, self.is_shared = told, is_shared

    def snapshot(self, domains: Collection[str] | None = None) -> Snapshot:
        """Return a snapshot of the host, with what is told of its storage."""
        found = super().snapshot(domains)
        storages = {
            name: storage._replace(report=msgspec.structs.replace(storage.report, **self.told))
            for name, storage in found.storages.items()
        }
        fleet = sharing(*storages) if self.is_shared else None
        return replace(found, storages=storages, fleet=fleet)


def sharing(*storages: str) -> FleetSnapshot:
    """Return the fleet of a host that shares these storages, and has an eighth of each."""
    budgets = {
        name: BudgetInFleet(
            FleetBudgetReport(
                name=name, set_iops=4000, limit_iops=4000, allowed_iops=500, floor_iops=500,
                held_iops=500, stale_s=1.0, charges={"hv1": 500}, silent=[], coordinator="hv1",
                error=None,
            ),
            500,
            {},
        )
        for name in storages
    }  # fmt: skip
    return FleetSnapshot("hv1", None, 1, 0, tenants={}, storages=budgets)


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
