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
4. Where a drive has a latency target, the others have room * usable between them; what they have
   beyond that is taken from the lowest weight first, and never from what they are owed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from iokeel.capacity import HEADROOM_RATIO, follow
from iokeel.demand import hidden_demand
from iokeel.policy import DrivePolicy, TenantPolicy
from iokeel.share import Claim, Division, cut_by_weight, divide
from iokeel.state import DriveSeen, DriveState, Share, StorageSeen, StorageState
from iokeel.storage import StorageLoad, StoragePolicy, storage_load
from iokeel.workload import DriveId

# A storage whose capacity nobody knows is taken for what its drives did at most, which is forgotten
# by half in this time.
_PEAK_HALF_LIFE_S = 300.0
# The least part of a storage that drives without a latency target keep, reservations aside.
_LEAST_ROOM = 0.05
# With less than one request in flight on average, latency is not due to load.
_LOADED_QUEUE = 1.0


@dataclass(slots=True)
class _Party:
    """A drive with a policy: what it may do at most, what it wants, and its share so far."""

    drive: DriveId
    known: DriveState
    policy: DrivePolicy
    tenant: str | None
    ceiling: float
    wants: float
    share: Share | None = None

    @property
    def claim(self) -> Claim:
        return Claim(self.policy.reservation, self.policy.weight, self.wants)


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
    parties: dict[str | None, list[_Party]] = {name: [] for name in storages}
    strangers: dict[str | None, float] = {}
    for drive, shown in seen.items():
        state = known[drive]
        if shown.policy is not None:
            parties.setdefault(shown.storage, []).append(_party(drive, state, shown))
        elif state.rate:
            strangers[shown.storage] = strangers.get(shown.storage, 0.0) + state.rate
    loads = {name: _load(now, before.get(name), parties[name]) for name, now in storages.items()}
    for name, load in loads.items():
        if _strained(storages[name].policy, load):
            _reckon_with_hidden_demand(parties[name])
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


def _party(drive: DriveId, state: DriveState, now: DriveSeen) -> _Party:
    assert now.policy is not None
    ceiling = inf if state.ceiling is None else float(state.ceiling)
    if now.policy.separate_budgets:
        ceiling *= 2
    if state.backlogged:
        wants = ceiling
    elif state.rate is None:  # it may be about to do anything
        wants = min(ceiling, max(state.demand, now.policy.reservation))
    else:
        wants = min(ceiling, state.demand)
    return _Party(drive, state, now.policy, now.tenant, ceiling, wants)


def _load(
    now: StorageSeen, was: StorageState | None, there: Iterable[_Party]
) -> StorageLoad | None:
    if now.counters is None:
        return _load_by_guests(there)
    return storage_load(was.counters, now.counters) if was and was.counters else None


def _strained(policy: StoragePolicy, load: StorageLoad | None) -> bool:
    """Whether a storage is what holds its drives, so that they may want more than they do."""
    if load is None or load.latency_s is None or policy.latency_target_ms is None:
        return False
    return load.latency_s * 1000 > policy.latency_target_ms and load.queue >= _LOADED_QUEUE


def _reckon_with_hidden_demand(there: Iterable[_Party]) -> None:
    """Take drives to want more than they do, and what they are owed, where a storage holds them."""
    for party in there:
        if party.known.rate:
            wants = hidden_demand(party.wants, party.policy.reservation)
            party.wants = min(party.ceiling, wants)


def _keep_tenants_within_limits(
    parties: Mapping[str | None, Sequence[_Party]], tenants: Mapping[str, TenantPolicy]
) -> None:
    """Bound what each drive may do and wants by its part of its tenant's limit."""
    limits = {tenant: p.limit for tenant, p in tenants.items() if p.limit is not None}
    mine: dict[str, list[_Party]] = {}
    for there in parties.values():
        for party in there:
            if party.tenant is not None and party.tenant in limits:
                mine.setdefault(party.tenant, []).append(party)
    for tenant, group in mine.items():
        limit = float(limits[tenant])
        division = divide(limit, [party.claim for party in group])
        for party, amount in zip(group, division.amounts, strict=True):
            party.share = _share(party, division, amount, limit, None)
            party.ceiling = min(party.ceiling, party.share.most)
            party.wants = min(party.wants, amount)


def _divide_storage(
    name: str,
    now: StorageSeen,
    load: StorageLoad | None,
    was: StorageState | None,
    there: Sequence[_Party],
    strangers: float,
    tenants: Mapping[str, TenantPolicy],
) -> StorageState:
    """Give each drive of a storage its share, and return the storage's state."""
    policy = now.policy
    if was is None or was.policy != policy:
        was = StorageState(policy, room=HEADROOM_RATIO)
    elapsed_s = max((p.known.rates.elapsed_s for p in there if p.known.rates), default=0.0)
    protected = [p for p in there if p.policy.latency_target_ms is not None]
    total = strangers + sum(p.known.rate or 0.0 for p in there)
    ratio = _ratio(was, load)
    peak = max(total, was.peak * 0.5 ** (elapsed_s / _PEAK_HALF_LIFE_S))
    capacity = float(policy.capacity) * ratio if policy.capacity else peak if protected else 0.0
    room, suffering = _room(was, protected, elapsed_s)
    usable = max(0.0, capacity - strangers)
    state: dict[str, Any] = {
        "policy": policy,
        "counters": now.counters or was.counters,
        "load": load,
        "ratio": ratio,
        "peak": peak,
        "promised": _promised(there, tenants),
        "wanted": sum(p.wants for p in there),
        "suffering": tuple(p.drive for p in suffering),
    }
    if not capacity:
        return StorageState(**state, room=room)
    level, kept, got = _divide_tenants(name, usable, there, tenants)
    others = [p for p in there if p.policy.latency_target_ms is None]
    cut, least = 0.0, 0.0
    if protected and others:
        owed = sum(min(p.share.owed, got[p.drive]) for p in others if p.share)
        least = max(owed / usable if usable else 1.0, _LEAST_ROOM)
        room = min(1.0, max(room, least))
        cut = _make_room(room * usable, others, got)
    return StorageState(
        **state,
        room=room,
        usable=usable,
        given=sum(got.values()),
        level=level,
        kept=kept,
        short=any(p.known.backlogged and p.share and p.share.most < p.ceiling for p in there),
        cut=cut,
        exhausted=bool(suffering) and room <= least,
    )


def _ratio(was: StorageState, load: StorageLoad | None) -> float:
    target_ms = was.policy.latency_target_ms
    if load is None or load.latency_s is None or target_ms is None:
        return was.ratio
    ratio = follow(
        was.ratio,
        load.latency_s * 1000 / target_ms,
        short=was.short,
        loaded=load.queue >= _LOADED_QUEUE,
        elapsed_s=load.elapsed_s,
    )
    return min(was.policy.most_ratio, max(was.policy.least_ratio, ratio))


def _room(
    was: StorageState, protected: Sequence[_Party], elapsed_s: float
) -> tuple[float, list[_Party]]:
    """Return the room after an interval, and the drives that were above their targets in it."""
    strains = [(strain, p) for p in protected if (strain := _strain(p)) is not None]
    suffering = [p for strain, p in strains if strain > 1]
    worst = max((strain for strain, _ in strains), default=None)
    room = follow(was.room, worst, short=was.short, loaded=True, elapsed_s=elapsed_s)
    return room, suffering


def _strain(party: _Party) -> float | None:
    """Return a drive's latency over its target; None where it did nothing or it isn't known."""
    latency_s = device_latency_s(party.known)
    target_ms = party.policy.latency_target_ms
    if latency_s is None or target_ms is None:
        return None
    return latency_s * 1000 / target_ms


def device_latency_s(known: DriveState) -> float | None:
    """Return the mean time of a drive's requests in the last interval without the throttle's wait.

    None where no request ended, or where the wait is part of what was measured.
    """
    did = known.rates
    if did is None or did.idle or known.backlogged:
        return None
    total_s = did.read.raw_iops * (did.read_latency_s or 0.0) + did.write.raw_iops * (
        did.write_latency_s or 0.0
    )
    return total_s / (did.read.raw_iops + did.write.raw_iops) or None


def _load_by_guests(there: Iterable[_Party]) -> StorageLoad | None:
    """Return the load of a storage of which only its drives' guests know anything."""
    requests = queue = elapsed_s = 0.0
    for party in there:
        latency_s, did = device_latency_s(party.known), party.known.rates
        if latency_s is not None and did is not None:
            raw_iops = did.read.raw_iops + did.write.raw_iops
            requests += raw_iops
            queue += raw_iops * latency_s
            elapsed_s = max(elapsed_s, did.elapsed_s)
    if not requests:
        return None
    return StorageLoad(elapsed_s, requests, queue / requests, min(1.0, queue), queue)


def _spread(parties: Mapping[str | None, Sequence[_Party]]) -> dict[tuple[str, str | None], float]:
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
    there: Sequence[_Party],
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
            new = _share(party, division, mine, pool, storage)
            if party.share is None or new.most <= party.share.most:
                party.share = new
    return top.level, top.kept, got


def _promised(there: Sequence[_Party], tenants: Mapping[str, TenantPolicy]) -> float:
    total = 0.0
    for name, group in _groups(there, tenants):
        promised = float(sum(p.policy.reservation for p in group))
        total += max(promised, tenants[name].reservation) if name else promised
    return total


def _groups(
    there: Iterable[_Party], tenants: Mapping[str, TenantPolicy]
) -> list[tuple[str | None, list[_Party]]]:
    """Return tenants that are promised something, with their drives; all other drives singly."""
    single: list[tuple[str | None, list[_Party]]] = []
    by_tenant: dict[str, list[_Party]] = {}
    for party in there:
        if party.tenant is not None and party.tenant in tenants:
            by_tenant.setdefault(party.tenant, []).append(party)
        else:
            single.append((None, [party]))
    return [*single, *by_tenant.items()]


def _group_claim(tenant: TenantPolicy | None, group: Sequence[_Party]) -> Claim:
    if tenant is None:
        return group[0].claim
    owed = sum(min(float(p.policy.reservation), p.wants) for p in group)
    return Claim(max(tenant.reservation, owed), tenant.weight, sum(p.wants for p in group))


def _share(
    party: _Party, division: Division, amount: float, pool: float, storage: str | None
) -> Share:
    """Return what a party may do of a pool: what it got, or is entitled to if it wakes."""
    claim = party.claim
    owed = division.kept * claim.reservation
    most = pool if division.level == inf else max(amount, division.entitled(claim))
    tenant = party.tenant if storage is None else None
    by_weight = inf if division.level == inf else division.level * claim.weight
    return Share(min(most, pool), storage, tenant, owed, by_weight)


def _make_room(budget: float, others: Sequence[_Party], got: dict[DriveId, float]) -> float:
    """Take from others what they have beyond a budget, and return how much that is."""
    claims = [p.claim for p in others]
    amounts = [got[p.drive] for p in others]
    left = cut_by_weight(budget, claims, amounts)
    slack = max(0.0, budget - sum(left))
    weight = sum(claim.weight for claim in claims)
    for party, claim, amount, less in zip(others, claims, amounts, left, strict=True):
        share = party.share
        assert share is not None
        got[party.drive] = less
        most = less
        if slack:
            most = max(less + slack, share.owed)
        elif less == amount:  # it may be idle, and has what an equal part comes to when it wakes
            most = max(less, share.owed, budget * claim.weight / weight)
        if most < share.most:
            cut = max(0.0, min(share.most, party.ceiling) - most)
            party.share = replace(share, most=most, cut=cut)
    return sum(amounts) - sum(left)
