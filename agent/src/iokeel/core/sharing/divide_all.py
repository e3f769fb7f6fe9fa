"""Divides all storages, tenants and VMs' limits in a look, but for what that fails on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from iokeel.core.counters import DriveId
from iokeel.core.curve import CostModel
from iokeel.core.isolate import isolate
from iokeel.core.observation import Observation, StorageSeen
from iokeel.core.sharing.allocate import allocate, owed_to_unread
from iokeel.core.sharing.parts import (
    limits_of,
    with_granted,
    with_held,
    with_storage_parts,
    with_tenant_parts,
    with_vm_parts,
)
from iokeel.core.state import DriveState, Share, State, StorageState


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
