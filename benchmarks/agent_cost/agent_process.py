"""An agent that is measured from outside: its metrics, and the kernel's files on its process."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.agent_cost.scenario import Scenario, synthetic_vms, vm_tables
from testing.agents import ENDING_WITH_OWNER, Agent, http
from testing.waiting import eventually

#: Samples of /metrics by name and labels.
Metrics = dict[str, float]
DRIVES_METRIC = "iokeel_agent_drives"
# The clock of a process, as clock_getcpuclockid(3) makes its number (CPUCLOCK_SCHED in the kernel).
_SCHED_CLOCK = 2
_KNOWN_S = 180.0
_STOP_S = 90.0


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process so far, to the ns: of threads that have ended too."""
    return time.clock_gettime_ns((~pid << 3) | _SCHED_CLOCK) / 1e9


class AgentProcess(Agent):
    """An agent of any checkout. command: the words that run its `iokeel`."""

    def __init__(self, folder: Path, command: Sequence[str], vms: str) -> None:
        super().__init__(folder, vms)
        self.command = (*ENDING_WITH_OWNER, *command)

    @property
    def pid(self) -> int:
        """The id of its process."""
        assert self.process is not None
        return self.process.pid

    def cpu_s(self) -> float:
        """Return the CPU seconds of its process so far, to the ns."""
        return cpu_s(self.pid)

    def user_and_system(self) -> tuple[int, int]:
        """Return user and system time so far, in clock ticks."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]), int(fields[12])

    def held_up_s(self) -> float:
        """Return how long a scrape keeps the agent from answering anybody else, in seconds."""
        with ThreadPoolExecutor(1) as pool:
            scrape = pool.submit(http, self.socket, "GET", "/metrics")
            longest_s = 0.0
            while not scrape.done():
                asked = time.monotonic()
                self.ask("/v1/storages")
                longest_s = max(longest_s, time.monotonic() - asked)
        scrape.result()
        return longest_s

    def memory_mib(self) -> tuple[float, float]:
        """Return RSS and PSS."""
        text = Path(f"/proc/{self.pid}/smaps_rollup").read_text()
        found = dict(re.findall(r"^(Rss|Pss): +(\d+) kB$", text, re.MULTILINE))
        return int(found["Rss"]) / 1024, int(found["Pss"]) / 1024

    def wait_for(self, drives: int) -> float:
        """Wait until so many drives are known. Return how long that took, in seconds."""
        started = time.monotonic()
        eventually(
            lambda: self.metrics().get(DRIVES_METRIC, 0) >= drives,
            _KNOWN_S,
            what=f"the agent knows {drives} drives",
            process=self.process,
        )
        return time.monotonic() - started

    def stop_or_kill(self) -> None:
        """End it as systemd does: with many drives it takes a while."""
        assert self.process is not None
        self.process.terminate()
        try:
            self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.end()


@contextlib.contextmanager
def agent_beside(
    scenario: Scenario, command: Sequence[str], tables: str = ""
) -> Iterator[AgentProcess]:
    """Run a scenario's VMs and an agent for them. SIGTERM ends all that as ^C does.

    tables: more of its configuration.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="iokeel-") as name:
        folder = Path(name)
        with synthetic_vms(folder / "vms", scenario):
            tables += vm_tables(folder / "vms")
            if scenario.idle is not None:  # they are in one cgroup, as guests never are
                tables += "[cgroup]\nenabled = false\n"
            agent = AgentProcess(folder, command, tables)
            agent.start()
            try:
                yield agent
            finally:
                agent.stop_or_kill()
