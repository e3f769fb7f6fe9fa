"""The tables of `iokeel fleet`, and the same as values for --json."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypedDict

from rich.table import Table

from iokeel.cli.cells import NONE, name_cell, plain_table, rate_cell
from iokeel.fleet.operator import FleetView, TenantView


class HostRow(TypedDict):
    """A host. iops are normalized, summed over its tenants."""

    host: str
    is_there: bool
    tenants: int
    amount_iops: int
    charged_iops: int
    coordinates: int


class TenantRow(TypedDict):
    """A tenant. iops are normalized. silent: hosts that are charged and don't report."""

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


class ShareRow(TypedDict):
    """A host's part of a tenant's budget, and its claim. None: it doesn't report."""

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


def host_rows(view: FleetView) -> list[HostRow]:
    """Return all hosts that are there, or that are charged something, by name."""
    names = {*view.hosts, *(name for t in view.tenants.values() for name in t.entries)}
    rows = []
    for name in sorted(names):
        entries = [t.entries[name] for t in view.tenants.values() if name in t.entries]
        rows.append(
            HostRow(
                host=name,
                is_there=name in view.hosts,
                tenants=len(entries),
                amount_iops=sum(entry.amount for entry in entries),
                charged_iops=sum(entry.charged for entry in entries),
                coordinates=sum(t.leader == name for t in view.tenants.values()),
            )
        )
    return rows


def tenant_rows(view: FleetView) -> list[TenantRow]:
    """Return all tenants that have a budget or a charge, by name."""
    return [
        TenantRow(
            tenant=name,
            limit_iops=t.budget.amount if t.budget else None,
            reservation_iops=t.budget.reservation if t.budget else None,
            weight=t.budget.weight if t.budget else None,
            hosts=len(t.entries),
            amount_iops=sum(entry.amount for entry in t.entries.values()),
            charged_iops=sum(entry.charged for entry in t.entries.values()),
            coordinator=t.leader,
            silent=[host for host in t.entries if not t.reports(host)],
            errors=[str(error) for error in t.errors],
        )
        for name, t in sorted(view.tenants.items())
        if t.budget or t.entries or t.errors
    ]


def share_rows(tenant: TenantView) -> list[ShareRow]:
    """Return the hosts' parts of a tenant's budget, by host."""
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
                wants_iops=claim.wants if claim else None,
                reservation_iops=claim.reservation if claim else None,
                weight=claim.weight if claim else None,
                answered_for=entry.word.value if entry and entry.word else None,
            )
        )
    return rows


def host_table(rows: list[HostRow]) -> Table:
    """Return a row for each host."""
    table = plain_table("host", "there", "tenants", "may use", "charged", "coordinates")
    for row in rows:
        table.add_row(
            name_cell(row["host"]),
            "yes" if row["is_there"] else "NO",
            str(row["tenants"]),
            rate_cell(row["amount_iops"]),
            rate_cell(row["charged_iops"]),
            str(row["coordinates"]),
        )
    return table


def tenant_table(rows: list[TenantRow]) -> Table:
    """Return a row for each tenant."""
    table = plain_table(
        "tenant", "limit", "reservation", "hosts", "may use", "charged", "silent", "coordinator"
    )
    for row in rows:
        table.add_row(
            name_cell(row["tenant"]),
            rate_cell(row["limit_iops"]),
            rate_cell(row["reservation_iops"]),
            str(row["hosts"]),
            rate_cell(row["amount_iops"]),
            rate_cell(row["charged_iops"]),
            str(len(row["silent"])),
            name_cell(row["coordinator"] or NONE),
        )
    return table


def share_table(rows: list[ShareRow]) -> Table:
    """Return a row for each host's part."""
    table = plain_table(
        "host", "reports", "floor", "may use", "charged", "held", "wants", "reserved", "weight"
    )
    for row in rows:
        table.add_row(
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
    return table


def _rate(value: int | None) -> str:
    """Return a rate that may have no end."""
    return "no end" if value is not None and value >= _ENDLESS else rate_cell(value)


_ENDLESS = 2**53


def complaints(view: FleetView) -> Iterator[str]:
    """Yield what an operator has to know of the fleet, a line each."""
    for row in tenant_rows(view):
        name, limit = name_cell(row["tenant"]), row["limit_iops"]
        yield from row["errors"]
        if limit is None and row["hosts"]:
            yield f"tenant {name} has no budget, and hosts are still charged; set it or wait"
        elif limit is not None and row["charged_iops"] > limit:
            over = rate_cell(row["charged_iops"])
            yield (
                f"tenant {name}: hosts may be held to {over}, more than its limit of"
                f" {rate_cell(limit)}, until they have lowered it"
            )
        if limit is not None and view.tenants[row["tenant"]].claims and row["coordinator"] is None:
            yield f"tenant {name} has no coordinator now; another host takes over within seconds"
        for host in row["silent"]:
            entry = view.tenants[row["tenant"]].entries[host]
            yield (
                f"tenant {name}: host {name_cell(host)} doesn't report, and stays charged"
                f" {rate_cell(entry.charged)}; start its agent, or answer for it by `iokeel fleet"
                f" forget {name_cell(host)}`"
            )
