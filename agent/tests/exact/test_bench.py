"""iokeel-bench with what takes a build: the patched QEMU, and a kernel with all controllers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.bench.records import Result, path_of, read

pytestmark = pytest.mark.timeout(1800)  # the first run builds a QEMU

PROJECT = Path(__file__).parents[3]


def bench(scenario: str, shorten: str, controllers: Sequence[str], folder: Path) -> Result:
    path = os.pathsep.join(map(str, (PROJECT / "agent/src", PROJECT / "agent", PROJECT)))
    words = ["run", scenario, "--shorten", shorten, "--repeats", "1", "--results", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench", *words, "--controllers", *controllers],
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return read(path_of(folder, scenario))


@pytest.mark.parametrize(
    ("scenario", "shorten", "ran", "lacking"),
    [
        ("four-disks", "8", ["iokeel-exact"], ["iokeel-retune"]),
        ("first-seconds", "10", ["iokeel-exact", "iokeel-retune"], []),
    ],
)
def test_iokeel_runs_where_it_can(
    scenario: str, shorten: str, ran: list[str], lacking: list[str], tmp_path: Path
) -> None:
    result = bench(scenario, shorten, ["iokeel-exact", "iokeel-retune"], tmp_path)
    (case,) = result.cases.values()
    assert sorted(case.runs) == sorted(["none", *ran])
    assert sorted(result.lacking) == lacking
    for name in ran:
        (run,) = case.runs[name]
        assert run.control_cpu_s is not None
        assert run.control_cpu_s > 0
        assert all(drive.requests for drive in run.drives.values())


def test_kernels_controllers_hold_drives_in_a_host_that_boots(tmp_path: Path) -> None:
    kernels = ["bfq", "io.latency", "io.cost"]
    result = bench("booted-hdd-readers", "8", kernels, tmp_path)
    (case,) = result.cases.values()
    assert not result.lacking
    for name in ["none", *kernels]:
        (run,) = case.runs[name]
        assert len(run.drives) == 16
        assert all(drive.requests for drive in run.drives.values())
