"""Runs of fio, and their reports."""

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Job = Mapping[str, object]
"""fio's options. None leaves an option out; True is an option without a value."""


def start_fio(jobs: Sequence[Job], folder: Path | None = None) -> subprocess.Popen[str]:
    """Start jobs together; finish_fio() waits for them.

    folder: its working folder, for its logs.
    """
    lines = ["[global]", "norandommap=1", "randrepeat=0", "group_reporting=0"]
    for i, job in enumerate(jobs):
        lines.append(f"[job{i}]")
        lines += [
            key if value is True else f"{key}={value}"
            for key, value in job.items()
            if value is not None
        ]
    with tempfile.NamedTemporaryFile("w", suffix=".fio") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        # fio reads the file as its stdin, so the name may go.
        with open(file.name) as stdin:
            return subprocess.Popen(
                ["fio", "--output-format=json", "-"], cwd=folder, stdin=stdin,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip


def finish_fio(process: subprocess.Popen[str], timeout: float = 600) -> list[dict[str, Any]]:
    """Return fio's report of each job. Raises RuntimeError with fio's words when it fails."""
    try:
        out, err = process.communicate(timeout=timeout)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    if process.returncode:
        raise RuntimeError(f"fio: {err.strip() or out.strip()}")
    report: list[dict[str, Any]] = json.loads(out[out.index("{") :])["jobs"]
    return report


def fio(*jobs: Job, timeout: float = 600) -> list[dict[str, Any]]:
    """Run jobs together and return fio's report of each."""
    return finish_fio(start_fio(jobs), timeout)
