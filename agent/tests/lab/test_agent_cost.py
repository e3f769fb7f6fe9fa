"""What benchmarks of the agent's cost leave when they are ended."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from testing.bench_program import ENVIRON
from testing.waiting import eventually


def test_a_benchmark_that_is_terminated_leaves_nothing(tmp_path: Path) -> None:
    words = ("-m", "benchmarks.agent_cost.run", "1x1", "--output", str(tmp_path / "out.json"))
    environment = {**ENVIRON, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, *words], env=environment, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    eventually(lambda: [*tmp_path.glob("iokeel-*/agent.sock")], 60, process=process)
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    assert not [*tmp_path.iterdir()]
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert str(tmp_path) not in running
