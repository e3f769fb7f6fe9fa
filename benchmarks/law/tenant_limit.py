"""Does a tenant's limit hold over its drives whatever they do, and how much of it can they use?

    python -m benchmarks.law.tenant_limit

Runs the agent's law on a simulated host (agent/testing/sim) whose disk is never full, with stock
and with exact throttles. All drives are one tenant's and have no limit of their own:

- one busy: of five drives, one wants all it can get, and the others are idle;
- small: of five drives, one wants all it can get, and the others do up to 3 % of the limit, another
  rate every 2 s on average; six hosts;
- waking: four drives that want all they can get begin one after another, 10 s apart;
- changing: five drives take another load every 8 s on average, each for itself, from idle to all
  that they can get; twelve hosts.

Writes results/tenant-limit.json and prints a table, of all drives together, over the limit. The
first 5 s, in which the agent finds the drives, don't count.

- worst: the highest rate in any second;
- used: the mean rate in the seconds in which the drives ask for the whole limit all the time, 1 at
  most;
- changes: changes of limits for a drive and hour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from benchmarks import result_file
from iokeel.core.policy import DrivePolicy, TenantPolicy
from iokeel.core.storage import StoragePolicy
from testing.sim.fleet import Fleet
from testing.sim.guests import Guest, Phase, idle, switching
from testing.sim.storage import Disk, steady

RESULT = result_file.RESULTS / "tenant-limit.json"
LIMIT = 4000  # normalized iops
CAPACITY = 25 * LIMIT
SMALL_RATES = (0.0, LIMIT / 500, LIMIT / 100, 3 * LIMIT / 100)
RATES = (0.0, LIMIT / 20, LIMIT / 4, LIMIT / 2, inf)
BEGIN_S = 5

Loads = Sequence[Iterator[Phase]]


@dataclass(frozen=True)
class Row:
    """A load, and its figures; see the module."""

    load: str
    exact: bool
    worst_ratio: float
    used_ratio: float
    changes: float

    def __str__(self) -> str:
        throttle = "exact" if self.exact else "stock"
        return (
            f"{self.load:<10} {throttle:<8} {self.worst_ratio:>6.2f} {self.used_ratio:>5.1%}"
            f" {self.changes:>8.0f}"
        )


def one_busy() -> Loads:
    """Return a drive that wants all it can get, beside four that are idle."""
    return [iter([Phase(inf)]), *(iter([idle(inf)]) for _ in range(4))]


def waking() -> Loads:
    """Return drives that begin one after another."""
    return [iter([idle(10.0 * i), Phase(inf)]) for i in range(4)]


def small(seed: int) -> Loads:
    """Return a drive that wants all it can get, beside four that do little."""
    others = (switching(100 * seed + i, SMALL_RATES, 2.0) for i in range(4))
    return [iter([Phase(inf)]), *others]


def changing(seed: int) -> Loads:
    """Return drives that change at random."""
    return [switching(10 * seed + i, RATES, 8.0) for i in range(5)]


def row(name: str, loads: Sequence[Callable[[], Loads]], seconds: int, *, exact: bool) -> Row:
    """Run hosts with a load each, and return the figures of all."""
    rates, is_asked, changes = [], [], []
    for load in loads:
        guests = [
            Guest(f"g{i}", DrivePolicy(), phases, tenant="acme", exact=exact)
            for i, phases in enumerate(load())
        ]
        disk = Disk(StoragePolicy(CAPACITY), steady(CAPACITY))
        record = Fleet(guests, [disk], {"acme": TenantPolicy(limit=LIMIT)}).run(seconds)
        rates.append(record.served[BEGIN_S:].sum(axis=1) / LIMIT)
        is_asked.append(record.asked[BEGIN_S:].sum(axis=1) >= LIMIT)
        changes.append(sum(record.retunes(BEGIN_S).values()) / len(guests) / (seconds - BEGIN_S))
    rate, asked = np.concatenate(rates), np.concatenate(is_asked)
    used = np.minimum(rate, 1.0)[asked]
    return Row(name, exact, float(rate.max()), float(used.mean()), 3600 * float(np.mean(changes)))


def main() -> None:
    """Run all loads."""
    print("load       throttle  worst  used  changes")
    rows = []
    for exact in (False, True):
        for name, loads, seconds in (
            ("one busy", [one_busy], 60),
            ("small", [lambda seed=seed: small(seed) for seed in range(6)], 120),
            ("waking", [waking], 60),
            ("changing", [lambda seed=seed: changing(seed) for seed in range(12)], 200),
        ):
            rows.append(row(name, loads, seconds, exact=exact))
            print(rows[-1], flush=True)
    result_file.write(RESULT, {"limit": LIMIT, "rows": rows})


if __name__ == "__main__":
    main()
