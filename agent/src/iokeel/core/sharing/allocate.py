"""What each drive may do of its storage and of its tenant's limit, once a tick.

Here's how it works. A drive *wants* its ceiling (its limit, or burst while it has credit) where its
limits are what held it, and else what it did lately, or more where it grows (demand.py). So demand
is told apart from what was allowed, and what a drive leaves is lent to others.

1. A tenant with a limit has it divided (share.py) among its drives, wherever they are.
2. A storage's *usable* capacity is what capacity.py makes of it, less what drives without a policy
   do there. It is divided among tenants (a drive whose tenant is promised nothing stands for
   itself), and what each gets among its drives.
3. A drive's share is not what it got, but what it is *entitled* to at the level found: what it
   would get if it wanted more. A drive that wakes up has that at once, and the level follows a
   tick later. Where all wants fit, every drive may do as much as the storage can.
4. Where a drive has a latency target, the others have room * usable between them (room.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import iokeel.core.sharing.capacity as capacity_law
from iokeel.core.counters import DriveId
from iokeel.core.policy import TenantPolicy
from iokeel.core.sharing.capacity import gift, peak_after, ratio_after
from iokeel.core.sharing.claimant import Party, party_of, share_of
from iokeel.core.sharing.demand import hidden_demand
from iokeel.core.sharing.divide import Claim, divide
from iokeel.core.sharing.headroom import (
    claim_headroom,
    give_rest,
    least_room,
    make_room,
    room_after,
    split_for,
    strain_of,
)
from iokeel.core.sharing.latency import is_loaded, load_of, storage_strain
from iokeel.core.sharing.storage import StorageLoad
from iokeel.core.state import DriveSeen, DriveState, Share, StorageSeen, StorageState

# Where changed limits let through more than this part of a storage, its latency says little; as
# where more was done than it is taken to be able to do, or where a cut by as much as this has just
# been made, and the queue that was asked for before it is gone now.
_GIFT_RATIO = 0.02
_CUT_RATIO = 0.95
# That is where it did at least this part of what it was let; and for so many intervals: a storage
# takes its time over what was let through.
_FULL_RATIO = 0.95
_MOST_DOUBT = 2


def allot(
    seen: Mapping[DriveId, DriveSeen],
    known: Mapping[DriveId, DriveState],
    storages: Mapping[str, StorageSeen],
    before: Mapping[str, StorageState],
    tenants: Mapping[str, TenantPolicy],
) -> tuple[dict[str, StorageState], dict[DriveId, Share]]:
    """Return the storages' states after a tick, and the shares of drives that are bound by one.

    known: the drives' states, with the tick's rates. storages: what the tick showed of those that
    have a name. before: their states a tick ago. tenants: what those that have a policy are
    promised.
    """
    parties: dict[str | None, list[Party]] = {name: [] for name in storages}
    strangers: dict[str | None, float] = {}
    for drive, shown in seen.items():
        state = known[drive]
        if shown.policy is not None:
            parties.setdefault(shown.storage, []).append(party_of(drive, state, shown))
        elif state.rate:
            strangers[shown.storage] = strangers.get(shown.storage, 0.0) + state.rate
    loads = {
        name: load_of(now, before.get(name), (p.known for p in parties[name]))
        for name, now in storages.items()
    }
    for name, load in loads.items():
        strain = storage_strain(storages[name].policy, load)
        if load is not None and strain is not None and strain > 1 and is_loaded(load):
            _reckon_with_hidden_demand(parties[name], load.busy_ratio or 1.0)
    _keep_tenants_within_limits(parties, tenants)
    spread = _spread(parties)
    after = {}
    for name, now in storages.items():
        promises = {
            tenant: replace(promise, reservation=round(promise.reservation * part))
            for tenant, promise in tenants.items()
            if (part := spread.get((tenant, name)))
        }
        after[name] = _divide_storage(
            name,
            now,
            loads[name],
            before.get(name),
            parties[name],
            strangers.get(name, 0.0),
            promises,
        )
    shares = {
        party.drive: party.share for there in parties.values() for party in there if party.share
    }
    return after, shares


def _reckon_with_hidden_demand(there: Sequence[Party], busy_ratio: float) -> None:
    """Take drives to want more than they do where the storage holds them, and no limit any."""
    if not any(party.known.backlogged for party in there):
        for party in there:
            party.wants = min(party.ceiling, hidden_demand(party.wants, busy_ratio))


def _keep_tenants_within_limits(
    parties: Mapping[str | None, Sequence[Party]], tenants: Mapping[str, TenantPolicy]
) -> None:
    """Bound what each drive may do and wants by its part of its tenant's limit."""
    limits = {tenant: p.limit for tenant, p in tenants.items() if p.limit is not None}
    mine: dict[str, list[Party]] = {}
    for there in parties.values():
        for party in there:
            if party.tenant is not None and party.tenant in limits:
                mine.setdefault(party.tenant, []).append(party)
    for tenant, group in mine.items():
        limit = float(limits[tenant])
        division = divide(limit, [party.claim for party in group])
        for party, amount in zip(group, division.amounts, strict=True):
            party.share = share_of(party, division, amount, limit, None)
            party.ceiling = min(party.ceiling, party.share.most)
            party.wants = min(party.wants, amount)


def _divide_storage(
    name: str,
    now: StorageSeen,
    load: StorageLoad | None,
    was: StorageState | None,
    there: Sequence[Party],
    strangers: float,
    tenants: Mapping[str, TenantPolicy],
) -> StorageState:
    """Give each drive of a storage its share, and return the storage's state."""
    policy = now.policy
    if was is None or was.policy != policy:
        was = StorageState(policy, room=capacity_law.HEADROOM_RATIO)
    elapsed_s = max((p.known.rates.elapsed_s for p in there if p.known.rates), default=0.0)
    protected = [p for p in there if p.policy.latency_target_ms is not None]
    others = [p for p in there if p.policy.latency_target_ms is None]
    rates = [p.known.rate for p in there]
    done = sum(rate or 0.0 for rate in rates)
    total = strangers + done
    worst, suffering = strain_of(protected)
    most = was.usable or inf
    drained = now.counters is None or load is None or 2 * now.counters.in_flight < load.queue
    disturbed = (
        (was.fell and drained)
        or sum(gift(p.known) for p in there) > _GIFT_RATIO * most
        or done > capacity_law.SLACK * most  # many woke, under limits for what was done before
    )
    above = max(storage_strain(policy, load) or 0.0, worst or 0.0) > 1
    let = was.room if protected and others else 1.0
    full = done >= _FULL_RATIO * let * most  # else no gift was too much
    doubtful = disturbed and above and full and was.doubt < _MOST_DOUBT
    doubt = was.doubt + 1 if doubtful else 0
    ratio, room = was.ratio, was.room
    if not doubt:
        ratio = ratio_after(was, load, None if None in rates else total, let)
        room = room_after(was, worst, others, elapsed_s)
    peak = peak_after(was, total, bool(suffering), elapsed_s)
    capacity = policy.capacity * ratio if policy.capacity else None
    if policy.capacity is None and protected and (suffering or was.usable is not None):
        capacity = peak
    state: dict[str, Any] = {
        "policy": policy,
        "counters": now.counters or was.counters,
        "load": load,
        "ratio": ratio,
        "doubt": doubt,
        "fell": ratio < _CUT_RATIO * was.ratio,
        "peak": peak,
        "promised": _promised(there, tenants),
        "wanted": sum(p.wants for p in there),
        "suffering": tuple(suffering),
        "split_for": split_for(now, protected),
    }
    if capacity is None:
        return StorageState(**state, room=room)
    usable = max(0.0, capacity - strangers)
    wants = {p.drive: p.wants for p in there}
    least = least_room(usable, others)
    if protected and others:
        room = min(1.0, max(room, least))
        claim_headroom((1 - room) * usable, protected)
    level, kept, got = _divide_tenants(name, usable, there, tenants)
    cut = make_room(room * usable, others, got) if protected and others else 0.0
    give_rest(usable, protected, got)
    return StorageState(
        **state,
        room=room,
        usable=usable,
        given=sum(min(amount, wants[drive]) for drive, amount in got.items()),
        level=level,
        kept=kept,
        short=any(p.known.backlogged and p.share and p.share.most < p.ceiling for p in there),
        cut=cut,
        exhausted=bool(suffering) and room <= least,
    )


def _spread(parties: Mapping[str | None, Sequence[Party]]) -> dict[tuple[str, str | None], float]:
    """Return which part of each tenant's demand is for each storage, and of its reservation too."""
    there = Counter[tuple[str, str | None]]()
    total = Counter[str]()
    for name, group in parties.items():
        for party in group:
            if party.tenant is not None:
                there[party.tenant, name] += 1 + int(party.known.demand)
                total[party.tenant] += 1 + int(party.known.demand)
    return {key: demand / total[key[0]] for key, demand in there.items()}


def _divide_tenants(
    storage: str,
    usable: float,
    there: Sequence[Party],
    tenants: Mapping[str, TenantPolicy],
) -> tuple[float, float, dict[DriveId, float]]:
    """Set each party's share of a storage; return level, kept, and what each got of it."""
    groups = _groups(there, tenants)
    promises = [tenants[name] if name else None for name, _ in groups]
    claims = [
        _group_claim(promise, group) for promise, (_, group) in zip(promises, groups, strict=True)
    ]
    top = divide(usable, claims)
    got: dict[DriveId, float] = {}
    for (_, group), promise, claim, amount in zip(
        groups, promises, claims, top.amounts, strict=True
    ):
        division, pool = top, usable
        amounts: tuple[float, ...] = (amount,)
        if promise is not None:
            if amount < claim.wants:  # what its idle drives are owed is lent, not given twice
                pool = amount
            elif top.level != inf:
                promised = max(promise.reservation, sum(p.policy.reservation for p in group))
                pool = max(amount, top.kept * promised + promise.weight * top.level)
            division = divide(pool, [party.claim for party in group])
            amounts = division.amounts
        for party, mine in zip(group, amounts, strict=True):
            got[party.drive] = mine
            new = share_of(party, division, mine, pool, storage)
            if party.share is None or new.most <= party.share.most:
                party.share = new
    return top.level, top.kept, got


def _promised(there: Sequence[Party], tenants: Mapping[str, TenantPolicy]) -> float:
    total = 0.0
    for name, group in _groups(there, tenants):
        promised = float(sum(p.policy.reservation for p in group))
        total += max(promised, tenants[name].reservation) if name else promised
    return total


def _groups(
    there: Iterable[Party], tenants: Mapping[str, TenantPolicy]
) -> list[tuple[str | None, list[Party]]]:
    """Return tenants that are promised something, with their drives; all other drives singly."""
    single: list[tuple[str | None, list[Party]]] = []
    by_tenant: dict[str, list[Party]] = {}
    for party in there:
        if party.tenant is not None and party.tenant in tenants:
            by_tenant.setdefault(party.tenant, []).append(party)
        else:
            single.append((None, [party]))
    return [*single, *by_tenant.items()]


def _group_claim(tenant: TenantPolicy | None, group: Sequence[Party]) -> Claim:
    if tenant is None:
        return group[0].claim
    owed = sum(min(float(p.policy.reservation), p.wants) for p in group)
    return Claim(max(tenant.reservation, owed), tenant.weight, sum(p.wants for p in group))
