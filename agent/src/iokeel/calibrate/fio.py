"""Runs fio: a job, its process and the time it may take, and its output."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import random
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated

import msgspec

from iokeel.errors import CalibrationError
from iokeel.words.quoting import reason, shown, shown_path
from iokeel.words.units import size

# Rates are counted over windows of this length: several in a run, to see how they vary.
_WINDOW_S = 0.5
# The key of the 99th percentile, as fio writes it.
_P99 = "99.000000"
_WINDOW = re.compile(r" *([0-9]{1,15}), *([0-9]{1,15}(?:\.[0-9]{1,15})?) *(?:,|$)")
_REQUEST_FAILED = re.compile(
    r"io_u error on file [^\n]*: ([^:\n]*): (read|write) offset=(\d{1,19})"
)
_CALL_FAILED = re.compile(r"func=([^,\n]*), error=([^:\n]*)")
_NOT_DIRECT = re.compile(r"does not support direct=1|direct=1/buffered=0")
_CHECK_DEVICE = "check the kernel's log and the device's health"


_Positive = Annotated[float, msgspec.Meta(ge=0)]
# How long a run may take beyond its time. A hard disk that retries a bad block, or empties its
# write buffer, can take minutes.
_PATIENCE_S = 180.0
# How long one call of fill() may take, beside that. A call writes 64 MiB (target.py).
_FILL_S = 600.0
# The most that a request of fill() writes.
_FILL_BLOCK_BYTES = 1 << 20
# How long to wait for a killed fio. It can't end while it is stuck in a system call.
_KILL_S = 5.0
_FOLDER_PREFIX = "iokeel-calibrate-"


@dataclass(frozen=True, slots=True)
class Job:
    """Requests of one size, kept at one queue depth for a time.

    depth: requests in flight, of all threads together. ramp_s: time before counting begins.
    """

    write: bool
    sequential: bool
    size_bytes: int
    depth: int
    seconds: float
    ramp_s: float

    @property
    def window_s(self) -> float:
        """The time over which each of the result's window rates is counted."""
        return min(_WINDOW_S, self.seconds)

    @property
    def direction(self) -> str:
        """Return "read" or "write"."""
        return "write" if self.write else "read"

    @property
    def order(self) -> str:
        """Return "sequential" or "random"."""
        return "sequential" if self.sequential else "random"

    def __str__(self) -> str:
        return f"{self.order} {size(self.size_bytes)} {self.direction}s"


@dataclass(frozen=True, slots=True)
class JobResult:
    """A job's rate and latencies. Latency is from submission to completion.

    window_iops: the rate in each window. busy_ratio: the processor time of fio's busiest thread,
    as a part of one processor.
    """

    job: Job
    raw_iops: float
    latency_s: float
    latency_p99_s: float
    window_iops: tuple[float, ...]
    busy_ratio: float


class _Latency(msgspec.Struct):
    """Times in ns. percentile: absent if no request was counted."""

    mean: _Positive
    max: _Positive
    percentile: dict[str, _Positive] = {}


class _Direction(msgspec.Struct):
    iops: _Positive
    lat_ns: _Latency


class FioJob(msgspec.Struct):
    """One job of fio's JSON. usr_cpu, sys_cpu: processor time in percent. error: an errno.

    total_err: how many requests failed, or read other data than was expected.
    """

    error: int
    usr_cpu: _Positive
    sys_cpu: _Positive
    read: _Direction
    write: _Direction
    total_err: int = 0

    def result(self, job: Job, windows: Sequence[float]) -> JobResult:
        """Return the job's result. windows: the rate in each, from the logs."""
        direction = self.write if job.write else self.read
        latency = direction.lat_ns
        # fio's own rate also counts the time that it only waits for the last requests.
        rates = tuple(windows) if any(windows) else (direction.iops,)
        return JobResult(
            job,
            raw_iops=fmean(rates),
            latency_s=latency.mean / 1e9,
            latency_p99_s=latency.percentile.get(_P99, latency.max) / 1e9,
            window_iops=rates,
            busy_ratio=(self.usr_cpu + self.sys_cpu) / 100,
        )


class _Output(msgspec.Struct):
    jobs: list[FioJob]


def parsed(name: str, status: int, text: str, messages: str) -> FioJob:
    """Return fio's job.

    name: the storage's name in errors. status: fio's exit status. text: its output file, JSON after
    any notes. messages: its stdout and stderr. Raises CalibrationError if the job failed.
    """
    try:
        job = msgspec.json.decode(text[text.index("{") :], type=_Output).jobs[0]
    except (ValueError, RecursionError, IndexError):  # no JSON, or not fio's
        raise _failure(name, messages) from None
    # An NBD server may not support flushes; all data was written all the same.
    unflushed = job.error == errno.EINVAL and "end_fsync failed" in messages
    differs = job.error == errno.EILSEQ  # from what Fio.zero_ratio() expects
    if (status == 0 and (not job.error or differs)) or unflushed:
        return job
    raise _failure(name, messages)


def window_rates(logs: Iterable[str], seconds: float, window_s: float) -> list[float]:
    """Return the rate in each whole window of a run, summed over threads.

    logs: one text per thread, with lines of "time in ms, rate, ...". fio writes a line at the end
    of a window, a few ms early or late. It writes none for a window in which it finished nothing.
    Raises CalibrationError if a line isn't like that.
    """
    rates = [0.0] * int(seconds / window_s)
    for log in logs:
        for time_ms, rate in _lines(log):
            window = round(time_ms / 1000 / window_s)  # the first is 1
            if 1 <= window <= len(rates):
                rates[window - 1] += rate
    return rates


def _lines(log: str) -> Iterator[tuple[float, float]]:
    for line in log.splitlines():
        window = _WINDOW.match(line)
        if window is None:
            mend = "make room for temporary files (TMPDIR)"
            raise CalibrationError("fio's log", f"a line is {shown(line)}", mend)
        time_ms, rate = window.groups()
        yield float(time_ms), float(rate)


def request_error(name: str, direction: str, offset: int, reason: str) -> CalibrationError:
    """Return the error for a read or write that failed. reason: that of its errno, in words."""
    what = f"a {direction} at offset {offset} failed, {reason.lower()}"
    mend = "make room, or give a smaller --size" if "space" in reason else _CHECK_DEVICE
    return CalibrationError(name, what, mend)


def _failure(name: str, messages: str) -> CalibrationError:
    """Return the error for a failed job, from fio's messages."""
    if request := _REQUEST_FAILED.search(messages):
        reason, direction, offset = map(shown_path, request.groups())
        return request_error(name, direction, int(offset), reason)
    if _NOT_DIRECT.search(messages):
        mend = "calibrate the device or filesystem beneath it"
        return CalibrationError(name, "doesn't support direct I/O (O_DIRECT)", mend)
    last = _last_line(messages)
    if "nbd_" in messages:
        mend = "check that the server runs and has this export"
        return CalibrationError(name, f"can't be used, {last}", mend)
    if "engine" in messages and "not" in messages:
        mend = "install your distribution's complete fio"
        return CalibrationError("fio", f"lacks an I/O engine, {last}", mend)
    if call := _CALL_FAILED.search(messages):
        function, reason = map(shown_path, call.groups())
        return CalibrationError(name, f"fio's {function} failed, {reason.lower()}", _CHECK_DEVICE)
    return CalibrationError(name, f"fio failed, {last}", _CHECK_DEVICE)


def _last_line(messages: str) -> str:
    lines = [line.strip() for line in messages.splitlines() if line.strip()]
    return shown(lines[-1].removeprefix("fio: ")) if lines else "without a message"


@dataclass(frozen=True, slots=True)
class Fio:
    """fio, on one storage.

    name: the storage's name in errors. storage_options: the options that point fio at it.
    region_bytes: how much of it is used, from its start; 0: all of it. threads: the most threads
    that submit requests, rounded down to a power of two, as depths are. pass_fds: file descriptors
    that fio inherits.
    """

    name: str
    storage_options: tuple[str, ...]
    region_bytes: int
    threads: int = 1
    pass_fds: tuple[int, ...] = ()

    def run(self, job: Job) -> JobResult:
        """Run a job to its end. Raises CalibrationError if fio or the storage fails."""
        # A stream has one reader: of several, each would read what another has just cached.
        most = 1 if job.sequential else min(self.threads, job.depth)
        threads = 1 << (most.bit_length() - 1)
        # fio may end before it logs the last window, unless it goes on for a while.
        seconds = job.seconds + job.window_s / 2
        options = [
            f"--rw={'' if job.sequential else 'rand'}{job.direction}",
            f"--bs={job.size_bytes}",
            f"--iodepth={job.depth // threads}",
            f"--numjobs={threads}",
            "--time_based",
            f"--runtime={round(1000 * seconds)}ms",
            f"--ramp_time={round(1000 * job.ramp_s)}ms",
            # Repeated blocks do no harm here, and a map of those done costs memory and time.
            "--norandommap",
            "--randrepeat=0",
            f"--log_avg_msec={round(1000 * job.window_s)}",
        ]
        if job.write:  # else the next run would wait for the write buffer that this one filled
            options.append("--end_fsync=1")
        options += self._region_options(job)
        with _temporary_folder() as folder:
            options.append(f"--write_iops_log={folder}/log")
            output = self._fio(options, folder, seconds + job.ramp_s)
            logs = [log.read_text(errors="replace") for log in folder.glob("log_iops*.log")]
        rates = window_rates(logs, job.seconds, job.window_s)
        return output.result(job, rates)

    def zero_ratio(self, samples: int) -> float:
        """Return the part of the storage that reads as zeros, by so many blocks of 4 KiB."""
        options = [
            "--rw=randread",
            "--bs=4096",
            "--iodepth=1",
            "--randrepeat=0",
            "--norandommap",
            f"--number_ios={samples}",
            # fio counts the blocks that are other than it was told that it had written.
            "--verify=pattern",
            "--verify_pattern=0",
            "--continue_on_error=verify",
            "--offset=0",
            *([f"--size={self.region_bytes}"] if self.region_bytes else []),
        ]
        with _temporary_folder() as folder:
            return 1 - self._fio(options, folder, 0.0).total_err / samples

    def fill(self, start: int, count: int) -> None:
        """Write `count` bytes of random data from `start` on, and flush them to the medium."""
        options = [
            "--rw=write",
            # fio writes whole blocks only.
            f"--bs={math.gcd(count, _FILL_BLOCK_BYTES)}",
            "--iodepth=8",
            f"--offset={start}",
            f"--size={count}",
            "--refill_buffers",
            "--fallocate=none",
            "--end_fsync=1",
        ]
        with _temporary_folder() as folder:
            self._fio(options, folder, _FILL_S)

    def _region_options(self, job: Job) -> Iterator[str]:
        """Yield the options for the part of the storage to use.

        A stream starts somewhere near the middle, because the storage may have cached what the
        stream before it read.
        """
        start_percent = random.randrange(40, 60) if job.sequential else 0
        if not self.region_bytes:  # an export, whose size only fio knows
            yield f"--offset={start_percent}%"
            return
        start = self.region_bytes * start_percent // 100 // job.size_bytes * job.size_bytes
        yield f"--offset={start}"
        yield f"--size={self.region_bytes - start}"

    def _fio(self, options: Sequence[str], folder: Path, seconds: float) -> FioJob:
        output = folder / "output"
        command = [
            *("fio", "--name=iokeel", "--direct=1", "--thread", "--group_reporting"),
            *("--output-format=json+", f"--output={output}", "--lat_percentiles=1"),
            *("--clat_percentiles=0", "--percentile_list=50:99", *self.storage_options, *options),
        ]
        status, messages = self._finished(command, folder, seconds + _PATIENCE_S)
        text = output.read_text(errors="replace") if output.exists() else ""
        return parsed(self.name, status, text, messages)

    def _finished(self, command: Sequence[str], folder: Path, seconds: float) -> tuple[int, str]:
        """Run fio, and return its exit status and messages.

        It has a process group of its own, which ends with this call, however the call ends.
        """
        with (folder / "messages").open("w+b") as messages:
            process = None
            try:
                # An interrupt while fio is started would leave it behind: its id isn't known yet.
                with _interrupts_deferred():
                    process = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=messages,
                        stderr=messages,
                        pass_fds=self.pass_fds,
                        start_new_session=True,
                        cwd=folder,
                    )
                status = process.wait(seconds)
            except OSError as error:
                raise _not_started(error) from None
            except subprocess.TimeoutExpired:
                what = "stopped answering"
                raise CalibrationError(self.name, what, "check the kernel's log") from None
            finally:
                if process is not None:
                    _kill(process)
            messages.seek(0)
            return status, messages.read().decode(errors="replace")


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    try:
        with tempfile.TemporaryDirectory(prefix=_FOLDER_PREFIX) as folder:
            yield Path(folder)
    except OSError as error:
        what = f"can't be written, {reason(error)}"
        mend = "make room, or name another folder in TMPDIR"
        raise CalibrationError("temporary files", what, mend) from None


@contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Hold back the signals that end a calibration, and deliver them at the end.

    Call it from the main thread. Blocking them by a signal mask would not do: another thread would
    take them, and fio would inherit the mask.
    """
    held: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _: held.append(number))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if held:
        signal.raise_signal(held[0])


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_S)


def fio_version() -> str:
    """Return fio's version, as "fio-3.33". Raises CalibrationError if fio can't be started."""
    try:
        done = subprocess.run(["fio", "--version"], capture_output=True, text=True, check=True)
    except OSError as error:
        raise _not_started(error) from None
    except subprocess.CalledProcessError as error:
        what = f"--version fails with status {error.returncode}"
        raise CalibrationError(
            "fio", what, "install it anew (apt-get install --reinstall fio)"
        ) from None
    return done.stdout.strip()


def _not_started(error: OSError) -> CalibrationError:
    if error.errno == errno.ENOENT:
        return CalibrationError("fio", "command not found", "install it (apt-get install fio)")
    mend = "check its rights and the limits of this shell (ulimit -a)"
    return CalibrationError("fio", f"can't be started, {reason(error)}", mend)
