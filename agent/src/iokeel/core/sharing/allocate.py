"""Allocates storages and tenants' limits to drives, once a tick.

1. Each drive is a claimant with a demand (claimant.py, demand.py): the rate that its policy allows
   if its limits hold it, else its rate of late, or more while it grows. A demand is independent of
   the drive's share, and the part that a drive leaves is lent to others.
2. A tenant's limit is divided (divide.py) among its drives, on all storages together. Each drive's
   part of its VM's limit (vm_limit.py), or of what the fleet grants its tenant (tenant_part.py),
   bounds its demand already.
3. Each storage is divided on its own (one_storage.py), unless it is left to its scheduler
   (by_weight.py).

A drive's share of a storage is not the amount that it got, but the one that it is *entitled* to at
the level found: the amount that it would get if it wanted more. A drive that wakes up has it at
once, and the level follows a tick later. If all demands fit, every drive may have all that there
is. Of a tenant's limit it has its amount and a part of what is spare, because shares of that must
not add up to much more than the limit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil, fsum, inf

from iokeel.core.counters import NS_PER_S, DriveId
from iokeel.core.curve import DEFAULT_MODEL, CostModel
from iokeel.core.observation import StorageSeen
from iokeel.core.policy import DrivePolicy, TenantPolicy
from iokeel.core.sharing.by_weight import is_left, left, writing_after
from iokeel.core.sharing.claimant import Claimant, claimant_of, own_most, share_of
from iokeel.core.sharing.demand import hidden_demand
from iokeel.core.sharing.divide import divide
from iokeel.core.sharing.groups import members_of
from iokeel.core.sharing.latency import activity_of, is_loaded, storage_strain
from iokeel.core.sharing.one_storage import OneStorage, divide_storage
from iokeel.core.sharing.strangers import strangers_rate
from iokeel.core.sharing.tenant_part import held_by, rate_of_ours
from iokeel.core.state import DriveState, Share, StorageState
from iokeel.core.storage import StorageActivity, StoragePolicy
from iokeel.core.wants import TenantLevel

# The limits of a tenant's drives may add up to so much more than the tenant's. So a drive that does
# little is seldom held, and drives that wake together do at most so much too much until the next
# tick. With 0.1 a busy drive beside four that do little loses up to 10 % of the tenant's limit on
# stock QEMU, with 0.2 up to 3 % (benchmarks/law/shared_limit.py).
TENANT_SPARE_RATIO = 0.2
# The limits of drives that do little follow smaller shares late (drive/follow.py). Once those of a
# tenant's drives add up to so much more than shares may, as a ratio of its limit, they follow.
_LATE_RATIO = 0.05


def allocate(
    drives: Mapping[DriveId, DriveState],
    storages: Mapping[str, StorageSeen],
    before: Mapping[str, StorageState],
    tenants: Mapping[str, TenantPolicy],
    granted: Mapping[str, int | None],
    *,
    fleet_tenants: Collection[str] = (),
    levels: Mapping[str, Mapping[str, TenantLevel]] | None = None,
    complete: bool = True,
    stuck: Mapping[DriveId, float] | None = None,
    unread: Mapping[str | None, float] | None = None,
    model: CostModel = DEFAULT_MODEL,
) -> tuple[dict[str, StorageState], dict[DriveId, Share]]:
    """Return the storages' states after a tick, and the shares of drives that have one.

    drives: the tick's, with its rates. storages: the tick's view of the storages with a name.
    before: their states a tick ago. tenants: those with a policy. granted: what the fleet lets this
    host's drives do on storages; None if that isn't known. fleet_tenants: those with a grant of the
    fleet. levels, complete: see Observation. stuck: the rates that drives are held to whose orders
    fail. unread: what drives that can't be read are owed, by storage. model: of storages without
    cost curves of their own.
    """
    claimants, unpromised = _claimants(drives, storages)
    storages = {name: _as_known(now, before.get(name)) for name, now in storages.items()}
    writing = {
        name: writing_after(before.get(name), now.policy.capacity, claimants[name])
        for name, now in storages.items()
        if name not in granted
        and is_left(now, before.get(name), claimants[name], tenants, complete=complete)
    }
    storages = {name: left(now) if name in writing else now for name, now in storages.items()}
    activities = {
        name: activity_of(
            now,
            before.get(name),
            [c.known for c in claimants[name]],
            [] if now.counters is not None else [c.drive.domain for c in claimants[name]],
        )
        for name, now in storages.items()
    }
    for name, activity in activities.items():
        _reckon_with_hidden_demand(claimants[name], storages[name], activity, before.get(name))
    _bound_by_tenants_limits(claimants, tenants, stuck or {})
    reserved_by_tenants = {tenant: promise.reservation for tenant, promise in tenants.items()}
    reserved_by_vms = _reserved_by_vms(claimants)
    parts = _parts(claimants, lambda c: c.tenant)
    parts_of_vms = _parts(claimants, lambda c: c.drive.domain) if reserved_by_vms else {}
    after = {}
    for name, now in storages.items():
        here = claimants[name]
        reserved = _reserved_on(name, reserved_by_tenants, parts)
        promises = {
            tenant: replace(tenants[tenant], reservation=reservation)
            for tenant, reservation in reserved.items()
        }
        told = (levels or {}).get(name, {})
        of_fleet = {t: told.get(t) for t in promises if name in granted and t in fleet_tenants}
        reserved_here = _reserved_on(name, reserved_by_vms, parts_of_vms)
        members = members_of(here, promises, reserved_here, of_fleet)
        one = OneStorage(
            name,
            now,
            name in granted,
            granted.get(name),
            activities[name],
            here,
            _strangers(now, name in granted, activities[name], here, unpromised[name], model),
            members,
            complete,
            writing.get(name),
            (unread or {}).get(name, 0.0),
        )
        after[name] = divide_storage(one, before.get(name))
    shares = {c.drive: c.share for there in claimants.values() for c in there if c.share}
    return after, shares


def first_shares(
    new: Iterable[DriveId],
    drives: Mapping[DriveId, DriveState],
    tenants: Mapping[str, TenantPolicy],
) -> dict[DriveId, Share]:
    """Return the shares of new drives until the first division, for those whose tenant has a limit.

    A share is the part by weight of what is spare for idle drives. drives: all there are.
    """
    weights = Counter[str]()
    shares: dict[DriveId, Share] = {}
    for drive in new:
        known, promise = drives[drive], tenants.get(drives[drive].tenant or "")
        if known.policy is None or promise is None or promise.limit is None:
            continue
        weights = weights or _weights(drives.values())
        assert known.tenant is not None
        spare = TENANT_SPARE_RATIO * promise.limit * known.policy.weight / weights[known.tenant]
        shares[drive] = Share(spare, None, known.tenant, 0.0, inf)
    return shares


def left_by_unread(
    tenants: Mapping[str, TenantPolicy],
    unread: Iterable[DriveState],
    models: Mapping[str | None, CostModel],
) -> Mapping[str, TenantPolicy]:
    """Return tenants' policies, with the limits that drives which can't be read leave to others.

    Such a drive keeps the limits that it has. The others have at least what is spare for idle ones.
    unread: also those on which the law fails. The fleet sees to those with a part.
    """
    held: dict[str, float] = defaultdict(float)
    for known in unread:
        if known.tenant is not None and known.is_held and known.part is None:
            held[known.tenant] += held_unread(known, models[known.storage])
    after = dict(tenants)
    for tenant in held.keys() & tenants.keys():
        limit = tenants[tenant].limit
        if limit is not None:
            left = max(limit - held[tenant], TENANT_SPARE_RATIO * limit)
            after[tenant] = replace(tenants[tenant], limit=ceil(left))
    return after


def owed_to_unread(
    unread: Iterable[DriveState], models: Mapping[str | None, CostModel]
) -> Mapping[str | None, float]:
    """Return what drives that can't be read are owed of their storages, by storage.

    It is their reservation, within the limits that they have. What they did beyond that isn't set
    aside: a QEMU that hangs does nothing, for as long as it does.
    """
    owed: dict[str | None, float] = defaultdict(float)
    for known in unread:
        if known.policy is not None and known.is_held:
            held = held_unread(known, models[known.storage])
            owed[known.storage] += min(float(known.policy.reservation), held)
    return owed


def held_unread(known: DriveState, model: CostModel) -> float:
    """Return the most that limits of ours let a drive do that can't be read now."""
    ours, policy = rate_of_ours(known), known.policy or DrivePolicy()
    held = held_by(known, None, model) if ours is None else ours
    return min(held, own_most(policy, policy.limit))


def _weights(drives: Iterable[DriveState]) -> Counter[str]:
    """Return the sum of the weights of each tenant's drives."""
    weights = Counter[str]()
    for known in drives:
        if known.tenant is not None and known.policy is not None:
            weights[known.tenant] += known.policy.weight
    return weights


def _claimants(
    drives: Mapping[DriveId, DriveState], storages: Iterable[str]
) -> tuple[dict[str | None, list[Claimant]], Mapping[str | None, float]]:
    """Return each storage's drives with a policy, and the sum of the rates of its others.

    storages: those with a name, which may have no drive. None stands for the others.
    """
    claimants: dict[str | None, list[Claimant]] = {name: [] for name in storages}
    unpromised: dict[str | None, float] = defaultdict(float)
    for drive, known in drives.items():
        if known.policy is not None:
            claimant = claimant_of(drive, known, known.policy)
            if known.part is not None:
                claimant.most = min(claimant.most, known.part.part)
                claimant.wants = min(claimant.wants, claimant.most)
            claimants.setdefault(known.storage, []).append(claimant)
        else:
            unpromised[known.storage] += known.measured.rate or 0.0
    return claimants, unpromised


def _strangers(
    seen: StorageSeen,
    is_shared: bool,
    activity: StorageActivity | None,
    claimants: Sequence[Claimant],
    unpromised: float,
    model: CostModel,
) -> float:
    """Return the rate of a storage's strangers (strangers.py).

    unpromised: of its drives without a policy. If it has no counters, its latency has to tell
    whether they are too much, so they count only if it has a target. is_shared: by the fleet, whose
    coordinator hears of them from all hosts.
    """
    if is_shared:
        return unpromised
    rate = strangers_rate(activity, [c.known for c in claimants], seen.policy.model or model)
    if rate is not None:
        return rate
    by_latency = seen.counters is None and seen.policy.latency_target_ms is not None
    return unpromised if by_latency else 0.0


def _as_known(seen: StorageSeen, before: StorageState | None) -> StorageSeen:
    """Return a storage with what was known last in place of what can't be told now."""
    if seen.weighted is None and before is not None:
        return replace(seen, weighted=before.weighted)
    return seen


def _reckon_with_hidden_demand(
    claimants: Sequence[Claimant],
    seen: StorageSeen,
    activity: StorageActivity | None,
    before: StorageState | None,
) -> None:
    """Raise demands on an overloaded storage, if no limit holds any drive: the storage does.

    A drive that nothing held in the interval before, neither its limits nor the storage, has shown
    its demand.
    """
    if activity is None or not _is_overloaded(seen.policy, activity):
        return
    if any(c.known.demand.backlogged for c in claimants):
        return
    last = before.activity if before is not None else None
    was_calm = last is not None and not _is_overloaded(seen.policy, last)
    for claimant in claimants:
        if not (was_calm and _was_free(claimant.known, activity.elapsed_s)):
            hidden = hidden_demand(claimant.wants, activity.busy_ratio or 1.0)
            claimant.wants = min(claimant.most, hidden)


def _is_overloaded(policy: StoragePolicy, activity: StorageActivity | None) -> bool:
    strain = storage_strain(policy, activity)
    return strain is not None and strain > 1 and is_loaded(activity)


def _was_free(known: DriveState, elapsed_s: float) -> bool:
    """Return whether its limits didn't hold a drive in the interval before the last."""
    counters = known.measured.counters
    if counters is None:
        return False
    return counters.at_ns - known.demand.backlogged_ns > 1.5 * elapsed_s * NS_PER_S


def _bound_by_tenants_limits(
    claimants: Mapping[str | None, Sequence[Claimant]],
    tenants: Mapping[str, TenantPolicy],
    stuck: Mapping[DriveId, float],
) -> None:
    """Bound each drive's share and demand by its part of its tenant's limit.

    A stuck drive that is held to more than its share keeps that, and the others divide the rest. It
    is at least what is spare for idle drives, and what they are owed.
    """
    limits = {tenant: p.limit for tenant, p in tenants.items() if p.limit is not None}
    by_tenant: dict[str, list[Claimant]] = {}
    for there in claimants.values():
        for claimant in there:
            if claimant.tenant is not None and claimant.tenant in limits:
                by_tenant.setdefault(claimant.tenant, []).append(claimant)
    for tenant, group in by_tenant.items():
        limit = float(limits[tenant])
        _divide_limit(limit, group)
        held = [_held_above_share(c, stuck) for c in group] if stuck else []
        if any(held):
            others = [c for c, above in zip(group, held, strict=True) if not above]
            owed = fsum(min(float(c.policy.reservation), c.wants) for c in others)
            left = max(limit - fsum(held), TENANT_SPARE_RATIO * limit, owed)
            _divide_limit(min(limit, left), others)


def _held_above_share(claimant: Claimant, stuck: Mapping[DriveId, float]) -> float:
    """Return the rate of a stuck drive if it is above its share, else 0.

    The fleet sees to a drive with a part.
    """
    held = stuck.get(claimant.drive, 0.0)
    above = claimant.share is not None and held > claimant.share.most
    return held if above and claimant.known.part is None else 0.0


def _divide_limit(limit: float, group: Sequence[Claimant]) -> None:
    """Divide a tenant's limit. A share is an amount, and by weight a part of what is spare."""
    claims = [c.claim for c in group]
    division = divide(limit, claims)
    spare = (1 + TENANT_SPARE_RATIO) * limit - fsum(division.amounts)
    weight = sum(c.policy.weight for c in group)
    held = 0.0
    for claimant, claim, amount in zip(group, claims, division.amounts, strict=True):
        share = share_of(claimant, claim, division, amount, limit, None)
        most = amount + spare * claimant.policy.weight / weight
        if most < share.most:
            owed = min(most, share.owed)
            by_weight = inf if share.by_weight == inf else most - owed
            share = share._replace(most=most, owed=owed, by_weight=by_weight)
        held += max(min(share.most, claimant.most), _held(claimant))
        claimant.share = share
        claimant.most = min(claimant.most, share.most)
        claimant.wants = min(claimant.wants, amount)
    if held > (1 + TENANT_SPARE_RATIO + _LATE_RATIO) * limit:
        for claimant in group:
            if claimant.share is not None and _held(claimant) > claimant.share.most:
                claimant.share = claimant.share._replace(tight=True)


def _held(claimant: Claimant) -> float:
    return claimant.known.pricing.rate or 0.0


def _reserved_by_vms(claimants: Mapping[str | None, Sequence[Claimant]]) -> dict[str, int]:
    """Return the reservations of VMs that have one, by name."""
    return {
        c.drive.domain: c.known.vm.policy.reservation
        for there in claimants.values()
        for c in there
        if c.known.vm is not None and c.known.vm.policy.reservation
    }


def _parts(
    claimants: Mapping[str | None, Sequence[Claimant]], owner_of: Callable[[Claimant], str | None]
) -> dict[tuple[str, str | None], float]:
    """Return the part of each owner's reservation for each storage: that of its demand.

    owner_of: returns a drive's tenant or VM.
    """
    there = Counter[tuple[str, str | None]]()
    total = Counter[str]()
    for name, group in claimants.items():
        for claimant in group:
            owner = owner_of(claimant)
            if owner is not None:
                demand = 1 + int(claimant.known.demand.rate)
                there[owner, name] += demand
                total[owner] += demand
    return {key: demand / total[key[0]] for key, demand in there.items()}


def _reserved_on(
    storage: str,
    reserved: Mapping[str, int],
    parts: Mapping[tuple[str, str | None], float],
) -> dict[str, int]:
    """Return the part of each owner's reservation that falls to a storage.

    reserved: by owner, a tenant or a VM. parts: from `_parts`.
    """
    return {
        owner: round(reservation * part)
        for owner, reservation in reserved.items()
        if (part := parts.get((owner, storage)))
    }
