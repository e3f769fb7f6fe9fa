"""Where does the agent's CPU time go?

Every few milliseconds of CPU time (SIGPROF), the innermost function of iokeel or asyncio on the
stack counts one. The agent runs in a process of its own that is sampled between SIGUSR1 and
SIGUSR2. Started as a module, this is that process:

    python -m benchmarks.agent_cost.profile_agent SAMPLES WORDS...

WORDS are those of `iokeel`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from benchmarks.agent_cost.agent_process import agent_beside
from benchmarks.agent_cost.measure import WARM_UP_S
from benchmarks.agent_cost.scenario import Scenario

_EVERY_S = 0.002
#: By file and function of the innermost frame that is iokeel's or asyncio's; the first one counts.
_PARTS = (
    ("write to sockets", r"asyncio/selector_events\.py:write"),
    ("read from sockets", r"asyncio/selector_events\.py:_read_ready"),
    ("wait for sockets", r"selectors\.py:|asyncio/base_events\.py:_run_once"),
    ("QMP and libvirt", r"iokeel/hypervisors/"),
    # Compiled functions have no frame: a signal is told once they return, to `look` at the latest.
    ("decide", r"iokeel/core/|iokeel/daemon\.py:look"),
    ("the host's files", r"iokeel/host/"),
    ("daemon", r"iokeel/daemon\.py:"),
    ("saving state", r"iokeel/state_store\.py:"),
    ("reports", r"iokeel/report/"),
    ("logging", r"logging/"),
    ("asyncio, the rest", r"asyncio/"),
)


@dataclass(frozen=True)
class Profile:
    """Parts of an agent's CPU time: by kind of work, and of the dearest functions."""

    scenario: str
    samples: int
    parts: dict[str, float]
    functions: dict[str, float]


def profile(scenario: Scenario, ticks: int) -> Profile:
    """Return where an agent's time goes."""
    with tempfile.TemporaryDirectory(prefix="iokeel-") as folder:
        samples = Path(folder) / "samples.json"
        itself = [sys.executable, "-m", "benchmarks.agent_cost.profile_agent", str(samples)]
        with agent_beside(scenario, itself) as agent:
            agent.wait_for(scenario.drives)
            time.sleep(WARM_UP_S)
            os.kill(agent.pid, signal.SIGUSR1)
            time.sleep(ticks)
            os.kill(agent.pid, signal.SIGUSR2)
            time.sleep(1.0)
            counts: Counter[str] = Counter(json.loads(samples.read_text()))
    parts: Counter[str] = Counter()
    for place, count in counts.items():
        parts[next((part for part, like in _PARTS if re.search(like, place)), "other")] += count
    taken = max(1, parts.total())
    return Profile(
        str(scenario),
        taken,
        {part: round(n / taken, 3) for part, n in parts.most_common()},
        {name: round(n / taken, 3) for name, n in counts.most_common(25)},
    )


def _place(frame: FrameType | None) -> str:
    """Return the innermost function of iokeel or asyncio, by its file and name."""
    while frame is not None:
        file = frame.f_code.co_filename
        if found := re.search(r"/((?:iokeel|asyncio|logging)/.*|selectors\.py)$", file):
            return f"{found[1]}:{frame.f_code.co_name}"
        frame = frame.f_back
    return "other"


def sample_into(path: Path) -> None:
    """Set signal handlers that count the functions that CPU time is spent in."""
    counts: Counter[str] = Counter()

    def count(_number: int, frame: FrameType | None) -> None:
        counts[_place(frame)] += 1

    def start(_number: int, _frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_PROF, _EVERY_S, _EVERY_S)

    def stop(_number: int, _frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        path.write_text(json.dumps(counts))

    signal.signal(signal.SIGPROF, count)
    signal.signal(signal.SIGUSR1, start)
    signal.signal(signal.SIGUSR2, stop)


if __name__ == "__main__":
    from iokeel.cli.main import main

    sample_into(Path(sys.argv.pop(1)))
    main()
