"""How much can a disk do with the mix that weights ask for, and how much of that does iokeel reach?

    python -m benchmarks.law.weights_most [--repeats 3]

No control is no yardstick for the scenario "weights": it lets through a mix that the weights
forbid. So the scenario runs with capacities that stay as they are, from half of the disk's to
twice, whatever its latency. The drives' limits then rise in proportion to their weights. Each run
gives two figures:

- total: the normalized rate of all drives
- strain: the disk's mean latency over the scenario's target, as the agent weighs it

The most within the target is the highest total of a strain up to 1, between two runs by linear
interpolation. The most at all is the highest total. iokeel's own totals are compared with both: as
the scenario is, where latency corrects the capacity to most_ratio = 1.5 at most, and with 2.

Writes results/weights-most.json.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from benchmarks import result_file
from benchmarks.bench.controllers.iokeel import Iokeel, Running, agent_tables
from benchmarks.bench.metrics import total
from benchmarks.bench.records import Run
from benchmarks.bench.running.one_run import run_quietly
from benchmarks.bench.running.stage import Stage
from benchmarks.bench.scenario import Scenario, load
from iokeel.core.values.storage import allowance_s
from testing.agents import Agent
from testing.lab import qemu
from testing.sampler import Sampler

RESULT = result_file.RESULTS / "weights-most.json"
#: Of the scenario's capacity.
PARTS = (0.5, 1.0, 1.5, 1.75, 2.0)
#: In place of 1.5: to that the latency of this mix is within its target.
MOST_RATIO = 2


@dataclass(frozen=True)
class Point:
    """The medians of some runs.

    part: of the capacity; None: as latency corrects it.
    """

    part: float | None
    total: float
    strain: float
    totals: Sequence[float]
    strains: Sequence[float]


class Latencies(Sampler):
    """The storage's mean latency, each second of a run from the scenario's begin_s on."""

    def __init__(self, agent: Agent, scenario: Scenario) -> None:
        super().__init__()
        self._agent, self._scenario = agent, scenario
        self.seen_s: list[float] = []

    def _run(self) -> None:
        begun_s = time.monotonic()
        while not self._stop.wait(1.0) and time.monotonic() < begun_s + self._scenario.seconds:
            (storage,) = self._agent.ask("/v1/storages")
            latency_s = storage["latency_s"]
            if time.monotonic() >= begun_s + self._scenario.begin_s and latency_s is not None:
                self.seen_s.append(latency_s)


class Watched(Iokeel):
    """iokeel on the patched QEMU, whose storage's latency is noted.

    part: of the scenario's capacity, which then stays; None: latency corrects it. most_ratio: as
    far as that; None: as the scenario has it.
    """

    def __init__(self, part: float | None, most_ratio: int | None = None) -> None:
        super().__init__("watched", "watched", exact=True)
        self._part, self._most_ratio = part, most_ratio
        self.latencies_s: list[float] = []

    def tables(self, stage: Stage) -> str:
        """Return the configuration with a capacity that stays."""
        text = agent_tables(stage)
        capacity = f"capacity = {round(stage.scenario.capacity)}"
        if self._part is None:
            if self._most_ratio is None:
                return text
            return text.replace(capacity, f"{capacity}\nmost_ratio = {self._most_ratio}")
        fixed = f"capacity = {round(self._part * stage.scenario.capacity)}"
        return text.replace(capacity, f"{fixed}\nleast_ratio = 1\nmost_ratio = 1")

    @contextmanager
    def hold(self, stage: Stage) -> Iterator[Running]:
        """Run the agent, and note the storage's latency."""
        with super().hold(stage) as running, Latencies(running.agent, stage.scenario) as latencies:
            yield running
        self.latencies_s = latencies.seen_s


def point(
    scenario: Scenario, part: float | None, repeats: int, most_ratio: int | None = None
) -> Point:
    """Run the scenario some times with a part of its capacity, or as latency corrects it."""
    totals, strains = [], []
    for _ in range(repeats):
        controller = Watched(part, most_ratio)
        run = run_quietly(scenario, controller, qemu.storage_daemon())
        totals.append(round(total(run), 1))
        strains.append(round(strain(scenario, run, fmean(controller.latencies_s)), 3))
    return Point(part, median(totals), median(strains), totals, strains)


def strain(scenario: Scenario, run: Run, latency_s: float) -> float:
    """Return the disk's latency over its target, as the agent weighs a mix of sizes."""
    rates = {name: one.rate for name, one in run.drives.items()}
    costs = _costs(scenario)
    mean_cost = sum(rates.values()) / sum(rate / costs[name] for name, rate in rates.items())
    served_cost = sum(rate * costs[name] for name, rate in rates.items()) / sum(rates.values())
    target_s = scenario.latency_target_ms / 1000
    return latency_s / (target_s + allowance_s(mean_cost, served_cost, scenario.capacity))


def _costs(scenario: Scenario) -> Mapping[str, float]:
    """Return the cost of each drive's requests, which are of one size each."""
    costs = {}
    for drive in scenario.drives:
        (stream,) = drive.streams
        size = int(str(stream.job["bs"]).removesuffix("k")) << 10
        model = scenario.model
        is_read = stream.job["rw"] == "randread"
        costs[drive.name] = (model.read if is_read else model.write).cost(size)
    return costs


def most_within(points: Sequence[Point]) -> float:
    """Return the highest total whose strain is 1 at most; 0 if there is none."""
    best = [one.total for one in points if one.strain <= 1]
    for low, high in pairwise(points):
        if (low.strain - 1) * (high.strain - 1) < 0:
            way = (1 - low.strain) / (high.strain - low.strain)
            best.append(low.total + way * (high.total - low.total))
    return max(best, default=0.0)


def main() -> None:
    """Measure it, and write the result."""
    parser = argparse.ArgumentParser(description=result_file.question(__doc__))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--parts", nargs="+", type=float, help="of the capacity; then no file")
    given = parser.parse_args()
    (scenario,) = load("weights").cases
    points = []
    print(f"{'capacity':>9} {'total':>7} {'strain':>7}")
    for part in given.parts or PARTS:
        points.append(point(scenario, part, given.repeats))
        print(f"{part:9.0%} {points[-1].total:7,.0f} {points[-1].strain:7.2f}", flush=True)
    within, most = most_within(points), max(one.total for one in points)
    ours, further = (point(scenario, None, given.repeats, to) for to in (None, MOST_RATIO))
    for name, one in (("iokeel", ours), (f"to {MOST_RATIO}", further)):
        print(f"{name:>9} {one.total:7,.0f} {one.strain:7.2f}")
        if within:
            print(f"{'':9} {one.total / within:.0%} of the most within the latency target")
        print(f"{'':9} {one.total / most:.0%} of the most at all")
    if not given.parts:
        result_file.write(
            RESULT,
            {
                "scenario": scenario.name,
                "points": points,
                "iokeel": ours,
                "iokeel_further": further,
                "most_within_target": within,
                "most": most,
            },
        )


if __name__ == "__main__":
    main()
