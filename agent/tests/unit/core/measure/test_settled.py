"""A drive to which nothing has happened has the same limits without a look as with one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import inf

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from iokeel.core.measure.settled import SETTLED_S
from iokeel.core.values.policy import DrivePolicy, TenantPolicy, VmPolicy
from iokeel.core.values.state import DriveState, State
from iokeel.core.values.storage import StoragePolicy
from testing.sim.fleet import Faults, Fleet, Record
from testing.sim.guests import Guest, Kind, Phase, idle
from testing.sim.storage import Disk, steady

SECONDS = 120
KINDS = (Kind.of(4), Kind.of(64), Kind.of(8, 0.5), Kind.of(1024, 1.0))


class LooksAtAll(Fleet):
    """A host whose agent looks at all drives, whatever has happened to them."""

    @property
    def state(self) -> State:
        """The law's memory, as if no drive ever settled."""
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._state = replace(state, settled={})


def mostly_idle(chance: random.Random) -> Iterator[Phase]:
    """Yield times of rest, some long enough to settle, and loads between them."""
    while True:
        yield idle(chance.choice((3, 12, SETTLED_S + 5, 3 * SETTLED_S, 3 * SETTLED_S)))
        rate = chance.choice((1.0, 50.0, 800.0, inf))
        yield Phase(chance.choice((0.25, 2, 15)), rate, chance.choice(KINDS), 16)


def guests_of(chance: random.Random) -> list[Guest]:
    """Return guests with all kinds of promises, alone and in VMs and tenants."""
    guests = []
    for n in range(chance.randint(3, 6)):
        limit = chance.choice((None, 300, 1000))
        policy = DrivePolicy(
            limit=limit,
            reservation=chance.choice((0, 100)),
            burst=chance.choice((None, 3 * limit)) if limit else None,
            burst_seconds=chance.choice((10, 60)),
            latency_target_ms=chance.choice((None, None, 8.0)),
            weight=chance.choice((50, 100)),
            separate_budgets=chance.random() < 0.2,
        )
        promise = VmPolicy(limit=chance.choice((600, 1500)))
        guests.append(
            Guest(
                f"g{n}",
                chance.choice((policy, policy, policy, None)),
                mostly_idle(random.Random(chance.random())),
                disk=chance.randrange(2),
                tenant=chance.choice((None, "acme")),
                exact=chance.random() < 0.4,
                vm=(f"vm{n % 2}", promise) if chance.random() < 0.3 else None,
            )
        )
    return guests


def run(kind: type[Fleet], seed: int) -> tuple[Record, Fleet]:
    chance = random.Random(seed)
    guests = guests_of(chance)
    disks = [
        Disk(StoragePolicy(chance.choice((None, 2000)), target_ms), steady(3000), 0.0002, 4.0)
        for target_ms in (None, chance.choice((None, 5.0)))
    ]
    some = [
        (chance.randrange(SECONDS), chance.randrange(len(guests)))
        for _ in range(chance.choice((0, 0, 8)))
    ]
    faults = Faults(
        lost=frozenset(some[:4]), failing=frozenset(some[4:6]), again=frozenset(some[6:])
    )
    tenants = {"acme": TenantPolicy(limit=1200)}
    host = kind(guests, disks, tenants, faults=faults, seed=seed)
    return host.run(SECONDS, keep_states=True), host


def without_times(known: DriveState) -> DriveState:
    """Return a drive's state without the times of its last readings."""
    measured = known.measured
    counters, rates = measured.counters, measured.rates
    if counters is not None:
        counters = counters._replace(at_ns=0, throttle=None)
    if rates is not None:
        rates = rates._replace(elapsed_s=0.0, throttled=None)
    return known._replace(measured=measured._replace(counters=counters, rates=rates))


@settings(max_examples=8)
@example(3)
@example(44)
@given(st.integers(0, 10**6))
def test_a_drive_gets_the_same_limits_at_the_same_time_without_a_look(seed: int) -> None:
    found, host = run(Fleet, seed)
    wanted, other = run(LooksAtAll, seed)
    assert found.orders == wanted.orders
    assert np.array_equal(found.served, wanted.served)
    assert host.in_force == other.in_force
    for mine, others in zip(found.states, wanted.states, strict=True):
        assert mine.drives.keys() == others.drives.keys()
        for drive, known in mine.drives.items():
            assert without_times(known) == without_times(others.drives[drive])


def test_drives_settle_and_wake() -> None:
    records = [run(Fleet, seed)[0] for seed in range(4)]
    counts = [len(state.settled) for record in records for state in record.states]
    assert max(counts) > 0
    assert any(later < sooner for sooner, later in pairwise(counts))
