"""What do five open pages in Cockpit cost the agent?

    python -m benchmarks.agent_cost.open_pages [SCENARIO...] [--repeats N] [--seconds N]

Runs `iokeel agent` against VMs that are only QMP sockets, as run.py does. Clients ask what the page
asks, when it asks it (agent/cockpit/src/agent): every two seconds, all at the same moment, and each
question on a connection of its own.

    none     no page is open
    host     five pages with the host: GET /v1/host
    drive    five pages, each with a drive of its own: that, the drive's history and why

A repeat measures none, host and drive, one after another. The result has medians of the repeats,
and the least and the most.

    % of a core   1e2 * CPU seconds of the agent's process / seconds
    more          that, less what it was with no page in the same repeat
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import result_file
from benchmarks.agent_cost.agent_process import AgentProcess, agent_beside
from benchmarks.agent_cost.measure import WARM_UP_S
from benchmarks.agent_cost.run import Machine
from benchmarks.agent_cost.scenario import Scenario
from benchmarks.spread import Spread
from testing.agents import IOKEEL, http

SCENARIOS = ("100x1", "200x1", "200x1/exact")
PAGES = 5
EVERY_S = 2.0
HISTORY_S = 300
# Left out before each measurement, because clients have just started or ended.
_SETTLE_S = 2 * EVERY_S


@dataclass(frozen=True)
class Measured:
    """A scenario's figures. questions_per_second: of five pages with a drive."""

    scenario: str
    drives: int
    host_bytes: int
    none_core_percent: Spread
    host_more_percent: Spread
    drive_more_percent: Spread
    questions_per_second: float


@dataclass
class Result:
    """A result file."""

    question: str
    machine: Machine
    pages: int
    seconds: float
    repeats: int
    results: list[Measured] = field(default_factory=list)


class Pages:
    """Open pages: threads that ask until they are closed."""

    def __init__(self, agent: AgentProcess, paths: Sequence[Sequence[str]]) -> None:
        """paths: the questions of each page."""
        self.answers = 0
        self._agent = agent
        self._closed = threading.Event()
        self._counting = threading.Lock()
        self._threads = [threading.Thread(target=self._follow, args=(each,)) for each in paths]
        for thread in self._threads:
            thread.start()

    def _follow(self, paths: Sequence[str]) -> None:
        while not self._closed.wait(EVERY_S - time.time() % EVERY_S):
            for path in paths:
                status, _, _ = http(self._agent.socket, "GET", path)
                assert status == 200, path
                with self._counting:
                    self.answers += 1

    def close(self) -> None:
        """Ask no more."""
        self._closed.set()
        for thread in self._threads:
            thread.join()


@contextmanager
def _open(agent: AgentProcess, paths: Sequence[Sequence[str]]) -> Iterator[Pages]:
    pages = Pages(agent, paths)
    try:
        yield pages
    finally:
        pages.close()


def questions(agent: AgentProcess) -> dict[str, list[list[str]]]:
    """Return the questions of each page, by what the pages show."""
    drives = [drive for vm in agent.ask("/v1/vms") for drive in vm["drives"]]
    shown = [drives[number * len(drives) // PAGES] for number in range(PAGES)]
    names = [f"domain={drive['domain']}&target={drive['target']}" for drive in shown]
    host = "/v1/host"
    return {
        "none": [],
        "host": [[host]] * PAGES,
        "drive": [
            [host, f"/v1/history?{name}&seconds={HISTORY_S}", f"/v1/why?{name}"] for name in names
        ],
    }


def measure(scenario: Scenario, repeats: int, seconds: float) -> Measured:
    """Measure an agent with and without pages."""
    cost: dict[str, list[float]] = {"none": [], "host": [], "drive": []}
    with agent_beside(scenario, (str(IOKEEL),)) as agent:
        agent.wait_for(scenario.drives)
        time.sleep(WARM_UP_S)
        for _ in range(repeats):
            for shown, paths in questions(agent).items():
                with _open(agent, paths) as pages:
                    time.sleep(_SETTLE_S)
                    cpu_s, answers, began = agent.cpu_s(), pages.answers, time.monotonic()
                    time.sleep(seconds)
                    elapsed_s = time.monotonic() - began
                    cost[shown].append(100 * (agent.cpu_s() - cpu_s) / elapsed_s)
                    rate = (pages.answers - answers) / elapsed_s
        host_bytes = len(http(agent.socket, "GET", "/v1/host")[2])
    more = {
        shown: [with_pages - none for with_pages, none in zip(values, cost["none"], strict=True)]
        for shown, values in cost.items()
    }
    return Measured(
        scenario=str(scenario),
        drives=scenario.drives,
        host_bytes=host_bytes,
        none_core_percent=_rounded(cost["none"]),
        host_more_percent=_rounded(more["host"]),
        drive_more_percent=_rounded(more["drive"]),
        questions_per_second=round(rate, 1),
    )


def _rounded(values: Sequence[float]) -> Spread:
    return Spread.of([round(value, 2) for value in values])


def main() -> None:
    """Measure the scenarios."""
    parser = argparse.ArgumentParser(description=result_file.question(__doc__))
    parser.add_argument("scenarios", nargs="*", default=SCENARIOS, help="such as 100x1 or 25x4")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0, help="measured in each")
    output = result_file.RESULTS / "open-pages.json"
    parser.add_argument("--output", type=Path, default=output)
    options = parser.parse_args()
    found = Result(
        result_file.question(__doc__), Machine.this(), PAGES, options.seconds, options.repeats
    )
    for text in options.scenarios:
        measured = measure(Scenario.of(text), options.repeats, options.seconds)
        found.results.append(measured)
        print(
            f"{measured.scenario}: {measured.none_core_percent} % of a core with no page;"
            f" {measured.host_more_percent} more with {PAGES} pages of the host,"
            f" {measured.drive_more_percent} more with {PAGES} of drives"
        )
    result_file.write(options.output, found, indent=2)


if __name__ == "__main__":
    main()
