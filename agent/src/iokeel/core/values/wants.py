"""Adds up the demands of drives, so that a host can stand for its drives in a division.

A division gives each drive what it is owed and, on top of that, a level times its weight, up to its
demand (divide/divide.py). The sums of all demands and of all weights wouldn't do for a host: the
weight of drives that do little would count for a busy one beside them. So only drives whose demands
are met at about the same level are added up, to a *layer*.

A tenant of the fleet has one weight on a storage for its drives on all hosts together. Its drives
are in layers of their own, by the weights that they have within the tenant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil, floor, log
from typing import Final, NamedTuple

from iokeel.core.values.policy import ENDLESS

# In a layer, the highest level is at most so many times the lowest. A host's amount is off by less
# than that, and only while the level is within a layer.
LAYER_RATIO = 1.1
# What is less comes from rounding.
_LEAST = 1e-6


class Layer(NamedTuple):
    """Drives whose demands are met at about the same level.

    weight: > 0, the sum of theirs. wants: the sum of their demands on top of what they are owed.
    """

    weight: float
    wants: int


class TenantWants(NamedTuple):
    """A tenant's drives on a host, on top of what they are owed. weight: the tenant's, > 0."""

    weight: int
    layers: tuple[Layer, ...]


class TenantLevel(NamedTuple):
    """What a tenant's drives on all hosts get together, on top of what they are owed.

    level: for a unit of their own weights. amount: in all. Both are > 0.
    """

    level: float
    amount: float


class Wants(NamedTuple):
    """The demands of some drives together. owed: of what they have reserved, what they demand.

    tenants: those of the fleet, by name; their drives are in no other layer.
    """

    owed: int = 0
    layers: tuple[Layer, ...] = ()
    tenants: Mapping[str, TenantWants] = {}

    @property
    def total(self) -> int:
        """The sum of all demands."""
        every = [self.layers, *(tenant.layers for tenant in self.tenants.values())]
        return min(ENDLESS, self.owed + sum(layer.wants for layers in every for layer in layers))

    def is_near(self, other: Wants, ratio: float, least: float) -> bool:
        """Return whether the drives get about the same of the other demands, at every level.

        ratio: how much more or less. least: if they get less than that, its part is still the same.
        """
        names = self.tenants.keys() | other.tenants.keys()
        nothing = TenantWants(1, ())
        pairs = [(self.tenants.get(n, nothing), other.tenants.get(n, nothing)) for n in names]
        return (
            abs(other.owed - self.owed) <= ratio * max(least, self.owed)
            and _are_near(self.layers, other.layers, ratio, least)
            and all(_are_near(ours.layers, theirs.layers, ratio, least) for ours, theirs in pairs)
        )


#: No drive demands anything.
NOTHING: Final = Wants()


def wants_of(claims: Iterable[tuple[float, float, float]]) -> Wants:
    """Return the demands of drives, or of groups of them.

    claims: the reservation, the weight and the demand of each, as in a division.
    """
    owed = 0.0
    layers: dict[int, tuple[float, float]] = {}
    for reservation, weight, wants in claims:
        own = min(reservation, wants)
        owed += own
        if (more := min(ENDLESS, wants) - own) > _LEAST:
            place = floor(log(more / weight, LAYER_RATIO))
            so_far, before = layers.get(place, (0.0, 0.0))
            layers[place] = so_far + weight, before + more
    return Wants(
        whole(owed),
        tuple(Layer(round(weight), whole(more)) for _, (weight, more) in sorted(layers.items())),
    )


def given_at(level: float, layers: Iterable[tuple[float, float]]) -> float:
    """Return what drives get together at a level, by their weights and demands."""
    return sum(min(level * weight, wants) for weight, wants in layers)


def whole(rate: float) -> int:
    """Return a rate as a whole number, rounded up; ENDLESS at most."""
    return ENDLESS if rate >= ENDLESS else ceil(rate - _LEAST)


def _are_near(told: Sequence[Layer], now: Sequence[Layer], ratio: float, least: float) -> bool:
    levels = sorted(layer.wants / layer.weight for layer in (*told, *now))
    pairs = zip(_given_at_each(levels, told), _given_at_each(levels, now), strict=True)
    return all(abs(after - before) <= ratio * max(least, before) for before, after in pairs)


def _given_at_each(levels: Iterable[float], layers: Iterable[Layer]) -> Iterator[float]:
    """Yield what drives get together at each of some levels, which rise. In one pass."""
    unmet = sorted(layers, key=lambda layer: layer.wants / layer.weight, reverse=True)
    weight, met = sum(layer.weight for layer in unmet), 0
    for level in levels:
        while unmet and unmet[-1].wants <= level * unmet[-1].weight:
            layer = unmet.pop()
            weight, met = weight - layer.weight, met + layer.wants
        yield met + level * weight
