"""Does `iokeel calibrate` find what a disk is? On the three simulated disks, whose rules are known.

Calibrates each over NBD as an operator would, several times. What it has to find comes from the
disks' rules as the tests of disksim have them in Python (disksim/tests/reference.py): the rate with
so many requests kept in the disk, and the latency of requests that arrive at random. Writes
results/calibrate.json, and for each disk results/calibrate-NAME.png, and prints a table:

- capacity: what was found, the median, lowest and highest of the repeats; and by the rules, with a
  queue of 512 kept up;
- rate: the largest error of a rate measured at saturation, of all sizes, by the rules at the same
  depth;
- curve: the largest error of the rate that capacity and curve foretell for a size, by the rules
  with a queue of 512 kept up;
- latency: that reckoned for 80 % of saturation, over that of random arrivals by the rules, for
  reads of 4 KiB and of 1 MiB;
- law: latency of 1 MiB reads that arrive at random at 80 % of saturation, by the rules, over what
  the control law makes of the proposed target for them. Much above 1 the law would take a disk that
  is well for one that is overloaded;
- mixes: latencies of mixes of 4 KiB and larger reads at 80 % of saturation, by the rules, over what
  the law allows them: the least and the most.

Rates and latencies are those of the disk at its slowdown: where a machine is too slow for a disk,
its times are stretched.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.disksim.tests.reference import Command, Device, Flash, Hdd, serve
from iokeel.core.sharing.latency import storage_strain
from iokeel.core.sharing.storage import StorageActivity, StoragePolicy
from testing.lab.disksim import params
from testing.lab.nbdkit import Nbdkit

RESULTS = Path(__file__).resolve().parents[1] / "results"
DISKS = {"hdd-hts72755": 1.0, "sata-ssd-px-256m5s": 4.0, "nvme-970-pro": 20.0}
KIB = 1024
KINDS = {"random 4 KiB reads": 4 * KIB, "random 1 MiB reads": KIB**2}
DEEPEST = 512
LOAD_RATIO = 0.8
# Of the rules: requests whose rate is taken, and those before, until a write buffer is full.
COUNTED, BEFORE = 3_000, 1_000
BUFFERS_BEFORE = 3

out = Console(highlight=False)


# What the rules say


def closed_rate(disk: str, kind: str, size: int, depth: int) -> float:
    """Return the rate, in the disk's own time, with `depth` random requests kept in a disk."""
    device = _device(disk)
    dice = random.Random(f"{disk} {kind} {size} {depth}")
    before = BEFORE
    if kind == "write":
        before += int(BUFFERS_BEFORE * device.p["buffer_bytes"]) // size
    ends: list[int] = []
    finish = device.finish

    def submit() -> None:
        device.queue.append(_command(disk, kind, size, device.now, dice))
        device.let_in()

    def finished(command: Command, when: int) -> None:
        finish(command, when)
        ends.append(when)
        if len(ends) < before + COUNTED:
            device.at(when, submit)

    device.finish = finished  # type: ignore[method-assign]
    for _ in range(depth):
        device.at(0, submit)
    device.run_until(float("inf"))
    ends.sort()
    last = before + COUNTED - 1
    return 1e9 * (last - before) / (ends[last] - ends[before])


def open_latency_s(disk: str, kind: str, rates: Mapping[int, float]) -> float:
    """Return the mean latency, in the disk's own time, of random requests that arrive at random.

    rates: requests a second, by their size in bytes.
    """
    dice = random.Random(f"{disk} {kind} {rates}")
    at, commands = 0.0, []
    for _ in range(BEFORE + 10 * COUNTED):
        at += dice.expovariate(sum(rates.values()))
        (size,) = dice.choices(list(rates), list(rates.values()))
        commands.append(_command(disk, kind, size, int(1e9 * at), dice))
    serve(params(disk), commands)
    return mean(command.done - command.arrival for command in commands[BEFORE:]) / 1e9


def strains(disk: str) -> list[dict[str, float]]:
    """Return latencies of mixes of 4 KiB and larger reads, over what the control law allows them.

    By the rules, at 80 % of saturation, where the target is what 4 KiB reads alone take then.
    small_ratio: the 4 KiB reads' part of the cost.
    """
    capacity = closed_rate(disk, "read", 4 * KIB, DEEPEST)
    target_s = open_latency_s(disk, "read", {4 * KIB: LOAD_RATIO * capacity})
    policy = StoragePolicy(round(capacity), 1e3 * target_s)
    found = []
    for size in (16 * KIB, 64 * KIB, 256 * KIB, KIB**2):
        cost = capacity / closed_rate(disk, "read", size, DEEPEST)
        for part in (0.0, 0.1, 0.5, 0.9):
            small = LOAD_RATIO * capacity * part
            large = LOAD_RATIO * capacity * (1 - part) / cost
            latency_s = open_latency_s(disk, "read", {4 * KIB: small, size: large})
            mean_cost = (small + large * cost) / (small + large)
            served_cost = (small + large * cost**2) / (small + large * cost)
            activity = StorageActivity(1.0, 1.0, latency_s, 1.0, 1.0, mean_cost, served_cost)
            strain = storage_strain(policy, activity)
            assert strain is not None
            row = {"size_bytes": size, "small_ratio": part, "latency_ms": 1e3 * latency_s}
            found.append({**row, "strain": strain})
    return found


def _device(disk: str) -> Device:
    values = params(disk)
    return Hdd(values) if "rpm" in values else Flash(values)


def _command(disk: str, kind: str, size: int, now: int, dice: random.Random) -> Command:
    blocks = int(params(disk)["capacity"]) // size
    return Command(kind, False, dice.randrange(blocks) * size, size, now)


# What is found


def calibrated(disk: str, slowdown: float, options: Sequence[str]) -> dict[str, Any]:
    """Return what `iokeel calibrate` found of a disk."""
    with Nbdkit(disk, slowdown=slowdown) as server:
        plot = RESULTS / f"calibrate-{disk}.png"
        words = [sys.executable, "-m", "iokeel", "calibrate", server.uri, "--destroy-data"]
        words += ["--json", f"--plot={plot}", f"--name={disk}", *options]
        done = subprocess.run(words, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def compared(disk: str, slowdown: float, found: dict[str, Any]) -> dict[str, Any]:
    """Return what was found of a disk beside what its rules say."""
    rows = []
    for series in found["series"]:
        if series["order"] == "sequential":
            continue
        kind, size, depth = series["kind"], series["size_bytes"], series["depth"]
        by_rules, deepest = (closed_rate(disk, kind, size, d) / slowdown for d in (depth, DEEPEST))
        foretold = found["capacity"] / series["cost"]
        rows.append(
            {
                "kind": kind,
                "size_bytes": size,
                "depth": depth,
                "cost": series["cost"],
                "raw_iops": series["raw_iops"],
                "by_rules_iops": by_rules,
                "rate_error_ratio": series["raw_iops"] / by_rules - 1,
                "deepest_by_rules_iops": deepest,
                "curve_error_ratio": foretold / deepest - 1,
                "steady": series["steadiness"]["modes"] is None
                and series["steadiness"]["spread_ratio"] <= 0.15,
            }
        )
    latencies = {}
    for name, size in KINDS.items():
        rate = LOAD_RATIO * closed_rate(disk, "read", size, DEEPEST)
        latencies[name] = {
            "reckoned_ms": found["latency_at_load_ms"][name],
            "by_rules_ms": 1e3 * slowdown * open_latency_s(disk, "read", {size: rate}),
        }
    (dearest,) = (
        row["cost"] for row in rows if row["kind"] == "read" and row["size_bytes"] == KIB**2
    )
    policy = StoragePolicy(found["capacity"], found["latency_target_ms"])
    latency_s = latencies["random 1 MiB reads"]["by_rules_ms"] / 1e3
    activity = StorageActivity(
        1.0, 1.0, latency_s, 1.0, 1.0, mean_cost=dearest, served_cost=dearest
    )
    return {
        "large_strain": storage_strain(policy, activity),
        "capacity": found["capacity"],
        "by_rules_capacity": closed_rate(disk, "read", 4 * KIB, DEEPEST) / slowdown,
        "latency_target_ms": found["latency_target_ms"],
        "curve_read": found["curve_read"],
        "curve_write": found["curve_write"],
        "warnings": found["warnings"],
        "sizes": rows,
        "latencies": latencies,
    }


def chosen(slowdown: float, repeats: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the repeat whose capacity is the median, and all of them."""
    middle = sorted(repeats, key=lambda one: one["capacity"])[len(repeats) // 2]
    keys = ("capacity", "latency_target_ms", "curve_read", "curve_write")
    return {"slowdown": slowdown} | {key: middle[key] for key in keys} | {"repeats": repeats}


# Tables


def table(devices: dict[str, Any], mixes: dict[str, list[dict[str, float]]]) -> Table:
    shown = Table(title="Simulated disks, calibrated")
    shown.add_column("disk")
    for heading in ("x", "capacity", "by the rules", "rate r", "rate w", "curve r", "curve w"):
        shown.add_column(heading, justify="right")
    shown.add_column("latency 4K, 1M", justify="right")
    shown.add_column("law", justify="right")
    shown.add_column("mixes", justify="right")
    for disk, rows in mixes.items():
        cells = list(_cells(devices[disk])) if disk in devices else ["-"] * 9
        most = [row["strain"] for row in rows]
        shown.add_row(disk, *cells, f"{min(most):.2f} to {max(most):.2f}")
    return shown


def _cells(found: dict[str, Any]) -> Iterator[str]:
    repeats = found["repeats"]
    capacities = [one["capacity"] for one in repeats]
    yield f"{found['slowdown']:g}"
    yield f"{median(capacities):.0f} ({min(capacities)} to {max(capacities)})"
    yield f"{repeats[0]['by_rules_capacity']:.0f}"
    for error in ("rate_error_ratio", "curve_error_ratio"):
        for kind in ("read", "write"):
            rows = [row for one in repeats for row in one["sizes"] if row["kind"] == kind]
            yield f"{100 * max((row[error] for row in rows), key=abs):+.1f} %"
    yield ", ".join(f"{_latency_ratio(repeats, kind):.2f}" for kind in KINDS)
    yield f"{median(one['large_strain'] for one in repeats):.2f}"


def _latency_ratio(repeats: Sequence[dict[str, Any]], kind: str) -> float:
    latencies = [one["latencies"][kind] for one in repeats]
    by_rules: float = latencies[0]["by_rules_ms"]
    return float(median(one["reckoned_ms"] for one in latencies)) / by_rules


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("disk", nargs="*", choices=[*DISKS, []], help="default: all three")
    parser.add_argument("--repeats", type=int, default=3, help="0: mixes only")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a run")
    parser.add_argument("--add", action="store_true", help="to the repeats that are there")
    args = parser.parse_args()
    result = RESULTS / "calibrate.json"
    whole = json.loads(result.read_text()) if result.exists() else {"devices": {}}
    whole |= {"kernel": platform.release(), "seconds": args.seconds}
    for disk in args.disk or DISKS:
        whole.setdefault("mixes", {})[disk] = strains(disk)
        slowdown = DISKS[disk]
        known = whole["devices"].get(disk) if args.add else None
        repeats = known["repeats"] if known else []
        for number in range(args.repeats):
            out.print(f"{disk}, {number + 1} of {args.repeats}")
            found = calibrated(disk, slowdown, ("--quick", f"--seconds={args.seconds}"))
            repeats.append(compared(disk, slowdown, found))
            whole["fio"] = found["fio"]
        if repeats:
            whole["devices"][disk] = chosen(slowdown, repeats)
        result.write_text(json.dumps(whole, indent=1) + "\n")
    out.print(table(whole["devices"], whole["mixes"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
