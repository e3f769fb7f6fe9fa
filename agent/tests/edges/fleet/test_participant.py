"""Hosts that share a budget through a real etcd, while members of it and hosts fail.

The hosts' QEMUs are figures here. A dead host's stays as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from iokeel.config.etcd_access import Access
from iokeel.core.fleet.claims import Budget
from iokeel.core.fleet.host import Me, Part
from iokeel.core.fleet.ledger import Ledger, Word
from iokeel.core.values.counters import NS_PER_S
from iokeel.core.values.storage import Load
from iokeel.core.values.wants import wants_of
from iokeel.errors import IokeelError
from iokeel.fleet.etcd import Etcd
from iokeel.fleet.keys import BudgetId, Kind
from iokeel.fleet.messages import Delete, Put
from iokeel.fleet.participant import CLAIMS_S, Demand, Holding, Participant, say
from iokeel.fleet.records import claim_value
from iokeel.fleet.store import FleetStore
from testing.fleet import etcd as real
from testing.fleet.budgets import set_budget
from testing.waiting import until

ACME = BudgetId(Kind.TENANT, "acme")
BUDGET = 1000
# A term passes before a new coordinator raises anything.
PATIENCE_S = 90.0
_TICK_S = 0.2


@dataclass
class Host:
    """A host with an agent.

    disk: the ledger that it has kept. is_full: its disk takes no more. held: what its QEMUs are
    held to.
    """

    name: str
    urls: tuple[str, ...]
    demand: Demand
    held: int = 0
    disk: Ledger | None = None
    is_full: bool = False
    participant: Participant | None = None

    async def run(self) -> None:
        async with Etcd(Access(self.urls)) as etcd:
            store = FleetStore(etcd, Me(self.name, "i"))
            self.participant = Participant(
                store,
                ACME,
                self._keep,
                Part(self.disk),
                lambda: Holding(self.demand, self.held, self.held),
            )
            while True:
                with contextlib.suppress(IokeelError):
                    await self._step(store)
                await asyncio.sleep(_TICK_S)

    async def _step(self, store: FleetStore) -> None:
        assert self.participant is not None
        if not await store.stay():
            await store.open()
            await store.sign_in()
        await self.participant.step()

    async def enforce(self) -> None:
        while True:
            if self.participant is not None:
                self.held = self.participant.allowance
            await asyncio.sleep(_TICK_S / 4)

    async def _keep(self, ledger: Ledger) -> None:
        if self.is_full:
            raise IokeelError("the disk", "is full")
        self.disk = ledger


@dataclass
class Hosts:
    """Hosts that run, and the most that they were held to together."""

    all: dict[str, Host]
    worst: int = 0
    _tasks: dict[str, list[asyncio.Task[None]]] = field(default_factory=dict)

    def start(self, name: str) -> None:
        host = self.all[name]
        self._tasks[name] = [asyncio.create_task(host.run()), asyncio.create_task(host.enforce())]

    async def kill(self, name: str) -> None:
        """End an agent at once. What its QEMUs are held to stays."""
        for task in self._tasks.pop(name):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self.all[name].participant = None

    async def monitor(self) -> None:
        while True:
            self.worst = max(self.worst, self.total)
            await asyncio.sleep(_TICK_S / 10)

    @property
    def total(self) -> int:
        return sum(host.held for host in self.all.values())

    @property
    def coordinator(self) -> str:
        return next(
            name
            for name, host in self.all.items()
            if host.participant is not None and host.participant.coordinates
        )

    async def hold(self, **expected: int) -> None:
        """Wait until hosts are held to these figures, within 2 %."""

        def close() -> bool:
            return all(
                abs(self.all[name].held - figure) <= 0.02 * BUDGET
                for name, figure in expected.items()
            )

        try:
            await until(close, PATIENCE_S)
        except AssertionError:
            found = {name: host.held for name, host in self.all.items()}
            raise AssertionError(f"{found}, not {expected}") from None


@contextlib.asynccontextmanager
async def hosts(cluster: real.Etcd, **demands: Demand) -> AsyncIterator[Hosts]:
    there = Hosts({name: Host(name, cluster.urls, demand) for name, demand in demands.items()})
    async with Etcd(Access(cluster.urls)) as etcd:
        store = FleetStore(etcd, Me("operator", "o"))
        await store.open()
        await set_budget(store, ACME, Budget(BUDGET))
    for name in demands:
        there.start(name)
    monitor = asyncio.create_task(there.monitor())
    try:
        yield there
    finally:
        monitor.cancel()
        for name in list(there._tasks):
            await there.kill(name)


def greedy(weight: int) -> Demand:
    return Demand(weight=weight, wants=wants_of([(0, weight, 5000)]), most=5000)


def modest(wants: int) -> Demand:
    return Demand(wants=wants_of([(0, 100, wants)]), most=5000)


async def test_hosts_share_by_weight_while_etcd_and_hosts_fail(cluster: real.Etcd) -> None:
    async with hosts(cluster, a=greedy(100), b=greedy(100), c=greedy(200)) as there:
        await there.hold(a=250, b=250, c=500)
        cluster.leader().kill()
        there.all["a"].demand = modest(100)
        await there.hold(a=100, b=300, c=600)
        # A dead host stays charged until an operator answers for it.
        dead = there.coordinator
        left = {name: host for name, host in there.all.items() if name != dead}
        await there.kill(dead)
        held = there.all[dead].held
        for host in left.values():
            host.demand = greedy(100)
        await there.hold(**dict.fromkeys(left, (BUDGET - held) // 2))
        async with Etcd(Access(cluster.urls)) as etcd:
            store = FleetStore(etcd, Me("operator", "o"))
            there.all[dead].held = 0  # it was turned off
            assert await say(store, ACME, dead, Word.OFF_FOR_GOOD)
        await there.hold(**dict.fromkeys(left, BUDGET // 2))
        assert there.worst <= BUDGET


@pytest.mark.usefixtures("own_timeout")
async def test_hosts_go_down_to_their_floors_without_a_quorum(cluster: real.Etcd) -> None:
    async with hosts(cluster, a=greedy(100), b=greedy(300)) as there:
        await there.hold(a=250, b=750)
        for member in cluster.members[:2]:
            member.stop()
        await there.hold(a=50, b=50)
        for member in cluster.members[:2]:
            member.resume()
        await there.hold(a=250, b=750)
        assert there.worst <= BUDGET


async def test_nobody_gets_more_from_an_etcd_that_was_restored(
    cluster: real.Etcd, tmp_path: Path
) -> None:
    snapshot = tmp_path / "snapshot"
    async with hosts(cluster, a=greedy(100), b=greedy(300)) as there:
        await there.hold(a=250, b=750)
        cluster.ctl("snapshot", "save", str(snapshot), one=True)
        there.all["b"].demand = modest(50)
        await there.hold(a=950)
        await asyncio.to_thread(cluster.restore, snapshot)
        await asyncio.to_thread(cluster.start)
        there.all["b"].demand = greedy(300)
        await there.hold(a=250, b=750)
        assert there.worst <= BUDGET


async def test_a_ledger_that_nobody_can_read_is_replaced_by_what_hosts_remember(
    cluster: real.Etcd, caplog: pytest.LogCaptureFixture
) -> None:
    async with hosts(cluster, a=greedy(100), b=greedy(300)) as there:
        await there.hold(a=250, b=750)
        async with Etcd(Access(cluster.urls)) as etcd:
            store = FleetStore(etcd, Me("operator", "o"))
            key = store.keys.ledger(ACME)
            raw = (await etcd.read([key])).values[key]
            record = json.loads(raw)
            for entry in record["hosts"].values():
                entry[1] = -1  # its floor
            for spoilt in (json.dumps(record).encode(), b"mine!"):
                await etcd.write([], [Put(key, spoilt), Put(store.keys.stamp(ACME), spoilt)])
                await there.hold(a=50, b=50)
                await there.hold(a=250, b=750)
        assert there.worst <= BUDGET
    assert "isn't what iokeel has written there" in caplog.text
    assert "it is replaced by what this host remembers" in caplog.text


async def test_a_coordinator_whose_disk_is_full_makes_way_for_another(cluster: real.Etcd) -> None:
    async with hosts(cluster, a=greedy(100), b=greedy(100)) as there:
        await there.hold(a=500, b=500)
        full = there.coordinator
        (other,) = there.all.keys() - {full}
        there.all[full].is_full = True
        there.all[other].demand = modest(100)
        await there.hold(**{full: 50, other: 100})
        there.all[other].demand = greedy(100)
        await there.hold(**{full: 50, other: 500})
        assert there.coordinator == other
        there.all[full].is_full = False
        there.all[other].demand = greedy(300)
        await there.hold(**{full: 250, other: 750})
        assert there.worst <= BUDGET


async def test_a_claim_that_etcd_has_lost_is_made_again(etcd: Etcd) -> None:
    store, ends = FleetStore(etcd, Me("a", "i")), [0]
    demand = Demand(0, 100, wants_of([(0, 100, 50)]), 500)

    async def keep(ledger: Ledger) -> None:
        pass

    participant = Participant(
        store, ACME, keep, Part(), lambda: Holding(demand, 0, 0), lambda: ends[0]
    )
    await store.open()
    await store.sign_in()
    await participant.step()
    there = (await store.view(ACME)).claims
    assert not participant.has_news
    key, late = store.keys.claim(ACME, "a"), claim_value(replace(there["a"], held=9))
    for change in (Delete(key), Put(key, late)):
        await etcd.write([], [change])
        ends[0] += round(2 * CLAIMS_S * NS_PER_S)
        await participant.step()
        assert (await store.view(ACME)).claims == there


async def test_a_load_is_told_every_two_seconds_by_looks_a_second_apart(etcd: Etcd) -> None:
    store, now_ns, load = FleetStore(etcd, Me("a", "i")), 0, Load()
    storage = BudgetId(Kind.STORAGE, "rbd:vms")
    told_at: list[int] = []

    async def keep(ledger: Ledger) -> None:
        pass

    participant = Participant(
        store, storage, keep, Part(), lambda: Holding(Demand(), 0, 0, load), lambda: now_ns
    )
    await store.open()
    await store.sign_in()
    for second in range(7):
        now_ns, load = round(second * NS_PER_S), Load(done=second)
        if participant.has_news:
            told_at.append(second)
            now_ns += 20_000_000  # until etcd answers
            await participant.step()
    assert told_at == [0, 2, 4, 6]
