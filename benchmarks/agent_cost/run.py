"""What does the agent cost a hypervisor with 10, 100, 1,000 and 5,000 drives?

    python -m benchmarks.agent_cost.run [SCENARIO...] [--ticks N] [--repeats N]

Runs `iokeel agent`, at its one tick a second, against VMs that are only QMP sockets (synthetic/),
with policies that bind, so that limits are retuned as loads shift. A scenario is 100x1 (VMs x
drives), 100x1+5 with 5 VMs that hang, 50x1~950 with 950 that are idle, or 100x1/exact with cost
curves. If there are idle ones, each VM is a process, so that the kernel tells which of them run; it
needs 5 MiB of memory for each. A scenario is run several times, one run after another, and measured
over at least 30 ticks after a warm-up. The result has medians of the runs, and the least and the
most:

    us a drive and tick   1e6 * CPU seconds of the agent's process / ticks / drives: of all its
                          threads, also those that have ended
    kernel                the part of that which is system time (/proc/PID/stat, which samples)
    % of a core           1e2 * CPU seconds / seconds passed
    RSS, PSS              /proc/PID/smaps_rollup at the end
    tick p50, p99         of iokeel_agent_tick_seconds in /metrics: the time of a whole tick, from
                          its first query to its last order, interpolated within a bucket of the
                          histogram
    retunes               changes of limits a drive and minute, after the first
    scrape                CPU seconds that one GET /metrics costs
    held up               the longest that the agent keeps anybody else waiting during a scrape, the
                          best of five

Where the time goes is sampled in a run of its own (profile_agent.py).

Writes results/agent-cost.json and prints a table of the medians, and the least and the most of the
first figure. The synthetic VMs run on the same machine. Their CPU time is not counted, but it makes
ticks longer if there are few cores.
"""

from __future__ import annotations

import argparse
import os
import platform
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import result_file
from benchmarks.agent_cost.measure import Repeated, measure
from benchmarks.agent_cost.profile_agent import Profile, profile
from benchmarks.agent_cost.scenario import Scenario
from testing.agents import IOKEEL

SCENARIOS = (
    *("10x1", "100x1", "1000x1", "5000x1", "3x4", "25x4", "250x4", "1250x4", "100x1+5"),
    *("100x1/exact", "25x4/exact", "1000x1/exact", "50x1~0", "50x1~950"),
)
PROFILED = ("100x1", "1000x1")
LEAST_TICKS = 30


@dataclass(frozen=True)
class Machine:
    """The machine and the commit that figures are of."""

    cpu: str
    cpus: int | None
    kernel: str
    python: str
    git_revision: str | None
    load_average: float

    @classmethod
    def this(cls) -> Machine:
        """Return this machine now."""
        return cls(
            result_file.cpu_model(),
            os.cpu_count(),
            platform.release(),
            platform.python_version(),
            result_file.revision(),
            os.getloadavg()[0],
        )


@dataclass
class Result:
    """A result file."""

    question: str
    machine: Machine
    tick_s: float = 1.0
    results: list[Repeated] = field(default_factory=list)
    where_the_time_goes: list[Profile] = field(default_factory=list)


#: The columns of the table, by title.
_COLUMNS = {
    "us/drive/tick": "cpu_us_per_drive_and_tick",
    "kernel": "kernel_ratio",
    "% core": "core_percent",
    "RSS MiB": "rss_mib",
    "PSS MiB": "pss_mib",
    "p50 ms": "tick_p50_ms",
    "p99 ms": "tick_p99_ms",
    "retunes": "retunes_per_drive_and_minute",
    "scrape ms": "scrape_cpu_ms",
    "held up ms": "scrape_held_up_ms",
}
_SCENARIO = "VMs x drives"


def row(found: Repeated) -> str:
    """Return a scenario's line of the table."""
    cells = [f"{found.scenario:>{len(_SCENARIO)}}"]
    cells += [f"{found.figures[name].median:>{len(title)}g}" for title, name in _COLUMNS.items()]
    cost = found.figures["cpu_us_per_drive_and_tick"]
    return "  ".join([*cells, f"({cost.least:g} to {cost.most:g} us)"])


def main() -> None:
    """Measure the scenarios."""
    parser = argparse.ArgumentParser(description=result_file.question(__doc__))
    parser.add_argument("scenarios", nargs="*", default=SCENARIOS, help="such as 100x1 or 25x4")
    parser.add_argument("--ticks", type=int, default=40, help="seconds measured in each run")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each scenario")
    output = result_file.RESULTS / "agent-cost.json"
    parser.add_argument("--output", type=Path, default=output)
    options = parser.parse_args()
    if options.ticks < LEAST_TICKS:
        parser.error(f"give --ticks {LEAST_TICKS} at least")
    if options.repeats < 1:
        parser.error("give --repeats 1 at least")
    found = Result(result_file.question(__doc__), Machine.this())
    print("  ".join([_SCENARIO, *_COLUMNS]))
    for text in options.scenarios:
        runs = [
            measure(Scenario.of(text), options.ticks, (str(IOKEEL),))
            for _ in range(options.repeats)
        ]
        found.results.append(repeated := Repeated.of(runs))
        print(row(repeated), flush=True)
    for text in options.scenarios:
        if text in PROFILED:
            found.where_the_time_goes.append(split := profile(Scenario.of(text), options.ticks))
            print(f"\n{text}, {split.samples} samples")
            for part, ratio in split.parts.items():
                print(f"  {100 * ratio:5.1f} %  {part}")
    result_file.write(options.output, found, indent=2)


if __name__ == "__main__":
    main()
