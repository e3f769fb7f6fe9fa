"""Fair shares, computed by a slow method that has nothing in common with the control law's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from iokeel.core.values.claimant import Claim
from testing.sim.cases import Case
from testing.sim.storage import Array


def by_bisection(capacity: float, claims: Sequence[Claim]) -> list[float]:
    """Divide a capacity by definition: bisect for the level at which all of it is used."""
    owed = [min(c.reservation, c.wants) for c in claims]
    if sum(owed) >= capacity:
        return [o * capacity / sum(owed) if sum(owed) else 0.0 for o in owed]

    def at(level: float) -> list[float]:
        return [o + min(level * c.weight, c.wants - o) for o, c in zip(owed, claims, strict=True)]

    low, high = 0.0, 2 * capacity / min(c.weight for c in claims)
    if sum(at(high)) <= capacity:
        return at(high)
    while (middle := (low + high) / 2) not in (low, high):
        if sum(at(middle)) > capacity:
            high = middle
        else:
            low = middle
    return at(low)


def fair_shares(case: Case, usable: Array, wants: Array, does: Array) -> Array:
    """Return each drive's fair share if all demands are known.

    usable: the capacity of each disk. wants: the demand of each drive. does: its rate. A tenant's
    reservation is split over disks in proportion to its drives' rates, because counters don't tell
    how much more a drive wants than its limits allow.
    """
    shares = np.zeros(len(case.guests))
    for disk in range(len(case.disks)):
        here = [i for i, guest in enumerate(case.guests) if guest.disk == disk]
        groups = [[i] for i in here if case.guests[i].tenant is None]
        for tenant in case.tenants:
            mine = [i for i in here if case.guests[i].tenant == tenant]
            groups += [mine] if mine else []
        claims = [_claim(case, group, wants, does) for group in groups]
        for group, amount in zip(groups, by_bisection(float(usable[disk]), claims), strict=True):
            shares[group] = by_bisection(amount, [_own(case, i, wants) for i in group])
    return shares


def _own(case: Case, i: int, wants: Array) -> Claim:
    policy = case.guests[i].policy
    assert policy is not None
    return Claim(policy.reservation, policy.weight, float(wants[i]))


def _claim(case: Case, group: Sequence[int], wants: Array, does: Array) -> Claim:
    tenant = case.guests[group[0]].tenant
    if tenant is None:
        return _own(case, group[0], wants)
    promise = case.tenants[tenant]
    everywhere = [i for i, guest in enumerate(case.guests) if guest.tenant == tenant]
    part = does[group].sum() / max(1e-9, does[everywhere].sum())
    owed = sum(min(_own(case, i, wants).reservation, float(wants[i])) for i in group)
    wanted = float(wants[group].sum())
    return Claim(max(promise.reservation * part, owed), promise.weight, wanted)
