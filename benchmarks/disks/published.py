"""Does a simulated disk reach its device's published rates? By fio over NBD on nbdkit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.disks.rows import Figure
from benchmarks.spread import Spread
from testing.lab.disks.nbdkit import Nbdkit
from testing.lab.fio import Job, fio

HDD, SATA, NVME = "hdd-hts72755", "sata-ssd-px-256m5s", "nvme-970-pro"
#: What each disk's times are stretched by, so that this machine keeps up with it.
SLOWDOWN = {HDD: 1.0, SATA: 4.0, NVME: 20.0}
_IDLE_SLOWDOWN = 5  # more at depth 1, so that the way to the disk adds little


class Published(NamedTuple):
    """A published figure, its unit, and the job that measures it."""

    device: str
    name: str
    job: Job
    unit: str
    value: float | None


def _random(rw: str, depth: int) -> Job:
    return {"rw": f"rand{rw}", "bs": "4k", "iodepth": depth}


def _stream(rw: str, offset: str = "0") -> Job:
    return {"rw": rw, "bs": "128k", "iodepth": 32, "offset": offset}


PUBLISHED = (
    # An access is the published seek of 12 ms and half a revolution of 8.33 ms.
    Published(HDD, "4K random reads, depth 1", _random("read", 1), "ms", 16.2),
    Published(HDD, "4K random reads, depth 32", _random("read", 32), "IOPS", None),
    Published(HDD, "reads in sequence, outer end", _stream("read"), "MB/s", None),
    Published(HDD, "reads in sequence, inner end", _stream("read", "460g"), "MB/s", None),
    Published(HDD, "writes in sequence, outer end", _stream("write"), "MB/s", None),
    Published(SATA, "4K random reads, depth 1", _random("read", 1), "IOPS", None),
    Published(SATA, "4K random reads, depth 32", _random("read", 32), "IOPS", 73000),
    Published(SATA, "4K random writes, depth 1", _random("write", 1), "IOPS", None),
    Published(SATA, "4K random writes, depth 32", _random("write", 32), "IOPS", 70000),
    Published(SATA, "reads in sequence", _stream("read"), "MB/s", 520),
    Published(SATA, "writes in sequence", _stream("write"), "MB/s", 390),
    Published(NVME, "4K random reads, depth 1", _random("read", 1), "IOPS", 15000),
    Published(NVME, "4K random reads, depth 32", _random("read", 32), "IOPS", None),
    Published(NVME, "4K random reads, depth 128", _random("read", 128), "IOPS", 370000),
    Published(NVME, "4K random writes, depth 1", _random("write", 1), "IOPS", 55000),
    Published(NVME, "4K random writes, depth 128", _random("write", 128), "IOPS", 500000),
    Published(NVME, "reads in sequence", _stream("read"), "MB/s", 3500),
    Published(NVME, "writes in sequence", _stream("write"), "MB/s", 2300),
)


def figures(repeats: int, quick: bool) -> Iterator[Figure]:
    """Yield each published figure beside the model's."""
    for one in PUBLISHED:
        slowdown = SLOWDOWN[one.device]
        if one.job["iodepth"] == 1 and slowdown > 1:
            slowdown *= _IDLE_SLOWDOWN
        values = [_measured(one, slowdown, 2 if quick else 5) for _ in range(repeats)]
        spread = Spread.of(values)
        yield Figure(
            device=one.device,
            figure=one.name,
            unit=one.unit,
            slowdown=slowdown,
            published=one.value,
            median=spread.median,
            least=spread.least,
            most=spread.most,
            values=values,
        )


def _measured(one: Published, slowdown: float, seconds: int) -> float:
    with Nbdkit(one.device, slowdown=slowdown) as disk:
        nbd = {"ioengine": "nbd", "uri": disk.uri}
        clock = {"time_based": 1, "runtime": seconds, "ramp_time": 2}
        [job] = fio({**nbd, **clock, **one.job})
    way = job["read" if "read" in str(one.job["rw"]) else "write"]
    measured: dict[str, float] = {
        "ms": way["lat_ns"]["mean"] / 1e6 / slowdown,
        "IOPS": way["iops"] * slowdown,
        "MB/s": way["bw_bytes"] / 1e6 * slowdown,
    }
    return measured[one.unit]
