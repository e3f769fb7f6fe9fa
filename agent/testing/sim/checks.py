"""Checks of a random host's run.

Each returns how long a promise was broken at a stretch, in seconds, or how far at worst.
"""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from iokeel.core.values.policy import VmPolicy
from testing.sim.cases import Case
from testing.sim.fleet import Record
from testing.sim.storage import Array

# Allows for rounding, and for a mix of sizes of which only the mean is known.
_NEAR = 0.97
# The part of what a disk can really do that an agent has to find by latency, and when.
_FOUND_RATIO = 0.6
_FOUND_S = 10


def capacities(case: Case, record: Record) -> Array:
    """Return the capacity that each disk's drives may count on in each second.

    That is the agent's estimate, but no less than it has to find of what the disk can really do.
    """
    real = np.array([[disk.capacity(t) for disk in case.disks] for t in range(len(record.usable))])
    real[:_FOUND_S] = 0
    most: Array = np.maximum(record.usable, _FOUND_RATIO * real)
    return most


def longest_miss(case: Case, record: Record) -> int:
    """Return how long a drive got less of its reservation than it asked for.

    Seconds don't count if no agent runs, if its orders fail, or if the reservations asked for don't
    fit on the disk.
    """
    reserved = np.array([guest.policy.reservation if guest.policy else 0 for guest in case.guests])
    owed = np.minimum(reserved, record.asked)
    disks = np.array(_disks(case))
    there = np.stack([owed[:, disks == k].sum(axis=1) for k in range(len(case.disks))], axis=1)
    fits = there < _NEAR * capacities(case, record)
    missed = (record.served < _NEAR * owed) & ~_and_after(record.stuck)
    return _longest(missed & fits[:, disks] & _runs(case, record))


def longest_idle(case: Case, record: Record) -> int:
    """Return how long more than 5 % of a disk was idle while a drive wanted more.

    A drive doesn't count while its orders fail.
    """
    hungry = (wanted(case, record) > 1.05 * record.served) & ~_and_after(record.stuck)
    usable = capacities(case, record)
    idle = []
    for disk in range(len(case.disks)):
        here = [i for i, guest in enumerate(case.guests) if guest.disk == disk]
        done = record.served[:, here].sum(axis=1)
        idle.append(hungry[:, here].any(axis=1) & (done < 0.95 * usable[:, disk]))
    return _longest(np.stack(idle, axis=1) & _runs(case, record))


def wanted(case: Case, record: Record) -> Array:
    """Return each drive's rate in each second, were it held by its own limit alone."""
    found = np.minimum(record.asked, record.pressure / record.wait_s[:, _disks(case)])
    limits = [g.policy.limit or inf if g.policy else inf for g in case.guests]
    wants: Array = np.minimum(found, limits)
    return wants


def worst_second(case: Case, record: Record) -> float:
    """Return the highest ratio of a drive's rate in any second to its burst, or limit without one.

    Seconds before a drive's first limits are in force don't count.
    """
    ceilings = [(g.policy.burst or g.policy.limit or inf) if g.policy else inf for g in case.guests]
    return float((record.most / ceilings)[known(case, record)].max(initial=0.0))


def worst_sum(case: Case, record: Record) -> float:
    """Return the highest ratio of a drive's work since its start to its limit and saved credit.

    It may also use the tenth of a second that its bucket held at the start, and one tick of burst.
    """
    worst = 0.0
    for i, guest in enumerate(case.guests):
        policy = guest.policy
        if policy is None or policy.limit is None:
            continue
        counts = known(case, record)[:, i]
        served = np.where(counts, record.served[:, i], 0.0)
        extra = (policy.burst or policy.limit) - policy.limit
        saved = extra * (1 + np.cumsum(served < policy.limit))
        most = policy.limit * (np.arange(len(served)) + 1.1) + saved
        worst = max(worst, float((np.cumsum(served, dtype=float) / most).max()))
    return worst


def vms(case: Case) -> dict[tuple[str, VmPolicy], list[int]]:
    """Return the drives of each VM that has a promise of its own."""
    found: dict[tuple[str, VmPolicy], list[int]] = {}
    for i, guest in enumerate(case.guests):
        if guest.vm is not None:
            found.setdefault(guest.vm, []).append(i)
    return found


def worst_vm_limits(case: Case, record: Record) -> float:
    """Return the highest ratio of all limits of a VM's drives together to the VM's own.

    The run must have kept its states. Drives that aren't there don't count.
    """
    worst = 0.0
    for tick, state in enumerate(record.states):
        for drives in vms(case).values():
            there = [case.guests[i].drive for i in drives if (tick, i) not in case.faults.gone]
            states = [state.drives[drive] for drive in there if drive in state.drives]
            ceilings = [s.vm.ceiling for s in states if s.vm is not None and s.vm.ceiling]
            if ceilings and tick not in case.faults.down:
                worst = max(worst, sum(s.pricing.rate or 0.0 for s in states) / min(ceilings))
    return worst


def worst_vm_second(case: Case, record: Record) -> float:
    """Return the highest ratio of a VM's rate in any second to its burst, or limit without one.

    If a drive can't be lowered, the others make way within a tick, so that doesn't count.
    """
    worst = 0.0
    counts = _shared(case, record)
    for (_, vm), drives in vms(case).items():
        rates = record.served[:, drives].sum(axis=1)[counts[:, drives].all(axis=1)]
        worst = max(worst, float(rates.max(initial=0.0)) / (vm.burst or vm.limit or inf))
    return worst


def worst_vm_sum(case: Case, record: Record) -> float:
    """Return the highest ratio of a VM's work since its start to its limit and saved credit."""
    worst = 0.0
    counts = known(case, record)
    for (_, vm), drives in vms(case).items():
        assert vm.limit is not None
        served = np.where(counts[:, drives], record.served[:, drives], 0.0).sum(axis=1)
        saved = ((vm.burst or vm.limit) - vm.limit) * (1 + np.cumsum(served < vm.limit))
        most = vm.limit * (np.arange(len(served)) + 1.1) + saved
        worst = max(worst, float((np.cumsum(served, dtype=float) / most).max()))
    return worst


def longest_vm_idle(case: Case, record: Record, part: float) -> int:
    """Return how long a VM did less than a part of what its drives and its limit allow."""
    wants = wanted(case, record)
    idle = [
        record.served[:, drives].sum(axis=1)
        < part * np.minimum(wants[:, drives].sum(axis=1), vm.limit or inf)
        for (_, vm), drives in vms(case).items()
    ]
    return _longest(np.stack(idle, axis=1) & _runs(case, record))


def known(case: Case, record: Record) -> Array:
    """Return the seconds in which each drive's limits should have been in force for a whole second.

    A drive without limits doesn't count in a fault that may have taken them, or kept them from it.
    """
    faulty = record.stuck | ~_runs(case, record)
    for tick, i in case.faults.gone:
        faulty[tick, i] = True
    for tick, i in case.faults.again:
        domain = case.guests[i].drive.domain
        faulty[tick] |= [guest.drive.domain == domain for guest in case.guests]
    excused = _and_after(faulty) & record.free
    seen: Array = ~_and_after(excused)
    seen[:1] = False
    return seen


def tenants(case: Case) -> dict[int, list[int]]:
    """Return the drives of each tenant, by its limit."""
    return {
        promise.limit: [i for i, guest in enumerate(case.guests) if guest.tenant == tenant]
        for tenant, promise in case.tenants.items()
        if promise.limit is not None
    }


def worst_tenant_second(case: Case, record: Record) -> float:
    """Return the highest ratio of a tenant's rate in any second to its limit.

    If a drive can't be lowered, the others make way within a tick, so that doesn't count.
    """
    counts = _shared(case, record)
    return max(
        float(record.served[:, drives].sum(axis=1)[counts[:, drives].all(axis=1)].max(initial=0.0))
        / limit
        for limit, drives in tenants(case).items()
    )


def worst_tenant_sum(case: Case, record: Record) -> float:
    """Return the highest ratio of a tenant's work since its start to its limit."""
    counts = _shared(case, record)
    worst = 0.0
    for limit, drives in tenants(case).items():
        served = np.where(counts[:, drives].all(axis=1), record.served[:, drives].sum(axis=1), 0.0)
        most = limit * (np.arange(len(served)) + 1.1)
        worst = max(worst, float((np.cumsum(served, dtype=float) / most).max()))
    return worst


def longest_tenant_idle(case: Case, record: Record, part: float) -> int:
    """Return how long a tenant of VMs did less than a part of what all their limits allow."""
    wants = wanted(case, record)
    by_vm = [
        np.minimum(wants[:, drives].sum(axis=1), vm.limit or inf)
        for (_, vm), drives in vms(case).items()
    ]
    idle = [
        record.served[:, drives].sum(axis=1) < part * np.minimum(sum(by_vm), limit)
        for limit, drives in tenants(case).items()
    ]
    return _longest(np.stack(idle, axis=1) & _runs(case, record))


def _shared(case: Case, record: Record) -> Array:
    """Return the known seconds in which no order of a drive failed, nor in the one before."""
    failing = np.zeros(record.served.shape, bool)
    for tick, i in case.faults.failing:
        failing[tick, i] = True
    return known(case, record) & ~_and_after(failing)


def changes(record: Record, since: int) -> float:
    """Return the limits changes per drive and hour, counted from a second on."""
    count = sum(record.retunes(since).values())
    seconds, drives = record.served.shape
    return float(3600 * count / drives / (seconds - since))


def _runs(case: Case, record: Record) -> Array:
    """Return the seconds in which an agent runs, as a column."""
    runs: Array = np.ones((len(record.served), 1), bool)
    runs[sorted(case.faults.down)] = False
    return runs


def _and_after(seconds: Array) -> Array:
    """Return some seconds, and the one after each."""
    after = seconds.copy()
    after[1:] |= seconds[:-1]
    return after


def _disks(case: Case) -> list[int]:
    return [guest.disk for guest in case.guests]


def _longest(broken: Array) -> int:
    run: Any = np.zeros(broken.shape[1], int)
    longest = 0
    for row in broken:
        run = (run + 1) * row
        longest = max(longest, int(run.max(initial=0)))
    return longest
