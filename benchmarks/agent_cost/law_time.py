"""How much CPU time does the control law take per drive and tick, without sockets?

Simulates one host (agent/testing/sim) whose guests switch between loads, and measures the CPU time
of each call of decide(). Prints one line of JSON: the us per drive of each tick. Each run asks the
same of the law, so of several runs the lowest figure of a tick is the least disturbed. Garbage
isn't collected meanwhile, as the agent does that seldom (iokeel/service.py).

    CHECKOUT/.venv/bin/python benchmarks/agent_cost/law_time.py CHECKOUT --drives 1000

The checkout may be another than this script's: nothing is imported from this one.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from math import inf
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

#: The places of the simulation in a checkout, newest first: the folder for sys.path, the package.
LAYOUTS = (("agent", "testing.sim"), ("benchmarks", "sim"))
RATES = (0, 0, 0, 100, 300, 1000, inf)  # normalized iops
MEAN_PHASE_S = 60
DRIVES_A_DISK = 50
CAPACITY = 20_000  # normalized iops
WARM_UP_TICKS = 10


def simulation(checkout: Path) -> tuple[ModuleType, ModuleType, ModuleType]:
    """Return a checkout's modules of the simulated host, its guests and its disks."""
    for folder, package in LAYOUTS:
        if (checkout / folder / Path(*package.split(".")) / "fleet.py").exists():
            sys.path.insert(0, str(checkout / folder))
            found = [import_module(f"{package}.{name}") for name in ("fleet", "guests", "storage")]
            return found[0], found[1], found[2]
    places = " or ".join(f"{folder}/{package.replace('.', '/')}" for folder, package in LAYOUTS)
    sys.exit(f"{checkout} has no simulation in {places}")


def host(checkout: Path, drives: int, exact: bool) -> tuple[ModuleType, Any]:
    """Return the module that calls decide(), and a simulated host."""
    fleet, guests, storage = simulation(checkout)
    chance = Random(drives)
    found = []
    disks = -(-drives // DRIVES_A_DISK)
    for number in range(drives):
        policy = guests.DrivePolicy(
            chance.choice((0, 0, 100, 300)),
            chance.choice((None, 1000, 4000)),
            None,
            weight=chance.choice((50, 100, 200)),
        )
        phases = guests.switching(number, RATES, MEAN_PHASE_S)
        found.append(guests.Guest(f"g{number}", policy, phases, number % disks, exact=exact))
    disk = storage.Disk(storage.StoragePolicy(CAPACITY), storage.steady(CAPACITY), 0.0001, 4.0)
    return fleet, fleet.Fleet(found, [disk] * disks)


def timed(decide: Callable[..., Any], into: list[int]) -> Callable[..., Any]:
    """Return decide() with the CPU time of each call noted, in ns."""

    def call(*arguments: Any) -> Any:
        before = time.thread_time_ns()
        result = decide(*arguments)
        into.append(time.thread_time_ns() - before)
        return result

    return call


def main() -> None:
    """Measure one checkout's law in this process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--drives", type=int, default=1000)
    parser.add_argument("--ticks", type=int, default=60)
    parser.add_argument("--exact", action="store_true", help="drives of a QEMU with cost curves")
    options = parser.parse_args()
    checkout = options.checkout.resolve()
    found = find_spec("iokeel")
    if found is None or not str(found.origin).startswith(f"{checkout}/"):
        sys.exit(f"start this with {checkout}/.venv/bin/python")
    fleet, simulated = host(checkout, options.drives, options.exact)
    if not hasattr(fleet, "decide"):
        sys.exit(f"{fleet.__file__} does not import decide by that name")
    simulated.run(WARM_UP_TICKS)
    gc.disable()
    calls: list[int] = []
    vars(fleet)["decide"] = timed(fleet.decide, calls)
    ticks = []
    for _ in range(options.ticks):
        # A tick may look twice: both calls count.
        calls.clear()
        simulated.run(1)
        ticks.append(sum(calls) / 1000 / options.drives)
    print(json.dumps({"us_per_drive_and_tick": ticks}))


if __name__ == "__main__":
    main()
