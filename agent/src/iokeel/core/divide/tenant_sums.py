"""Adds up the demands and held rates of drives on this host, for the fleet.

They are those of a tenant, or those on a storage that other hosts use too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import fsum, inf
from typing import NamedTuple

from iokeel.core.divide.parts import most_and_wants
from iokeel.core.divide.pool import SPARE_RATIO
from iokeel.core.values.claimant import Claim, budgets
from iokeel.core.values.counters import DriveId
from iokeel.core.values.policy import DrivePolicy
from iokeel.core.values.state import DriveState, StorageState
from iokeel.core.values.storage import Load
from iokeel.core.values.wants import NOTHING, Wants, wants_of, whole

# A drive below this rate is idle, and its weight doesn't count.
_IDLE_RATE = 1.0


class Sums(NamedTuple):
    """The sums over a tenant's or a storage's drives on this host.

    reservation, weight, wants, most: see iokeel.core.fleet.claims.HostClaim. held: the most that
    their QEMUs may be held to now, ENDLESS if that has no end. kept: the same, without the drives
    whose rate has no end. least: the least that they can be held to. load: None for a tenant's.
    """

    reservation: int = 0
    weight: int = 100
    wants: Wants = NOTHING
    most: int = 0
    held: int = 0
    kept: int = 0
    least: int = 0
    load: Load | None = None


def storage_sums(
    drives: Iterable[tuple[DriveId, DriveState]], storage: StorageState | None
) -> Sums:
    """Return the sums of the drives with a policy on a storage. storage: None if it isn't known.

    Tenants' and VMs' promises on it count as they do in its division. One that has just become the
    fleet's hasn't been divided for that yet; then they don't.
    """
    sums = tenant_sums(drives)
    if storage is None:
        return sums
    wants = sums.wants if storage.wants is None else storage.wants
    return sums._replace(reservation=whole(storage.promised), wants=wants, load=storage.load)


def tenant_sums(drives: Iterable[tuple[DriveId, DriveState]]) -> Sums:
    """Return the sums of a tenant's drives that have a policy.

    The weight is that of its active drives, or of all if none is. So an idle host doesn't lessen
    what the drives of others get.
    """
    most = held = kept = 0.0
    active = idle = least = 0
    by_vm: dict[str, list[Claim]] = {}
    promised: dict[str, int] = {}
    for drive, known in drives:
        policy: DrivePolicy | None = known.policy
        if policy is None:
            continue
        may, demand = most_and_wants(known, policy)
        most += may
        least += budgets(policy)
        claim = Claim(policy.reservation, policy.weight, min(may, SPARE_RATIO * demand))
        by_vm.setdefault(drive.domain, []).append(claim)
        if demand >= _IDLE_RATE:
            active += policy.weight
        else:
            idle += policy.weight
        if known.vm is not None:
            promised[drive.domain] = known.vm.policy.reservation
        now = inf if known.held is None else known.held
        held += now
        kept += 0.0 if now == inf else now
    claims = [claim for vm, own in by_vm.items() for claim in _with_vm(promised.get(vm, 0), own)]
    return Sums(
        whole(fsum(claim.reservation for claim in claims)),
        active or idle or 100,
        wants_of(claims),
        whole(most),
        whole(held),
        whole(kept),
        least,
    )


def _with_vm(promised: int, drives: list[Claim]) -> list[Claim]:
    """Return the claims of a VM's drives, as one if the VM has more reserved than they have."""
    if promised <= fsum(claim.reservation for claim in drives):
        return drives
    weight = sum(claim.weight for claim in drives)
    return [Claim(promised, weight, fsum(claim.wants for claim in drives))]


def by_tenant(drives: Mapping[DriveId, DriveState]) -> dict[str, list[tuple[DriveId, DriveState]]]:
    """Return the drives of each tenant that have a policy."""
    return _by(
        (known.tenant, drive, known) for drive, known in drives.items() if known.policy is not None
    )


def by_storage(drives: Mapping[DriveId, DriveState]) -> dict[str, list[tuple[DriveId, DriveState]]]:
    """Return the drives on each storage. Those without a policy count in its load only."""
    return _by((known.storage, drive, known) for drive, known in drives.items())


def _by(
    drives: Iterable[tuple[str | None, DriveId, DriveState]],
) -> dict[str, list[tuple[DriveId, DriveState]]]:
    found: dict[str, list[tuple[DriveId, DriveState]]] = {}
    for name, drive, known in drives:
        if name is not None:
            found.setdefault(name, []).append((drive, known))
    return found
