"""fio's output."""

from __future__ import annotations

from iokeel.calibrate.fio import Job, parsed, window_rates
from iokeel.errors import CalibrationError
from tests.fuzz.budget import only
from tests.fuzz.targets.target import Target

_READS = Job(write=False, sequential=False, size_bytes=4096, depth=8, seconds=1.0, ramp_s=0.0)
_WORDS = [
    *(b"jobs error usr_cpu sys_cpu read write iops lat_ns mean max percentile 99.000000".split()),
    *(b"fio: io_u error on file /dev/x: No space left on device: write offset=0".split(b",")),
    *(b"func=xfer, error=Input/output error", b"does not support direct=1", b"nbd_connect"),
    *(b"engine libaio not loadable", b"end_fsync failed", b"\n=\n", b"500, 100, 0, 4096\n"),
]


def fio(data: bytes) -> None:
    """A job has finite figures. The input is its output, its messages and its logs."""
    text, messages, *logs = [*data.decode(errors="replace").split("\n=\n"), ""]
    with only(CalibrationError):
        rates = window_rates(logs, 1.0, 0.5)
        result = parsed("disk", 0, text, messages).result(_READS, rates)
        figures = (result.raw_iops, result.latency_s, result.latency_p99_s, result.busy_ratio)
        assert all(0 <= figure < float("inf") for figure in figures)
    with only(CalibrationError):
        parsed("disk", 1, "", messages)


TARGETS = [Target("fio", fio, 1 << 16, _WORDS)]
