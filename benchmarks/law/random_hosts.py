"""What does the agent's law keep of its promises on random hosts, and how fast is the simulation?

Runs the real law on many hosts of up to seven drives (sim/cases.py) whose guests change what they
do every 5 or 20 s, with and without faults, with disks of known capacity and such where that is
found by latency; and two large ones, a simulated day of 100 drives and an hour of 5,000, whose
guests switch on their own. Writes results/sim.json and prints a table of the worst, the 99th
percentile and the mean:

- miss_s: for how long a drive got less than 97 % of what it was owed and asked for, the longest;
- idle_s: for how long more than 5 % of a disk was idle although a drive wanted it, the longest;
- second: the most that a drive did in any second, over its limit or burst;
- sum: the most that a drive did from its start to any moment, over its limit and saved credit;
- changes: changes of limits for a drive and hour.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from iokeel.core.policy import DrivePolicy
from iokeel.core.sharing.storage import StoragePolicy
from testing.sim.cases import BASE_S, CAPACITY, KINDS, KNEE, SPARE, Case, case
from testing.sim.checks import changes, longest_idle, longest_miss, worst_second, worst_sum
from testing.sim.fleet import Faults, Record
from testing.sim.guests import Guest, switching
from testing.sim.storage import Disk, steady

RESULT = Path(__file__).resolve().parents[1] / "results/sim.json"
SECONDS = 80
LARGE = ((100, 86_400), (5_000, 3_600))  # drives, seconds
DRIVES_A_DISK = 50


def figures(host: Case, record: Record) -> dict[str, float]:
    """Return a run's figures, as the module's docstring says them."""
    return {
        "miss_s": longest_miss(host, record),
        "idle_s": longest_idle(host, record),
        "second": worst_second(host, record),
        "sum": worst_sum(host, record),
        "changes": changes(record, 0),
    }


def many(count: int, hold_s: int, *, exact: bool, target: bool, faults: bool) -> dict[str, Any]:
    """Return the worst, the 99th percentile and the mean over random hosts of one kind."""
    rows: list[dict[str, float]] = []
    seed = 0
    while len(rows) < count:
        host = case(Random(seed), SECONDS, hold_s, target=target, faults=faults)
        seed += 1
        if host.exact is exact:
            rows.append(figures(host, host.fleet().run(SECONDS)))
    return {
        name: {
            "worst": max(values),
            "p99": float(np.percentile(values, 99)),
            "mean": float(np.mean(values)),
        }
        for name in rows[0]
        for values in [[row[name] for row in rows]]
    }


def large(drives: int, seconds: int) -> dict[str, Any]:
    """Return what a large host did, and what the simulation took."""
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
    return {
        "drives": drives,
        "disks": disks,
        "seconds": seconds,
        "cpu_s": cpu_s,
        "us_a_drive_and_tick": cpu_s / drives / seconds * 1e6,
        **figures(host, record),
        "used": float(np.minimum(1, record.served.sum(axis=1) / CAPACITY / disks).mean()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hosts", type=int, default=200, help="of each kind")
    parser.add_argument("--only", choices=("many", "large"), help="what is there stays of the rest")
    args = parser.parse_args()
    result: dict[str, Any] = json.loads(RESULT.read_text())
    if args.only != "large":
        result |= {"seconds": SECONDS, "hosts": args.hosts, "kinds": []}
        either = (False, True)
        for exact, target, faults, hold_s in product(either, either, either, (5, 20)):
            kind = {"exact": exact, "target": target, "faults": faults, "hold_s": hold_s}
            found = many(args.hosts, hold_s, exact=exact, target=target, faults=faults)
            result["kinds"].append({**kind, **found})
            write(result)
            show(kind, found)
    if args.only != "many":
        result["large"] = []
        with ProcessPoolExecutor() as pool:
            for found in pool.map(large, *zip(*LARGE, strict=True)):
                result["large"].append(found)
                write(result)
                print(found, flush=True)
    return 0


def write(result: dict[str, Any]) -> None:
    """Write what there is so far: all of it takes hours."""
    RESULT.write_text(json.dumps(result, indent=1) + "\n")


def show(kind: dict[str, Any], found: dict[str, Any]) -> None:
    """Print a kind of host and its figures."""
    name = (
        f"{'exact' if kind['exact'] else 'stock'} every {kind['hold_s']:2} s"
        f"{' target' if kind['target'] else '       '}{' faults' if kind['faults'] else '       '}"
    )
    cells = [
        f"{figure} " + " ".join(f"{value:.4g}" for value in values.values())
        for figure, values in found.items()
    ]
    print(f"{name}  {'  '.join(cells)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
