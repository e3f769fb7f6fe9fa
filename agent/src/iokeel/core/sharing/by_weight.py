"""Leaves a hard disk to its scheduler, if that shares it out by VMs' weights.

BFQ lets a stream of reads go on where the arm is, and divides time. Rates can't: a stream that is
held to a rate costs the disk a seek for each request. So the disk's capacity isn't divided, and its
mean latency, which contains the time in the scheduler's queue, isn't followed. The storage counts
as one whose capacity is unknown: drives without a latency target are cut only while one with a
target suffers, from what they do.

Nor are they cut if they only read. What a disk has taken into its buffer, and syncs, are out of the
scheduler's hands, and there limits help. Among reads they cost much and gain nothing.

Weights hold no reservation. So a storage with one is divided as any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from iokeel.core.observation import StorageSeen
from iokeel.core.policy import TenantPolicy
from iokeel.core.sharing.claimant import Claimant
from iokeel.core.state import StorageState

# Drives write if their writes take this part of the capacity, were each as cheap as a 4 KiB read.
WRITES_RATIO = 0.1
# They count as writing for so many intervals: limits may leave a writer seconds without a request.
WRITING_INTERVALS = 10


def is_left(
    seen: StorageSeen,
    before: StorageState | None,
    claimants: Sequence[Claimant],
    tenants: Mapping[str, TenantPolicy],
    *,
    complete: bool,
) -> bool:
    """Return whether a storage is left to its scheduler.

    complete: it may have no other drives.
    """
    if not seen.weighted or seen.policy.capacity is None:
        return False
    if not complete and (before is None or not before.by_weight):
        return False  # a drive that can't be read now may have a reservation
    return not any(_has_reservation(claimant, tenants) for claimant in claimants)


def left(seen: StorageSeen) -> StorageSeen:
    """Return a storage as the law takes it while it is left to its scheduler."""
    return replace(seen, policy=replace(seen.policy, capacity=None, latency_target_ms=None))


def writing_after(
    before: StorageState | None, capacity: int | None, claimants: Sequence[Claimant]
) -> int:
    """Return for how many intervals from now on a storage's drives count as writing.

    Those with a latency target don't count. capacity: as it was configured.
    """
    writes = 0.0
    for claimant in claimants:
        did = claimant.known.measured.rates
        if did is None or claimant.policy.latency_target_ms is not None:
            continue
        if did.write.raw_iops and claimant.known.demand.backlogged:  # it would write more
            return WRITING_INTERVALS
        writes += did.write.raw_iops
    if writes >= WRITES_RATIO * (capacity or 0):
        return WRITING_INTERVALS
    return max(0, (before.writing or 0) - 1) if before is not None else 0


def _has_reservation(claimant: Claimant, tenants: Mapping[str, TenantPolicy]) -> bool:
    vm, tenant = claimant.known.vm, tenants.get(claimant.tenant or "")
    return bool(
        claimant.policy.reservation
        or (vm is not None and vm.policy.reservation)
        or (tenant is not None and tenant.reservation)
    )
