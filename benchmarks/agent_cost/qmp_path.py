"""Which way of asking many QEMUs for their counters costs least?

    python -m benchmarks.agent_cost.qmp_path --vms 100

Each way (qmp_ways.py) asks every socket for query-blockstats once a second, as the agent does, and
turns the replies into iokeel's Counters. The sockets are those of synthetic/, with replies of the
length that QEMU 7.2 sends. Measures the CPU time of a process of its own (user and system,
time.process_time) over a tick: us = 1e6 * CPU seconds of the tick / drives, the median over the
ticks. One tick a second leaves caches as cold as the agent finds them. The ways take turns, so that
other work on the machine meets all of them alike.

Writes results/qmp-path.json and prints a table. Needs qemu.qmp and orjson, which the agent doesn't:
.venv/bin/pip install qemu.qmp orjson
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles

from benchmarks import result_file
from benchmarks.agent_cost.qmp_ways import WAYS, decoder
from benchmarks.agent_cost.scenario import Scenario, synthetic_vms

WARM_UP_TICKS = 3


@dataclass(frozen=True)
class Measured:
    """What a way costs."""

    variant: str
    cpu_us_per_drive_and_tick: float
    quartiles: list[float]
    lowest: float

    @classmethod
    def of(cls, way: str, costs: list[float]) -> Measured:
        """Return a way's figures from the costs of its ticks."""
        quartiles = [round(cost, 1) for cost in quantiles(costs)[::2]]
        return cls(way, round(median(costs), 1), quartiles, round(min(costs), 1))


@dataclass(frozen=True)
class Setup:
    """The sockets, the ticks and the machine."""

    question: str
    sockets: int
    drives_a_socket: int
    ticks: int
    tick_s: float
    cpu: str
    cpus: int | None
    kernel: str
    python: str
    libraries: dict[str, str]


@dataclass(frozen=True)
class Result:
    """A result file."""

    scenario: Setup
    results: list[Measured]


async def tick_costs(way: str, folder: Path, ticks: int, tick_s: float) -> list[float]:
    """Return the CPU time of each tick of one way, in us per drive."""
    connect, decodes = WAYS[way]
    tick = await connect(sorted(map(str, folder.glob("*.qmp"))), decoder(decodes))
    costs = []
    for number in range(ticks + WARM_UP_TICKS):
        await asyncio.sleep(tick_s)
        before = time.process_time_ns()
        drives = await tick()
        if number >= WARM_UP_TICKS:
            costs.append((time.process_time_ns() - before) / drives / 1000)
    return costs


def in_turn(options: argparse.Namespace) -> dict[str, list[float]]:
    """Measure all ways against the same sockets, each in a process of its own."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as name:
        with synthetic_vms(Path(name), Scenario(options.vms, options.drives), events=0):
            for _ in range(options.rounds):
                for way in WAYS:
                    command = [sys.executable, "-m", "benchmarks.agent_cost.qmp_path"]
                    command += [f"--only={way}", f"--folder={name}", f"--ticks={options.ticks}"]
                    command += [f"--tick-seconds={options.tick_seconds}"]
                    run = subprocess.run(command, stdout=subprocess.PIPE, check=True)
                    found[way] += json.loads(run.stdout)
    return found


def main() -> None:
    """Measure all ways."""
    parser = argparse.ArgumentParser(description=result_file.question(__doc__))
    parser.add_argument("--vms", type=int, default=100)
    parser.add_argument("--drives", type=int, default=1, help="drives a VM")
    parser.add_argument("--ticks", type=int, default=10, help="ticks of a turn")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each way")
    parser.add_argument("--tick-seconds", type=float, default=1.0)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, default=result_file.RESULTS / "qmp-path.json")
    options = parser.parse_args()
    if options.only:
        costs = tick_costs(options.only, options.folder, options.ticks, options.tick_seconds)
        print(json.dumps(asyncio.run(costs)))
        return
    libraries = {name: version(name) for name in ("qemu.qmp", "orjson", "msgspec")}
    results = [Measured.of(way, costs) for way, costs in in_turn(options).items()]
    for one in results:
        print(f"{one.cpu_us_per_drive_and_tick:8} us  (lowest {one.lowest:6})  {one.variant}")
    setup = Setup(
        question=result_file.question(__doc__),
        sockets=options.vms,
        drives_a_socket=options.drives,
        ticks=options.ticks * options.rounds,
        tick_s=options.tick_seconds,
        cpu=result_file.cpu_model(),
        cpus=os.cpu_count(),
        kernel=platform.release(),
        python=platform.python_version(),
        libraries=libraries,
    )
    result_file.write(options.output, Result(setup, results), indent=2)


if __name__ == "__main__":
    main()
