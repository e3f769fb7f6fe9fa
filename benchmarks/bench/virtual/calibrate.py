"""What does `iokeel calibrate` find on the simulated disks?

    python -m benchmarks.bench.virtual.calibrate

Its own search and fit, with runs in virtual time in place of fio's, for each disk and slowdown of
the scenarios. Writes disksim/calibrated.toml.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from collections.abc import Iterable

import numpy as np

from benchmarks import result_file
from benchmarks.bench.scenario import CALIBRATED, names, read
from benchmarks.bench.virtual.host import Host, Load
from iokeel.calibrate.fio import Job, JobResult
from iokeel.calibrate.measurement import Plan, measure
from iokeel.calibrate.result import Calibration, evaluate
from iokeel.core.values.curve import KIB, CostCurve
from testing.lab.disks.disksim import params

_HEAD = """\
# What `iokeel calibrate` finds on each disk at each slowdown of the scenarios. Written by
# python -m benchmarks.bench.virtual.calibrate
"""


class VirtualFio:
    """Runs jobs on a simulated disk as calibrate's fio does on a real one."""

    def __init__(self, device: str, slowdown: float) -> None:
        self.device, self.slowdown = device, slowdown
        self._whole = int(params(device)["capacity"])

    def run(self, job: Job) -> JobResult:
        """Return a job's rate and latencies. The same job has the same result."""
        sizes = [(float(job.size_bytes), 1.0)]
        # A stream of a disk that is stretched needs the time that it would need, stretched.
        begin, end = job.ramp_s * self.slowdown, (job.ramp_s + job.seconds) * self.slowdown
        one = Load(
            depth=job.depth,
            random=not job.sequential,
            read_part=0.0 if job.write else 1.0,
            sizes=(sizes, sizes),
            offset=self._whole // 2 if job.sequential else 0,
            bytes=self._whole // 4 if job.sequential else self._whole,
            start_s=0.0,
            end_s=end,
        )
        seed = zlib.crc32(f"{job} {job.depth}".encode())
        with Host(self.device, self.slowdown, seed) as host:
            host.load(host.drive(host.group(keeps_levels=False), 0), one, 0, 0)
            host.run(round(end * 1e9))
            ended = host.ended(0)
        at_s = ended.at_ns / 1e9
        counts = at_s >= begin
        latencies = ended.latency_ns[counts] / 1e9
        windows = np.histogram(at_s, np.arange(begin, end + 1e-9, job.window_s * self.slowdown))[0]
        return JobResult(
            job,
            float(counts.sum()) / (end - begin),
            float(latencies.mean()) if len(latencies) else 0.0,
            float(np.percentile(latencies, 99)) if len(latencies) else 0.0,
            tuple(float(one) / (job.window_s * self.slowdown) for one in windows),
            0.0,
        )


class _Quiet:
    def run_started(self, job: Job, runs_left: int) -> None:
        """Say nothing."""

    def run_finished(self, result: JobResult) -> None:
        """Say nothing."""


def calibrated(device: str, slowdown: float) -> Calibration:
    """Return what calibrate finds on a disk."""
    fio = VirtualFio(device, slowdown)
    return evaluate(measure(fio, Plan(), writes=True, progress=_Quiet()), None)


def text(found: Iterable[tuple[str, float, Calibration]]) -> str:
    """Return the file."""
    lines = [_HEAD]
    for device, slowdown, one in found:
        lines.append(f'[{device}."{slowdown:g}"]')
        lines.append(f"capacity = {one.fit.capacity}")
        lines.append(f"latency_target_ms = {one.latency_target_ms}")
        lines.append(f"curve_read = {_points(one.fit.read)}")
        lines.append(f"curve_write = {_points(one.fit.write or one.fit.read)}\n")
    return "\n".join(lines)


def _points(curve: CostCurve) -> str:
    return str([[f"{size // KIB}k", cost] for size, cost in curve.points]).replace("'", '"')


def main() -> None:
    """Calibrate all disks, and write the file."""
    argparse.ArgumentParser(description=result_file.question(__doc__)).parse_args()
    tables = [read(name) for name in names()]
    wanted = sorted({(table.device, table.slowdown) for table in tables})
    CALIBRATED.write_text(text((*each, calibrated(*each)) for each in wanted))
    sys.stdout.write(CALIBRATED.read_text())


if __name__ == "__main__":
    main()
