"""What a host that was taken over writes into a real etcd, and what the others make of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from iokeel.core.fleet.claims import HostClaim
from iokeel.core.fleet.ledger import Entry, first_ledger, successor
from iokeel.core.values.wants import TenantWants, Wants, wants_of
from iokeel.fleet.etcd import Etcd
from iokeel.fleet.keys import BudgetId, Kind
from iokeel.fleet.messages import Delete, Put
from iokeel.fleet.participant import READ_S
from iokeel.fleet.records import (
    HostRecord,
    LeaderRecord,
    claim_value,
    encoded,
    ledger_value,
    stamp_value,
    wants_value,
)
from iokeel.fleet.store import FleetStore
from testing.fleet import etcd as real
from testing.waiting import until
from tests.edges.fleet.conftest import OpenStore
from tests.edges.fleet.test_member import LIMIT, PATIENCE_S, running, set_limits

ACME, UMBRA = (BudgetId(Kind.TENANT, name) for name in ("acme", "umbra"))
CLAIM = HostClaim("i", most=LIMIT, wants=wants_of([(0, 100, LIMIT)]))


def put_claim(store: FleetStore, host: str, claim: HostClaim = CLAIM, lease: int = 0) -> Put:
    return Put(store.keys.claim(ACME, host), claim_value(claim), lease)


def put_host(store: FleetStore, host: str, lease: int = 0) -> Put:
    return Put(store.keys.host(host), encoded(HostRecord(instance="i")), lease)


def put_leader(store: FleetStore, host: str, lease: int = 0) -> Put:
    return Put(store.keys.leader(ACME), encoded(LeaderRecord(host=host)), lease)


@contextlib.asynccontextmanager
async def signed_in(store: FleetStore) -> AsyncIterator[int]:
    """Sign a host in, and keep its lease."""

    async def stay() -> None:
        while await store.stay():
            await asyncio.sleep(1)

    await store.sign_in()
    assert store.lease is not None
    staying = asyncio.create_task(stay())
    try:
        yield store.lease
    finally:
        staying.cancel()


async def test_only_claims_of_hosts_that_are_there_count(etcd: Etcd, store_of: OpenStore) -> None:
    async with store_of("evil") as evil, store_of("b") as b:
        for store in (evil, b):
            await store.sign_in()
            await store.claim({ACME: CLAIM})
        assert evil.lease is not None
        there = {"evil": CLAIM, "b": CLAIM}
        await etcd.write(
            [],
            [
                put_claim(evil, "no lease"),
                put_claim(evil, "no host", lease=evil.lease),
                put_host(evil, "for good"),
                put_claim(evil, "for good", lease=evil.lease),
                put_host(evil, "other", lease=evil.lease),
                put_claim(evil, "other", replace(CLAIM, instance="j"), evil.lease),
            ],
        )
        for _ in range(2):
            assert (await b.view(ACME)).claims == there
        await etcd.write([], [put_claim(evil, f"x{number}") for number in range(120)])
        hosts = [put_claim(evil, f"y{number}", lease=evil.lease) for number in range(120)]
        await etcd.write([], hosts)
        assert (await b.view(ACME)).claims == there
        await etcd.write([], [Put(evil.keys.claim(ACME, "b"), b"junk", evil.lease)])
        assert (await b.view(ACME)).claims == {"evil": CLAIM}


async def test_a_host_that_starts_again_keeps_its_claims_until_it_makes_others(
    store_of: OpenStore,
) -> None:
    async with store_of("a") as a, store_of("b") as b, store_of("c") as late:
        await a.sign_in()
        await a.claim({ACME: CLAIM})
        assert (await b.view(ACME)).claims == {"a": CLAIM}
        await a.sign_in()  # another lease, within the time of the first
        for store in (b, late):
            assert (await store.view(ACME)).claims == {"a": CLAIM}
        await a.claim({ACME: CLAIM})
        assert (await b.view(ACME)).claims == {"a": CLAIM}


@pytest.mark.parametrize("office", ["no lease", "no host", "junk", "its host goes"])
async def test_an_office_whose_host_is_not_there_is_vacant(
    etcd: Etcd, store_of: OpenStore, office: str
) -> None:
    async with store_of("evil") as evil, store_of("b") as b:
        await evil.sign_in()
        await b.sign_in()
        assert evil.lease is not None
        puts = {
            "no lease": [put_leader(evil, "evil")],
            "no host": [put_leader(evil, "nobody", evil.lease)],
            "junk": [Put(evil.keys.leader(ACME), b"junk", evil.lease)],
            "its host goes": [put_leader(evil, "x", evil.lease), put_host(evil, "x", evil.lease)],
        }
        await etcd.write([], puts[office])
        view = await b.view(ACME)
        if office == "its host goes":
            assert view.leader == "x"
            await etcd.write([], [Delete(evil.keys.host("x"))])
            view = await b.view(ACME, view)
        assert view.leader is None
        assert await b.campaign(ACME, view)
        assert (await evil.view(ACME, view)).leader == "b"
        assert not await evil.campaign(ACME, view)


async def test_demands_without_end_count_by_their_sums(
    etcd: Etcd, store_of: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenants = {"acme": TenantWants(100, wants_of([(0, 1, 9)]).layers)}
    few = replace(CLAIM, wants=Wants(1, (), tenants))
    many = replace(CLAIM, wants=Wants(1, wants_of([(0, 1, n) for n in range(1, 200)]).layers, {}))
    async with store_of("evil") as evil, store_of("b") as b:
        for store, claim in ((evil, many), (b, few)):
            await store.sign_in()
            await store.claim({ACME: claim})
        told = (await b.view(ACME)).claims
        assert told == {"evil": many, "b": few}
        large, small = wants_value(many), wants_value(few)
        assert large is not None
        assert small is not None
        monkeypatch.setattr("iokeel.fleet.presence.MOST_WANTS_BYTES", len(large) + len(small) - 1)
        claims = (await b.view(ACME)).claims
        assert claims["b"] == few
        assert claims["evil"].wants == wants_of([(0, 100, many.wants.total)])


@pytest.mark.parametrize("bound", ["etcd.MOST_REPLY_BYTES", "presence.MOST_CLAIMS"])
async def test_claims_without_end_are_told_of_their_budget_only(
    etcd: Etcd, store_of: OpenStore, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    hosts = 60
    monkeypatch.setattr(f"iokeel.fleet.{bound}", 10_000 if "BYTES" in bound else hosts - 1)
    async with store_of("a") as a:
        lease = await etcd.grant_lease(60)
        for host in (f"x{number}" for number in range(hosts)):
            await etcd.write([], [put_host(a, host, lease), put_claim(a, host, lease=lease)])
        view = await a.view(ACME)
        for _ in range(2):
            said = f"etcd {a.keys.claims(ACME)}: has claims that can't be read: "
            assert str(view.crowded).startswith(said)
            assert view.claims == {}
            view = await a.view(ACME, view, with_claims=False)
        assert (await a.view(UMBRA)).crowded is None
        for host in (f"x{number}" for number in range(hosts)):
            await etcd.write([], [Delete(a.keys.claim(ACME, host))])
        assert (await a.view(ACME, view)).crowded is None


async def test_a_host_goes_on_among_hostile_writes(
    one_etcd: real.Etcd,
    etcd: Etcd,
    store_of: OpenStore,
    prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It coordinates two tenants' limits, and another host writes what it likes, but no budget."""
    monkeypatch.setattr("iokeel.fleet.etcd.MOST_REPLY_BYTES", 40_000)
    tenants = ["acme", "umbra"]
    await set_limits(etcd, *tenants)
    async with (
        store_of("evil") as evil,
        signed_in(evil) as lease,
        running(tmp_path, one_etcd.urls[0], prefix, tenants) as member,
    ):

        def limits() -> list[int | None]:
            there = member.granted(tenants)
            return [there[tenant].limit if tenant in there else None for tenant in tenants]

        async def keeps() -> None:
            for _ in range(round(2 * READ_S)):
                assert limits() == [LIMIT, LIMIT]
                await asyncio.sleep(1)
            assert member.problem is None

        await until(lambda: limits() == [LIMIT, LIMIT], PATIENCE_S)
        for writes in (
            [put_claim(evil, f"x{number}") for number in range(40)],
            [put_claim(evil, f"x{number}", lease=lease) for number in range(40)],
            [put_leader(evil, "nobody", lease)],
            [Put(evil.keys.leader(ACME), b"junk")],
        ):
            await etcd.write([], writes)
            await keeps()
        assert not member.problems
        await until(lambda: member.snapshot().tenants["acme"].report.coordinator == "a", PATIENCE_S)
        for first in range(40, 200, 40):
            numbers = range(first, first + 40)
            await etcd.write([], [put_claim(evil, f"x{number}") for number in numbers])
        await until(lambda: ACME in member.problems, PATIENCE_S)
        said = f"{evil.keys.claims(ACME)}: has claims that can't be read"
        assert said in str(member.problems[ACME])
        await keeps()
        assert member.problems.keys() == {ACME}


async def test_a_forged_ledger_lets_no_host_go_beyond_the_budget(
    one_etcd: real.Etcd, etcd: Etcd, store_of: OpenStore, prefix: str, tmp_path: Path
) -> None:
    await set_limits(etcd, "acme")
    async with (
        store_of("evil") as evil,
        running(tmp_path, one_etcd.urls[0], prefix, ["acme"]) as member,
    ):
        await until(lambda: member.granted(["acme"])["acme"].limit == LIMIT, PATIENCE_S)
        ledger = (await evil.view(ACME)).ledger or first_ledger(LIMIT, "e")
        after = successor(ledger, "evil")
        entry = Entry(member.parts.me.instance, 10**9, 10**9, 10**9, 10**9, after.stamp)
        forged = replace(after, entries={"a": entry})
        written = [
            Put(evil.keys.ledger(ACME), ledger_value(forged)),
            Put(evil.keys.stamp(ACME), stamp_value(forged)),
        ]
        await etcd.write([], written)
        for _ in range(round(3 * READ_S)):
            assert member.granted(["acme"])["acme"].limit == LIMIT
            await asyncio.sleep(1)
        heard = member.parts.participants[ACME].part.ledger
        assert heard is not None
        assert heard.descends_from(forged.stamp)
