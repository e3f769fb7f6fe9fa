"""The control law in virtual time: `decide` once a second, its orders in force a moment later."""

from __future__ import annotations

from benchmarks.bench.scenario import Scenario
from benchmarks.bench.virtual.stage import NS_PER_S, Stage
from iokeel.core.decide import decide
from iokeel.core.divide.held import with_outcomes
from iokeel.core.measure.drive import LOOK_AGAIN_S
from iokeel.core.values.counters import DriveId
from iokeel.core.values.curve import DEFAULT_MODEL
from iokeel.core.values.limits import UNLIMITED, Abilities, ThrottleLimits
from iokeel.core.values.observation import DriveSeen, Observation, SetLimits, StorageSeen
from iokeel.core.values.policy import DrivePolicy, TenantPolicy
from iokeel.core.values.state import State
from iokeel.core.values.storage import StoragePolicy

_TICK_NS = NS_PER_S
#: What an order takes by QMP, on average: orders of one tick don't arrive at the same time.
_ORDER_NS = 10_000_000
_DISK, _TENANT = "disk", "tenant"


class Law:
    """An agent that holds a stage's drives, on a QEMU of these abilities.

    scenario: what it is told of the disk and its drives.
    """

    def __init__(self, stage: Stage, scenario: Scenario, abilities: Abilities) -> None:
        self._stage, self._abilities = stage, abilities
        limit = scenario.tenant_limit
        self._tenant = None if limit is None else _TENANT
        tenants = {} if limit is None else {_TENANT: TenantPolicy(limit=limit)}
        self._state = State(DEFAULT_MODEL, {}, tenants)
        model = None if scenario.model == DEFAULT_MODEL else scenario.model
        self._storage = StoragePolicy(
            round(scenario.capacity), scenario.latency_target_ms, model=model
        )
        self._places = {DriveId(each.drive.vm, each.drive.name): each for each in stage.places}
        self._policies = {
            drive: DrivePolicy(**each.drive.policy)  # type: ignore[arg-type]
            for drive, each in self._places.items()
        }
        self._in_force: dict[DriveId, ThrottleLimits | None] = dict.fromkeys(
            self._places, UNLIMITED
        )
        self._timed: set[DriveId] = set()
        self._tick_at_ns = round(stage.chance.random() * _TICK_NS)
        stage.later(self._tick_at_ns, self._tick)

    def _tick(self) -> None:
        self._look(None)
        self._tick_at_ns += _TICK_NS
        self._stage.later(self._tick_at_ns, self._tick)

    def _look(self, only: set[str] | None) -> None:
        """Look at all drives, or at those of some domains."""
        host, abilities = self._stage.host, self._abilities
        drives = {}
        for drive, place in self._places.items():
            if only is None or drive.domain in only:
                counters = host.counters(
                    place.number,
                    guest=place.drive.guest or not abilities.counts,
                    counts=abilities.counts or abilities.measures_latency,
                    times=drive in self._timed,
                )
                drives[drive] = DriveSeen(
                    self._policies[drive],
                    counters,
                    self._in_force[drive],
                    abilities=abilities,
                    storage=_DISK,
                    tenant=self._tenant,
                    group="",
                )
        storages = {}
        if only is None:
            storages = {_DISK: StorageSeen(self._storage, host.disk_counters())}
        seen = Observation(drives, only is not None, storages)
        self._state, orders = decide(self._state, seen, host.now_ns)
        if self._state.failures:
            raise next(iter(self._state.failures.values()))
        for order in orders:
            self._send(order)
        if self._state.suspects:
            domains = {drive.domain for drive in self._state.suspects}
            soon_ns = host.now_ns + round(LOOK_AGAIN_S * NS_PER_S)
            self._stage.later(soon_ns, lambda: self._look(domains))

    def _send(self, order: SetLimits) -> None:
        self._in_force[order.drive] = None

        def arrive() -> None:
            self._stage.set_limits(self._places[order.drive].group, order.limits)
            self._in_force[order.drive] = order.limits
            (self._timed.add if order.limits.latency else self._timed.discard)(order.drive)
            self._state = with_outcomes(self._state, [order])

        took_ns = round(self._stage.chance.expovariate(1 / _ORDER_NS))
        self._stage.later(self._stage.host.now_ns + took_ns, arrive)
