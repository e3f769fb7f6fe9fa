"""The tables of `iokeel fleet`, and the same as values for --json."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Required, TypedDict

from iokeel.cli.cells import (
    Column,
    PlainTable,
    column,
    ms_cell,
    name_cell,
    number_cell,
    rate_cell,
    table,
)
from iokeel.core.fleet.capacity import together
from iokeel.core.fleet.ledger import Entry, Word
from iokeel.core.values.policy import ENDLESS
from iokeel.fleet.keys import Kind
from iokeel.fleet.operator import BudgetView, FleetView
from iokeel.words.quoting import few


class HostRow(TypedDict):
    """A host. iops are normalized: sums over its tenants, and over its storages.

    coordinates: how many tenants and storages it coordinates.
    """

    host: str
    is_there: bool
    tenants: int
    amount_iops: int
    charged_iops: int
    storages: int
    storages_amount_iops: int
    storages_charged_iops: int
    coordinates: int


class TenantRow(TypedDict):
    """A tenant. iops are normalized. silent: hosts that are charged, but don't report."""

    tenant: str
    limit_iops: int | None
    reservation_iops: int | None
    weight: int | None
    hosts: int
    amount_iops: int
    charged_iops: int
    coordinator: str | None
    silent: list[str]
    errors: list[str]


class StorageRow(TypedDict):
    """A shared storage. iops are normalized. silent: hosts that are charged and don't report.

    usable_iops: its capacity as latency has corrected it, less the rates of drives without a
    policy; None if no host has used it yet. latency_s: the mean of all hosts' requests.
    """

    storage: str
    capacity_iops: int | None
    capacity_ratio: float | None
    usable_iops: int | None
    latency_target_s: float | None
    latency_s: float | None
    normalized_iops: float
    hosts: int
    amount_iops: int
    charged_iops: int
    coordinator: str | None
    silent: list[str]
    errors: list[str]


class ShareRow(TypedDict):
    """A host's part of a budget, and its claim. None: it doesn't report."""

    host: str
    reports: bool
    floor_iops: int
    amount_iops: int
    charged_iops: int
    held_iops: int | None
    wants_iops: int | None
    reservation_iops: int | None
    weight: int | None
    answered_for: str | None


class BudgetShares(TypedDict, total=False):
    """Hosts' parts of a budget: of a tenant and its limit, or of a storage and its capacity."""

    tenant: str
    limit_iops: int | None
    storage: str
    capacity_iops: int | None
    hosts: Required[list[ShareRow]]


class FleetStatus(TypedDict):
    """The state of etcd and of the fleet. member: etcd's. tenants, storages: those with budgets."""

    member: str
    hosts: list[str]
    tenants: int
    storages: int
    complaints: list[str]


class HostForgotten(TypedDict):
    """What became of a host, and where that is recorded. word: "at-floor" or "off-for-good"."""

    host: str
    word: str
    tenants: list[str]
    storages: list[str]


class BudgetChanges(TypedDict):
    """What changes of the fleet's budgets. done: False after --dry-run."""

    changes: list[str]
    done: bool


def host_rows(view: FleetView) -> list[HostRow]:
    """Return all hosts that are there, or that are charged something, by name."""
    names = {*view.hosts, *(name for b in view.budgets.values() for name in b.entries)}
    rows = []
    for name in sorted(names):
        tenants, storages = (
            [b.entries[name] for b in view.of(kind).values() if name in b.entries]
            for kind in (Kind.TENANT, Kind.STORAGE)
        )
        rows.append(
            HostRow(
                host=name,
                is_there=name in view.hosts,
                tenants=len(tenants),
                amount_iops=sum(entry.amount for entry in tenants),
                charged_iops=sum(entry.charged for entry in tenants),
                storages=len(storages),
                storages_amount_iops=sum(entry.amount for entry in storages),
                storages_charged_iops=sum(entry.charged for entry in storages),
                coordinates=sum(b.leader == name for b in view.budgets.values()),
            )
        )
    return rows


def tenant_rows(view: FleetView) -> list[TenantRow]:
    """Return all tenants that have a budget or a charge, by name."""
    return [
        TenantRow(
            tenant=name,
            limit_iops=t.counts.amount if t.counts else None,
            reservation_iops=t.counts.reservation if t.counts else None,
            weight=t.counts.weight if t.counts else None,
            hosts=len(t.entries),
            amount_iops=sum(entry.amount for entry in t.entries.values()),
            charged_iops=sum(entry.charged for entry in t.entries.values()),
            coordinator=t.leader,
            silent=[host for host in t.entries if not t.reports(host)],
            errors=[str(error) for error in t.errors],
        )
        for name, t in sorted(view.of(Kind.TENANT).items())
        if t.counts or t.entries or t.errors
    ]


def storage_rows(view: FleetView) -> list[StorageRow]:
    """Return all shared storages that have a budget or a charge, by name."""
    return [
        _storage_row(name, known)
        for name, known in sorted(view.of(Kind.STORAGE).items())
        if known.counts or known.entries or known.errors
    ]


def _storage_row(name: str, known: BudgetView) -> StorageRow:
    policy = known.counts.storage if known.counts else None
    learnt = known.ledger.learnt if known.ledger else None
    load = together([claim.load for claim in known.claims.values() if claim.load], 1.0)
    target_ms = policy.latency_target_ms if policy else None
    return StorageRow(
        storage=name,
        capacity_iops=policy.capacity if policy else None,
        capacity_ratio=learnt.ratio if learnt else None,
        usable_iops=known.ledger.amount if known.ledger else None,
        latency_target_s=None if target_ms is None else target_ms / 1000,
        latency_s=load.activity.latency_s if load.activity else None,
        normalized_iops=load.done + load.strangers,
        hosts=len(known.entries),
        amount_iops=sum(entry.amount for entry in known.entries.values()),
        charged_iops=sum(entry.charged for entry in known.entries.values()),
        coordinator=known.leader,
        silent=[host for host in known.entries if not known.reports(host)],
        errors=[str(error) for error in known.errors],
    )


def share_rows(tenant: BudgetView) -> list[ShareRow]:
    """Return the hosts' parts of a budget, by host."""
    rows = []
    for host in sorted({*tenant.entries, *tenant.claims}):
        entry, claim = tenant.entries.get(host), tenant.claims.get(host)
        rows.append(
            ShareRow(
                host=host,
                reports=tenant.reports(host),
                floor_iops=entry.floor if entry else 0,
                amount_iops=entry.amount if entry else 0,
                charged_iops=entry.charged if entry else 0,
                held_iops=claim.held if claim else None,
                wants_iops=claim.wants.total if claim else None,
                reservation_iops=claim.reservation if claim else None,
                weight=claim.weight if claim else None,
                answered_for=entry.word.value if entry and entry.word else None,
            )
        )
    return rows


def _endless_cell(value: int | None) -> str:
    """Return a rate that may have no end."""
    return "no end" if value is not None and value >= ENDLESS else rate_cell(value)


def _yes_cell(value: bool) -> str:
    return "yes" if value else "NO"


def _latency_cell(row: StorageRow) -> str:
    target = row["latency_target_s"]
    return ms_cell(row["latency_s"]) + ("" if target is None else f" / {ms_cell(target)}")


_HOST_COLUMNS: tuple[Column[HostRow], ...] = (
    column("host", lambda h: h["host"], name_cell),
    column("there", lambda h: h["is_there"], _yes_cell),
    column("tenants", lambda h: h["tenants"], number_cell),
    column("may use", lambda h: h["amount_iops"], rate_cell),
    column("charged", lambda h: h["charged_iops"], rate_cell),
    column("storages", lambda h: h["storages"], number_cell),
    column("storage use", lambda h: h["storages_amount_iops"], rate_cell),
    column("storage charge", lambda h: h["storages_charged_iops"], rate_cell),
    column("coordinates", lambda h: h["coordinates"], number_cell),
)
_TENANT_COLUMNS: tuple[Column[TenantRow], ...] = (
    column("tenant", lambda t: t["tenant"], name_cell),
    column("limit", lambda t: t["limit_iops"], rate_cell),
    column("reservation", lambda t: t["reservation_iops"], rate_cell),
    column("hosts", lambda t: t["hosts"], number_cell),
    column("may use", lambda t: t["amount_iops"], rate_cell),
    column("charged", lambda t: t["charged_iops"], rate_cell),
    column("silent", lambda t: len(t["silent"]), number_cell),
    column("coordinator", lambda t: t["coordinator"], name_cell),
)
_STORAGE_COLUMNS: tuple[Column[StorageRow], ...] = (
    column("storage", lambda s: s["storage"], name_cell),
    column("capacity", lambda s: s["capacity_iops"], rate_cell),
    column("usable", lambda s: s["usable_iops"], rate_cell),
    column("norm. iops", lambda s: s["normalized_iops"], rate_cell),
    Column("latency", "ms / target", lambda s: s["latency_s"], _latency_cell),
    column("hosts", lambda s: s["hosts"], number_cell),
    column("may use", lambda s: s["amount_iops"], rate_cell),
    column("charged", lambda s: s["charged_iops"], rate_cell),
    column("silent", lambda s: len(s["silent"]), number_cell),
    column("coordinator", lambda s: s["coordinator"], name_cell),
)
_SHARE_COLUMNS: tuple[Column[ShareRow], ...] = (
    column("host", lambda h: h["host"], name_cell),
    column("reports", lambda h: h["reports"], _yes_cell),
    column("floor", lambda h: h["floor_iops"], rate_cell),
    column("may use", lambda h: h["amount_iops"], rate_cell),
    column("charged", lambda h: h["charged_iops"], rate_cell),
    column("held", lambda h: h["held_iops"], _endless_cell),
    column("wants", lambda h: h["wants_iops"], _endless_cell),
    column("reserved", lambda h: h["reservation_iops"], rate_cell),
    column("weight", lambda h: h["weight"], number_cell),
)


def host_table(rows: Sequence[HostRow]) -> PlainTable:
    """Return a row for each host."""
    less = ("coordinates", "tenants", "storages", "may use", "storage use")
    return table(rows, _HOST_COLUMNS, *less)


def tenant_table(rows: Sequence[TenantRow]) -> PlainTable:
    """Return a row for each tenant."""
    return table(rows, _TENANT_COLUMNS, "coordinator", "reservation", "may use", "hosts")


def storage_table(rows: Sequence[StorageRow]) -> PlainTable:
    """Return a row for each shared storage."""
    less = ("coordinator", "may use", "capacity", "hosts", "charged")
    return table(rows, _STORAGE_COLUMNS, *less)


def share_table(rows: Sequence[ShareRow]) -> PlainTable:
    """Return a row for each host's part."""
    return table(rows, _SHARE_COLUMNS, "weight", "reserved", "floor", "held")


def complaints(view: FleetView) -> Iterator[str]:
    """Yield what an operator has to know of the fleet, a line each."""
    yield from _differing_rules(view)
    for budget, known in sorted(view.budgets.items(), key=lambda item: str(item[0])):
        if not (known.counts or known.entries or known.errors):
            continue
        name = f"{budget.kind.value} {name_cell(budget.name)}"
        yield from map(str, known.errors)
        yield from _charges(name, known)
        if known.counts and known.reserved > known.counts.amount:
            what = "limit" if known.counts.shared is None else "capacity"
            yield (
                f"{name}: its drives reserve {rate_cell(known.reserved)} together, more than its"
                f" {what} of {rate_cell(known.counts.amount)}; lower reservations"
            )
        if known.counts and known.claims and known.leader is None:
            yield f"{name} has no coordinator now; another host takes over within seconds"
        for host, entry in known.entries.items():
            if not known.reports(host):
                shown = name_cell(host)
                yield (
                    f"{name}: host {shown} doesn't report, and stays charged"
                    f" {rate_cell(entry.charged)}; {_answer(shown, entry)}"
                )


def _differing_rules(view: FleetView) -> Iterator[str]:
    """Yield the hosts whose rules aren't those of most: a guest that migrates has other limits."""
    hosts: dict[str, list[str]] = {}
    for host, digest in sorted(view.rules.items()):
        hosts.setdefault(digest, []).append(host)
    most = max(hosts, key=lambda digest: len(hosts[digest]), default="")
    for digest, names in hosts.items():
        if digest != most:
            what = "have other rules or classes than" if digest else "have no rules, other than"
            yield (
                f"hosts {few(names)}: {what} {few(hosts[most])}; give all hosts the same"
                " [[rules]] and [classes]"
            )


def _answer(host: str, entry: Entry) -> str:
    """Return what an operator can do about a host that doesn't report, or has done."""
    if entry.word is None:
        return f"start its agent, or answer for it by `iokeel fleet forget {host}`"
    if entry.word is Word.AT_FLOOR and entry.charged <= max(entry.amount, entry.lasting):
        return "answered for, at its floor"
    return "answered for; takes effect once a host coordinates"


def _charges(name: str, known: BudgetView) -> Iterator[str]:
    charged = sum(entry.charged for entry in known.entries.values())
    if known.counts is None:
        if known.entries:
            yield (
                f"{name} isn't set, but hosts are still charged for it; set it again, and if it"
                " should go, remove it then"
            )
        return
    limit, what = known.counts.amount, "its limit of"
    if known.counts.shared is not None:
        limit, what = known.ledger.amount if known.ledger else limit, "its usable capacity of"
    if charged > limit:
        yield (
            f"{name}: hosts may be held to {rate_cell(charged)}, more than {what}"
            f" {rate_cell(limit)}, until they have lowered their limits"
        )
