"""What does `iokeel top` cost, and how much does it write to its terminal?

    python -m benchmarks.agent_cost.top_screen [SCENARIO...] [--repeats N] [--seconds N]

Runs `iokeel agent` against VMs that are only QMP sockets, as run.py does, and `iokeel top` in a
terminal of its own, whose output is read and thrown away.

    % of a core   1e2 * CPU seconds of top's process / seconds
    KiB           written to the terminal in a second
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import result_file
from benchmarks.agent_cost.agent_process import agent_beside, cpu_s
from benchmarks.agent_cost.measure import WARM_UP_S
from benchmarks.agent_cost.run import Machine
from benchmarks.agent_cost.scenario import Scenario
from benchmarks.spread import Spread
from testing.agents import IOKEEL
from testing.processes import end

SCENARIOS = ("100x1", "1000x1")
SIZES = ((80, 24), (160, 48))  # columns, lines
# Its start isn't measured: the libraries, and the agent's history.
_SETTLE_S = 6.0


@dataclass(frozen=True)
class Measured:
    """A scenario's figures on a terminal of some size."""

    scenario: str
    drives: int
    columns: int
    lines: int
    core_percent: Spread
    kib_per_second: Spread


@dataclass
class Result:
    """A result file."""

    question: str
    machine: Machine
    seconds: float
    repeats: int
    results: list[Measured] = field(default_factory=list)


class Screen:
    """A terminal in which a command runs. written: the bytes that it has had so far."""

    def __init__(self, command: Sequence[str | Path], columns: int, lines: int) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        self.written = 0
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env=environment | {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"},
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                self.written += len(os.read(self._ours, 1 << 16))
            except OSError:  # the command has ended
                return

    def close(self) -> None:
        """End the command."""
        end(self.process)
        self._reader.join()
        os.close(self._ours)


@contextmanager
def _open(command: Sequence[str | Path], columns: int, lines: int) -> Iterator[Screen]:
    screen = Screen(command, columns, lines)
    try:
        yield screen
    finally:
        screen.close()


def measure(scenario: Scenario, repeats: int, seconds: float) -> Iterator[Measured]:
    """Measure top on terminals of each size, in turn."""
    found: dict[tuple[int, int], list[tuple[float, float]]] = {size: [] for size in SIZES}
    with agent_beside(scenario, (str(IOKEEL),)) as agent:
        agent.wait_for(scenario.drives)
        time.sleep(WARM_UP_S)
        for _ in range(repeats):
            for size in SIZES:
                with _open((IOKEEL, "top", "--socket", agent.socket), *size) as screen:
                    time.sleep(_SETTLE_S)
                    used, written = cpu_s(screen.process.pid), screen.written
                    began = time.monotonic()
                    time.sleep(seconds)
                    elapsed_s = time.monotonic() - began
                    percent = 100 * (cpu_s(screen.process.pid) - used) / elapsed_s
                    found[size].append((percent, (screen.written - written) / 1024 / elapsed_s))
    for (columns, lines), values in found.items():
        percents, written_kib = ([round(v, 2) for v in each] for each in zip(*values, strict=True))
        yield Measured(
            scenario=str(scenario),
            drives=scenario.drives,
            columns=columns,
            lines=lines,
            core_percent=Spread.of(percents),
            kib_per_second=Spread.of(written_kib),
        )


def main() -> None:
    """Measure the scenarios."""
    parser = argparse.ArgumentParser(description=result_file.question(__doc__))
    parser.add_argument("scenarios", nargs="*", default=SCENARIOS, help="such as 100x1 or 25x4")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0, help="measured in each")
    output = result_file.RESULTS / "top-screen.json"
    parser.add_argument("--output", type=Path, default=output)
    options = parser.parse_args()
    question = result_file.question(__doc__)
    found = Result(question, Machine.this(), options.seconds, options.repeats)
    for text in options.scenarios:
        for one in measure(Scenario.of(text), options.repeats, options.seconds):
            found.results.append(one)
            print(
                f"{one.scenario} on {one.columns}x{one.lines}: {one.core_percent} % of a core,"
                f" {one.kib_per_second} KiB a second"
            )
    result_file.write(options.output, found, indent=2)


if __name__ == "__main__":
    main()
