"""The fleet's values in etcd."""

from __future__ import annotations

from iokeel.errors import FleetRefused
from iokeel.fleet.records import (
    budget_of,
    budget_value,
    claim_of,
    claim_value,
    ledger_of,
    ledger_value,
)
from tests.fuzz.budget import only
from tests.fuzz.targets.target import Target

_WORDS = [
    *(b'"v" "amount" "spans" "hosts" "before" "even_ratio" "instance" "reservation"'.split()),
    *(b'"weight" "wants" "most" "held" "applied" "at-floor" "off-for-good" null'.split()),
    *(b'"load" "learnt" "shared" "latency_target_ms" "least_ratio" "most_ratio"'.split()),
]


def ledger(data: bytes) -> None:
    """A ledger charges each host at least its amount, and is written as it was read."""
    with only(FleetRefused):
        found = ledger_of("/iokeel/ledgers/tenant/acme", data)
        assert all(0 <= e.floor <= e.amount <= e.charged for e in found.entries.values())
        assert ledger_of("", ledger_value(found)) == found


def claim(data: bytes) -> None:
    """A claim or a budget is written as it was read."""
    with only(FleetRefused):
        found = claim_of("/iokeel/claims/tenant/acme/a", data)
        assert claim_of("", claim_value(found)) == found
    with only(FleetRefused):
        budget = budget_of("/iokeel/budgets/tenant/acme", data)
        assert budget_of("", budget_value(budget)) == budget


TARGETS = [
    Target("ledger", ledger, 1 << 14, _WORDS),
    Target("claim", claim, 1 << 12, _WORDS),
]
