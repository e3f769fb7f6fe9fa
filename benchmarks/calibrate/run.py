"""Does `iokeel calibrate` find a disk's capacity, costs and latency?

    python -m benchmarks.calibrate.run [DISK...] [--repeats N] [--add]

Calibrates the three simulated disks over NBD as an operator would, several times, and compares the
figures with the disks' rules, which the tests of disksim have in Python (rules.py): the rate with
so many requests always in the disk, and the latency of requests that arrive at random. Writes
results/calibrate.json, and for each disk results/calibrate-NAME.png, and prints a table:

- capacity: the median, lowest and highest of the repeats; and by the rules with 512 requests always
  in the disk;
- rate: the largest error of a rate measured at saturation, of all sizes, by the rules at the same
  depth;
- curve: the largest error of the rate that capacity and curve foretell for a size, by the rules
  with 512 requests;
- latency: calibrate's for 80 % of saturation, over that of random arrivals by the rules, for reads
  of 4 KiB and of 1 MiB;
- law: latency of 1 MiB reads that arrive at random at 80 % of saturation, by the rules, over the
  one that the control law allows them with the proposed target. Much above 1, the law would take a
  disk that is well for one that is overloaded;
- mixes: the same ratio for mixes of 4 KiB and larger reads, the least and the most.

Rates and latencies are those of the disk at its slowdown: its times are stretched if a machine is
too slow for it.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from statistics import median

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks import result_file
from benchmarks.calibrate.rows import Compared, Disk, Found, Latency, Result, Size
from benchmarks.calibrate.rules import (
    DEEPEST,
    LOAD_RATIO,
    closed_rate,
    mixes,
    open_latency_s,
)
from iokeel.core.fitting import SPREAD_RATIO
from iokeel.core.measure.storage import storage_strain
from iokeel.core.values.curve import KIB
from iokeel.core.values.storage import StorageActivity, StoragePolicy
from testing.lab.disks.nbdkit import Nbdkit

RESULT = result_file.RESULTS / "calibrate.json"
#: What each disk's times are stretched by.
DISKS = {"hdd-hts72755": 1.0, "sata-ssd-px-256m5s": 4.0, "nvme-970-pro": 20.0}
LARGE_READS = "random 1 MiB reads"
KINDS = {"random 4 KiB reads": 4 * KIB, LARGE_READS: KIB**2}

out = Console(highlight=False)


def calibrated(disk: str, slowdown: float, seconds: float) -> Found:
    """Return the output of `iokeel calibrate` for a disk."""
    with Nbdkit(disk, slowdown=slowdown) as server:
        plot = result_file.RESULTS / f"calibrate-{disk}.png"
        words = [sys.executable, "-m", "iokeel", "calibrate", server.uri, "--destroy-data"]
        words += ["--json", f"--plot={plot}", f"--name={disk}", "--quick", f"--seconds={seconds}"]
        done = subprocess.run(words, stdout=subprocess.PIPE, check=True)
    return msgspec.json.decode(done.stdout, type=Found)


def compared(disk: str, slowdown: float, found: Found) -> Compared:
    """Return a calibration beside the disk's rules."""
    latencies = {}
    for name, size in KINDS.items():
        rate = LOAD_RATIO * closed_rate(disk, "read", size, DEEPEST)
        by_rules_s = slowdown * open_latency_s(disk, "read", {size: rate})
        latencies[name] = Latency(found.latency_at_load_ms[name], 1e3 * by_rules_s)
    sizes = list(_sizes(disk, slowdown, found))
    (dearest,) = (s.cost for s in sizes if s.kind == "read" and s.size_bytes == KIB**2)
    policy = StoragePolicy(found.capacity, found.latency_target_ms)
    latency_s = latencies[LARGE_READS].by_rules_ms / 1e3
    activity = StorageActivity(
        1.0, 1.0, latency_s, 1.0, 1.0, mean_cost=dearest, served_cost=dearest
    )
    return Compared(
        large_strain=storage_strain(policy, activity),
        capacity=found.capacity,
        by_rules_capacity=closed_rate(disk, "read", 4 * KIB, DEEPEST) / slowdown,
        latency_target_ms=found.latency_target_ms,
        curve_read=found.curve_read,
        curve_write=found.curve_write,
        warnings=found.warnings,
        sizes=sizes,
        latencies=latencies,
    )


def _sizes(disk: str, slowdown: float, found: Found) -> Iterator[Size]:
    for one in found.series:
        if one.order == "sequential":
            continue
        by_rules, deepest = (
            closed_rate(disk, one.kind, one.size_bytes, depth) / slowdown
            for depth in (one.depth, DEEPEST)
        )
        steadiness = one.steadiness
        yield Size(
            kind=one.kind,
            size_bytes=one.size_bytes,
            depth=one.depth,
            cost=one.cost,
            raw_iops=one.raw_iops,
            by_rules_iops=by_rules,
            rate_error_ratio=one.raw_iops / by_rules - 1,
            deepest_by_rules_iops=deepest,
            curve_error_ratio=found.capacity / one.cost / deepest - 1,
            steady=steadiness.modes is None and steadiness.spread_ratio <= SPREAD_RATIO,
        )


def table(result: Result) -> Table:
    """Return the figures of all disks."""
    shown = Table(title="Simulated disks, calibrated")
    shown.add_column("disk")
    for heading in ("x", "capacity", "by the rules", "rate r", "rate w", "curve r", "curve w"):
        shown.add_column(heading, justify="right")
    for heading in ("latency 4K, 1M", "law", "mixes"):
        shown.add_column(heading, justify="right")
    for disk, rows in result.mixes.items():
        found = result.devices.get(disk)
        cells = ["-"] * 9 if found is None else _cells(found)
        strains = [row.strain for row in rows]
        shown.add_row(disk, *cells, f"{min(strains):.2f} to {max(strains):.2f}")
    return shown


def _cells(found: Disk) -> list[str]:
    repeats = found.repeats
    capacities = [one.capacity for one in repeats]
    strains = [one.large_strain for one in repeats if one.large_strain is not None]
    sizes = [row for one in repeats for row in one.sizes]
    reads, writes = ([row for row in sizes if row.kind == kind] for kind in ("read", "write"))
    return [
        f"{found.slowdown:g}",
        f"{median(capacities):.0f} ({min(capacities)} to {max(capacities)})",
        f"{repeats[0].by_rules_capacity:.0f}",
        *(_worst([row.rate_error_ratio for row in rows]) for rows in (reads, writes)),
        *(_worst([row.curve_error_ratio for row in rows]) for rows in (reads, writes)),
        ", ".join(f"{_latency_ratio(repeats, kind):.2f}" for kind in KINDS),
        f"{median(strains):.2f}" if strains else "-",
    ]


def _worst(errors: Sequence[float]) -> str:
    return f"{100 * max(errors, key=abs):+.1f} %"


def _latency_ratio(repeats: Sequence[Compared], kind: str) -> float:
    latencies = [one.latencies[kind] for one in repeats]
    return median(one.reckoned_ms for one in latencies) / latencies[0].by_rules_ms


def main() -> None:
    """Calibrate the disks. Writes the result after each."""
    parser = argparse.ArgumentParser(description=result_file.question(__doc__))
    parser.add_argument("disk", nargs="*", choices=[*DISKS, []], help="default: all three")
    parser.add_argument("--repeats", type=int, default=3, help="0: mixes only")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a run")
    parser.add_argument("--add", action="store_true", help="keep the earlier repeats")
    options = parser.parse_args()
    result = result_file.read(RESULT, Result) if RESULT.exists() else Result()
    result.kernel, result.seconds = platform.release(), options.seconds
    for disk in options.disk or DISKS:
        result.mixes[disk] = mixes(disk)
        slowdown = DISKS[disk]
        known = result.devices.get(disk) if options.add else None
        repeats = list(known.repeats) if known else []
        for number in range(options.repeats):
            out.print(f"{disk}, {number + 1} of {options.repeats}")
            found = calibrated(disk, slowdown, options.seconds)
            repeats.append(compared(disk, slowdown, found))
            result.fio = found.fio
        if repeats:
            result.devices[disk] = Disk.of(slowdown, repeats)
        result_file.write(RESULT, result)
    out.print(table(result))


if __name__ == "__main__":
    main()
