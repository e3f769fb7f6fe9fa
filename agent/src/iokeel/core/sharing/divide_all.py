"""Divides all storages, tenants and VMs' limits in a look, but for what that fails on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from math import inf
from typing import NamedTuple

from iokeel.core.counters import DriveId
from iokeel.core.curve import CostModel
from iokeel.core.drive.in_force import rate_in_force
from iokeel.core.isolate import isolate
from iokeel.core.observation import Observation, StorageSeen
from iokeel.core.sharing.allocate import allocate, held_unread, left_by_unread, owed_to_unread
from iokeel.core.sharing.storage_part import with_storage_parts
from iokeel.core.sharing.tenant_part import held_by, with_granted, with_tenant_parts
from iokeel.core.sharing.vm_limit import with_vm_parts
from iokeel.core.state import DriveState, Share, State, StorageState


class _Division(NamedTuple):
    """The drives with their parts, the storages, and the drives' shares; None if these stay."""

    drives: dict[DriveId, DriveState]
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
    there: Mapping[DriveId, DriveState] = {
        drive: drives[drive] for drive in seen.drives if drive not in failed
    }
    aside = _set_aside(drives, {*failed, *state.failures})
    stuck = _held_by_stuck(there, seen, aside, models) if seen.stuck else {}
    in_parts = {d: there[d] for d in there if d not in aside} if aside else there
    has_parts = state.has_parts or bool(seen.granted or seen.granted_storages)
    whole = in_parts
    in_parts = with_vm_parts(in_parts, _held_by_vm(aside, models), stuck)
    after = drives
    if has_parts or in_parts is not whole:
        after = {**drives, **in_parts}
    tenants = with_granted(state.tenants, seen.granted)
    if has_parts:
        after = {**after, **with_tenant_parts(after, seen, tenants, models)}
    there = {drive: after[drive] for drive in there} if has_parts or aside else in_parts
    divided, shares = state.storages, None
    if not seen.partial:
        others = [known for d, known in after.items() if d not in there or d in aside]
        unread: list[DriveState] = []
        if len(there) < len(after):
            unread = [known for d, known in after.items() if d not in there]
        divided, shares = allocate(
            there,
            storages,
            state.storages,
            left_by_unread(tenants, others, models),
            seen.granted_storages,
            fleet_tenants=seen.granted,
            levels=seen.levels,
            complete=seen.complete,
            stuck=stuck,
            unread=owed_to_unread(unread, models),
            model=state.model,
        )
    if has_parts:
        after = {**after, **with_storage_parts(after, seen, divided, models)}
    return _Division(after, divided, shares)


def _set_aside(
    drives: Mapping[DriveId, DriveState], failed: Iterable[DriveId | str | None]
) -> Mapping[DriveId, DriveState]:
    """Return the drives that keep their limits because the law fails on them.

    failed: now, or in the look before. An error in a look comes after the division, and most likely
    will again.
    """
    known = [drive for drive in failed if isinstance(drive, DriveId) and drive in drives]
    return {drive: drives[drive] for drive in known if drives[drive].is_held}


def _held_by_vm(
    drives: Mapping[DriveId, DriveState], models: Mapping[str | None, CostModel]
) -> Mapping[str, float]:
    """Return the sums of the rates that drives keep, by VM."""
    held: dict[str, float] = defaultdict(float)
    for drive, known in drives.items():
        held[drive.domain] += held_unread(known, models[known.storage])
    return held


def _held_by_stuck(
    drives: Mapping[DriveId, DriveState],
    seen: Observation,
    aside: Mapping[DriveId, DriveState],
    models: Mapping[str | None, CostModel],
) -> dict[DriveId, float]:
    """Return the rates that drives are held to whose orders fail; their demand if it has no end."""
    held: dict[DriveId, float] = {}
    for drive, limits in seen.stuck.items():
        known = drives.get(drive)
        if known is not None and known.is_held and drive not in aside:
            model = models[known.storage]
            now = held_by(known, None, model) if limits is None else rate_in_force(limits, model)
            held[drive] = known.demand.rate if now == inf else now
    return held


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
