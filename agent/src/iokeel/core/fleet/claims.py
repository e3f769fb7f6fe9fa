"""The claims of hosts on a budget, and the parts of it that they should have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import floor, inf
from typing import NamedTuple

from iokeel.core.divide.divide import divide
from iokeel.core.divide.pool import OUTGROWN_RATIO
from iokeel.core.fleet.ledger import Entry, HostName, Stamp
from iokeel.core.values.claimant import Claim
from iokeel.core.values.storage import LEAST_RATIO, MOST_RATIO, Load, StoragePolicy
from iokeel.core.values.wants import NOTHING, Layer, TenantLevel, TenantWants, Wants, given_at

# The part of the budget beyond reservations that is divided evenly among hosts as floors.
EVEN_RATIO = 0.1
# A floor stays if it is at most this much higher than needed.
FLOOR_BAND_RATIO = 0.1


@dataclass(frozen=True, slots=True)
class HostClaim:
    """A host's claim on a budget: the sums over its drives.

    reservation, wants, most: reserved, demanded, and allowed at most by policies, in the budget's
    unit. most is 0 if the host has no drive that draws on the budget. weight: > 0, for what nobody
    demands, and for raises. held: the most that its QEMUs may be held to now. applied: the stamp of
    the newest entry of its own that is in force there and on its disk; None if there is none. load:
    on a storage, what its drives did in the last interval; None if that isn't known.
    """

    instance: str
    reservation: int = 0
    weight: int = 100
    wants: Wants = NOTHING
    most: int = 0
    held: int = 0
    applied: Stamp | None = None
    load: Load | None = None


class Shared(NamedTuple):
    """How latency corrects a shared storage's capacity, as StoragePolicy has it."""

    latency_target_ms: float | None = None
    least_ratio: float = LEAST_RATIO
    most_ratio: float = MOST_RATIO


class Budget(NamedTuple):
    """A budget as an operator has set it.

    amount: in normalized I/O operations a second; a storage's capacity before it is corrected.
    even_ratio: the part beyond reservations that is divided evenly as floors, 0 to 1. reservation,
    weight: a tenant's, on storages. A host has the same part of the reservation as of the amount.
    shared: None for a tenant.
    """

    amount: int
    even_ratio: float = EVEN_RATIO
    reservation: int = 0
    weight: int = 100
    shared: Shared | None = None

    @property
    def most(self) -> int:
        """The most that it can come to, however it is corrected."""
        return self.amount if self.shared is None else int(self.amount * self.shared.most_ratio)

    @property
    def storage(self) -> StoragePolicy | None:
        """The policy of a shared storage; None for a tenant's limit."""
        return None if self.shared is None else StoragePolicy(self.amount, *self.shared)


def with_tenants(
    capacity: float, claims: Mapping[HostName, HostClaim], least: Mapping[HostName, int]
) -> tuple[dict[HostName, HostClaim], dict[str, TenantLevel]]:
    """Return claims with each tenant's weight divided over the hosts, and tenants' levels.

    A host has the part of the weight that its drives get of what all the tenant's drives get. A
    tenant that gets all that it demands has no level. capacity, least: as in `targets`.
    """
    tenants: dict[str, list[TenantWants]] = {}
    for claim in claims.values():
        for name, wants in claim.wants.tenants.items():
            tenants.setdefault(name, []).append(wants)
    if not tenants:
        return dict(claims), {}
    idle = sum(max(0, least[name] - claim.wants.total) for name, claim in claims.items())
    levels = _levels(max(0.0, capacity - idle), claims, tenants)
    after = {}
    for host, claim in claims.items():
        layers = [*claim.wants.layers]
        for name, (weight, own) in claim.wants.tenants.items():
            part = 1.0
            if (told := levels.get(name)) is not None:
                part = given_at(told.level, own) / told.amount
            if demand := sum(layer.wants for layer in own):
                layers.append(Layer(weight * part, demand))
        after[host] = replace(claim, wants=Wants(claim.wants.owed, tuple(layers)))
    return after, levels


def _levels(
    capacity: float,
    claims: Mapping[HostName, HostClaim],
    tenants: Mapping[str, Sequence[TenantWants]],
) -> dict[str, TenantLevel]:
    """Return the levels of tenants that don't get all that they demand.

    tenants: their demands on each host, by name.
    """
    others = [claim for each in claims.values() for claim in _claims_of(each.wants)]
    claims_of = {
        name: [Claim(0.0, *layer) for own in hosts for layer in own.layers]
        for name, hosts in tenants.items()
    }
    together = [
        Claim(0.0, max(own.weight for own in hosts), sum(each.wants for each in claims_of[name]))
        for name, hosts in tenants.items()
    ]
    amounts = divide(capacity, [*others, *together]).amounts[len(others) :]
    levels = {}
    for name, amount in zip(tenants, amounts, strict=True):
        level = divide(amount, claims_of[name]).level
        if 0 < level < inf:
            levels[name] = TenantLevel(level, amount)
    return levels


def floors(
    budget: Budget, entries: Mapping[HostName, Entry], claims: Mapping[HostName, HostClaim]
) -> dict[HostName, int]:
    """Return the floor that each host that reports should have: its reservation and an even part.

    entries: all hosts'. claims: those of the hosts that report. A host that doesn't keeps its
    floor. If reservations don't fit, they are scaled down together. A floor that is about right
    stays, so that a guest's start doesn't move all other floors.
    """
    silent = sum(entry.floor for name, entry in entries.items() if name not in claims)
    there = [name for name in claims if claims[name].most > 0]
    rest = max(0, budget.amount - silent)
    reserved = [Claim(claims[name].reservation, 1.0, claims[name].reservation) for name in there]
    amounts = divide(rest, reserved).amounts
    # Parts that were scaled down may add up to a little more, by rounding.
    even = budget.even_ratio * max(0.0, rest - sum(amounts)) / max(1, len(there))
    wanted = dict.fromkeys(claims, 0)
    for name, amount in zip(there, amounts, strict=True):
        wanted[name] = floor(min(amount + even, max(amount, claims[name].most)))
    kept = dict(wanted)
    for name in there:
        now = entries[name].floor if name in entries else 0
        if wanted[name] < now <= (1 + FLOOR_BAND_RATIO) * wanted[name]:
            kept[name] = now
    return kept if sum(kept.values()) <= rest else wanted


def beside_silent(
    rest: int, lowest: Mapping[HostName, int], entries: Mapping[HostName, Entry]
) -> Mapping[HostName, int]:
    """Return floors that keep the budget, for hosts that report.

    rest: the budget less the charges of hosts that don't report. lowest: from `floors`. The floors
    that hosts have already come first. Even these may be too much if the budget was lowered, or if
    a host came with more than was free; then they are scaled down together. If nothing is left,
    lower floors wouldn't keep the budget either, so they stay.
    """
    if rest <= 0:
        return lowest
    claims = [Claim(min(low, entries[name].floor), 1.0, low) for name, low in lowest.items()]
    return dict(zip(lowest, map(floor, divide(rest, claims).amounts), strict=True))


def targets(
    capacity: int,
    claims: Mapping[HostName, HostClaim],
    least: Mapping[HostName, int],
    now: Mapping[HostName, int],
) -> dict[HostName, int]:
    """Return the amount that each host that reports should have.

    capacity: the budget less the charges of hosts that don't report. least: floors. now: the
    amounts that the hosts have, which stay if they still fit.
    """
    names = list(claims)
    needs = needs_above_floors(capacity, [claims[n] for n in names], [least[n] for n in names])
    rest = max(0.0, capacity - sum(needs))
    spare = [
        Claim(0.0, claims[name].weight, max(0.0, claims[name].most - need))
        for name, need in zip(names, needs, strict=True)
    ]
    extra = divide(rest, spare).amounts
    wanted = {
        name: max(least[name], floor(need + more))
        for name, need, more in zip(names, needs, extra, strict=True)
    }
    fits = all(
        least[name] <= now.get(name, 0) <= max(least[name], claims[name].most)
        and need <= OUTGROWN_RATIO * now.get(name, 0)
        for name, need in zip(names, needs, strict=True)
    )
    held = sum(now.get(name, 0) for name in names)
    if fits and sum(wanted.values()) - len(names) <= held <= capacity:
        return {name: now[name] for name in names}
    return wanted


def needs_above_floors(
    capacity: float, claims: Sequence[HostClaim], least: Sequence[int]
) -> list[float]:
    """Divide a capacity by reservations and weights; no host gets less than its floor.

    A floor isn't lent. So hosts that would get less keep theirs, and the others divide the rest.
    """
    needs = [float(low) for low in least]
    free = [i for i, claim in enumerate(claims) if claim.wants.total > least[i]]
    while free:
        rest = max(0.0, capacity - sum(least) + sum(least[i] for i in free))
        of_drives = [_claims_of(claims[i].wants) for i in free]
        amounts = iter(divide(rest, [claim for host in of_drives for claim in host]).amounts)
        parts = [sum(islice(amounts, len(host))) for host in of_drives]
        above = [i for i, part in zip(free, parts, strict=True) if part >= least[i]]
        if len(above) == len(free):
            for i, part in zip(free, parts, strict=True):
                needs[i] = part
            break
        free = above
    return needs


def _claims_of(wants: Wants) -> list[Claim]:
    """Return the claims that stand for a host's drives in a division."""
    return [Claim(wants.owed, 1.0, wants.owed), *(Claim(0.0, *layer) for layer in wants.layers)]
