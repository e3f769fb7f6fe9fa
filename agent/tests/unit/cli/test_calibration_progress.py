"""The progress of a calibration, for programs."""

from __future__ import annotations

import json

import pytest

from iokeel.calibrate.fio import Job, JobResult
from iokeel.cli.calibration import ProgressLines


def test_each_run_is_a_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(False, False, 4096, 8, 1.0, 0.1)
    with ProgressLines() as progress:
        progress.run_started(job, 3)
        progress.run_finished(JobResult(job, 2000.0, 0.004, 0.009, (2000.0,), 0.1))
        progress.run_started(job, 2)
    out, err = capsys.readouterr()
    first, second = (json.loads(line) for line in err.splitlines())
    assert out == ""
    assert (first["done"], first["total"], first["last"]) == (0, 3, "")
    assert (second["done"], second["total"]) == (1, 3)
    assert second["doing"] == f"{job}, depth 8"
    assert second["last"] == "2000/s in 4 ms"
