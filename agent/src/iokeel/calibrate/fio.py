"""The edge to fio: one job run, and what came of it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

from iokeel.errors import CalibrationError
from iokeel.words.quoting import shown
from iokeel.words.units import size

_WINDOW_S = 0.5
# A window is never written in time; one after the end is later by a window.
_LATE_MS = 100
_P99 = "99.000000"
# A hard disk that reads a block again and again, or empties its write buffer, takes this long.
_PATIENCE_S = 180.0
_ERROR = re.compile(r"io_u error on file [^\n]*: ([^:\n]*): (read|write) offset=(\d+)")
_REFUSED = re.compile(r"func=([^,\n]*), error=([^:\n]*)")
_LOOK = "see the kernel's log and the device's health"
_NOT_DIRECT = re.compile("does not support direct=1|direct=1/buffered=0")


@dataclass(frozen=True, slots=True)
class Job:
    """What fio is to do: requests of one size, at one depth, for a time.

    depth: requests kept in flight, by all threads together. ramp_s: time before counting.
    """

    write: bool
    sequential: bool
    size_bytes: int
    depth: int
    seconds: float
    ramp_s: float

    @property
    def window_s(self) -> float:
        """The time over which each of a run's rates is counted."""
        return min(_WINDOW_S, self.seconds)

    def __str__(self) -> str:
        order = "sequential" if self.sequential else "random"
        return f"{order} {size(self.size_bytes)} {'writes' if self.write else 'reads'}"


@dataclass(frozen=True, slots=True)
class Run:
    """What a job did: rate, latency from submission to completion, and rates by window.

    busy_ratio: processor time of fio's busiest thread, of one processor.
    """

    job: Job
    raw_iops: float
    latency_s: float
    latency_p99_s: float
    window_iops: tuple[float, ...]
    busy_ratio: float


@dataclass(frozen=True, slots=True)
class Fio:
    """fio, and what it runs on.

    name: what errors call the storage. where: the options that name it to fio. region_bytes: the
    part of it that is used, from its start; 0 for all of it. threads: how many submit, at most.
    """

    name: str
    where: tuple[str, ...]
    region_bytes: int
    threads: int = 1
    pass_fds: tuple[int, ...] = ()

    def run(self, job: Job) -> Run:
        """Run a job to its end. Raises CalibrationError where it fails, or where fio does."""
        # A stream has one reader: of several, each would find what another has just read.
        threads = 1 if job.sequential else min(self.threads, job.depth)
        options = [
            f"--rw={'' if job.sequential else 'rand'}{'write' if job.write else 'read'}",
            f"--bs={job.size_bytes}",
            f"--iodepth={-(-job.depth // threads)}",
            f"--numjobs={threads}",
            "--time_based",
            f"--runtime={round(1000 * job.seconds)}ms",
            f"--ramp_time={round(1000 * job.ramp_s)}ms",
            # A map of blocks done costs memory and time; repeats are as good here.
            "--norandommap",
            "--randrepeat=0",
            f"--log_avg_msec={round(1000 * job.window_s)}",
        ]
        if job.write:  # or the next run would wait for what this one has left in a write buffer
            options.append("--end_fsync=1")
        options += self._part(job)
        with tempfile.TemporaryDirectory(prefix="iokeel-calibrate-") as folder:
            options.append(f"--write_iops_log={folder}/log")
            output = self._fio(options, Path(folder), job.seconds + job.ramp_s)
            windows = [*_windows(Path(folder).glob("log_iops*.log"), job.seconds)]
            return _run(job, output, windows)

    def _part(self, job: Job) -> Iterator[str]:
        """Yield the options for the part of the storage to use.

        A stream begins anywhere near the middle: what the one before has read, a storage may have.
        """
        start = random.randrange(40, 60) if job.sequential else 0
        if not self.region_bytes:  # an export, whose size only fio knows
            yield f"--offset={start}%"
            return
        begin = self.region_bytes * start // 100 // job.size_bytes * job.size_bytes
        yield f"--offset={begin}"
        yield f"--size={self.region_bytes - begin}"

    def fill(self, start: int, count: int) -> None:
        """Fill `count` bytes from `start` on with random data, and have them on the medium."""
        options = [
            "--rw=write",
            "--bs=1m",
            "--iodepth=8",
            f"--offset={start}",
            f"--size={count}",
            "--refill_buffers",
            "--fallocate=none",
            "--end_fsync=1",
        ]
        with tempfile.TemporaryDirectory(prefix="iokeel-calibrate-") as folder:
            self._fio(options, Path(folder), 600.0)

    def _fio(self, options: Sequence[str], folder: Path, seconds: float) -> Mapping[str, Any]:
        output = folder / "output"
        words = [
            *("fio", "--name=iokeel", "--direct=1", "--thread", "--group_reporting"),
            *("--output-format=json+", f"--output={output}", "--lat_percentiles=1"),
            *("--clat_percentiles=0", "--percentile_list=50:99", *self.where, *options),
        ]
        status, said = _ran(words, folder, self.pass_fds, seconds + _PATIENCE_S, self.name)
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = output.read_text()
            values: Mapping[str, Any] = json.loads(text[text.index("{") :])
            error = values["jobs"][0]["error"]
            # All was written, to a storage that knows no flush: an NBD server may not.
            unflushed = error == errno.EINVAL and "end_fsync failed" in said
            if (status == 0 and not error) or unflushed:
                return values
        raise self._failed(said)

    def _failed(self, said: str) -> CalibrationError:
        error = _ERROR.search(said)
        if error is not None:
            reason, verb, offset = error.groups()
            what = f"a {verb} at offset {offset} failed, {reason}"
            if "space" in reason:
                return CalibrationError(self.name, what, "make room, or give a smaller --size")
            return CalibrationError(self.name, what, _LOOK)
        if _NOT_DIRECT.search(said):
            mend = "calibrate the device or filesystem beneath it"
            return CalibrationError(self.name, "can't be read past the cache (O_DIRECT)", mend)
        if "nbd_connect" in said or "nbd_" in said:
            what = f"can't be used, {shown(_last(said))}"
            return CalibrationError(self.name, what, "see that the server runs and has this export")
        if "engine" in said and "not" in said:
            what = f"has no engine for this, {shown(_last(said))}"
            return CalibrationError("fio", what, "install your distribution's complete fio")
        if (refused := _REFUSED.search(said)) is not None:
            call, reason = refused.groups()
            return CalibrationError(self.name, f"fio's {call} failed, {reason}", _LOOK)
        return CalibrationError(self.name, f"fio failed, {shown(_last(said))}", _LOOK)


def version() -> str:
    """Return fio's version. Raises CalibrationError where there is no fio."""
    try:
        done = subprocess.run(["fio", "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        raise CalibrationError("fio", "is not there", "install it (apt-get install fio)") from None
    return done.stdout.strip()


def _ran(
    words: Sequence[str], folder: Path, pass_fds: Sequence[int], seconds: float, name: str
) -> tuple[int, str]:
    """Run fio in a process group of its own, which ends with this call however it ends."""
    with (folder / "said").open("w+b") as said:
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                pass_fds=pass_fds,
                start_new_session=True,
                cwd=folder,
            )
        except OSError:
            raise CalibrationError("fio", "is not there", "install it") from None
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            what = "doesn't answer any more"
            raise CalibrationError(name, what, "see the kernel's log") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # in a call that can't be ended
                process.wait(5)
        said.seek(0)
        return status, said.read().decode(errors="replace")


def _run(job: Job, output: Mapping[str, Any], windows: Sequence[float]) -> Run:
    done = output["jobs"][0]
    did = done["write" if job.write else "read"]
    latency = did["lat_ns"]
    # fio's own rate counts the time too in which it only waits for the last requests.
    rates = tuple(windows) if any(windows) else (did["iops"],)
    return Run(
        job,
        fmean(rates),
        latency["mean"] / 1e9,
        latency.get("percentile", {}).get(_P99, latency["max"]) / 1e9,
        rates,
        (done["usr_cpu"] + done["sys_cpu"]) / 100,
    )


def _windows(logs: Iterator[Path], seconds: float) -> Iterator[float]:
    """Yield the rate in each window, all threads together. A line: time in ms, rate, ..."""
    threads = [
        [
            float(rate)
            for time_ms, rate, *_ in (line.split(",") for line in log.read_text().splitlines())
            if float(time_ms) <= 1000 * seconds + _LATE_MS
        ]
        for log in logs
    ]
    for window in zip_longest(*threads):
        if None not in window:
            yield sum(window)


def _last(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1].removeprefix("fio: ") if lines else "it says nothing"
