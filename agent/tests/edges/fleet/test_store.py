"""The fleet's data in a real etcd: hosts, claims, offices and ledgers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from iokeel.config.etcd_access import Access
from iokeel.core.fleet.claims import Budget, HostClaim, Shared
from iokeel.core.fleet.host import Me
from iokeel.core.fleet.ledger import Stamp, first_ledger, successor
from iokeel.core.values.wants import TenantLevel, wants_of
from iokeel.errors import FleetRefused, NewerSchema
from iokeel.fleet.etcd import Etcd
from iokeel.fleet.keys import BudgetId, Kind
from iokeel.fleet.messages import Delete, Put
from iokeel.fleet.records import claim_value, ledger_value, stamp_value
from iokeel.fleet.store import FleetStore
from testing.fleet import etcd as real
from testing.fleet.budgets import set_budget
from tests.edges.fleet.conftest import OpenStore

ACME = BudgetId(Kind.TENANT, "acme")
DISK = BudgetId(Kind.STORAGE, "rbd:pool/a b")
WANTS = wants_of([(10, 100, 200)])
CLAIM = HostClaim("i", 10, 100, WANTS, 300, 250, Stamp("e", 3))


async def test_a_prefix_that_holds_something_else_is_refused(
    etcd: Etcd, prefix: str, store_of: OpenStore
) -> None:
    await etcd.write([], [Put(f"{prefix}theirs", b"1")])
    with pytest.raises(FleetRefused, match=r"holds something else, such as .*theirs.*of its own"):
        async with store_of("a"):
            pass


async def test_a_fleet_is_found_without_reading_it_all(
    etcd: Etcd, store_of: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with store_of("a") as a:
        large = Put(a.keys.ledger(ACME), b"1" * 100_000)
        first = Put(f"{a.keys.prefix}!", b"1" * 100_000)
        await etcd.write([], [large, first])
        monkeypatch.setattr("iokeel.fleet.etcd.MOST_REPLY_BYTES", 1000)
        async with store_of("b"):
            pass
        await etcd.write([], [Delete(a.keys.format)])
        with pytest.raises(FleetRefused, match=r"holds something else, such as .*!"):
            async with store_of("b"):
                pass


async def test_no_fleet_is_begun_in_another_cluster_than_the_fleets(
    one_etcd: real.Etcd, prefix: str, tmp_path: Path
) -> None:
    with real.running(real.Etcd(tmp_path / "empty")) as empty:
        async with Etcd(Access(one_etcd.urls, prefix=prefix)) as etcd:
            store = FleetStore(etcd, Me("operator", "o"))
            await store.open()
            await set_budget(store, ACME, Budget(1000))
        for first in (*empty.urls, *one_etcd.urls):
            async with Etcd(Access(empty.urls + one_etcd.urls, prefix=prefix)) as etcd:
                if etcd.member != first:
                    etcd.give_up(etcd.member)
                store = FleetStore(etcd, Me("a", "i"))
                await store.open()
                assert await store.budgets() == {ACME: Budget(1000)}
        async with Etcd(Access(empty.urls, prefix=prefix)) as etcd:
            assert (await etcd.read([], [prefix])).values == {}


async def test_a_second_host_of_a_name_is_refused(store_of: OpenStore) -> None:
    async with store_of("a", "one") as first, store_of("a", "two") as second:
        await first.sign_in()
        with pytest.raises(FleetRefused, match="in the fleet already, as another host"):
            await second.sign_in()
        await first.sign_in()  # after a restart, within the lease
        await first.leave()
        await second.sign_in()


async def test_claims_are_there_as_long_as_their_host(store_of: OpenStore) -> None:
    async with store_of("a") as a, store_of("b") as b:
        assert not await a.claim({ACME: CLAIM})
        await a.sign_in()
        await b.sign_in()
        assert await a.claim({ACME: CLAIM, DISK: CLAIM})
        assert await b.claim({DISK: CLAIM})
        assert (await a.view(ACME)).claims == {"a": CLAIM}
        assert (await b.view(DISK)).claims == {"a": CLAIM, "b": CLAIM}
        assert await b.claim({DISK: None})
        assert await a.stay()
        await a.leave()
        assert not await a.stay()
        assert (await b.view(DISK)).claims == {}


async def test_demands_by_level_of_an_earlier_agent_do_not_count(
    etcd: Etcd, store_of: OpenStore
) -> None:
    several = replace(CLAIM, wants=wants_of([(10, 20, 150), (0, 80, 60)]))
    by_sums = replace(several, wants=wants_of([(10, 100, 210)]))
    async with store_of("a") as a, store_of("b") as b:
        await a.sign_in()
        assert await a.claim({DISK: several})
        assert (await b.view(DISK)).claims == {"a": several}
        await a.sign_in()  # an older agent's lease
        await etcd.write([], [Put(a.keys.claim(DISK, "a"), claim_value(by_sums), a.lease or 0)])
        assert (await b.view(DISK)).claims == {"a": by_sums}
        assert await a.claim({DISK: CLAIM})
        assert (await b.view(DISK)).claims == {"a": CLAIM}
        assert a.keys.wants(DISK, "a") not in (await etcd.read([a.keys.wants(DISK, "a")])).values


async def test_levels_are_those_of_their_ledger(etcd: Etcd, store_of: OpenStore) -> None:
    told = replace(first_ledger(1000, "e"), levels={"acme": TenantLevel(2.5, 300.0)})
    async with store_of("a") as a:
        assert await a.replace(DISK, await a.view(DISK), told, as_leader=False)
        assert (await a.view(DISK)).ledger == told
        older = successor(told, "older")
        changes = [
            Put(a.keys.ledger(DISK), ledger_value(older)),
            Put(a.keys.stamp(DISK), stamp_value(older)),
        ]
        await etcd.write([], changes)
        assert (await a.view(DISK)).ledger == replace(older, levels={})


async def test_a_host_whose_lease_has_ended_makes_no_claims(
    etcd: Etcd, store_of: OpenStore
) -> None:
    async with store_of("a") as a:
        await a.sign_in()
        assert a.lease is not None
        await etcd.revoke_lease(a.lease)
        assert not await a.claim({ACME: CLAIM})
        assert not await a.stay()
        await a.sign_in()
        assert await a.claim({ACME: CLAIM})


async def test_one_host_coordinates_a_budget_until_it_leaves(store_of: OpenStore) -> None:
    async with store_of("a") as a, store_of("b") as b:
        await a.sign_in()
        await b.sign_in()
        assert [await a.campaign(ACME), await b.campaign(ACME)] == [True, False]
        assert (await b.view(ACME)).leader == "a"
        await a.resign(ACME)
        assert await b.campaign(ACME)
        await b.leave()
        assert await a.campaign(ACME)


async def test_a_ledger_replaces_only_the_one_that_was_found(store_of: OpenStore) -> None:
    async with store_of("a") as a, store_of("b") as b:
        for store in (a, b):
            await store.sign_in()
        await set_budget(a, ACME, Budget(1000))
        await a.campaign(ACME)
        seen, seen_too = await a.view(ACME), await b.view(ACME)
        assert seen.ledger is None
        assert seen.budget == Budget(1000)
        first = first_ledger(1000, "e")
        assert await a.replace(ACME, seen, first, as_leader=True)
        assert not await b.replace(ACME, seen_too, first_ledger(9, "f"), as_leader=False)
        seen = await a.view(ACME)
        assert seen.ledger == first
        assert not await b.replace(ACME, seen, successor(first, "f"), as_leader=True)
        await set_budget(b, ACME, Budget(500))
        assert not await a.replace(ACME, seen, successor(first, "e"), as_leader=True)
        assert await a.replace(ACME, await a.view(ACME), successor(first, "e"), as_leader=True)
        disk = BudgetId(Kind.STORAGE, "nbd:10.0.0.1:10809")
        await set_budget(a, disk, Budget(9000, shared=Shared(5.0)))
        assert await a.budgets() == {ACME: Budget(500), disk: Budget(9000, shared=Shared(5.0))}


async def test_values_of_other_programs_and_newer_agents_are_told_apart(
    etcd: Etcd, store_of: OpenStore
) -> None:
    async with store_of("a") as a:
        ledger = a.keys.ledger(ACME)
        await etcd.write([], [Put(a.keys.claim(ACME, "b"), b"{}"), Put(ledger, b'{"v":3}')])
        with pytest.raises(NewerSchema, match=r"newer iokeel, schema 3; upgrade this agent"):
            await a.view(ACME)
        for other in (b"mine!", b'{"v":1,"a":' + b"[" * 20_000):
            await etcd.write([], [Put(ledger, other)])
            with pytest.raises(FleetRefused, match="isn't what iokeel has written there"):
                await a.view(ACME)
        view = await a.view(DISK)
        assert (view.ledger, view.claims) == (None, {})
        await etcd.write([], [Put(a.keys.claim(DISK, "b"), b'{"v":3}')])
        assert (await a.view(DISK)).claims == {}


async def test_what_has_not_changed_is_not_sent_again(store_of: OpenStore) -> None:
    async with store_of("a") as a, store_of("b") as b:
        await a.sign_in()
        await set_budget(a, ACME, Budget(1000))
        await a.campaign(ACME)
        assert await a.replace(ACME, await a.view(ACME), first_ledger(1000, "e"), as_leader=True)
        first = await b.view(ACME)
        await a.claim({ACME: CLAIM})

        same = await b.view(ACME, first, with_claims=False)
        assert same.ledger is first.ledger
        assert (same.claims, same.claims_ns) == ({}, first.claims_ns)
        assert same.asked_ns > first.asked_ns
        with_claims = await b.view(ACME, first)
        assert with_claims.ledger is first.ledger
        assert (with_claims.claims, with_claims.claims_ns) == ({"a": CLAIM}, with_claims.asked_ns)

        ledger = successor(first_ledger(1000, "e"), "e")
        assert await a.replace(ACME, first, ledger, as_leader=True)
        changed = await b.view(ACME, with_claims, with_claims=False)
        assert (changed.ledger, changed.claims) == (ledger, {"a": CLAIM})
        await a.resign(ACME)
        assert (await b.view(ACME, changed, with_claims=False)).leader is None
        await set_budget(a, ACME, Budget(2000))
        assert (await b.view(ACME, changed, with_claims=False)).budget == Budget(2000)


async def test_some_budgets_are_read_or_all(store_of: OpenStore) -> None:
    umbra, nobody = (BudgetId(Kind.TENANT, name) for name in ("umbra", "nobody"))
    async with store_of("a") as a:
        for budget in (ACME, umbra):
            await set_budget(a, budget, Budget(1000))
        assert await a.budgets([ACME, nobody]) == {ACME: Budget(1000)}
        assert (await a.budgets()).keys() == {ACME, umbra}
        await a.sign_in()
        assert await a.campaign(ACME)
        assert await a.offices() == await a.offices([ACME]) == {ACME}
        assert await a.offices([umbra]) == set()
