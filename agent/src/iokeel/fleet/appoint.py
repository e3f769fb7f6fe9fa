"""Appoints a host to coordinate a new budget, before any host has a guest that draws on it.

A coordinator raises nothing before a term has passed (iokeel.core.fleet.coordinate). If the first
one came with the first guest, that guest would have next to nothing for as long.
"""

from __future__ import annotations

from collections.abc import Collection

from iokeel.fleet.keys import BudgetId, last_part
from iokeel.fleet.messages import Is, Put
from iokeel.fleet.participant import first_in_turn
from iokeel.fleet.records import LeaderRecord, encoded
from iokeel.fleet.store import FleetStore


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
