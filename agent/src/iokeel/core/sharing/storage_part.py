"""Divides this host's allowance on a storage that other hosts use too among its drives.

The storage's division (one_storage.py) says how much each drive gets of it. As of a tenant's limit
in the fleet (tenant_part.py), each drive then has a part, and its limits are at that part. So the
QEMUs of all hosts together are never held to more than the storage's capacity. The rest, which
nobody demands, is added by weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import floor

from iokeel.core.counters import DriveId
from iokeel.core.curve import CostModel
from iokeel.core.observation import Observation
from iokeel.core.policy import DrivePolicy
from iokeel.core.sharing.tenant_part import held_by, kept, most_and_wants, parts_of
from iokeel.core.sharing.vm_limit import Wish
from iokeel.core.state import DriveState, StorageState


def with_storage_parts(
    drives: Mapping[DriveId, DriveState],
    seen: Observation,
    storages: Mapping[str, StorageState],
    models: Mapping[str | None, CostModel],
) -> dict[DriveId, DriveState]:
    """Return all known drives, with their parts of the grants on their storages.

    drives: with their parts of tenants' limits. storages: with their last divisions.
    """
    after, granted = dict(drives), seen.granted_storages
    by_storage: dict[str, list[DriveId]] = {}
    for drive, known in drives.items():
        if known.policy is not None and known.storage is not None and known.storage in granted:
            by_storage.setdefault(known.storage, []).append(drive)
        elif known.storage_part is not None:
            after[drive] = known._replace(storage_part=None)
    for name, there in by_storage.items():
        states = [drives[drive] for drive in there]
        held = [
            held_by(known, seen.drives.get(drive), models[name])
            for drive, known in zip(there, states, strict=True)
        ]
        limit = granted[name]
        if limit is None:
            parts = kept(states, held)
        else:
            storage = storages.get(name)
            amounts: Mapping[DriveId, float] = storage.amounts if storage is not None else {}
            wishes = [
                _wish(known, amounts.get(drive, 0.0))
                for drive, known in zip(there, states, strict=True)
            ]
            parts = parts_of(limit, [known.storage_part for known in states], states, held, wishes)
        for drive, known, part in zip(there, states, parts, strict=True):
            after[drive] = known._replace(storage_part=part)
    return after


def _wish(known: DriveState, amount: float) -> Wish:
    """Return what a drive gets in any case, and the most that it could use."""
    policy = known.policy or DrivePolicy()
    most, _ = most_and_wants(known, policy)
    if known.part is not None:
        most = min(most, known.part.part)
    return Wish(replace(policy, reservation=floor(amount)), amount, max(amount, most))
