"""Checks of a random host's run.

Each returns how long a promise was broken at a stretch, in seconds, or how far at worst.
"""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from testing.sim.cases import Case
from testing.sim.fleet import Record
from testing.sim.storage import Array

# Allows for rounding, and for a mix of sizes of which only the mean is known.
_NEAR = 0.97


def longest_miss(case: Case, record: Record) -> int:
    """Return how long a drive got less of its reservation than it asked for.

    Seconds don't count if no agent runs, or if the reservations asked for don't fit on the disk.
    """
    reserved = np.array([guest.policy.reservation if guest.policy else 0 for guest in case.guests])
    owed = np.minimum(reserved, record.asked)
    disks = np.array(_disks(case))
    there = np.stack([owed[:, disks == k].sum(axis=1) for k in range(len(case.disks))], axis=1)
    fits = there < _NEAR * record.usable
    return _longest((record.served < _NEAR * owed) & fits[:, disks] & _runs(case, record))


def longest_idle(case: Case, record: Record) -> int:
    """Return how long more than 5 % of a disk was idle while a drive wanted more."""
    hungry = wanted(case, record) > 1.05 * record.served
    idle = []
    for disk in range(len(case.disks)):
        here = [i for i, guest in enumerate(case.guests) if guest.disk == disk]
        done = record.served[:, here].sum(axis=1)
        idle.append(hungry[:, here].any(axis=1) & (done < 0.95 * record.usable[:, disk]))
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
    ceilings = [g.policy.highest_rate or inf if g.policy else inf for g in case.guests]
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


def known(case: Case, record: Record) -> Array:
    """Return the seconds in which each drive's limits had been in force for a whole second."""
    seen: Array = np.ones(record.served.shape, bool)
    seen[:1] = False
    for tick, i in case.faults.gone:
        seen[tick : tick + 3, i] = False
    for tick in case.faults.down:
        seen[tick : tick + 3] = False
    for tick, i in case.faults.failing:
        seen[tick : tick + 3, i] = False
    return seen


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


def _disks(case: Case) -> list[int]:
    return [guest.disk for guest in case.guests]


def _longest(broken: Array) -> int:
    run: Any = np.zeros(broken.shape[1], int)
    longest = 0
    for row in broken:
        run = (run + 1) * row
        longest = max(longest, int(run.max(initial=0)))
    return longest
