"""Which promises does the agent's law keep on random hosts, and how fast is the simulation?

    python -m benchmarks.law.random_hosts [--hosts N] [--only many|large]

Runs the law on many hosts of up to seven drives (agent/testing/sim/cases.py). Their guests change
their load every 5 or 20 s, with and without faults, on disks of known capacity and on disks whose
capacity is found by latency. Then on two large hosts, a simulated day of 100 drives and an hour of
5,000, whose guests switch on their own. Writes results/random-hosts.json and prints a table of the
worst, the 99th percentile and the mean:

- miss_s: the longest time for which a drive got less than 97 % of its reservation and asked for it;
- idle_s: the longest time for which more than 5 % of a disk was idle although a drive wanted it;
- second: the highest rate of a drive in any second, over its limit or burst;
- sum: the most that a drive did from its start to any moment, over its limit and saved credit;
- changes: changes of limits for a drive and hour.

A disk's capacity is the agent's estimate, and at least the part that it has to find (checks.py).
Drives don't count for the first two while their orders fail.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, fields
from itertools import product
from math import inf
from random import Random

import numpy as np

from benchmarks import result_file
from iokeel.core.values.policy import DrivePolicy
from iokeel.core.values.storage import StoragePolicy
from testing.sim.cases import BASE_S, CAPACITY, KINDS, KNEE, SPARE, Case, case
from testing.sim.checks import changes, longest_idle, longest_miss, worst_second, worst_sum
from testing.sim.fleet import Faults, Record
from testing.sim.guests import Guest, switching
from testing.sim.storage import Disk, steady

RESULT = result_file.RESULTS / "random-hosts.json"
SECONDS = 80  # of each of the many hosts
LARGE = ((100, 86_400), (5_000, 3_600))  # drives, seconds
DRIVES_A_DISK = 50


@dataclass(frozen=True)
class Figures:
    """A run's figures; see the module."""

    miss_s: float
    idle_s: float
    second: float
    sum: float
    changes: float

    @classmethod
    def of(cls, host: Case, record: Record) -> Figures:
        """Return the figures of a run."""
        return cls(
            longest_miss(host, record),
            longest_idle(host, record),
            worst_second(host, record),
            worst_sum(host, record),
            changes(record, 0),
        )


@dataclass(frozen=True)
class Spread:
    """A figure of many runs."""

    worst: float
    p99: float
    mean: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of some values."""
        return cls(max(values), float(np.percentile(values, 99)), float(np.mean(values)))


@dataclass(frozen=True)
class Many:
    """Random hosts of one kind. hold_s: for how long their guests go on doing the same."""

    exact: bool
    target: bool
    faults: bool
    hold_s: int
    miss_s: Spread
    idle_s: Spread
    second: Spread
    sum: Spread
    changes: Spread

    def __str__(self) -> str:
        spreads = (self.miss_s, self.idle_s, self.second, self.sum, self.changes)
        cells = [
            f"{figure.name} {spread.worst:.4g} {spread.p99:.4g} {spread.mean:.4g}"
            for figure, spread in zip(fields(Figures), spreads, strict=True)
        ]
        return (
            f"{'exact' if self.exact else 'stock'} every {self.hold_s:2} s"
            f"{' target' if self.target else '       '}{' faults' if self.faults else '       '}"
            f"  {'  '.join(cells)}"
        )


@dataclass(frozen=True)
class Large:
    """A large host. cpu_s: of the simulation. used: the mean part of its disks that was used."""

    drives: int
    disks: int
    seconds: int
    cpu_s: float
    us_a_drive_and_tick: float
    miss_s: float
    idle_s: float
    second: float
    sum: float
    changes: float
    used: float


@dataclass
class Result:
    """The result file."""

    seconds: int = SECONDS
    hosts: int = 0
    kinds: list[Many] = field(default_factory=list)
    large: list[Large] = field(default_factory=list)


def many(count: int, hold_s: int, *, exact: bool, target: bool, faults: bool) -> Many:
    """Return the figures of so many random hosts of one kind."""
    rows: list[Figures] = []
    seed = 0
    while len(rows) < count:
        host = case(Random(seed), SECONDS, hold_s, target=target, faults=faults)
        seed += 1
        if host.exact is exact:
            rows.append(Figures.of(host, host.fleet().run(SECONDS)))
    return Many(
        exact,
        target,
        faults,
        hold_s,
        Spread.of([row.miss_s for row in rows]),
        Spread.of([row.idle_s for row in rows]),
        Spread.of([row.second for row in rows]),
        Spread.of([row.sum for row in rows]),
        Spread.of([row.changes for row in rows]),
    )


def large(drives: int, seconds: int) -> Large:
    """Return the figures of a large host, and of its simulation."""
    guests, disks = [], (drives + DRIVES_A_DISK - 1) // DRIVES_A_DISK
    chance = Random(drives)
    for i in range(drives):
        policy = DrivePolicy(
            chance.choice((0, 0, 100, 300)),
            chance.choice((None, 1000, 4000)),
            None,
            weight=chance.choice((50, 100, 200)),
        )
        phases = switching(i, (0, 0, 0, 100, 300, 1000, inf), 60, KINDS)
        guests.append(Guest(f"g{i}", policy, phases, i % disks, exact=i % 2 == 0))
    disk = [
        Disk(StoragePolicy(CAPACITY), steady(SPARE * CAPACITY), BASE_S, KNEE) for _ in range(disks)
    ]
    host = Case(guests, disk, {}, [], Faults(), False, 0)
    fleet = host.fleet()
    began = time.process_time()
    record = fleet.run(seconds)
    cpu_s = time.process_time() - began
    found = Figures.of(host, record)
    return Large(
        drives,
        disks,
        seconds,
        cpu_s,
        cpu_s / drives / seconds * 1e6,
        found.miss_s,
        found.idle_s,
        found.second,
        found.sum,
        found.changes,
        float(np.minimum(1, record.served.sum(axis=1) / CAPACITY / disks).mean()),
    )


def main() -> None:
    """Run the hosts. Writes the result after each kind: all of it takes hours."""
    parser = argparse.ArgumentParser(description=result_file.question(__doc__))
    parser.add_argument("--hosts", type=int, default=200, help="of each kind")
    parser.add_argument("--only", choices=("many", "large"), help="keeps the rest of the result")
    options = parser.parse_args()
    result = result_file.read(RESULT, Result) if RESULT.exists() else Result()
    if options.only != "large":
        result.seconds, result.hosts, result.kinds = SECONDS, options.hosts, []
        either = (False, True)
        for exact, target, faults, hold_s in product(either, either, either, (5, 20)):
            found = many(options.hosts, hold_s, exact=exact, target=target, faults=faults)
            result.kinds.append(found)
            result_file.write(RESULT, result)
            print(found, flush=True)
    if options.only != "many":
        result.large = []
        with ProcessPoolExecutor() as pool:
            for one in pool.map(large, *zip(*LARGE, strict=True)):
                result.large.append(one)
                result_file.write(RESULT, result)
                print(one, flush=True)


if __name__ == "__main__":
    main()
