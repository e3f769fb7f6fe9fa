"""Operators' access to the fleet: a view of all of it, changes of its budgets, new coordinators.

A coordinator raises nothing before a term has passed (iokeel.core.fleet.coordinate). If the first
one came with the first guest, that guest would have next to nothing for as long.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from iokeel.config.settings import FleetConfig
from iokeel.core.fleet.claims import Budget, HostClaim
from iokeel.core.fleet.host import Me
from iokeel.core.fleet.ledger import Entry, Ledger, Word
from iokeel.errors import FleetRefused, HostReports, OutcomeUnknown
from iokeel.fleet.etcd import MOST_REPLY_BYTES, Etcd
from iokeel.fleet.keys import EVERY_TENANT, BudgetId, Keys, Kind, budget_in, last_part
from iokeel.fleet.messages import Delete, Is, Put
from iokeel.fleet.participant import first_in_turn, say
from iokeel.fleet.records import (
    ChangeRecord,
    HostRecord,
    LeaderRecord,
    RulesRecord,
    budget_of,
    budget_value,
    claim_of,
    decoded,
    encoded,
    ledger_of,
)
from iokeel.fleet.store import FleetStore

# So many writes etcd takes in a transaction by default.
_MOST_WRITES = 128
# A budget is two writes, and drops an old change.
MOST_AT_ONCE = 40
# Changes that are kept. Those that one transaction can't drop go with later ones.
_MOST_CHANGES = 1000

#: Budgets to set, or that were seen; None: removed.
Figures = Mapping[BudgetId, Budget | None]


async def appoint(store: FleetStore, budgets: Collection[BudgetId]) -> None:
    """Give the budgets that nobody coordinates to hosts that are there, under those hosts' leases.

    A host learns of it when it reads the budget, so this comes before a new budget is written.
    Raises ConnectionLost or FleetRefused.
    """
    keys = store.keys
    found = await store.etcd.read([], [keys.leaders, keys.hosts])
    hosts = {last_part(key): key for key in found.leases if key.startswith(keys.hosts)}
    for budget in budgets:
        leader, host = keys.leader(budget), first_in_turn(budget, hosts)
        if leader in found.values or host is None:
            continue
        there = Is(hosts[host], found.values[hosts[host]])
        office = Put(leader, encoded(LeaderRecord(host=host)), found.leases[hosts[host]])
        await store.etcd.write([there, Is(leader, None)], [office])


@dataclass
class BudgetView:
    """A tenant's limit or a storage's capacity, as it is in etcd.

    budget: None if it is gone, though nobody has removed it. default: that of all tenants without
    one, if this is such a tenant's. claims: by host, of those that report.
    leader: the host that coordinates it. errors: of values that can't be used.
    """

    budget: Budget | None = None
    ledger: Ledger | None = None
    claims: dict[str, HostClaim] = field(default_factory=dict)
    leader: str | None = None
    errors: list[FleetRefused] = field(default_factory=list)
    default: Budget | None = None

    @property
    def counts(self) -> Budget | None:
        """The figures that hosts go by."""
        return self.budget or self.default

    @property
    def entries(self) -> Mapping[str, Entry]:
        return self.ledger.entries if self.ledger is not None else {}

    @property
    def reserved(self) -> int:
        """The sum of drives' reservations, on all hosts that report."""
        return sum(claim.reservation for claim in self.claims.values())

    def reports(self, host: str) -> bool:
        """Return whether a host of the ledger reports."""
        claim, entry = self.claims.get(host), self.entries.get(host)
        return claim is not None and (entry is None or entry.instance == claim.instance)


class FleetView(NamedTuple):
    """The fleet, as it is in etcd.

    member: the URL that answered. hosts: those that are there, with their values. budgets: without
    those that were removed: what hosts are charged for these counts only if they are set again.
    rules: the digests of hosts' rules, of those that tell.
    """

    member: str
    hosts: Mapping[str, bytes]
    budgets: Mapping[BudgetId, BudgetView]
    rules: Mapping[str, str] = {}

    def of(self, kind: Kind) -> dict[str, BudgetView]:
        """Return the budgets of a kind, by name."""
        return {budget.name: view for budget, view in self.budgets.items() if budget.kind is kind}


class Change(NamedTuple):
    """A change that an operator made."""

    at: str
    by: str
    what: str


class Operator:
    """An operator's connection to the fleet's data."""

    def __init__(self, store: FleetStore) -> None:
        self._store = store

    async def view(self) -> FleetView:
        """Return the whole fleet at one moment. Raises ConnectionLost or FleetRefused."""
        keys = self._store.keys
        parts = [keys.budgets, keys.ledgers, keys.leaders, keys.all_claims]
        found = await self._store.etcd.read([], [keys.hosts, keys.rules, *parts])
        budgets: dict[BudgetId, BudgetView] = {}
        removed: set[BudgetId] = set()
        hosts: dict[str, bytes] = {}
        rules: dict[str, str] = {}
        for key, raw in sorted(found.values.items()):
            if key.startswith(keys.hosts):
                if key in found.leases:
                    hosts[last_part(key)] = raw
                continue
            if key.startswith(keys.rules):
                with contextlib.suppress(FleetRefused):
                    rules[last_part(key)] = decoded(RulesRecord, key, raw).digest
                continue
            part = next(prefix for prefix in parts if key.startswith(prefix))
            budget = budget_in(key, part)
            if budget is None:
                continue
            view = budgets.setdefault(budget, BudgetView())
            try:
                if part == keys.budgets:
                    view.budget = budget_of(key, raw)
                    if view.budget is None:
                        removed.add(budget)
                elif part == keys.ledgers:
                    view.ledger = ledger_of(key, raw)
                elif part == keys.leaders:
                    view.leader = decoded(LeaderRecord, key, raw).host
                else:
                    view.claims[last_part(key)] = claim_of(key, raw)
            except FleetRefused as error:
                view.errors.append(error)
        for view in budgets.values():  # as hosts do: FleetStore.view
            claims = view.claims.items()
            view.claims = {name: c for name, c in claims if hosts.get(name) == _host(c.instance)}
            view.leader = view.leader if view.leader in hosts else None
        if (every := budgets.get(EVERY_TENANT)) is not None and every.budget is not None:
            for budget, view in budgets.items():
                if (
                    budget.kind is Kind.TENANT
                    and view.budget is None
                    and (view.claims or view.entries)
                ):
                    view.default = every.budget
                    removed.discard(budget)
        there = {budget: view for budget, view in budgets.items() if budget not in removed}
        rules = {name: digest for name, digest in rules.items() if name in hosts}
        return FleetView(self._store.etcd.member, hosts, there, rules)

    async def set_budgets(self, wanted: Figures, seen: Figures) -> list[str]:
        """Set budgets, or remove them (None), and return what has changed.

        Up to MOST_AT_ONCE are set at once or not at all. seen: those that `wanted` was made from;
        one that isn't there was None. Raises ConnectionLost, or FleetRefused if somebody else has
        changed one since.
        """
        await self._store.open()
        changes: list[str] = []
        for first in range(0, len(wanted), MOST_AT_ONCE):
            some = list(wanted)[first : first + MOST_AT_ONCE]
            changes += await self._set({budget: wanted[budget] for budget in some}, seen)
        return changes

    async def _set(self, wanted: Figures, seen: Figures) -> list[str]:
        keys = self._store.keys
        names = {budget: keys.budget(budget) for budget in wanted}
        found = await self._store.etcd.read([*names.values()], [keys.history])
        changes, fresh = [], []
        demands: list[Is] = []
        puts: list[Put | Delete] = []
        for budget, new in wanted.items():
            raw = found.values.get(names[budget])
            old = None if raw is None else budget_of(names[budget], raw)
            if old != new:
                if old != seen.get(budget):
                    raise _changed_meanwhile()
                changes.append(difference(budget, old, new))
                if old is None:
                    fresh.append(budget)
                demands.append(Is(names[budget], raw))
                puts.append(Put(names[budget], budget_value(new)))
        if not changes:
            return []
        await self._see_rights()
        await appoint(self._store, [budget for budget in fresh if budget != EVERY_TENANT])
        past = [key for key in found.values if key.startswith(keys.history)]
        puts += _history(keys, changes)
        puts += _dropped(past, len(changes), _MOST_WRITES - len(puts))
        try:
            done = await self._store.etcd.write(demands, puts)
        except OutcomeUnknown as error:
            raise OutcomeUnknown(
                error.where, error.what, "see `iokeel fleet history` before you try again"
            ) from None
        if not done:
            raise _changed_meanwhile()
        return changes

    async def _see_rights(self) -> None:
        """Raise FleetRefused if etcd lets this user change nothing."""
        if not await self._store.may_set_budgets():
            raise FleetRefused(
                f"etcd's user {self._store.etcd.access.user}",
                "may not change the fleet",
                "go by a configuration with an operator's: --config FILE (docs/fleet.md, etcd)",
            )

    async def history(self) -> list[Change]:
        """Return the changes that operators made, the oldest first."""
        found = await self._store.etcd.read([], [self._store.keys.history])
        return [_change(key, raw) for key, raw in sorted(found.values.items())]

    async def forget(self, host: str, word: Word) -> list[BudgetId]:
        """Answer for a host that doesn't report; return the budgets that it was charged for.

        Raises HostReports if it reports, and FleetRefused if its agent runs and it should be off.
        """
        view = await self.view()
        mine = [budget for budget, known in view.budgets.items() if host in known.entries]
        for budget in mine:
            known = view.budgets[budget]
            if known.reports(host):
                raise HostReports(host, str(budget), "stop its agent, and wait 15 s")
            charged = _host(known.entries[host].instance)
            if word is Word.OFF_FOR_GOOD and view.hosts.get(host) == charged:
                raise FleetRefused(
                    f"host {host}",
                    "isn't off: its agent is there",
                    "see the agent's log, or stop it and wait 15 s",
                )
        await self._see_rights()
        told = [budget for budget in mine if await say(self._store, budget, host, word)]
        if told:
            what = f"forget {host} --{word.value}: {', '.join(map(str, told))}"
            keys, etcd = self._store.keys, self._store.etcd
            past = (await etcd.read([], [keys.history])).values
            await etcd.write([], [*_history(keys, [what]), *_dropped(past, 1, _MOST_WRITES - 1)])
        return told


def difference(budget: BudgetId, old: Budget | None, new: Budget | None) -> str:
    """Return a change of a budget in words."""
    if new is None:
        return f"{budget}: removed"
    before = {} if old is None else _figures(old)
    after = _figures(new)
    words = [
        f"{name} {now}" if old is None else f"{name} {before.get(name, 'none')} -> {now}"
        for name, now in after.items()
        if before.get(name) != now
    ]
    words += [f"{name} {was} -> none" for name, was in before.items() if name not in after]
    return f"{budget}: {'new, ' if old is None else ''}{', '.join(words)}"


def _host(instance: str) -> bytes:
    return encoded(HostRecord(instance=instance))


def _change(key: str, raw: bytes) -> Change:
    """Return a change, or what is in its place, so that it hides no other."""
    try:
        record = decoded(ChangeRecord, key, raw)
    except FleetRefused as error:
        return Change("", "", str(error))
    return Change(record.at, record.by, record.what)


def _changed_meanwhile() -> FleetRefused:
    return FleetRefused("etcd", "somebody else changed a budget at this moment", "try again")


def _figures(budget: Budget) -> dict[str, str]:
    """Return a budget's figures by the names that operators know."""
    if budget.shared is None:
        values: dict[str, float | None] = {
            "limit": budget.amount,
            "even_ratio": budget.even_ratio,
            "reservation": budget.reservation,
            "weight": budget.weight,
        }
    else:
        values = {"capacity": budget.amount, "even_ratio": budget.even_ratio}
        values |= budget.shared._asdict()
    return {
        name: f"{value:g}" if isinstance(value, float) else str(value)
        for name, value in values.items()
        if value is not None
    }


def _history(keys: Keys, changes: list[str]) -> list[Put | Delete]:
    by = f"{_user()}@{socket.gethostname()}"
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return [
        Put(
            f"{keys.history}{time.time_ns():020d}-{number:04d}-{secrets.token_hex(2)}",
            encoded(ChangeRecord(at=at, by=by, what=what[:4096])),
        )
        for number, what in enumerate(changes)
    ]


def _user() -> str:
    """Return the operator's name, or the number if it has none here, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # KeyError before Python 3.13
        return str(os.getuid())


def _dropped(past: Collection[str], new: int, most: int) -> list[Put | Delete]:
    """Drop the oldest changes that are too many with some new ones, but only so many at most."""
    too_many = min(max(0, len(past) + new - _MOST_CHANGES), most)
    return [Delete(key) for key in sorted(past)[:too_many]]


@contextlib.asynccontextmanager
async def operator(config: FleetConfig, *, create: bool = False) -> AsyncIterator[Operator]:
    """Connect to the fleet's data.

    create: make the prefix a fleet's if it is empty. Raises ConfigError, ConnectionLost or
    FleetRefused.
    """
    async with Etcd(config.access, most_bytes=4 * MOST_REPLY_BYTES) as etcd:
        store = FleetStore(etcd, Me("operator", secrets.token_hex(4)))
        await store.open(create=create)
        yield Operator(store)
