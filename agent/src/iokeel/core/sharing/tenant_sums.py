"""Adds up the demands and held rates of drives on this host, for the fleet.

They are those of a tenant, or those on a storage that other hosts use too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil, inf
from typing import NamedTuple

from iokeel.core.counters import DriveId
from iokeel.core.policy import ENDLESS, DrivePolicy
from iokeel.core.sharing.divide import Claim
from iokeel.core.sharing.tenant_part import held_in, most_and_wants
from iokeel.core.sharing.vm_limit import SPARE_RATIO
from iokeel.core.state import DriveState, StorageState
from iokeel.core.storage import Load
from iokeel.core.wants import NOTHING, Wants, wants_of

# A drive below this rate is idle, and its weight doesn't count.
_IDLE_RATE = 1.0


class Sums(NamedTuple):
    """The sums over a tenant's or a storage's drives on this host.

    reservation, weight, wants, most: see iokeel.core.fleet.claims.HostClaim. held: the most that
    their QEMUs may be held to now, ENDLESS if that has no end. kept: the same, without the drives
    whose rate has no end. load: None for a tenant's.
    """

    reservation: int = 0
    weight: int = 100
    wants: Wants = NOTHING
    most: int = 0
    held: int = 0
    kept: int = 0
    load: Load | None = None


def storage_sums(
    drives: Iterable[tuple[DriveId, DriveState]], storage: StorageState | None
) -> Sums:
    """Return the sums of the drives with a policy on a storage. storage: None if it isn't known.

    Tenants' and VMs' reservations on it count as they do in its division.
    """
    sums = tenant_sums(drives)
    if storage is None:
        return sums
    return sums._replace(
        reservation=_whole(storage.promised), wants=storage.wants, load=storage.load
    )


def tenant_sums(drives: Iterable[tuple[DriveId, DriveState]]) -> Sums:
    """Return the sums of a tenant's drives that have a policy.

    The weight is that of its active drives, or of all if none is. So an idle host doesn't lessen
    what the drives of others get.
    """
    most = held = kept = 0.0
    claims = []
    active = idle = 0
    reserved: dict[str, int] = {}
    promised: dict[str, int] = {}
    for drive, known in drives:
        policy: DrivePolicy | None = known.policy
        if policy is None:
            continue
        may, demand = most_and_wants(known, policy)
        most += may
        wants = min(may, SPARE_RATIO * demand)
        claims.append(Claim(policy.reservation, policy.weight, wants))
        if demand >= _IDLE_RATE:
            active += policy.weight
        else:
            idle += policy.weight
        reserved[drive.domain] = reserved.get(drive.domain, 0) + policy.reservation
        if known.vm is not None:
            promised[drive.domain] = known.vm.policy.reservation
        held_now = held_in(known)
        now = inf if held_now is None else held_now
        held += now
        kept += 0.0 if now == inf else now
    return Sums(
        sum(max(own, promised.get(vm, 0)) for vm, own in reserved.items()),
        active or idle or 100,
        wants_of(claims),
        _whole(most),
        _whole(held),
        _whole(kept),
    )


def _whole(rate: float) -> int:
    return ENDLESS if rate >= ENDLESS else ceil(rate - 1e-6)


def by_tenant(drives: Mapping[DriveId, DriveState]) -> dict[str, list[tuple[DriveId, DriveState]]]:
    """Return the drives of each tenant that have a policy."""
    return _by((known.tenant, drive, known) for drive, known in drives.items())


def by_storage(drives: Mapping[DriveId, DriveState]) -> dict[str, list[tuple[DriveId, DriveState]]]:
    """Return the drives on each storage that have a policy."""
    return _by((known.storage, drive, known) for drive, known in drives.items())


def _by(
    drives: Iterable[tuple[str | None, DriveId, DriveState]],
) -> dict[str, list[tuple[DriveId, DriveState]]]:
    found: dict[str, list[tuple[DriveId, DriveState]]] = {}
    for name, drive, known in drives:
        if name is not None and known.policy is not None:
            found.setdefault(name, []).append((drive, known))
    return found
