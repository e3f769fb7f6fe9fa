"""Random hosts: policies, workloads and faults, drawn from one random generator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from random import Random

from iokeel.core.values.policy import DrivePolicy, TenantPolicy, VmPolicy
from iokeel.core.values.storage import StoragePolicy
from testing.sim.fleet import Faults, Fleet
from testing.sim.guests import Guest, Kind, Phase
from testing.sim.storage import Disk, steady

CAPACITY = 20_000  # normalized iops, as RATES
# A disk without a latency target really serves this times its configured capacity. With less, no
# drive could ever show that it wants more.
SPARE = 1.15
TARGET_MS = 1.0
BASE_S = 0.0001  # of a request on an idle disk
KNEE = 4.0  # exponent of the load (storage.py)
KINDS = (Kind.of(4), Kind.of(8, 0.3), Kind.of(16), Kind.of(64, 0.5))
RATES = (0.0, 100.0, 1000.0, 3000.0, 8000.0, inf, inf)


@dataclass
class Case:
    """A random host.

    steps: the seconds at which demand changes, and each drive's phase from then on.
    """

    guests: list[Guest]
    disks: list[Disk]
    tenants: dict[str, TenantPolicy]
    steps: list[tuple[float, list[Phase]]]
    faults: Faults
    exact: bool
    delay_steps: int

    def fleet(self) -> Fleet:
        return Fleet(
            self.guests,
            self.disks,
            self.tenants,
            faults=self.faults,
            delay_steps=self.delay_steps,
        )


def policies(chance: Random, count: int, disks: Sequence[int]) -> list[DrivePolicy]:
    """Return policies whose reservations fit into 90 % of each disk."""
    free = dict.fromkeys(disks, 0.9 * CAPACITY)
    found = []
    for disk in disks[:count]:
        reservation = min(chance.choice((0, 0, 0, 500, 2000, 5000)), int(free[disk]))
        free[disk] -= reservation
        limit = chance.choice((None, None, 1000, 4000, 12_000))
        burst = None
        if limit is not None:
            limit = max(limit, reservation)
            burst = chance.choice((None, None, 2 * limit))
        weight = chance.choice((50, 100, 200, 1000))
        found.append(DrivePolicy(reservation, limit, burst, 20, weight))
    return found


def steps_of(
    chance: Random, count: int, seconds: int, hold_s: int
) -> list[tuple[float, list[Phase]]]:
    """Return the drives' phases. All change at once, at some time between two ticks."""
    steps = []
    begin = 0.0
    while begin < seconds:
        length = hold_s + 0.25 * chance.randrange(4)
        phases = [
            Phase(length, chance.choice(RATES), chance.choice(KINDS), chance.choice((16, 32, 128)))
            for _ in range(count)
        ]
        steps.append((begin, phases))
        begin += length
    return steps


def faults_of(chance: Random, count: int, disks: int, seconds: int) -> Faults:
    """Return random faults, all in the first half of a run."""
    ticks = range(2, seconds // 2)

    def some(most: int) -> frozenset[tuple[int, int]]:
        return frozenset(
            (chance.choice(ticks), chance.randrange(count)) for _ in range(chance.randrange(most))
        )

    def stretches(most: int) -> frozenset[tuple[int, int]]:
        found = set()
        for _ in range(chance.randrange(most)):
            start, i = chance.choice(ticks), chance.randrange(count)
            found |= {(tick, i) for tick in range(start, start + chance.choice((1, 3, 8)))}
        return frozenset(found)

    down = set()
    if chance.random() < 0.5:
        start = chance.choice(ticks)
        down = set(range(start, start + chance.choice((1, 2, 5))))
    counters = {
        (chance.choice(ticks), chance.randrange(disks)): chance.choice(
            ("none", "frozen", "garbage")
        )
        for _ in range(chance.randrange(6))
    }
    return Faults(
        lost=some(8),
        failing=stretches(6),
        gone=stretches(3),
        again=some(3),
        counters=counters,
        down=frozenset(down),
    )


def case(
    chance: Random, seconds: int, hold_s: int, *, target: bool = False, faults: bool = False
) -> Case:
    """Return a random host of one or two disks and up to seven drives.

    hold_s: how long each demand lasts, at the least. target: whether its disks have a latency
    target; if so, they really serve 0.7, 1.0 or 1.3 times their configured capacity.
    """
    count, disks = chance.randint(2, 7), chance.randint(1, 2)
    where = [i % disks for i in range(count)]
    exact = chance.random() < 0.5
    tenants = {}
    if chance.random() < 0.4:
        tenants["acme"] = TenantPolicy(chance.choice((0, 1000)), None, chance.choice((100, 300)))
    steps = steps_of(chance, count, seconds, hold_s)
    promised = policies(chance, count, where)
    guests = [
        Guest(
            f"g{i}",
            promised[i],
            _phases(steps, i),
            where[i],
            chance.choice(("acme", None)) if tenants else None,
            exact,
        )
        for i in range(count)
    ]
    policy = StoragePolicy(CAPACITY, TARGET_MS if target else None)
    real = [CAPACITY * (chance.choice((0.7, 1.0, 1.3)) if target else SPARE) for _ in range(disks)]
    return Case(
        guests,
        [Disk(policy, steady(one), BASE_S, KNEE) for one in real],
        tenants,
        steps,
        faults_of(chance, count, disks, seconds) if faults else Faults(),
        exact,
        chance.choice((0, 0, 1)),
    )


def vm_case(chance: Random, seconds: int, hold_s: int, *, faults: bool = False) -> Case:
    """Return a random host of one to three VMs of one to four drives, each VM with a limit.

    Their disks can serve all of the limits and bursts.
    """
    disks = chance.randint(1, 2)
    sizes = [chance.randint(1, 4) for _ in range(chance.randint(1, 3))]
    steps = steps_of(chance, sum(sizes), seconds, hold_s)
    exact = chance.random() < 0.5
    guests: list[Guest] = []
    for number, size in enumerate(sizes):
        limit = chance.choice((1000, 2000, 3000))
        vm = VmPolicy(limit=limit, burst=chance.choice((None, 2 * limit)), burst_seconds=10)
        for _ in range(size):
            i = len(guests)
            policy = DrivePolicy(
                limit=chance.choice((None, None, 800)), weight=chance.choice((50, 200))
            )
            guests.append(
                Guest(
                    f"d{i}", policy, _phases(steps, i), i % disks, None, exact, (f"vm{number}", vm)
                )
            )
    disk = Disk(StoragePolicy(CAPACITY), steady(SPARE * CAPACITY), BASE_S, KNEE)
    wrong = faults_of(chance, len(guests), disks, seconds) if faults else Faults()
    return Case(guests, [disk] * disks, {}, steps, wrong, exact, chance.choice((0, 0, 1)))


def tenant_case(chance: Random, seconds: int, hold_s: int, *, faults: bool = False) -> Case:
    """Return a random host of one to three VMs of one to three drives, of one tenant with a limit.

    Their disks can serve all that it allows.
    """
    disks = chance.randint(1, 2)
    sizes = [chance.randint(1, 3) for _ in range(chance.randint(1, 3))]
    steps = steps_of(chance, sum(sizes), seconds, hold_s)
    exact = chance.random() < 0.5
    guests: list[Guest] = []
    for number, size in enumerate(sizes):
        vm = VmPolicy(limit=chance.choice((None, None, 3000)))
        for _ in range(size):
            i = len(guests)
            limit = chance.choice((None, None, 800))
            burst = None if limit is None else chance.choice((None, 2 * limit))
            policy = DrivePolicy(0, limit, burst, 20, weight=chance.choice((50, 200)))
            phases = _phases(steps, i)
            guests.append(
                Guest(f"d{i}", policy, phases, i % disks, "acme", exact, (f"vm{number}", vm))
            )
    tenant = TenantPolicy(chance.choice((0, 1000)), chance.choice((1000, 3000, 6000)), 100)
    disk = Disk(StoragePolicy(CAPACITY), steady(SPARE * CAPACITY), BASE_S, KNEE)
    wrong = faults_of(chance, len(guests), disks, seconds) if faults else Faults()
    return Case(
        guests, [disk] * disks, {"acme": tenant}, steps, wrong, exact, chance.choice((0, 0, 1))
    )


def _phases(steps: Sequence[tuple[float, list[Phase]]], i: int) -> Iterator[Phase]:
    return chain((phases[i] for _, phases in steps), (Phase(inf, 0.0),))
