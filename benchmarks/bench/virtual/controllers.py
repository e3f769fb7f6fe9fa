"""The controllers that virtual time knows, by name: those of real runs, and abilities one by one.

What each sets comes from the same code as in a real run; only how it gets there is other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby

from benchmarks.bench.controllers import CONTROLLERS, NONE
from benchmarks.bench.controllers.average_size import PERIOD_S, is_due, limit
from benchmarks.bench.controllers.controller import Controller
from benchmarks.bench.controllers.static import Static
from benchmarks.bench.errors import BenchError
from benchmarks.bench.scenario import Scenario
from benchmarks.bench.virtual.law import Law
from benchmarks.bench.virtual.stage import NS_PER_S, Place, Stage
from iokeel.core.values.counters import Counters
from iokeel.core.values.curve import DEFAULT_MODEL
from iokeel.core.values.limits import STOCK, UNLIMITED, Abilities
from iokeel.words.quoting import did_you_mean
from testing.hypervisors.abilities import TODAYS

#: blk-throttle gives a group what its limit makes of a slice of this length (DFL_THROTL_SLICE_SSD).
_SLICE_MS = 20


class Virtual(ABC):
    """A controller in virtual time.

    real: its namesake in real time, if it has one. keeps_levels: of the throttle groups that it
    sets, see host.h.
    """

    keeps_levels = False
    real: Controller | None = None

    def __init__(self, name: str, title: str) -> None:
        self.name, self.title = name, title

    def is_for(self, scenario: Scenario) -> bool:
        """Return whether it makes sense in a scenario."""
        return True

    def groups(self, scenario: Scenario) -> list[str]:
        """Return which drives share a throttle group: a name for each drive's."""
        return [drive.name for drive in scenario.drives]

    @abstractmethod
    def begin(self, stage: Stage) -> None:
        """Hold the stage's drives from now on."""


class _OfReal(Virtual):
    """One that has a namesake in real time."""

    def __init__(self, name: str) -> None:
        real = CONTROLLERS[name]
        super().__init__(name, real.title)
        self.real = real


class Nothing(_OfReal):
    """No control."""

    def begin(self, stage: Stage) -> None:
        """Leave everything as it is."""


class Fixed(_OfReal):
    """Limits of stock QEMU that stay: static ones, or a scenario's own."""

    def is_for(self, scenario: Scenario) -> bool:
        """Return whether the scenario has limits for it."""
        return CONTROLLERS[self.name].is_for(scenario)

    def groups(self, scenario: Scenario) -> list[str]:
        """Return the drives' VMs if one limit is for all of them, else the drives."""
        if isinstance(self.real, Static) and scenario.tenant_limit is not None:
            return [drive.vm for drive in scenario.drives]
        return super().groups(scenario)

    def begin(self, stage: Stage) -> None:
        """Set them."""
        scenario, real = stage.scenario, self.real
        for group, places in groupby(stage.places, key=lambda place: place.group):
            drives = [place.drive for place in places]
            if isinstance(real, Static):
                owed = sum(scenario.owed(drive) for drive in drives)
                limits = {
                    **real.limits(owed, scenario.model),
                    **real.burst(drives[0].policy, scenario.model),
                }
            elif (found := drives[0].caps.get(self.name)) is not None:
                limits = dict(found)
            else:
                continue
            named = {name.replace("-", "_"): value for name, value in limits.items()}
            stage.set_limits(group, UNLIMITED.with_fields(named))


class AverageSize(_OfReal):
    """The rule by the average size, with blk-throttle's limits: they keep what was waited for."""

    keeps_levels = True

    def begin(self, stage: Stage) -> None:
        """Give each drive its budget in 4K requests, then look each second."""
        for place in stage.places:
            _Rule(stage, place)


class _Rule:
    """The rule for one drive."""

    def __init__(self, stage: Stage, place: Place) -> None:
        self._stage, self._place = stage, place
        self._budget = stage.scenario.owed(place.drive)
        self._looks, self._before = 0, self._counters()
        self._set(self._before)
        # A period begins anywhere: the tool doesn't know when a load does.
        self._phase = stage.chance.randrange(PERIOD_S)
        self._next()

    def _next(self) -> None:
        self._stage.later(self._stage.host.now_ns + NS_PER_S, self._look)

    def _counters(self) -> Counters:
        number = self._place.number
        return self._stage.host.counters(number, guest=False, counts=True, times=False)

    def _look(self) -> None:
        now = self._counters()
        if is_due(self._looks + self._phase, 0):
            self._set(now)
        self._before = now
        self._looks += 1
        self._next()

    def _set(self, now: Counters) -> None:
        model, before = self._stage.scenario.model, self._before
        iops = {}
        for way in ("read", "write"):
            requests = getattr(now, f"{way}_requests") - getattr(before, f"{way}_requests")
            total = getattr(now, f"{way}_bytes") - getattr(before, f"{way}_bytes")
            iops[f"iops_{way}"] = limit(model, self._budget, way, requests, total)
        limits = UNLIMITED.with_fields(iops)._replace(idle_credit_ms=_SLICE_MS)
        self._stage.set_limits(self._place.group, limits)


class Iokeel(Virtual):
    """The law, on a QEMU of some abilities.

    told: makes of a scenario what the law is told of it.
    """

    def __init__(
        self,
        name: str,
        title: str,
        abilities: Abilities,
        told: Callable[[Scenario], Scenario] = lambda scenario: scenario,
    ) -> None:
        super().__init__(name, title)
        self.abilities, self.keeps_levels = abilities, abilities.keeps_levels
        self.real = CONTROLLERS.get(name)
        self._told = told

    def begin(self, stage: Stage) -> None:
        """Look at once, then each second."""
        Law(stage, self._told(stage.scenario), self.abilities)


VIRTUAL: dict[str, Virtual] = {
    each.name: each
    for each in (
        Nothing(NONE),
        *(
            Fixed(name)
            for name, real in CONTROLLERS.items()
            if isinstance(real, Static) or name.endswith("-caps") or "bps-" in name
        ),
        AverageSize("average-size"),
        Iokeel("iokeel-retune", CONTROLLERS["iokeel-retune"].title, STOCK),
        Iokeel("iokeel-exact", CONTROLLERS["iokeel-exact"].title, TODAYS),
        Iokeel("iokeel-curve", "iokeel, QEMU with the curve", Abilities(cost_curve=True)),
        Iokeel("iokeel-levels", "iokeel, QEMU that keeps levels", Abilities(keeps_levels=True)),
        Iokeel("iokeel-counts", "iokeel, QEMU that counts", Abilities(counts=True)),
        Iokeel(
            "iokeel-half",
            "iokeel, patched QEMU, told half of the capacity",
            TODAYS,
            lambda scenario: replace(scenario, capacity=scenario.capacity / 2),
        ),
        Iokeel(
            "iokeel-twice",
            "iokeel, patched QEMU, told twice the capacity",
            TODAYS,
            lambda scenario: replace(scenario, capacity=scenario.capacity * 2),
        ),
        Iokeel(
            "iokeel-published",
            "iokeel, patched QEMU, told the published curve",
            TODAYS,
            lambda scenario: replace(scenario, model=DEFAULT_MODEL),
        ),
        Iokeel(
            "iokeel-no-parts", "iokeel, patched QEMU without parts", TODAYS._replace(splits=False)
        ),
        Iokeel(
            "iokeel-no-bound",
            "iokeel, patched QEMU without a bound in flight",
            TODAYS._replace(bounds_in_flight=False),
        ),
    )
}


def chosen(names: Sequence[str]) -> list[Virtual]:
    """Return the controllers of these names, or all. Raises BenchError for a name there isn't."""
    for name in names:
        if name not in VIRTUAL:
            what = "virtual time has none of this name"
            raise BenchError(f"controller {name}", what, did_you_mean(name, VIRTUAL))
    return [VIRTUAL[name] for name in dict.fromkeys([NONE, *(names or VIRTUAL)])]
