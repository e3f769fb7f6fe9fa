"""What does the agent cost a hypervisor with 10, 100, 1,000 and 5,000 drives?

    python -m benchmarks.agent_cost.run [SCENARIO...] [--ticks N]

Runs `iokeel agent`, at its one tick a second, against VMs that are only QMP sockets (synthetic/),
with policies that bind, so that limits are retuned as loads shift. A scenario is 100x1 (VMs x
drives), 100x1+5 with 5 VMs that hang, or 100x1/exact with cost curves. Each is measured over at
least 30 ticks after a warm-up:

    us a drive and tick   1e6 * CPU seconds of the agent's threads (/proc/PID/task/*/schedstat)
                          / ticks / drives
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

Writes results/agent-cost.json and prints a table. The synthetic VMs run on the same machine. Their
CPU time is not counted, but it makes ticks longer if there are few cores.
"""

from __future__ import annotations

import argparse
import os
import platform
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import result_file
from benchmarks.agent_cost.measure import Measured, measure
from benchmarks.agent_cost.profile_agent import Profile, profile
from benchmarks.agent_cost.scenario import Scenario
from testing.agents import IOKEEL

SCENARIOS = (
    *("10x1", "100x1", "1000x1", "5000x1", "3x4", "25x4", "250x4", "1250x4", "100x1+5"),
    *("100x1/exact", "25x4/exact", "1000x1/exact"),
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
    results: list[Measured] = field(default_factory=list)
    where_the_time_goes: list[Profile] = field(default_factory=list)


_TITLES = (
    "VMs x drives", "us/drive/tick", "kernel", "% core", "RSS MiB", "PSS MiB", "p50 ms", "p99 ms",
    "retunes", "scrape ms", "held up ms",
)  # fmt: skip


def row(found: Measured) -> str:
    """Return a scenario's line of the table."""
    values = (
        found.scenario, found.cpu_us_per_drive_and_tick, found.kernel_ratio, found.core_percent,
        found.rss_mib, found.pss_mib, found.tick_p50_ms, found.tick_p99_ms,
        found.retunes_per_drive_and_minute, found.scrape_cpu_ms, found.scrape_held_up_ms,
    )  # fmt: skip
    cells = (f"{value!s:>{len(title)}}" for value, title in zip(values, _TITLES, strict=True))
    return "  ".join(cells)


def main() -> None:
    """Measure the scenarios."""
    parser = argparse.ArgumentParser(description=result_file.question(__doc__))
    parser.add_argument("scenarios", nargs="*", default=SCENARIOS, help="such as 100x1 or 25x4")
    parser.add_argument("--ticks", type=int, default=40, help="seconds measured in each")
    output = result_file.RESULTS / "agent-cost.json"
    parser.add_argument("--output", type=Path, default=output)
    options = parser.parse_args()
    if options.ticks < LEAST_TICKS:
        parser.error(f"give --ticks {LEAST_TICKS} at least")
    found = Result(result_file.question(__doc__), Machine.this())
    print("  ".join(_TITLES))
    for text in options.scenarios:
        found.results.append(measured := measure(Scenario.of(text), options.ticks, (str(IOKEEL),)))
        print(row(measured), flush=True)
    for text in options.scenarios:
        if text in PROFILED:
            found.where_the_time_goes.append(split := profile(Scenario.of(text), options.ticks))
            print(f"\n{text}, {split.samples} samples")
            for part, ratio in split.parts.items():
                print(f"  {100 * ratio:5.1f} %  {part}")
    result_file.write(options.output, found, indent=2)


if __name__ == "__main__":
    main()
