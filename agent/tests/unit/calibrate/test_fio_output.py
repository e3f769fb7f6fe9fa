"""fio's output, parsed: what it measured, and why it failed."""

from __future__ import annotations

import json

import pytest

from iokeel.calibrate.fio import Job, parsed, window_rates
from iokeel.core.values.curve import KIB
from iokeel.errors import CalibrationError

READS = Job(write=False, sequential=False, size_bytes=4 * KIB, depth=8, seconds=1.0, ramp_s=0.0)
UNFLUSHED = "fio: end_fsync failed for file /dev/x unsupported op"


def output(error: int = 0) -> str:
    """Return fio's JSON for reads of 2 ms, 5 ms at the 99th percentile, without any writes."""
    latency = {"min": 1, "max": 6_000_000, "mean": 2e6, "percentile": {"99.000000": 5_000_000}}
    none = {"iops": 0.0, "lat_ns": {"min": 0, "max": 0, "mean": 0.0}}
    read = {"iops": 4000.0, "lat_ns": latency}
    job = {"error": error, "usr_cpu": 20.5, "sys_cpu": 30.0, "read": read, "write": none}
    return "note: both iodepth >= 1\n" + json.dumps({"fio version": "fio-3.33", "jobs": [job]})


def failure(messages: str, text: str = "", status: int = 1) -> str:
    with pytest.raises(CalibrationError) as caught:
        parsed("disk", status, text, messages)
    return str(caught.value)


def test_rate_latencies_and_load_are_read() -> None:
    result = parsed("disk", 0, output(), "").result(READS, [3900.0, 4100.0])
    assert result.raw_iops == 4000
    assert result.latency_s == pytest.approx(0.002)
    assert result.latency_p99_s == pytest.approx(0.005)
    assert result.window_iops == (3900.0, 4100.0)
    assert result.busy_ratio == pytest.approx(0.505)


def test_without_windows_fios_own_rate_counts() -> None:
    assert parsed("disk", 0, output(), "").result(READS, [0.0, 0.0]).window_iops == (4000.0,)


def test_windows_are_summed_over_threads_and_end_with_the_run() -> None:
    one = "499, 100, 0, 4096\n1003, 110, 0, 4096\n1500, 120, 0, 4096\n"
    other = "502, 10, 0, 4096\n999, 20, 0, 4096\n"
    assert window_rates([one], 1.0, 0.5) == [100, 110]
    assert window_rates([one, other], 1.0, 0.5) == [110, 130]
    assert window_rates(["200, 50, 0, 4096\n"], 0.2, 0.2) == [50]


def test_a_window_without_a_line_is_one_in_which_nothing_was_served() -> None:
    stalled = "500, 1000, 0, 4096\n1000, 1000, 0, 4096\n3000, 1000, 0, 4096\n"
    assert window_rates([stalled], 3.0, 0.5) == [1000, 1000, 0, 0, 0, 1000]
    slow = "1001, 2, 0, 4096\n2001, 2, 0, 4096\n"
    assert window_rates([stalled, slow], 3.0, 0.5) == [1000, 1002, 0, 2, 0, 1000]
    assert window_rates([], 1.0, 0.5) == [0, 0]


@pytest.mark.parametrize("line", ["", "500", "500,", "x, 1", "nan, 1", "500, nan", "500, -1"])
def test_a_log_that_was_cut_is_named(line: str) -> None:
    with pytest.raises(CalibrationError, match="fio's log: a line is"):
        window_rates([f"400, 100, 0, 4096\n{line}\n"], 1.0, 0.5)


@pytest.mark.parametrize("name", ['"iops": 4000.0', '"mean": 2000000.0', '"usr_cpu": 20.5'])
def test_a_figure_below_zero_is_a_failure(name: str) -> None:
    failure("", output().replace(name, name.replace(": ", ": -")), status=0)


@pytest.mark.parametrize(
    "messages",
    [
        "fio: pid=1, func=\x1b[2J, error=\x1b[2J",
        "io_u error on file x: \x1b[2J: read offset=5",
    ],
)
def test_no_message_writes_to_the_terminal_by_itself(messages: str) -> None:
    assert failure(messages).isprintable()


def test_an_offset_of_thousands_of_digits_is_a_failure() -> None:
    said = failure("io_u error on file x: Input/output error: read offset=" + "9" * 5000)
    assert "a read at offset 9999" in said


def test_a_server_without_flushes_is_no_failure() -> None:
    assert parsed("disk", 1, output(error=22), UNFLUSHED).error == 22
    failure("something else", output(error=22))


@pytest.mark.parametrize("text", ["", "no JSON", "{", '{"jobs": []}', '{"jobs": [{}]}', "{}"])
def test_any_other_output_is_a_failure(text: str) -> None:
    assert failure("", text, status=0).startswith("disk: fio failed, without a message;")


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        (
            "fio: io_u error on file /x: Input/output error: read offset=4096, buflen=4096",
            "disk: a read at offset 4096 failed, input/output error; check the kernel's log",
        ),
        (
            "fio: io_u error on file /x: No space left on device: write offset=0, buflen=4096",
            "disk: a write at offset 0 failed, no space left on device; make room, or give a",
        ),
        ("fio: looks like your file system does not support direct=1/buffered=0", "disk: doesn't"),
        ("fio: nbd_connect_uri: no such export", "disk: can't be used, 'nbd_connect_uri: no such"),
        ("fio: engine nbd not loadable", "fio: lacks an I/O engine, 'engine nbd not loadable'"),
        ("func=open, error=Permission denied", "disk: fio's open failed, permission denied;"),
        ("first\nfio: last\n", "disk: fio failed, 'last'; check the kernel's log"),
    ],
)
def test_a_failure_says_what_and_the_mend(messages: str, said: str) -> None:
    assert failure(messages).startswith(said)
