"""The tables of `iokeel fleet`, and the same as values for --json."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Required, TypedDict

from iokeel.cli.cells import NONE, PlainTable, layouts, ms_cell, name_cell, rate_cell
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


def host_table(rows: Sequence[HostRow]) -> PlainTable:
    """Return a row for each host."""
    headings = (
        "host",
        "there",
        "tenants",
        "may use",
        "charged",
        "storages",
        "storage use",
        "storage charge",
        "coordinates",
    )
    cells = [
        (
            name_cell(row["host"]),
            "yes" if row["is_there"] else "NO",
            str(row["tenants"]),
            rate_cell(row["amount_iops"]),
            rate_cell(row["charged_iops"]),
            str(row["storages"]),
            rate_cell(row["storages_amount_iops"]),
            rate_cell(row["storages_charged_iops"]),
            str(row["coordinates"]),
        )
        for row in rows
    ]
    less = layouts("coordinates", "tenants", "storages", "may use", "storage use")
    return PlainTable(headings, cells, less)


def tenant_table(rows: Sequence[TenantRow]) -> PlainTable:
    """Return a row for each tenant."""
    headings = (
        "tenant",
        "limit",
        "reservation",
        "hosts",
        "may use",
        "charged",
        "silent",
        "coordinator",
    )
    cells = [
        (
            name_cell(row["tenant"]),
            rate_cell(row["limit_iops"]),
            rate_cell(row["reservation_iops"]),
            str(row["hosts"]),
            rate_cell(row["amount_iops"]),
            rate_cell(row["charged_iops"]),
            str(len(row["silent"])),
            name_cell(row["coordinator"] or NONE),
        )
        for row in rows
    ]
    return PlainTable(headings, cells, layouts("coordinator", "reservation", "may use", "hosts"))


def storage_table(rows: Sequence[StorageRow]) -> PlainTable:
    """Return a row for each shared storage."""
    headings = (
        "storage",
        "capacity",
        "usable",
        "norm. iops",
        "ms / target",
        "hosts",
        "may use",
        "charged",
        "silent",
        "coordinator",
    )
    cells = []
    for row in rows:
        target = row["latency_target_s"]
        cells.append(
            (
                name_cell(row["storage"]),
                rate_cell(row["capacity_iops"]),
                rate_cell(row["usable_iops"]),
                rate_cell(row["normalized_iops"]),
                ms_cell(row["latency_s"]) + ("" if target is None else f" / {ms_cell(target)}"),
                str(row["hosts"]),
                rate_cell(row["amount_iops"]),
                rate_cell(row["charged_iops"]),
                str(len(row["silent"])),
                name_cell(row["coordinator"] or NONE),
            )
        )
    less = layouts("coordinator", "may use", "capacity", "hosts", "charged")
    return PlainTable(headings, cells, less)


def share_table(rows: Sequence[ShareRow]) -> PlainTable:
    """Return a row for each host's part."""
    headings = (
        "host",
        "reports",
        "floor",
        "may use",
        "charged",
        "held",
        "wants",
        "reserved",
        "weight",
    )
    cells = [
        (
            name_cell(row["host"]),
            "yes" if row["reports"] else "NO",
            rate_cell(row["floor_iops"]),
            rate_cell(row["amount_iops"]),
            rate_cell(row["charged_iops"]),
            _rate(row["held_iops"]),
            _rate(row["wants_iops"]),
            rate_cell(row["reservation_iops"]),
            NONE if row["weight"] is None else str(row["weight"]),
        )
        for row in rows
    ]
    return PlainTable(headings, cells, layouts("weight", "reserved", "floor", "held"))


def _rate(value: int | None) -> str:
    """Return a rate that may have no end."""
    return "no end" if value is not None and value >= ENDLESS else rate_cell(value)


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
