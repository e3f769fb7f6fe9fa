"""The program iokeel-bench, as it is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]
#: The one with patches takes minutes to build; what it adds is tested in tests/exact.
STOCK = "/usr/bin/qemu-storage-daemon"
_PATH = os.pathsep.join(map(str, (PROJECT / "agent/src", PROJECT / "agent", PROJECT)))
ENVIRON = {**os.environ, "PYTHONPATH": _PATH}


def bench(*words: str) -> subprocess.Popen[str]:
    """Start it."""
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.bench", *words],
        env=ENVIRON,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(*words: str) -> tuple[int, str, str]:
    """Return its exit status and what it said, to stdout and to stderr."""
    process = bench(*words)
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err
