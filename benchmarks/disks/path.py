"""What does the way to a simulated disk add at depth 1, and how many requests does it carry?"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterator
from pathlib import Path as File
from statistics import mean
from typing import Any

from benchmarks.disks.published import NVME
from benchmarks.disks.rows import Path
from benchmarks.spread import Spread
from testing.lab.disks.nbdkit import Nbdkit
from testing.lab.disks.shared_disk import SharedDisk
from testing.lab.fio import Job, fio

WAYS = ("nbdkit", "device", "drive")
DRIVES = 16
# Slowdowns: at depth 1 slowly, so that the machine is idle; at depth 64 as fast as it goes.
SLOW, FAST = 20.0, 0.01
DEEP = 64


def path(repeats: int, quick: bool) -> Iterator[Path]:
    """Yield the figures of each way, in real time."""
    seconds = 2 if quick else 4
    for way in WAYS:
        added = [_added_us(way, seconds) for _ in range(repeats)]
        carried = [_carried_iops(way, seconds) for _ in range(repeats)]
        yield Path(way, Spread.of(added), Spread.of(carried))


def _added_us(way: str, seconds: int) -> float:
    """Return how much longer a request takes than the disk's model says."""
    with tempfile.TemporaryDirectory(prefix="disksim-path-") as folder:
        log = File(folder) / "requests.csv"
        job = _run(way, SLOW, 1, seconds, log)
        with log.open() as file:
            rows = [row for row in csv.DictReader(file) if row["length"] == "4096"]
    model = mean(int(row["done_ns"]) - int(row["arrival_ns"]) for row in rows)
    return float(job["read"]["lat_ns"]["mean"] - model * SLOW) / 1e3


def _carried_iops(way: str, seconds: int) -> float:
    return float(_run(way, FAST, DEEP, seconds, None)["read"]["iops"])


def _run(way: str, slowdown: float, depth: int, seconds: int, log: File | None) -> dict[str, Any]:
    """Read 4K at random by one way; return fio's report."""
    reads: Job = {
        "time_based": 1, "runtime": seconds, "rw": "randread", "bs": "4k", "size": "8g",
        "iodepth": depth,
    }  # fmt: skip
    if way == "nbdkit":
        with Nbdkit(NVME, slowdown=slowdown, log=log) as server:
            [report] = fio({"ioengine": "nbd", "uri": server.uri, **reads})
            return report
    with SharedDisk(NVME, DRIVES if way == "drive" else 0, slowdown=slowdown, log=log) as disk:
        target: Job = {"ioengine": "nbd", "uri": disk.uri(0)} if way == "drive" else {
            "ioengine": "libaio", "filename": disk.device, "direct": 1
        }  # fmt: skip
        [report] = fio({**target, **reads})
        return report
