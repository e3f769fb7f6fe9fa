"""Sets the fleet's budgets, as `iokeel fleet` was told: tenants' limits, storages' capacities."""

from __future__ import annotations

import asyncio
import sys
import tomllib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import typer

from iokeel.cli.fleet_tables import BudgetChanges
from iokeel.cli.output import complain, say, say_json
from iokeel.config.load import load, storages_of, tenants_of
from iokeel.config.tables import Root, validated
from iokeel.core.fleet.claims import EVEN_RATIO, Budget, Shared
from iokeel.core.values.curve import DEFAULT_MODEL
from iokeel.errors import ConfigError, IokeelError, PolicyError
from iokeel.fleet.keys import BudgetId, Kind
from iokeel.fleet.operator import (
    BudgetView,
    Figures,
    FleetView,
    Operator,
    difference,
    operator,
)
from iokeel.fleet.store import NoFleet
from iokeel.words.quoting import did_you_mean, reason, shown, shown_path

T = TypeVar("T")
# What else a storage is on a host, or costs there, is each host's to say.
_SHARED = frozenset({"source", "capacity", "latency_target_ms", "least_ratio", "most_ratio"})


def ask(
    config: Path | None, question: Callable[[Operator], Awaitable[T]], *, create: bool = False
) -> T:
    """Return the answer to a question to etcd. Raises IokeelError."""
    settings = load(config).fleet
    if settings is None:
        raise ConfigError(
            str(config) if config else "the configuration", "has no [fleet]", "write it there"
        )

    for doubt in settings.access.doubts():
        complain(f"warning: {doubt}")

    async def ask() -> T:
        async with operator(settings, create=create) as there:
            return await question(there)

    return asyncio.run(ask())


def view_of(config: Path | None, *, new_too: bool = False) -> FleetView:
    """Return the whole fleet. new_too: return an empty one if there is none yet."""
    try:
        return ask(config, lambda o: o.view())
    except NoFleet:
        if not new_too:
            raise
        return FleetView("", {}, {})


def budgets_of(
    values: Mapping[str, object], where: str, floors: float = EVEN_RATIO
) -> dict[BudgetId, Budget]:
    """Return tenants and storages as budgets, checked as in the configuration.

    A storage with a source has that as its name, as on hosts that don't configure it.
    Raises ConfigError.
    """
    raw = validated(values, where)
    return {**dict(_tenants(raw, where, floors)), **dict(_storages(raw, where, floors))}


def _tenants(raw: Root, where: str, floors: float) -> Iterator[tuple[BudgetId, Budget]]:
    try:
        for name, policy in tenants_of(raw, where):
            if policy.limit is None:
                raise PolicyError(f"{where}, [tenants.{name}]", "has no limit", "give one")
            budget = Budget(policy.limit, floors, policy.reservation, policy.weight)
            yield BudgetId(Kind.TENANT, name), budget
    except PolicyError as error:
        raise ConfigError.of(error, error.where) from None


def _storages(raw: Root, where: str, floors: float) -> Iterator[tuple[BudgetId, Budget]]:
    for name, storage in storages_of(raw, DEFAULT_MODEL, where):
        at = f"{where}, [storage.{name}]"
        if others := sorted(raw.storage[name].model_fields_set - _SHARED):
            raise ConfigError(f"{at} {others[0]}", "is each host's own", "write it there")
        policy = storage.policy
        if policy.capacity is None:
            raise ConfigError(at, "has no capacity", "give one; see `iokeel calibrate --help`")
        shared = Shared(policy.latency_target_ms, policy.least_ratio, policy.most_ratio)
        shared_name = storage.source or name
        yield BudgetId(Kind.STORAGE, shared_name), Budget(policy.capacity, floors, shared=shared)


def known(
    view: FleetView, name: str, *kinds: Kind, charged: bool = False
) -> dict[BudgetId, BudgetView]:
    """Return the budgets of a name: one of each of some kinds at most.

    charged: also one that only has charges. Raises IokeelError if there is none.
    """
    there = {
        budget: b
        for budget, b in view.budgets.items()
        if budget.kind in kinds and (b.budget or b.errors or (charged and b.entries))
    }
    found = {budget: b for budget, b in there.items() if budget.name == name}
    if not found:
        what = f"no such {' or '.join(kind.value for kind in kinds)} in the fleet"
        raise IokeelError(shown(name), what, did_you_mean(name, [b.name for b in there]))
    return found


def set_budgets(
    config: Path | None, view: FleetView, wanted: Figures, *, dry_run: bool, as_json: bool
) -> None:
    """Set budgets, and say what changes and what an operator has to know of that.

    view: the one that they were made from.
    """
    seen = {budget: there.budget for budget, there in view.budgets.items()}
    changes = []
    for budget, new in wanted.items():
        there, old = view.budgets.get(budget), seen.get(budget)
        if old != new:
            changes.append(difference(budget, old, new))
        reserved = there.reserved if there is not None else 0
        if new is not None and reserved > new.amount:
            what = "limit" if new.shared is None else "capacity"
            complain(
                f"{budget}: its drives reserve {reserved} together, more than the {what}"
                f" of {new.amount}, so hosts' floors are scaled down"
            )
    if not dry_run:
        changes = ask(config, lambda o: o.set_budgets(wanted, seen), create=True)
    if as_json:
        say_json(BudgetChanges(changes=changes, done=not dry_run))
    else:
        say(*(changes or ["nothing to change"]))
    if dry_run and changes:
        raise typer.Exit(1)


def read_tables(file: str) -> tuple[dict[str, object], str]:
    """Return a TOML file's values, and its name. Raises ConfigError."""
    where = "standard input" if file == "-" else shown_path(file)
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except (OSError, ValueError) as error:
        said = reason(error) if isinstance(error, OSError) else str(error)
        raise ConfigError(where, f"can't be read, {said}", "give a readable file") from None
    try:
        return tomllib.loads(data.decode()), where
    except (ValueError, RecursionError) as error:
        what = shown(str(error))[1:-1]
        raise ConfigError(
            where, f"not TOML, {what}", "write [tenants.NAME] and [storage.NAME] tables"
        ) from None
