"""Measure the simulated disks: against published figures, and what 15 neighbours do to one reader.

    python -m benchmarks.disks.figures [--out FILE] [--quick] [figures|path|victims...]
    python -m benchmarks.disks.figures --table FILE --readme README

The result is one JSON file; --readme puts it as tables between the marks of a file. All rates and
times are the disk's: what fio saw, with the disk's slowdown taken out again.

- figures: each device's published rates, by fio over NBD on nbdkit.
- path: what the way to the disk adds at depth 1, and how many requests a second it carries.
- victims: the mean latency of 4K random reads at depth 1 while 15 others read or write in sequence.
  By `processes` on the block device, through the page cache where they stream, as published;
  and by `drives` of a storage daemon, each a sixteenth of the disk, in direct requests of 1 MiB.
"""

import argparse
import contextlib
import csv
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.readme import put_into
from testing.lab import qemu
from testing.lab.blkio import blkio_groups
from testing.lab.fio import fio
from testing.lab.nbdkit import Nbdkit
from testing.lab.shared_disk import SharedDisk

SLOWDOWN = {"hdd-hts72755": 1.0, "sata-ssd-px-256m5s": 4.0, "nvme-970-pro": 20.0}
OTHERS = 15
GIB = 1 << 30

Row = dict[str, Any]


class Figure(NamedTuple):
    """A published figure: the job that measures it, what it counts, and its value."""

    device: str
    name: str
    job: dict[str, object]
    unit: str
    published: float | None


def _random(rw: str, depth: int) -> dict[str, object]:
    return {"rw": f"rand{rw}", "bs": "4k", "iodepth": depth}


def _stream(rw: str, offset: str = "0") -> dict[str, object]:
    return {"rw": rw, "bs": "128k", "iodepth": 32, "offset": offset}


FIGURES = [
    # An access is the published seek of 12 ms and half a revolution of 8.33 ms.
    Figure("hdd-hts72755", "4K random reads, depth 1", _random("read", 1), "ms", 16.2),
    Figure("hdd-hts72755", "4K random reads, depth 32", _random("read", 32), "IOPS", None),
    Figure("hdd-hts72755", "reads in sequence, outer end", _stream("read"), "MB/s", None),
    Figure("hdd-hts72755", "reads in sequence, inner end", _stream("read", "460g"), "MB/s", None),
    Figure("hdd-hts72755", "writes in sequence, outer end", _stream("write"), "MB/s", None),
    Figure("sata-ssd-px-256m5s", "4K random reads, depth 1", _random("read", 1), "IOPS", None),
    Figure("sata-ssd-px-256m5s", "4K random reads, depth 32", _random("read", 32), "IOPS", 73000),
    Figure("sata-ssd-px-256m5s", "4K random writes, depth 1", _random("write", 1), "IOPS", None),
    Figure("sata-ssd-px-256m5s", "4K random writes, depth 32", _random("write", 32), "IOPS", 70000),
    Figure("sata-ssd-px-256m5s", "reads in sequence", _stream("read"), "MB/s", 520),
    Figure("sata-ssd-px-256m5s", "writes in sequence", _stream("write"), "MB/s", 390),
    Figure("nvme-970-pro", "4K random reads, depth 1", _random("read", 1), "IOPS", 15000),
    Figure("nvme-970-pro", "4K random reads, depth 32", _random("read", 32), "IOPS", None),
    Figure("nvme-970-pro", "4K random reads, depth 128", _random("read", 128), "IOPS", 370000),
    Figure("nvme-970-pro", "4K random writes, depth 1", _random("write", 1), "IOPS", 55000),
    Figure("nvme-970-pro", "4K random writes, depth 128", _random("write", 128), "IOPS", 500000),
    Figure("nvme-970-pro", "reads in sequence", _stream("read"), "MB/s", 3500),
    Figure("nvme-970-pro", "writes in sequence", _stream("write"), "MB/s", 2300),
]

PUBLISHED_VICTIMS = {
    ("nvme-970-pro", "readers", "none"): 1.9,
    ("nvme-970-pro", "readers", "bfq"): 0.07,
    ("sata-ssd-px-256m5s", "readers", "none"): 39,
    ("sata-ssd-px-256m5s", "readers", "bfq"): 0.74,
    ("hdd-hts72755", "readers", "none"): 4500,
    ("hdd-hts72755", "readers", "bfq"): 11,
    ("nvme-970-pro", "writers", "none"): 3,
    ("nvme-970-pro", "writers", "bfq"): 0.22,
    ("sata-ssd-px-256m5s", "writers", "none"): 3,
    ("sata-ssd-px-256m5s", "writers", "bfq"): 0.21,
    ("hdd-hts72755", "writers", "none"): 56,
    ("hdd-hts72755", "writers", "bfq"): 13,
}
"""Mean latency in ms, by device, neighbours and scheduler (P. Valente's comparison of io.latency
and BFQ, 2018)."""


def _spread(values: list[float]) -> Row:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def figures(repeats: int, quick: bool) -> Iterator[Row]:
    """Yield each published figure beside what the model does."""
    for figure in FIGURES:
        slowdown, values = SLOWDOWN[figure.device], []
        if figure.job["iodepth"] == 1 and slowdown > 1:
            slowdown *= 5  # so that the way to the disk adds little
        seconds = {"time_based": 1, "runtime": 2 if quick else 5, "ramp_time": 2}
        for _ in range(repeats):
            with Nbdkit(figure.device, slowdown=slowdown) as disk:
                nbd: dict[str, object] = {"ioengine": "nbd", "uri": disk.uri}
                [job] = fio(nbd | seconds | figure.job)
            way = job["read" if "read" in str(figure.job["rw"]) else "write"]
            values.append(
                {
                    "ms": way["lat_ns"]["mean"] / 1e6 / slowdown,
                    "IOPS": way["iops"] * slowdown,
                    "MB/s": way["bw_bytes"] / 1e6 * slowdown,
                }[figure.unit]
            )
        yield {
            "device": figure.device,
            "figure": figure.name,
            "unit": figure.unit,
            "slowdown": slowdown,
            "published": figure.published,
            **_spread(values),
            "values": values,
        }


def path(repeats: int, quick: bool) -> Iterator[Row]:
    """Yield what each way to the disk adds to a request and carries, in real time."""
    seconds: dict[str, object] = {"time_based": 1, "runtime": 2 if quick else 4}
    seconds |= {"rw": "randread", "bs": "4k", "size": "8g"}
    log = Path(f"/tmp/disksim-path-{os.getpid()}.log")

    def measured(way: str, depth: int, open_disk: Callable[[float, Path | None], Any]) -> float:
        # At depth 1 slowly, so that the machine is idle; at depth 64 as fast as it goes.
        slowdown = 20.0 if depth == 1 else 0.01
        with open_disk(slowdown, log if depth == 1 else None) as disk:
            target: dict[str, object] = {"ioengine": "nbd", "uri": disk.uri}
            if isinstance(disk, SharedDisk):
                target["uri"] = disk.uri(0) if way == "drive" else None
            if way == "device":
                target = {"ioengine": "libaio", "filename": disk.device, "direct": 1}
            [job] = fio(target | seconds | {"iodepth": depth})
        if depth > 1:
            return float(job["read"]["iops"])
        with log.open() as file:
            rows = [row for row in csv.DictReader(file) if row["length"] == "4096"]
        model = statistics.mean(int(row["done_ns"]) - int(row["arrival_ns"]) for row in rows)
        return float(job["read"]["lat_ns"]["mean"] - model * slowdown) / 1e3

    name = "nvme-970-pro"
    ways: dict[str, Callable[[float, Path | None], Any]] = {
        "nbdkit": lambda slowdown, log: Nbdkit(name, slowdown=slowdown, log=log),
        "device": lambda slowdown, log: SharedDisk(name, 0, slowdown=slowdown, log=log),
        "drive": lambda slowdown, log: SharedDisk(name, 16, slowdown=slowdown, log=log),
    }
    for way, open_disk in ways.items():
        added = [measured(way, 1, open_disk) for _ in range(repeats)]
        carried = [measured(way, 64, open_disk) for _ in range(repeats)]
        yield {"way": way, "added_us": _spread(added), "carried_iops": _spread(carried)}
    log.unlink(missing_ok=True)


def _others(kind: str, how: str) -> dict[str, object]:
    # Through the page cache a reader has its kernel's readahead in flight; a writer waits for
    # each MiB by fdatasync, as published.
    if how == "drives":
        return (
            {"rw": "read", "bs": "1m"}
            if kind == "readers"
            else {"rw": "write", "bs": "1m", "fsync": 1}
        )
    if kind == "readers":
        return {"rw": "read", "bs": "128k"}
    return {"rw": "write", "bs": "1m", "fdatasync": 1}


def _with_others(disk: SharedDisk, kind: str | None, how: str, scheduler: str, seconds: int) -> Row:
    clock: dict[str, object] = {"time_based": 1, "runtime": seconds, "size": GIB}

    def place(i: int) -> dict[str, object]:
        if how == "drives":
            return clock | {"ioengine": "nbd", "uri": disk.uri(i)}
        # The others side by side, as files that are made one after the other; the victim's file
        # elsewhere.
        offset = (i or 100) * GIB
        return clock | {"ioengine": "psync", "filename": disk.device, "offset": offset}

    victim = place(0) | {"rw": "randread", "bs": "4k"}
    if how == "processes":
        victim["direct"] = 1
    jobs = [victim]
    if kind:
        jobs += [place(i) | _others(kind, how) for i in range(1, OTHERS + 1)]
    weights = {"victim": 300} | {f"other{i}": 100 for i in range(1, OTHERS + 1)}
    with contextlib.ExitStack() as stack:
        if scheduler == "bfq":
            groups = list(stack.enter_context(blkio_groups(weights, weights)).values())
            jobs = [
                job | {"cgroup": group, "cgroup_nodelete": 1}
                for job, group in zip(jobs, groups, strict=False)
            ]
        Path("/proc/sys/vm/drop_caches").write_text("1")
        first, *rest = fio(*jobs)
    latency = first["read"]
    rate = sum(job[way]["bw_bytes"] for job in rest for way in ("read", "write"))
    return {
        "requests": latency["total_ios"],
        "mean_ms": latency["lat_ns"]["mean"] / 1e6 / disk.slowdown,
        "max_ms": latency["lat_ns"]["max"] / 1e6 / disk.slowdown,
        "others_mb_s": rate / 1e6 * disk.slowdown,
    }


def victims(repeats: int, quick: bool) -> Iterator[Row]:
    """Yield what neighbours do to one reader, by device, neighbours, scheduler and way."""
    disks: list[tuple[str, dict[str, Any]]] = [(device, {}) for device in SLOWDOWN]
    # The hard disk once more, with a patience that would explain what was published.
    disks.append(("hdd-hts72755", {"aging_ms": 4500}))
    for device, changed in disks:
        slowdown = SLOWDOWN[device]
        # Published are 2 s, on the hard disk 10.
        seconds = (12 if "hdd" in device else 6) // (2 if quick else 1)
        with SharedDisk(device, OTHERS + 1, slowdown=slowdown, **changed) as disk:
            for kind, how, scheduler in [
                (None, "processes", "none"),
                *((kind, how, s) for kind in ("readers", "writers")
                  for how, s in (("processes", "none"), ("processes", "bfq"), ("drives", "none"))),
            ][: 2 if changed else None]:  # fmt: skip
                disk.set_scheduler(scheduler)
                runs = [_with_others(disk, kind, how, scheduler, seconds) for _ in range(repeats)]
                yield {
                    "device": device,
                    "changed": changed,
                    "others": kind,
                    "how": how,
                    "scheduler": scheduler,
                    "slowdown": slowdown,
                    "published_mean_ms": PUBLISHED_VICTIMS.get((device, kind or "", scheduler)),
                    "mean_ms": _spread([run["mean_ms"] for run in runs]),
                    "others_mb_s": _spread([run["others_mb_s"] for run in runs]),
                    "runs": runs,
                }


BENCHMARKS = {f.__name__: f for f in (figures, path, victims)}


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _range(spread: Row) -> str:
    return f"{_number(spread['median'])} ({_number(spread['least'])} to {_number(spread['most'])})"


def tables(result: Row) -> str:
    """Return a result as Markdown."""
    lines: list[str] = []

    def table(header: str, rows: list[list[str]]) -> None:
        cells = header.split("|")
        lines.extend(["| " + " | ".join(cells) + " |", "|" + "---|" * len(cells)])
        lines.extend("| " + " | ".join(row) + " |" for row in rows)
        lines.append("")

    results = result["results"]
    if rows := results.get("figures"):
        lines += ["Published figures, and the model's (median of the runs, least to most):", ""]
        header = "device|figure|published|model|unit|slowdown"
        table(header, [[row["device"], row["figure"], _number(row["published"]), _range(row),
                        row["unit"], f"{row['slowdown']:g}"] for row in rows])  # fmt: skip
    if rows := results.get("victims"):
        names = [" ".join([row["device"], *(f"{k}={v}" for k, v in row["changed"].items())])
                 for row in rows]  # fmt: skip
        alone = {name: row for name, row in zip(names, rows, strict=True) if not row["others"]}
        lines += [
            "Mean latency in ms of 4K random reads at depth 1, alone and while 15 others read or "
            "write in sequence:",
            "",
        ]
        table("device|others|by|scheduler|published|model|alone|others' MB/s", [
            [name, row["others"], row["how"], row["scheduler"],
             _number(row["published_mean_ms"]) if row["how"] == "processes" else "-",
             _range(row["mean_ms"]), _number(alone[name]["mean_ms"]["median"]),
             _number(row["others_mb_s"]["median"])]
            for name, row in zip(names, rows, strict=True) if row["others"]])  # fmt: skip
    if rows := results.get("path"):
        lines += ["What the way to the disk adds at depth 1, and carries at depth 64:", ""]
        table("way|adds, µs|carries, 4K reads a second", [
            [row["way"], _range(row["added_us"]), _range(row["carried_iops"])]
            for row in rows])  # fmt: skip
    lines.append(
        f"{result['when'][:10]}, {result['host']['cpus']} cores, Linux {result['kernel']}, "
        f"{result['programs']['fio']}, {result['programs']['qemu-storage-daemon']}; "
        f"{result['repeats']} runs each; load before {result['load_before'][0]:.1f}."
    )
    return "\n".join(lines) + "\n"


def _said(*argv: str) -> str:
    run = subprocess.run(argv, capture_output=True, text=True, check=True)
    return run.stdout.splitlines()[0]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(BENCHMARKS)}; default: all")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/disksim.json"))
    parser.add_argument("--quick", action="store_true", help="one short run each")
    parser.add_argument("--table", type=Path, help="print a result")
    parser.add_argument("--readme", type=Path, help="put the result's tables into this file")
    arguments = parser.parse_args()
    if not arguments.table:
        if unknown := set(arguments.names) - set(BENCHMARKS):
            parser.error(f"unknown: {', '.join(unknown)}")
        result: Row = {"results": {}}
        if arguments.names and arguments.out.exists():  # the others stay
            result["results"] = json.loads(arguments.out.read_text())["results"]
        repeats = 1 if arguments.quick else 3
        result |= {
            "scenario": "disksim",
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "host": {"cpus": os.cpu_count(), "machine": platform.machine()},
            "kernel": platform.release(),
            "revision": _said("git", "describe", "--always", "--dirty"),
            "programs": {Path(program).name: _said(str(program), "--version")
                         for program in ("fio", "nbdkit", qemu.storage_daemon())},
            "load_before": os.getloadavg(),
            "repeats": repeats,
        }  # fmt: skip
        for name in arguments.names or BENCHMARKS:
            rows = result["results"][name] = []
            for row in BENCHMARKS[name](repeats, arguments.quick):
                rows.append(row)
                print(json.dumps(row), file=sys.stderr, flush=True)
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
        arguments.table = arguments.out
    text = tables(json.loads(arguments.table.read_text()))
    if arguments.readme:
        put_into(arguments.readme, text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
