"""An agent that is measured from outside: its metrics, and the kernel's files on its process."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.agent_cost.scenario import Scenario, configuration, synthetic_vms
from testing.agents import http

#: Samples of /metrics by name and labels.
Metrics = dict[str, float]
DRIVES_METRIC = "iokeel_agent_drives"
_KNOWN_S = 180.0


class AgentProcess:
    """A running agent. command: starts it, given a configuration's path at its end."""

    def __init__(self, folder: Path, command: Sequence[str], config: Path) -> None:
        self.socket = folder / "agent.sock"
        self.log = folder / "agent.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([*command, str(config)], stderr=log, stdout=log)

    def metrics(self) -> Metrics:
        """Return its metrics now. Raises OSError if it does not answer."""
        _, _, text = http(self.socket, "GET", "/metrics")
        lines = (line for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in (x.rpartition(" ") for x in lines)}

    def cpu_s(self) -> float:
        """Return the CPU seconds of all threads so far, to the ns."""
        total_ns = 0
        for thread in Path(f"/proc/{self.process.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError):
                total_ns += int((thread / "schedstat").read_text().split()[0])
        return total_ns / 1e9

    def user_and_system(self) -> tuple[int, int]:
        """Return user and system time so far, in clock ticks."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]), int(fields[12])

    def memory_mib(self) -> tuple[float, float]:
        """Return RSS and PSS."""
        text = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        found = dict(re.findall(r"^(Rss|Pss): +(\d+) kB$", text, re.MULTILINE))
        return int(found["Rss"]) / 1024, int(found["Pss"]) / 1024

    def wait_for(self, drives: int) -> float:
        """Wait until so many drives are known. Return how long that took, in seconds."""
        started = time.monotonic()
        while time.monotonic() - started < _KNOWN_S and self.process.poll() is None:
            with contextlib.suppress(OSError):
                if self.metrics().get(DRIVES_METRIC, 0) >= drives:
                    return time.monotonic() - started
            time.sleep(0.25)
        sys.exit(f"the agent does not know {drives} drives:\n{self.log.read_text()[-2000:]}")

    def stop(self) -> None:
        """End it as systemd does."""
        self.process.terminate()
        try:
            self.process.wait(90)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def agent_beside(scenario: Scenario, command: Sequence[str]) -> Iterator[AgentProcess]:
    """Run a scenario's VMs and an agent for them."""
    with tempfile.TemporaryDirectory(prefix="iokeel-") as name:
        folder = Path(name)
        with synthetic_vms(folder / "vms", scenario):
            agent = AgentProcess(folder, command, configuration(folder, folder / "vms"))
            try:
                yield agent
            finally:
                agent.stop()
