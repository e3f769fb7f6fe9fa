"""What a run leaves: the figures of its drives, and the result file that holds all runs.

Rates and latencies are those of the disk at the scenario's slowdown.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks import result_file
from benchmarks.bench.errors import BenchError
from testing.lab.cache import cache_dir

VERSION = 1
PREFIX = "bench-"
#: A run is disturbed if the hypervisor took this much of the processors' time or more.
STOLEN_RATIO = 0.02
_NUMBERS = re.compile(r"\[[\d\s.,e+-]+\]")


class DriveRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """One drive in one run.

    rate: normalized operations a second, over the measured time [begin_s, seconds). bytes,
    requests: of the whole run. bytes_measured, latency_*: of requests that ended in the measured
    time. by_second: normalized operations in each second from the start on. finished_s: when its
    last request ended, of a drive that has a fixed amount to do; None: it has none, or hadn't done
    it. fio_sys_s: fio's processor time in the kernel.
    """

    rate: float
    bytes: int
    bytes_measured: int | None = None
    requests: int | None = None
    latency_mean_ms: float | None = None
    latency_p99_ms: float | None = None
    latency_max_ms: float | None = None
    by_second: list[float] | None = None
    finished_s: float | None = None
    fio_sys_s: float | None = None


class Run(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run.

    stolen_ratio: the part of the processors' time that the hypervisor took. qemu: the storage
    daemon, from `daemon_name`. rule: which of its controller's rules held the drives.
    """

    drives: dict[str, DriveRun]
    stolen_ratio: float | None = None
    control_cpu_s: float | None = None
    qemu: str | None = None
    when: str | None = None
    rule: int = 1

    @property
    def disturbed(self) -> bool:
        """Whether its times may be the hypervisor's, not those of the disk and its control."""
        return (self.stolen_ratio or 0.0) >= STOLEN_RATIO


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a drive is promised, and when its load changes, in seconds from the start.

    from_s: when its load begins. file_bytes: the length of the file that it reads over and over, if
    it does. credit_s: how long its burst may last once figures begin.
    """

    owed: float
    weight: int = 100
    reservation: float | None = None
    shifts_s: list[float] = []
    file_bytes: int | None = None
    credit_s: float | None = None
    from_s: float = 0.0


class Case(msgspec.Struct, frozen=True):
    """A case's runs by controller, one for each repeat, and what its drives are promised."""

    plans: dict[str, Plan]
    runs: dict[str, list[Run]]

    def rules(self, controller: str) -> set[int]:
        """Return by which of its rules a controller's runs are."""
        return {run.rule for run in self.runs.get(controller, [])}


class Setup(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a result came about. digest: of what the scenario runs; None: of a file before digests.

    load_before: the machine's mean load in the minute before the first run. own_seeds: each repeat
    has seeds of its own.
    """

    scenario: str
    device: str
    slowdown: float
    seconds: float
    begin_s: float
    shortened: float = 1.0
    digest: str | None = None
    host: result_file.Machine | None = None
    cpu: str | None = None
    kernel: str | None = None
    revision: str | None = None
    programs: dict[str, str] = {}
    load_before: float | None = None
    own_seeds: bool = False

    @property
    def window_s(self) -> int:
        """A second of the disk's own time, or a little more: whole seconds, 1 or more.

        A scheduler that gives the disk to one drive at a time is stretched as the disk is: in a
        shorter time, its others do nothing.
        """
        return max(1, math.ceil(self.slowdown))


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """A result file. lacking: why a controller has no runs."""

    version: int
    setup: Setup
    cases: dict[str, Case]
    lacking: dict[str, str] = {}


@dataclass(frozen=True)
class _Version:
    version: int


def path_of(folder: Path, scenario: str) -> Path:
    """Return the file of a scenario's result."""
    return folder / f"{PREFIX}{scenario}.json"


def read(path: Path) -> Result:
    """Read a result. Raises BenchError if it is none, or one of another version."""
    try:
        content = path.read_bytes()
        found = msgspec.json.decode(content, type=_Version).version
        if found != VERSION:
            raise BenchError(
                str(path),
                f"it is of version {found}, this program reads {VERSION}",
                "run the scenario again with --fresh, or use the checkout that wrote it",
            )
        return msgspec.json.decode(content, type=Result)
    except FileNotFoundError as error:
        raise BenchError(str(path), "there is no result", "run the scenario first") from error
    except msgspec.DecodeError as error:
        raise BenchError(
            str(path), f"it is no result of iokeel-bench ({error})", "remove it, or name another"
        ) from error


def read_all(folder: Path) -> dict[str, Result]:
    """Return a folder's results by scenario."""
    files = sorted(folder.glob(f"{PREFIX}*.json"))
    return {file.stem.removeprefix(PREFIX): read(file) for file in files}


def write(path: Path, result: Result) -> None:
    """Write a result, all of it or nothing, so that an interruption leaves the one before."""
    unfinished = path.with_suffix(".unfinished")
    try:
        unfinished.write_text(rounded(result))
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        mend = "make room and run the same command again: it goes on where it was"
        raise BenchError(str(path), error.strerror or str(error), mend) from error


def rounded(result: object) -> str:
    """Return a result as JSON, with lists of numbers in one line."""
    text = json.dumps(kept(result), indent=1) + "\n"
    return _NUMBERS.sub(lambda found: " ".join(found[0].split()), text)


def kept(what: object) -> object:
    """Return what a file keeps of this: its numbers are as exact as a measurement is."""

    def short(value: object) -> object:
        if isinstance(value, float):
            return float(f"{value:.5g}")
        if isinstance(value, dict):
            return {key: short(each) for key, each in value.items()}
        if isinstance(value, list):
            return [short(each) for each in value]
        return value

    return short(msgspec.to_builtins(what))


def daemon_of(setup: Setup) -> Path | None:
    """Return the storage daemon of a result's runs; None: it wasn't noted."""
    names = [name for name in setup.programs if name != "fio"]
    return cache_dir() / names[0] if names else None


def daemon_name(daemon: Path) -> str:
    """Return how results name a storage daemon: by its path, within the cache if it is there."""
    cache = cache_dir()
    return str(daemon.relative_to(cache) if daemon.is_relative_to(cache) else daemon)
