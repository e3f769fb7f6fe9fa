"""Divides all storages and all limits over several drives, once a tick.

1. Each drive is a claimant with a demand (claimant.py, demand.py): the rate that its policy allows
   if its limits hold it, else its rate of late, or more while it grows. A demand is independent of
   the drive's share, and the part that a drive leaves is lent to others.
2. Its parts of its VM's limit and of its tenant's (parts.py) bound that.
3. Each storage is divided on its own (storage.py), unless it is left to its scheduler.

A drive's share of a storage is not the amount that it got, but the one that it is *entitled* to at
the level found: the amount that it would get if it wanted more. A drive that wakes up has it at
once, and the level follows a tick later. If all demands fit, every drive may have all that there
is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from iokeel.core.correct.capacity import raised
from iokeel.core.divide.groups import members_of
from iokeel.core.divide.held import held_unread
from iokeel.core.divide.parts import (
    limits_of,
    with_granted,
    with_held,
    with_storage_parts,
    with_tenant_parts,
    with_vm_parts,
)
from iokeel.core.divide.storage import OneStorage, divide_storage, is_left, left, writing_after
from iokeel.core.measure.storage import activity_of, strangers_rate
from iokeel.core.values.claimant import Claimant, claimant_of
from iokeel.core.values.counters import DriveId
from iokeel.core.values.curve import DEFAULT_MODEL, CostModel
from iokeel.core.values.observation import Observation, StorageSeen
from iokeel.core.values.policy import TenantPolicy
from iokeel.core.values.state import DriveState, Share, State, StorageState
from iokeel.core.values.storage import StorageActivity
from iokeel.core.values.wants import TenantLevel

P = TypeVar("P")
R = TypeVar("R")

# With 1,000 parts and one fault it takes 20. Parts that are still untried then count as faults.
_MOST_TRIES = 64


def isolate(
    compute: Callable[[Sequence[P]], R], parts: Sequence[P], suspects: Sequence[P] = ()
) -> tuple[R, dict[P, Exception]]:
    """Return a result with as many parts as don't make it fail, and the errors of the others.

    compute: returns the result with some parts, or raises. suspects: parts that failed the last
    time; they are tried after the others. Raises what `compute` does without any part.
    """
    good: list[P] = []
    results: list[R] = []
    faults: dict[P, Exception] = {}
    groups = [list(group) for group in (suspects, parts) if group]  # the last is tried first
    tries = 0
    while groups:
        group = groups.pop()
        tries += 1
        try:
            results = [compute([*good, *group])]
            good += group
        except Exception as error:
            half = len(group) // 2
            if half and tries < _MOST_TRIES:
                groups += [group[half:], group[:half]]
            else:
                faults.update(dict.fromkeys(group, error))
    return results[0] if results else compute([]), faults


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
    unread: Mapping[str | None, float] | None = None,
    model: CostModel = DEFAULT_MODEL,
) -> tuple[dict[str, StorageState], dict[DriveId, Share]]:
    """Return the storages' states after a tick, and the shares of drives that have one.

    drives: the tick's, with its rates. storages: the tick's view of the storages with a name.
    before: their states a tick ago. tenants: those with a policy. granted: what the fleet lets this
    host's drives do on storages; None if that isn't known. fleet_tenants: those with a grant of the
    fleet. levels, complete: see Observation. unread: what drives that can't be read are owed, by
    storage. model: of storages without cost curves of their own.
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
    storages = {
        name: replace(now, policy=raised(now.policy, before.get(name)))
        for name, now in storages.items()
    }
    activities = {
        name: activity_of(
            now,
            before.get(name),
            [c.known for c in claimants[name]],
            [] if now.counters is not None else [c.drive.domain for c in claimants[name]],
        )
        for name, now in storages.items()
    }
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
    """Return the rate of a storage's strangers (measure/storage.py).

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


class _Division(NamedTuple):
    """The drives with their parts, the storages, and the drives' shares; None if these stay."""

    drives: Mapping[DriveId, DriveState]
    storages: Mapping[str, StorageState]
    shares: Mapping[DriveId, Share] | None


def divide_all(
    state: State,
    seen: Observation,
    models: Mapping[str | None, CostModel],
    drives: dict[DriveId, DriveState],
    failures: dict[DriveId | str | None, Exception],
) -> tuple[Mapping[str, StorageState], Mapping[DriveId, Share] | None]:
    """Put parts of VMs' limits and of what the fleet grants into drives; divide tenants, storages.

    Return the storages, and the drives' shares; None if these stay, as in a partial snapshot. The
    drives and storages that make it fail are set aside, and what is on them keeps what it has.
    """
    storages = {} if seen.partial else _storages(seen, state, drives)
    faults: dict[DriveId | str | None, Exception] = {}

    def without(out: Collection[DriveId | str | None]) -> _Division:
        return _without(state, seen, models, drives, failures, storages, out)

    try:
        try:
            found = without(())
        except Exception:
            parts: list[DriveId | str | None] = [*storages, *seen.drives]
            found, faults = isolate(
                lambda good: without({*parts} - {*good}),
                [part for part in parts if part not in state.failures],
                [part for part in parts if part in state.failures],
            )
    except Exception as error:
        failures[None] = error
        return state.storages, None
    if found.drives is not drives:
        drives.update(found.drives)
    after = found.storages
    if faults:
        failures.update(faults)
        on = {drive: drives[drive].storage for drive in seen.drives}
        failures.update({d: faults[name] for d, name in on.items() if name in faults})
        kept = {name: known for name, known in state.storages.items() if name in faults}
        after = {**found.storages, **kept}
    return after, found.shares


def _without(
    state: State,
    seen: Observation,
    models: Mapping[str | None, CostModel],
    drives: dict[DriveId, DriveState],
    failures: dict[DriveId | str | None, Exception],
    storages: Mapping[str, StorageSeen],
    out: Collection[DriveId | str | None],
) -> _Division:
    """Return the division without the drives that failed, and without other drives and storages."""
    failed = {*failures}
    if out:
        failed = {*failed, *(d for d in seen.drives if d in out or drives[d].storage in out)}
        storages = {name: now for name, now in storages.items() if name not in out}
    there = {drive for drive in seen.drives if drive not in failed}
    aside = _set_aside(drives, {*failed, *state.failures})
    tenants = with_granted(state.tenants, seen.granted)
    limits = limits_of(tenants, seen.granted)
    after = with_held(drives, seen, limits, models, aside)
    anew = not seen.partial
    after = with_vm_parts(after, there, aside, anew=anew)
    after = with_tenant_parts(after, limits, seen.granted, aside, anew=anew)
    divided, shares = state.storages, None
    if not seen.partial:
        unread: list[DriveState] = []
        if len(there) < len(after):
            unread = [known for d, known in after.items() if d not in there]
        divided, shares = allocate(
            {drive: after[drive] for drive in seen.drives if drive in there},
            storages,
            state.storages,
            tenants,
            seen.granted_storages,
            fleet_tenants=seen.granted,
            levels=seen.levels,
            complete=seen.complete,
            unread=owed_to_unread(unread, models),
            model=state.model,
        )
    after = with_storage_parts(after, seen.granted_storages, divided, aside, anew=anew)
    return _Division(after, divided, shares)


def _set_aside(
    drives: Mapping[DriveId, DriveState], failed: Iterable[DriveId | str | None]
) -> Collection[DriveId]:
    """Return the drives that keep their limits because the law fails on them.

    failed: now, or in the look before. An error in a look comes after the division, and most likely
    will again.
    """
    return {drive for drive in failed if isinstance(drive, DriveId) and drive in drives}


def _storages(
    seen: Observation, state: State, drives: Mapping[DriveId, DriveState]
) -> Mapping[str, StorageSeen]:
    """Return the storages that are seen, and those of drives whose storage can't be told now."""
    names = {known.storage for known in drives.values()} - seen.storages.keys()
    if not names or names == {None}:
        return seen.storages
    last = {
        name: StorageSeen(known.policy) for name, known in state.storages.items() if name in names
    }
    return {**seen.storages, **last}
