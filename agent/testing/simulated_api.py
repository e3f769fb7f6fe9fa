"""The agent's API over a simulated host: the real law, records and socket, without a QEMU."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from math import inf
from pathlib import Path

from iokeel.config.settings import Config
from iokeel.config.tables import AgentConfig
from iokeel.core.values.counters import NS_PER_S
from iokeel.core.values.observation import Reason
from iokeel.core.values.policy import DomainPolicy, DrivePolicy
from iokeel.core.values.storage import StoragePolicy
from iokeel.errors import IokeelError
from iokeel.hypervisors.source import DriveInfo, VmInfo
from iokeel.report.history import History
from iokeel.report.http import Api, serve
from iokeel.report.metrics.prometheus import Metrics
from iokeel.report.snapshot import Known, Snapshot, series_values, snapshot_of
from iokeel.store.weeks import Hour
from testing.sim.fleet import Fleet
from testing.sim.guests import KINDS, Guest, Phase, switching
from testing.sim.storage import Disk, steady

_CAPACITY = 20_000  # normalized iops


class SimulatedApi:
    """A simulated host whose time passes when `run` is called.

    errors: of VMs' policies. over_qmp: the names of VMs that libvirt doesn't know. history: None
    answers like an agent that has no history. hours: of the history of weeks.
    """

    def __init__(self, guests: Sequence[Guest], disks: int = 1) -> None:
        disk = Disk(StoragePolicy(_CAPACITY), steady(_CAPACITY), 0.0001)
        self.fleet = Fleet(guests, [disk] * disks)
        self.history = History()
        self.errors: dict[str, IokeelError] = {}
        self.over_qmp: set[str] = set()
        self.metrics = Metrics()
        self.hours: Callable[[int, int], Iterator[Hour]] = lambda since, until: iter(())

    def run(self, seconds: int) -> None:
        """Let time pass; the history gets it as if it had just been."""
        began_ns = time.monotonic_ns() - seconds * NS_PER_S
        for second in range(1, seconds + 1):
            record = self.fleet.run(1)
            at_ns = began_ns + second * NS_PER_S
            for _, guest, reason in record.orders:
                self.history.add_order(at_ns, self.fleet.guests[guest].drive, Reason[reason])
            if self.history.is_due(at_ns):
                self.history.add(at_ns, self.fleet.state.drives, series_values(self.fleet.state))

    def snapshot(self, domains: Collection[str] | None = None) -> Snapshot:
        """Return a snapshot of the host."""
        vms = {
            guest.drive.domain: VmInfo(
                guest.drive.domain,
                {guest.drive.target: DriveInfo(guest.drive.target, in_force=in_force)},
                DomainPolicy({}, None, guest.tenant),
                self.errors.get(guest.drive.domain),
                from_libvirt=guest.drive.domain not in self.over_qmp,
            )
            for guest, in_force in zip(self.fleet.guests, self.fleet.in_force, strict=True)
        }
        known = Known(self.fleet.state, vms, {}, {}, {}, {}, 0)
        return snapshot_of(known, domains, self.fleet.now_ns)

    @contextlib.asynccontextmanager
    async def served(self, socket: Path) -> AsyncIterator[None]:
        """Serve the API on a socket."""
        api = Api(
            Config,
            self.snapshot,
            lambda name: None,
            self.metrics,
            self.history,
            lambda: self.fleet.now_ns,
            lambda since, until: self.hours(since, until),
        )
        async with serve(api, AgentConfig(socket=socket)):
            yield


def steady_guest(
    name: str, rate: float, limit: int | None = None, tenant: str | None = None, disk: int = 0
) -> Guest:
    """Return a guest that asks for one rate of 4 KiB reads for ever."""
    policy = None if limit is None else DrivePolicy(limit=limit)
    return Guest(name, policy, iter([Phase(inf, rate)]), disk, tenant)


def mixed_guests(count: int) -> list[Guest]:
    """Return guests that shift between loads, of four tenants and with many policies."""
    chance = random.Random(count)
    guests = []
    for number in range(count):
        limit = chance.choice((500, 1000, 4000))
        burst = chance.choice((None, 2 * limit))
        policy = DrivePolicy(
            limit=limit, burst=burst, latency_target_ms=chance.choice((None, None, 0.5))
        )
        phases = switching(number, (0, 100, 300, 1000, inf), 20, KINDS)
        tenant = chance.choice(("acme", "globex", "initech", None))
        guests.append(
            Guest(f"guest{number:04}", policy, phases, number % 4, tenant, exact=number % 3 == 0)
        )
    return guests


async def _main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("socket", type=Path)
    parser.add_argument("--guests", type=int, default=30)
    parser.add_argument("--still", action="store_true", help="time doesn't pass")
    options = parser.parse_args()
    host = SimulatedApi(mixed_guests(options.guests), 4)
    host.run(150)
    async with host.served(options.socket):
        while True:
            await asyncio.sleep(1)
            if not options.still:
                host.run(1)


if __name__ == "__main__":
    asyncio.run(_main())
