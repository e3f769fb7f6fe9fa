"""How long do 4K random reads at depth 1 take while 15 others read or write in sequence?

The others are processes on the block device, through the page cache when they stream, as
published; or drives of a storage daemon, each a sixteenth of the disk, in direct requests of 1 MiB.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench.scenario import load, names
from benchmarks.disks.published import HDD, SLOWDOWN
from benchmarks.disks.rows import Victim, VictimRun
from benchmarks.spread import Spread
from testing.lab.blkio import blkio_groups
from testing.lab.disks.shared_disk import SharedDisk
from testing.lab.fio import Job, fio

OTHERS = 15
GIB = 1 << 30
#: A hard disk's patience that would explain its published latency beside readers.
PATIENT_MS = 4500
#: The weights of the victim's and the others' cgroups under BFQ.
WEIGHTS = {"victim": 300} | {f"other{i}": 100 for i in range(1, OTHERS + 1)}
WAYS = (("processes", "none"), ("processes", "bfq"), ("drives", "none"))
ALONE = (None, "processes", "none")
BESIDE = tuple((others, *way) for others in ("readers", "writers") for way in WAYS)


def published_ms() -> dict[tuple[str, str, str], float]:
    """Return the published mean latencies, by device, others and scheduler."""
    found = {}
    for name in names():
        if (suite := load(name)).published and name.startswith("latency-"):
            others = name.rpartition("-")[2]
            for scheduler, values in suite.published.values.items():
                found[suite.cases[0].device, others, scheduler] = values[-1]
    return found


def victims(repeats: int, quick: bool) -> Iterator[Victim]:
    """Yield a reader's latency, by device, others, way and scheduler."""
    published = published_ms()
    disks: list[tuple[str, int | None]] = [(device, None) for device in SLOWDOWN]
    for device, aging_ms in (*disks, (HDD, PATIENT_MS)):
        slowdown = SLOWDOWN[device]
        # Published are 2 s, on the hard disk 10.
        seconds = (12 if device == HDD else 6) // (2 if quick else 1)
        with _disk(device, aging_ms) as disk:
            for others, how, scheduler in (ALONE, *BESIDE[: 1 if aging_ms else None]):
                disk.set_scheduler(scheduler)
                runs = [_run(disk, others, how, scheduler, seconds) for _ in range(repeats)]
                yield Victim(
                    device=device,
                    changed={"aging_ms": aging_ms} if aging_ms else {},
                    others=others,
                    how=how,
                    scheduler=scheduler,
                    slowdown=slowdown,
                    published_mean_ms=published.get((device, others or "", scheduler)),
                    mean_ms=Spread.of([run.mean_ms for run in runs]),
                    others_mb_s=Spread.of([run.others_mb_s for run in runs]),
                    runs=runs,
                )


def _disk(device: str, aging_ms: int | None) -> SharedDisk:
    slowdown = SLOWDOWN[device]
    if aging_ms is None:
        return SharedDisk(device, OTHERS + 1, slowdown=slowdown)
    return SharedDisk(device, OTHERS + 1, slowdown=slowdown, aging_ms=aging_ms)


def _run(disk: SharedDisk, others: str | None, how: str, scheduler: str, seconds: int) -> VictimRun:
    victim = {**_place(disk, how, 0, seconds), "rw": "randread", "bs": "4k"}
    if how == "processes":
        victim["direct"] = 1
    jobs = [victim]
    if others:
        load = _load(others, how)
        jobs += [{**_place(disk, how, i, seconds), **load} for i in range(1, OTHERS + 1)]
    with contextlib.ExitStack() as stack:
        if scheduler == "bfq":
            groups = list(stack.enter_context(blkio_groups(WEIGHTS, WEIGHTS)).values())
            jobs = [
                {**job, "cgroup": group, "cgroup_nodelete": 1}
                for job, group in zip(jobs, groups, strict=False)
            ]
        Path("/proc/sys/vm/drop_caches").write_text("1")
        first, *rest = fio(*jobs)
    latency = first["read"]
    rate = sum(job[way]["bw_bytes"] for job in rest for way in ("read", "write"))
    return VictimRun(
        requests=latency["total_ios"],
        mean_ms=latency["lat_ns"]["mean"] / 1e6 / disk.slowdown,
        max_ms=latency["lat_ns"]["max"] / 1e6 / disk.slowdown,
        others_mb_s=rate / 1e6 * disk.slowdown,
    )


def _place(disk: SharedDisk, how: str, i: int, seconds: int) -> dict[str, object]:
    """Return where the victim (0) or another does its I/O, and for how long."""
    clock: dict[str, object] = {"time_based": 1, "runtime": seconds, "size": GIB}
    if how == "drives":
        return {**clock, "ioengine": "nbd", "uri": disk.uri(i)}
    # The others side by side, as files that are made one after the other; the victim's file
    # elsewhere.
    offset = (i or 100) * GIB
    return {**clock, "ioengine": "psync", "filename": disk.device, "offset": offset}


def _load(others: str, how: str) -> Job:
    # Through the page cache a reader has its kernel's readahead in flight; a writer waits for
    # each MiB by fdatasync, as published.
    if others == "readers":
        return {"rw": "read", "bs": "1m" if how == "drives" else "128k"}
    return {"rw": "write", "bs": "1m", "fsync" if how == "drives" else "fdatasync": 1}
