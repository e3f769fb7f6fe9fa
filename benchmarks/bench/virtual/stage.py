"""A stage in virtual time: a scenario's drives on a host that is only computed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.bench.scenario import Drive, Scenario
from benchmarks.bench.virtual.host import Host
from iokeel.core.values.limits import ThrottleLimits

NS_PER_S = 1_000_000_000


@dataclass(frozen=True)
class Place:
    """Where a drive is: its number on the host, and that of its throttle group."""

    drive: Drive
    number: int
    group: int


@dataclass
class Stage:
    """All drives of a run.

    begin_ns: when their loads begin. chance: for what varies with the seed.
    """

    scenario: Scenario
    host: Host
    places: tuple[Place, ...]
    begin_ns: int
    chance: random.Random
    _due: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)
    _number: int = 0

    def set_limits(self, group: int, limits: ThrottleLimits) -> None:
        """Put a group's limits in force now."""
        self.host.set_limits(group, limits)

    def later(self, at_ns: int, what: Callable[[], None]) -> None:
        """Do something at a moment of the host's clock; at the same one, in the order of calls."""
        self._number += 1
        self._due.append((max(at_ns, self.host.now_ns), self._number, what))

    def run(self, until_ns: int) -> None:
        """Let time pass up to a moment."""
        while self._due and min(self._due)[0] <= until_ns:
            first = min(self._due)
            self._due.remove(first)
            self.host.run(first[0])
            first[2]()
        self.host.run(until_ns)
