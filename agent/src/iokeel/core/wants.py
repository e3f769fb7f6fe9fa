"""Adds up the demands of drives, so that weights stay exact where a host stands for its drives.

A division gives each drive what it is owed and, on top of that, a level times its weight, up to its
demand (sharing/divide.py). The sums of all demands and of all weights wouldn't do for a host: the
weight of drives that do little would count for a busy one beside them. So only drives whose demands
are met at about the same level are added up, to a *layer*.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, floor, log
from typing import Final, NamedTuple

from iokeel.core.policy import ENDLESS

# In a layer, the highest level is at most so many times the lowest. A host's amount is off by less
# than that, and only while the level is within a layer.
LAYER_RATIO = 1.1
# What is less comes from rounding.
_LEAST = 1e-6


class Layer(NamedTuple):
    """Drives whose demands are met at about the same level.

    weight: > 0, the sum of theirs. wants: the sum of their demands on top of what they are owed.
    """

    weight: int
    wants: int


class Wants(NamedTuple):
    """The demands of some drives together. owed: of what they have reserved, what they demand."""

    owed: int = 0
    layers: tuple[Layer, ...] = ()

    @property
    def total(self) -> int:
        """The sum of all demands."""
        return min(ENDLESS, self.owed + sum(layer.wants for layer in self.layers))

    def at(self, level: float) -> float:
        """Return what the drives get together at a level, if what they are owed fits."""
        return self.owed + sum(min(level * weight, wants) for weight, wants in self.layers)

    def is_near(self, other: Wants, ratio: float, least: float) -> bool:
        """Return whether the drives get about the same of the other demands, at every level.

        ratio: how much more or less. least: if they get less than that, its part is still the same.
        """
        levels = [layer.wants / layer.weight for layer in (*self.layers, *other.layers)]
        return all(
            abs(other.at(level) - self.at(level)) <= ratio * max(least, self.at(level))
            for level in [0.0, *levels]
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
        if (more := min(ENDLESS, wants - own)) > _LEAST:
            place = floor(log(more / weight, LAYER_RATIO))
            so_far, before = layers.get(place, (0.0, 0.0))
            layers[place] = so_far + weight, before + more
    return Wants(
        _whole(owed),
        tuple(Layer(round(weight), _whole(more)) for _, (weight, more) in sorted(layers.items())),
    )


def _whole(rate: float) -> int:
    return ENDLESS if rate >= ENDLESS else ceil(rate - _LEAST)
