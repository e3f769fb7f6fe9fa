"""What a host claims, and when it claims it again."""

from __future__ import annotations

from dataclasses import replace

from iokeel.config.etcd_access import Access
from iokeel.core.fleet.claims import HostClaim
from iokeel.core.fleet.host import Me, Part
from iokeel.core.fleet.ledger import Entry, Ledger, Stamp, first_ledger
from iokeel.core.values.policy import ENDLESS
from iokeel.fleet.etcd import Etcd
from iokeel.fleet.keys import BudgetId, Kind
from iokeel.fleet.participant import Demand, Holding, Participant, is_old
from iokeel.fleet.store import FleetStore

ME = Me("a", "i")


def test_a_guest_that_comes_with_limits_is_news() -> None:
    """Its host is charged for them."""
    told = HostClaim("i", most=9999, held=5000)
    assert is_old(told, replace(told, held=4999))
    assert not is_old(told, replace(told, held=5001))
    fits = replace(told, applied=Stamp("e", 1))
    assert is_old(fits, replace(fits, held=5001))


def test_a_drive_without_limits_is_not_in_the_held_rate_but_confirms_nothing() -> None:
    async def keep(ledger: Ledger) -> None:
        raise AssertionError

    first = first_ledger(9000, "e")
    ledger = replace(first, entries={"a": Entry("i", 10, 500, 500, 10, first.stamp)})
    store = FleetStore(Etcd(Access(("http://nobody:1",))), ME)
    budget = BudgetId(Kind.TENANT, "acme")
    holding = Holding(Demand(most=9999), ENDLESS, 400)
    host = Participant(store, budget, keep, Part(ledger), lambda: holding)
    claim = host._new_claim()
    assert (claim.held, claim.applied) == (400, None)
