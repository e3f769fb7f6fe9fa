"""A drive with a policy, as one that takes part in a division."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from iokeel.core.counters import NS_PER_S, DriveId
from iokeel.core.policy import DrivePolicy
from iokeel.core.sharing.divide import Claim, Division
from iokeel.core.state import DriveSeen, DriveState, Share

# Where few large requests are all that a drive may do, a second may hold none of them, or two.
HELD_S = 2.5


@dataclass(slots=True)
class Party:
    """A drive: what it may do at most, what it wants, and its share so far.

    Not frozen: tenants' limits and storages are divided one after another.
    """

    drive: DriveId
    known: DriveState
    policy: DrivePolicy
    tenant: str | None
    ceiling: float
    wants: float
    share: Share | None = None

    @property
    def claim(self) -> Claim:
        return Claim(self.policy.reservation, self.policy.weight, self.wants)


def party_of(drive: DriveId, known: DriveState, now: DriveSeen) -> Party:
    """Return a drive with a policy as a party that wants what it seems to."""
    assert now.policy is not None
    ceiling = inf if known.ceiling is None else float(known.ceiling)
    if now.policy.separate_budgets:
        ceiling *= 2
    if known.backlogged or _was_just_held(known):
        wants = ceiling
    elif known.rate is None:  # it may be about to do anything
        wants = min(ceiling, max(known.demand, now.policy.reservation))
    else:
        wants = min(ceiling, known.demand)
    return Party(drive, known, now.policy, now.tenant, ceiling, wants)


def _was_just_held(known: DriveState) -> bool:
    """Whether its limits held a drive a moment ago: one reading of less is no end of its demand."""
    if known.counters is None or not known.bound_ns:
        return False
    return known.counters.at_ns - known.bound_ns < HELD_S * NS_PER_S


def share_of(
    party: Party, division: Division, amount: float, pool: float, storage: str | None
) -> Share:
    """Return what a party may do of a pool: what it got, or is entitled to if it wakes.

    storage: whose pool it is; None where it is its tenant's.
    """
    claim = party.claim
    owed = division.kept * claim.reservation
    most = pool if division.level == inf else max(amount, division.entitled(claim))
    tenant = party.tenant if storage is None else None
    by_weight = inf if division.level == inf else division.level * claim.weight
    return Share(min(most, pool), storage, tenant, owed, by_weight)
