"""Figures that follow the size of a drive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from iokeel.core.values.policy import MOST_IOPS, ONE_WAY
from iokeel.errors import PolicyError

#: A drive's size in GiB, rounded up.
SIZE = "size_gb"


@dataclass(frozen=True, slots=True)
class PerGb:
    """So many normalized operations a second for each GiB, within bounds; None for no bound."""

    per_gb: float
    least: int | None = None
    most: int | None = None

    def of(self, size_gb: int) -> int:
        """Return the figure for a size."""
        figure = max(round(self.per_gb * size_gb), self.least or 1)
        return min(figure, self.most or MOST_IOPS, MOST_IOPS)


def sized(
    given: Mapping[str, object], facts: Mapping[str, str], where: str
) -> Mapping[str, object]:
    """Return what is given, with figures for the size of a drive.

    Raises PolicyError if there are such figures, and the size isn't known.
    """
    by_size = {name: value for name, value in given.items() if isinstance(value, PerGb)}
    if not by_size:
        return given
    if not facts.get(SIZE, "").isdigit():
        what = f"the size of drive {facts.get('target')} isn't known, which its limit goes by"
        raise PolicyError(where, what, "give the drive a limit in the rule")
    size_gb = int(facts[SIZE])
    return {**given, **{name: value.of(size_gb) for name, value in by_size.items()}}


def fitting(given: Mapping[str, object]) -> dict[str, object]:
    """Return what is given, with a reservation, a burst and lower limits that fit the limit.

    They may come from other tables, or from the platform.
    """
    found = dict(given)
    limit, burst, reservation = (found.get(name) for name in ("limit", "burst", "reservation"))
    if isinstance(limit, int):
        if isinstance(burst, int):
            found["burst"] = max(burst, limit)
        if isinstance(reservation, int):
            found["reservation"] = min(reservation, limit)
        for name in ONE_WAY:
            if isinstance(own := found.get(name), int):
                found[name] = min(own, limit)
    return found
