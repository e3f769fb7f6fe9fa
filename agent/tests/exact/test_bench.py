"""iokeel-bench with iokeel as a controller: exports under the patched QEMU, guests under both."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.bench.records import path_of, read

pytestmark = pytest.mark.timeout(1800)  # the first run builds a QEMU

PROJECT = Path(__file__).parents[3]


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
    path = os.pathsep.join(map(str, (PROJECT / "agent/src", PROJECT / "agent", PROJECT)))
    words = ["run", scenario, "--shorten", shorten, "--repeats", "1", "--results", str(tmp_path)]
    words += ["--controllers", "iokeel-exact", "iokeel-retune"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench", *words],
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    result = read(path_of(tmp_path, scenario))
    (case,) = result.cases.values()
    assert sorted(case.runs) == sorted(["none", *ran])
    assert sorted(result.lacking) == lacking
    for name in ran:
        (run,) = case.runs[name]
        assert run.control_cpu_s is not None
        assert run.control_cpu_s > 0
        assert all(drive.requests for drive in run.drives.values())
