"""What `iokeel fleet status` complains of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iokeel.cli.fleet_tables import complaints, host_rows
from iokeel.core.fleet.claims import Budget, HostClaim, Shared
from iokeel.core.fleet.ledger import Entry, Stamp, Word, first_ledger
from iokeel.fleet.keys import BudgetId, Kind
from iokeel.fleet.operator import BudgetView, FleetView


@pytest.mark.parametrize(
    ("word", "charged", "said"),
    [
        (None, 1000, "start its agent, or answer for it by `iokeel fleet forget kvm7`"),
        (Word.AT_FLOOR, 1000, "answered for; takes effect once a host coordinates"),
        (Word.OFF_FOR_GOOD, 200, "answered for; takes effect once a host coordinates"),
        (Word.AT_FLOOR, 200, "answered for, at its floor"),
    ],
)
def test_a_silent_host_is_told_with_what_there_is_to_do(
    word: Word | None, charged: int, said: str
) -> None:
    entry = Entry("i", 200, 200, charged, 200, Stamp("e", 1), word)
    ledger = replace(first_ledger(4000, "e"), entries={"kvm7": entry})
    known = BudgetView(Budget(4000), ledger)
    (complaint,) = complaints(FleetView("", {}, {BudgetId(Kind.TENANT, "acme"): known}))
    assert complaint == (
        f"tenant acme: host kvm7 doesn't report, and stays charged {charged}; {said}"
    )


@pytest.mark.parametrize(
    ("kind", "shared", "word"),
    [(Kind.STORAGE, Shared(), "capacity"), (Kind.TENANT, None, "limit")],
)
def test_more_reserved_than_there_is_is_told(kind: Kind, shared: Shared | None, word: str) -> None:
    def told(second: int) -> list[str]:
        claims = {"kvm1": HostClaim("i", 600), "kvm2": HostClaim("j", second)}
        known = BudgetView(Budget(1000, shared=shared), claims=claims, leader="kvm1")
        return [*complaints(FleetView("", {}, {BudgetId(kind, "san"): known}))]

    assert told(400) == []
    assert told(600) == [
        f"{kind.value} san: its drives reserve 1200 together, more than its {word} of 1000;"
        " lower reservations"
    ]


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({}, []),
        ({"a": "x", "b": "x"}, []),
        ({"a": "x", "b": "y", "c": "x"}, ["hosts b: have other rules or classes than a, c"]),
        ({"a": "", "b": "x", "c": "x"}, ["hosts a: have no rules, other than b, c"]),
        ({"a": "", "b": "x", "c": ""}, ["hosts b: have other rules or classes than a, c"]),
        (
            {"a": "x", "b": "x", "c": "", "d": "y"},
            [
                "hosts c: have no rules, other than a, b",
                "hosts d: have other rules or classes than a, b",
            ],
        ),
    ],
)
def test_hosts_with_other_rules_than_most_are_named(rules: dict[str, str], said: list[str]) -> None:
    mend = "give all hosts the same [[rules]] and [classes]"
    told = [*complaints(FleetView("", {}, {}, rules))]
    assert told == [f"{each}; {mend}" for each in said]


def test_a_hosts_charges_for_tenants_and_storages_are_summed_apart() -> None:
    def charged(amount: int, charge: int) -> BudgetView:
        entry = Entry("i", 200, amount, charge, 200, Stamp("e", 1), None)
        ledger = replace(first_ledger(90_000, "e"), entries={"kvm7": entry})
        return BudgetView(Budget(90_000), ledger)

    budgets = {
        BudgetId(Kind.TENANT, "acme"): charged(300, 400),
        BudgetId(Kind.STORAGE, "rbd:vms"): charged(30_000, 60_000),
        BudgetId(Kind.STORAGE, "rbd:isos"): charged(1000, 2000),
    }
    (row,) = host_rows(FleetView("", {}, budgets))
    assert (row["is_there"], row["tenants"], row["storages"]) == (False, 1, 2)
    assert (row["amount_iops"], row["charged_iops"]) == (300, 400)
    assert (row["storages_amount_iops"], row["storages_charged_iops"]) == (31_000, 62_000)
