"""Describes a claim in a division, and a drive as a claimant."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from iokeel.core.values.counters import NS_PER_S, DriveId
from iokeel.core.values.policy import DrivePolicy
from iokeel.core.values.state import DriveState, Share

# A drive that may only do a few large requests has seconds with none of them, and with two. So one
# reading below the limit doesn't end its demand; it counts as backlogged for so long. A QEMU that
# counts waits tells when nothing waits any more.
BACKLOG_S = 2.5
# How much a drive could do that its limits hold isn't known. If it wanted all at once, one that
# does little would take half of the limit from a busy one for three ticks, whenever it outgrew its
# part. The smaller the step, the more a busy drive keeps, and the later one that wakes up has its
# part. With 4, a busy drive beside four that do little has 92 to 93 % of the limit, and one that
# bursts beside it 74 to 80 % of what it asks for; with 8 it is 90 to 91 and 75 to 83
# (benchmarks/law/shared_limit.py).
STEP_RATIO = 4.0
#: A drive has at least this part of a limit over several, by its weight.
FOOTHOLD_RATIO = 0.05
# A drive with fewer requests since its guest started hasn't shown what it will do: firmware and
# kernels read its first and last blocks.
TRIED_REQUESTS = 100


class Claim(NamedTuple):
    """A drive's or tenant's claim on a capacity, in its unit.

    reservation: >= 0. weight: > 0. wants: the most it can use, >= 0, inf if there is no end.
    """

    reservation: float
    weight: float
    wants: float = inf


@dataclass(frozen=True, slots=True)
class Division:
    """A divided capacity. amounts: of each claim, in their order.

    level: the amount for a unit of weight, on top of the amounts owed; inf if all demands fit.
    kept: the part of the reservations that fits, 0 to 1.
    """

    amounts: tuple[float, ...]
    level: float
    kept: float

    def entitled(self, claim: Claim) -> float:
        """Return the amount that a claim would get at this level if it wanted more; may be inf."""
        return self.kept * claim.reservation + claim.weight * self.level


@dataclass(slots=True)
class Claimant:
    """A drive: the most that it may have, its demand, and its share so far.

    owed: of what it gets of its storage, by its reservation, its VM's and its tenant's. Not frozen,
    because tenants' limits and storages are divided one after another.
    """

    drive: DriveId
    known: DriveState
    policy: DrivePolicy
    tenant: str | None
    most: float
    wants: float
    share: Share | None = None
    owed: float = 0.0

    @property
    def due(self) -> float:
        """As much of its reservation as it demands."""
        return min(float(self.policy.reservation), self.wants)

    @property
    def claim(self) -> Claim:
        return Claim(self.policy.reservation, self.policy.weight, self.wants)

    def has_made_fewer(self, requests: int) -> bool:
        """Return whether its guest is known to have made fewer requests since it started."""
        counters = self.known.measured.counters
        if counters is None:
            return False
        return counters.read_requests + counters.write_requests < requests


def claimant_of(drive: DriveId, known: DriveState, policy: DrivePolicy) -> Claimant:
    """Return a drive with a policy as a claimant."""
    most = own_most(policy, known.ceiling)
    if known.vm is not None and known.vm.part is not None:
        most = min(most, known.vm.part.part)
    return Claimant(drive, known, policy, known.tenant, most, own_wants(known, policy, most))


def own_most(policy: DrivePolicy, ceiling: float | None) -> float:
    """Return the most that a drive may do by its own policy; inf if there is no end.

    ceiling: its limit, or its burst while that is open.
    """
    return inf if ceiling is None else float(ceiling) * budgets(policy)


def budgets(policy: DrivePolicy) -> int:
    """Return how many budgets a drive has: one, or one for reads and one for writes."""
    return 2 if policy.separate_budgets else 1


def own_wants(known: DriveState, policy: DrivePolicy, most: float) -> float:
    """Return a drive's demand, which is `most` if its limits hold it.

    One that is at its limit although its burst is open wants no more, or QEMU grants no burst now.
    """
    if _is_backlogged(known):
        if known.demand.at_limit:
            return min(most, max(own_most(policy, policy.limit), known.demand.rate))
        return most
    if known.measured.rate is None:  # it may be about to do anything
        return min(most, max(known.demand.rate, policy.reservation))
    return min(most, known.demand.rate)


def next_step(known: DriveState, policy: DrivePolicy, wants: float) -> float:
    """Return how much of its demand a drive needs for now of a limit that is divided into parts.

    All, unless its limits hold it. One that was held lately, but isn't any more, needs what it
    does. One of which nothing passes, because a large request isn't paid for yet, pays with all
    that it gets.
    """
    demand = known.demand
    if not (_is_backlogged(known) and demand.recent):
        return wants
    if demand.backlogged and not demand.recent[0]:
        return wants
    step = STEP_RATIO * demand.recent[0] if demand.backlogged else 0.0
    return min(wants, max(step, demand.rate, policy.reservation))


def _is_backlogged(known: DriveState) -> bool:
    return known.demand.backlogged or _was_just_backlogged(known)


def _was_just_backlogged(known: DriveState) -> bool:
    counters, backlogged_ns = known.measured.counters, known.demand.backlogged_ns
    if counters is None or not backlogged_ns:
        return False
    if counters.at_ns - backlogged_ns >= BACKLOG_S * NS_PER_S:
        return False
    did = known.measured.rates
    return did is None or did.throttled is None or not did.throttled.nothing_waited


def share_of(
    claim: Claim,
    division: Division,
    amount: float,
    pool: float,
    storage: str,
) -> Share:
    """Return a claimant's share of a storage's pool: its amount, or more if it is entitled to that.

    claim: as it was divided.
    """
    most = pool
    if division.level < inf:
        most = min(pool, max(amount, division.entitled(claim)))
    owed = min(most, division.kept * claim.reservation)
    by_weight = inf if division.level == inf else most - owed
    return Share(most, storage, owed, by_weight)
