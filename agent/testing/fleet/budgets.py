"""Sets budgets straight in etcd, as an operator would by `iokeel fleet`."""

from __future__ import annotations

from iokeel.core.fleet.claims import Budget
from iokeel.fleet.keys import BudgetId
from iokeel.fleet.messages import Put
from iokeel.fleet.records import budget_value
from iokeel.fleet.store import FleetStore


async def set_budget(store: FleetStore, budget: BudgetId, figures: Budget | None) -> None:
    """Set a budget; None removes it."""
    await store.etcd.write([], [Put(store.keys.budget(budget), budget_value(figures))])
