"""fio's options of a scenario's jobs, as loads of a host in virtual time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.bench.errors import BenchError
from benchmarks.bench.scenario import Drive, Scenario, Stream
from benchmarks.bench.virtual.host import Load
from iokeel.words.units import parse_size
from testing.lab.fio import Job

#: What a job may have; it would be left out silently else.
_KNOWN = {
    *("rw", "rwmixread", "bs", "bssplit", "iodepth", "numjobs", "io_size", "size", "fsync"),
    *("offset_increment", "rate_iops", "thinktime", "thinktime_iotime"),
}


def loads(scenario: Scenario, drive: Drive, drive_bytes: int) -> Iterator[Load]:
    """Yield the loads of a drive. Raises BenchError for an option that has no meaning here."""
    for stream in drive.streams:
        job = stream.job
        if unknown := job.keys() - _KNOWN:
            what = f"virtual time doesn't know fio's option {min(unknown)}"
            raise BenchError(f"{scenario.name}: drive {drive.name}", what, "run it in real time")
        size = min(parse_size(str(job.get("size", drive_bytes))), drive_bytes)
        step = parse_size(str(job.get("offset_increment", 0)))
        for i in range(_int(job, "numjobs", 1)):
            yield _load(scenario, stream, (i * step) % drive_bytes, size)


def _load(scenario: Scenario, stream: Stream, offset: int, size: int) -> Load:
    job = stream.job
    way = str(job["rw"])
    reads = {"read": 1.0, "write": 0.0, "rw": 0.5}[way.removeprefix("rand")]
    if reads == 0.5:
        reads = _int(job, "rwmixread", 50) / 100
    return Load(
        depth=_int(job, "iodepth", 1),
        random=way.startswith("rand"),
        read_part=reads,
        sizes=_sizes(job),
        offset=offset,
        bytes=size,
        start_s=stream.start_s,
        end_s=min(stream.end_s or scenario.seconds, scenario.seconds),
        syncs=_int(job, "fsync", 0) == 1,
        amount_bytes=parse_size(str(job.get("io_size", 0))) if "io_size" in job else 0,
        busy_s=_seconds(job, "thinktime_iotime"),
        pause_s=_seconds(job, "thinktime"),
        rate=float(str(job.get("rate_iops", 0))),
    )


def _sizes(job: Job) -> tuple[Sequence[tuple[float, float]], Sequence[tuple[float, float]]]:
    """Return the sizes of reads and of writes, each with its weight."""
    if "bssplit" in job:
        parts = [part.split("/") for part in str(job["bssplit"]).split(":")]
        both = [(float(parse_size(size)), float(weight)) for size, weight in parts]
        return both, both
    read, _, write = str(job["bs"]).partition(",")
    return [(float(parse_size(read)), 1.0)], [(float(parse_size(write or read)), 1.0)]


def _int(job: Job, name: str, default: int) -> int:
    return int(str(job.get(name, default)))


def _seconds(job: Job, name: str) -> float:
    """Return a time such as "6s" in seconds; 0 if there is none."""
    return float(str(job.get(name, "0s")).removesuffix("s"))
