"""Does a limit over several drives hold whatever they do, and how much of it can they use?

    python -m benchmarks.law.shared_limit

Runs the agent's law on a simulated host (agent/testing/sim) whose disk is never full, with stock
and with exact throttles. The drives have no limit of their own, but one together:

- tenant: their tenant's, on a host without a fleet;
- vm: their VM's;
- granted: their tenant's, as the fleet grants it to the host;
- storage: what the fleet grants the host on the storage that they are on.

Their loads:

- one busy: of five drives, one wants all it can get, and the others are idle;
- small: of five drives, one wants all it can get, and the others do up to 3 % of the limit, another
  rate every 2 s on average; six hosts;
- bursty: of two drives, one wants all it can get, and the other does up to half of the limit, or
  nothing, for 2 s on average; six hosts;
- waking: four drives that want all they can get begin one after another, 10 s apart;
- changing: five drives take another load every 8 s on average, each for itself, from idle to all
  that they can get; twelve hosts.

Writes results/shared-limit.json and prints a table, of all drives together, over the limit. The
first 5 s, in which the agent finds the drives, don't count.

- worst: the highest rate in any second;
- used: the mean rate in the seconds in which the drives ask for the whole limit all the time, 1 at
  most;
- others: what drives that ask for a rate are served of it;
- changes: changes of limits for a drive and hour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import inf
from typing import Any

import numpy as np

from benchmarks import result_file
from iokeel.core.values.policy import DrivePolicy, TenantPolicy, VmPolicy
from iokeel.core.values.storage import StoragePolicy
from testing.sim.fleet import Fleet
from testing.sim.guests import Guest, Phase, idle, switching
from testing.sim.storage import Disk, steady

RESULT = result_file.RESULTS / "shared-limit.json"
LIMIT = 4000  # normalized iops
CAPACITY = 25 * LIMIT
SMALL_RATES = (0.0, LIMIT / 500, LIMIT / 100, 3 * LIMIT / 100)
BURSTY_RATES = (0.0, 0.0, LIMIT / 10, LIMIT / 2)
RATES = (0.0, LIMIT / 20, LIMIT / 4, LIMIT / 2, inf)
BEGIN_S = 5

Loads = Sequence[Iterator[Phase]]


@dataclass(frozen=True)
class Row:
    """A limit and a load, and their figures; see the module. others_ratio: None if none asks."""

    limit: str
    load: str
    exact: bool
    worst_ratio: float
    used_ratio: float
    others_ratio: float | None
    changes: float

    def __str__(self) -> str:
        throttle = "exact" if self.exact else "stock"
        others = "" if self.others_ratio is None else f"{self.others_ratio:.1%}"
        return (
            f"{self.limit:<8} {self.load:<10} {throttle:<8} {self.worst_ratio:>6.2f}"
            f" {self.used_ratio:>6.1%} {others:>6} {self.changes:>8.0f}"
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


def bursty(seed: int) -> Loads:
    """Return a drive that wants all it can get, beside one that does much for a short time."""
    return [iter([Phase(inf)]), switching(100 * seed, BURSTY_RATES, 2.0)]


def changing(seed: int) -> Loads:
    """Return drives that change at random."""
    return [switching(10 * seed + i, RATES, 8.0) for i in range(5)]


# The hosts of each load, and how many seconds they run.
LOADS: dict[str, tuple[Sequence[Callable[[], Loads]], int]] = {
    "one busy": ([one_busy], 60),
    "small": ([partial(small, seed) for seed in range(6)], 120),
    "bursty": ([partial(bursty, seed) for seed in range(6)], 120),
    "waking": ([waking], 60),
    "changing": ([partial(changing, seed) for seed in range(12)], 200),
}
LIMITS: dict[str, dict[str, Any]] = {
    "tenant": {"tenants": {"acme": TenantPolicy(limit=LIMIT)}},
    "vm": {},
    "granted": {"granted": {"acme": TenantPolicy(limit=LIMIT)}},
    "storage": {"granted_storages": {"disk0": LIMIT}},
}


def host(limit: str, load: Loads, *, exact: bool) -> Fleet:
    """Return a host with drives that share a limit."""
    tenant = "acme" if limit in ("tenant", "granted") else None
    vm = ("db1", VmPolicy(limit=LIMIT)) if limit == "vm" else None
    guests = [
        Guest(f"g{i}", DrivePolicy(), phases, tenant=tenant, exact=exact, vm=vm)
        for i, phases in enumerate(load)
    ]
    disk = Disk(StoragePolicy(CAPACITY), steady(CAPACITY))
    return Fleet(guests, [disk], **LIMITS[limit])


def row(exact: bool, limit: str, name: str) -> Row:
    """Run hosts with a load each, and return the figures of all."""
    loads, seconds = LOADS[name]
    rates, is_asked, changes, others = [], [], [], []
    for load in loads:
        fleet = host(limit, load(), exact=exact)
        record = fleet.run(seconds)
        served, asked = record.served[BEGIN_S:], record.asked[BEGIN_S:]
        rates.append(served.sum(axis=1) / LIMIT)
        is_asked.append(asked.sum(axis=1) >= LIMIT)
        asks = (asked > 0) & np.isfinite(asked)
        others.append([np.minimum(served, asked)[asks].sum(), asked[asks].sum()])
        retunes = sum(record.retunes(BEGIN_S).values())
        changes.append(retunes / len(fleet.guests) / (seconds - BEGIN_S))
    rate = np.concatenate(rates)
    used = np.minimum(rate, 1.0)[np.concatenate(is_asked)]
    got, wanted = np.sum(others, axis=0)
    return Row(
        limit,
        name,
        exact,
        float(rate.max()),
        float(used.mean()),
        float(got / wanted) if wanted else None,
        3600 * float(np.mean(changes)),
    )


def main() -> None:
    """Run all loads under each limit."""
    print("limit    load       throttle  worst   used others  changes")
    rows = []
    with ProcessPoolExecutor() as processes:
        for one in processes.map(row, *zip(*product((False, True), LIMITS, LOADS), strict=True)):
            rows.append(one)
            print(one, flush=True)
    result_file.write(RESULT, {"limit": LIMIT, "rows": rows})


if __name__ == "__main__":
    main()
