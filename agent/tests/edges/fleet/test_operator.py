"""Changes of the fleet's budgets in a real etcd."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from iokeel.core.fleet.claims import Budget, HostClaim
from iokeel.core.fleet.host import Me
from iokeel.core.fleet.ledger import Entry, Word, first_ledger
from iokeel.errors import FleetRefused
from iokeel.fleet.etcd import Etcd
from iokeel.fleet.keys import BudgetId, Kind
from iokeel.fleet.messages import Delete, Put
from iokeel.fleet.operator import Operator
from iokeel.fleet.records import HostRecord, LeaderRecord, claim_value, encoded
from iokeel.fleet.store import FleetStore

ACME = BudgetId(Kind.TENANT, "acme")


async def test_a_change_made_from_figures_that_somebody_else_has_changed_is_refused(
    etcd: Etcd,
) -> None:
    operator = Operator(FleetStore(etcd, Me("operator", "o")))
    first, lower = Budget(50_000), Budget(20_000)
    await operator.set_budgets({ACME: first}, {})
    seen = {ACME: first}
    await operator.set_budgets({ACME: lower}, seen)
    for late in (first._replace(reservation=8000), None):
        with pytest.raises(FleetRefused, match="somebody else changed a budget"):
            await operator.set_budgets({ACME: late}, seen)
    assert (await operator.view()).budgets[ACME].budget == lower
    assert await operator.set_budgets({ACME: lower}, seen) == []
    reserved = lower._replace(reservation=8000)
    assert await operator.set_budgets({ACME: reserved}, {ACME: lower}) == [
        "tenant acme: reservation 0 -> 8000"
    ]


async def test_an_operator_without_a_name_is_told_by_number(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2_000_000_001)
    operator = Operator(FleetStore(etcd, Me("operator", "o")))
    await operator.set_budgets({ACME: Budget(50_000)}, {})
    (change,) = await operator.history()
    assert change.by.startswith("2000000001@")


async def test_a_change_that_nobody_can_read_hides_no_other(etcd: Etcd) -> None:
    store = FleetStore(etcd, Me("operator", "o"))
    operator = Operator(store)
    await operator.set_budgets({ACME: Budget(50_000)}, {})
    await etcd.write([], [Put(f"{store.keys.history}0", b"?"), Put(f"{store.keys.history}z", b"")])
    first, change, last = await operator.history()
    assert change.what.startswith("tenant acme: new, limit 50000")
    for other, key in ((first, "0"), (last, "z")):
        assert f"{store.keys.history}{key}: isn't what iokeel has written" in other.what


async def test_hosts_and_claims_that_are_not_there_are_not_shown(etcd: Etcd) -> None:
    store = FleetStore(etcd, Me("kvm7", "i"))
    operator = Operator(store)
    await operator.set_budgets({ACME: Budget(50_000)}, {})
    await store.sign_in()
    await store.claim({ACME: HostClaim("i", most=1)})
    ghost = claim_value(HostClaim("g", most=1))
    await etcd.write(
        [],
        [
            Put(store.keys.claim(ACME, "ghost"), ghost),
            Put(store.keys.host("ghost"), encoded(HostRecord(instance="g"))),
            Put(store.keys.leader(ACME), encoded(LeaderRecord(host="ghost"))),
        ],
    )
    view = await operator.view()
    assert view.hosts.keys() == view.budgets[ACME].claims.keys() == {"kvm7"}
    assert view.budgets[ACME].leader is None


async def test_charges_for_a_budget_that_was_removed_need_no_answer(etcd: Etcd) -> None:
    store = FleetStore(etcd, Me("operator", "o"))
    operator, budget = Operator(store), Budget(50_000)
    await operator.set_budgets({ACME: budget}, {})
    first = first_ledger(50_000, "e")
    entry = Entry("i", 100, 200, 200, 100, first.stamp)
    ledger = replace(first, entries={"kvm7": entry})
    assert await store.replace(ACME, await store.view(ACME), ledger, as_leader=False)
    await operator.set_budgets({ACME: None}, {ACME: budget})
    assert (await operator.view()).budgets == {}
    assert await operator.forget("kvm7", Word.OFF_FOR_GOOD) == []
    await etcd.write([], [Delete(store.keys.budget(ACME))])  # gone, by no operator's wish
    assert [*(await operator.view()).budgets] == [ACME]
    assert await operator.forget("kvm7", Word.OFF_FOR_GOOD) == [ACME]
