"""Parses fio's output: its JSON, its window logs, and its error messages."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean
from typing import Annotated

import msgspec

from iokeel.calibrate.job import Job, JobResult
from iokeel.errors import CalibrationError
from iokeel.words.quoting import shown, shown_path

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
