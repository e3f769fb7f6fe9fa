"""Do other guests keep their disks beside QEMUs that lie, flood and hang?

The agent manages several VMs over QMP sockets, all on one network storage. Three are honest and
serve reads within the limits they are told; the others play a new trick every few seconds
(tricks.py), drawn from a seed. What is judged, by none of the agent's own words:

    limits   an honest VM always has limits, none above its ceiling, and from SETTLE_S on none below
             its limit, because the storage is calm
    ticks    an honest VM's counters are read again within GAP_S
    memory   the agent stays below MEMORY_MIB
    log      it writes at most LOG_BYTES_S a second, over any minute
    files    its state folder stays below STATE_MIB
    metrics  it answers with its metrics whenever it is asked, within ANSWER_S and METRICS_MIB

Exit status: 0 if every promise was kept, 1 if one was broken, 2 if the run could not be made.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks import result_file
from benchmarks.command import end_with
from testing.agents import Agent, http
from testing.lab.host import PROJECT
from testing.waiting import eventually

LIMIT, CEILING = 1000, 2000
"""Of class bronze, in normalized I/O operations a second."""
DEMANDS = (700.0, 900.0, 1500.0)
SETTLE_S = 10.0
GAP_S = 5.0
MEMORY_MIB = 300
LOG_BYTES_S = 4096
STATE_MIB = 16
ANSWER_S = 10.0
METRICS_MIB = 4
HOSTILE = 3
_MINUTE_S = 60.0
_TABLES = """
[cgroup]
enabled = false
[storage.shared]
source = "nbd:filer:10809"
capacity = 16000
latency_target_ms = 2
"""


class Look(NamedTuple):
    """What is seen of the agent once a second. Sizes are in bytes."""

    at_s: float
    memory: int
    log: int
    state: int
    metrics: int
    took_s: float


@dataclass(frozen=True)
class Result:
    """What a run showed. tricks: played, by name. The rest: the worst of each promise's figure."""

    question: str
    date: str
    revision: str | None
    machine: result_file.Machine
    seed: int
    seconds: float
    tricks: Mapping[str, int]
    least_ratio: float
    most_ratio: float
    gap_s: float
    memory_mib: float
    log_bytes_s: float
    state_mib: float
    metrics_mib: float
    answer_s: float
    faults: Sequence[str]

    @property
    def breaches(self) -> list[str]:
        """Every promise that was broken."""
        over = {
            f"an honest VM has {self.most_ratio:.3f} of its ceiling": self.most_ratio > 1.0,
            f"an honest VM has {self.least_ratio:.3f} of its limit": self.least_ratio < 0.99,
            f"an honest VM isn't read for {self.gap_s:.1f} s": self.gap_s > GAP_S,
            f"the agent takes {self.memory_mib:.0f} MiB": self.memory_mib > MEMORY_MIB,
            f"its log grows by {self.log_bytes_s:.0f} bytes a second": self.log_bytes_s
            > LOG_BYTES_S,
            f"its state folder has {self.state_mib:.1f} MiB": self.state_mib > STATE_MIB,
            f"its metrics have {self.metrics_mib:.1f} MiB": self.metrics_mib > METRICS_MIB,
            f"its metrics take {self.answer_s:.1f} s": self.answer_s > ANSWER_S,
        }
        return [said for said, is_so in over.items() if is_so] + [*self.faults]


def run(seconds: float, seed: int) -> Result:
    """Make a run."""
    with TemporaryDirectory(prefix="iokeel-hostile-") as name, ExitStack() as stack:
        folder = Path(name)
        for i, demand in enumerate(DEMANDS):
            stack.enter_context(_vm(folder, f"honest{i}", "--demand", str(demand)))
        for i in range(HOSTILE):
            stack.enter_context(_vm(folder, f"evil{i}", "--seed", str(seed * HOSTILE + i)))
        names = [f"honest{i}" for i in range(len(DEMANDS))] + [f"evil{i}" for i in range(HOSTILE)]
        vms = "".join(
            f'[[vm]]\nname = "{each}"\nsocket = "{folder / each}.qmp"\nclass = "bronze"\n'
            for each in names
        )
        agent = Agent(folder, _TABLES + vms)
        stack.callback(agent.end)
        agent.start()
        looks = [*_looks(agent, seconds)]
        faults = [*agent.own_faults()]
        ended_s = time.monotonic()
        journals = {each: _journal(folder / f"{each}.json") for each in names}
    honest = [journals[f"honest{i}"] for i in range(len(DEMANDS))]
    tricks = Counter(line["trick"] for i in range(HOSTILE) for line in journals[f"evil{i}"])
    begun_s = looks[0].at_s
    least, most = _ratios(honest, begun_s)
    return Result(
        result_file.question(__doc__), result_file.now(), result_file.revision(),
        result_file.Machine.this(), seed, seconds, dict(sorted(tricks.items())), least, most,
        max(_gap(lines, begun_s, ended_s) for lines in honest),
        max(look.memory for look in looks) / 2**20,
        _log_rate(looks),
        max(look.state for look in looks) / 2**20,
        max(look.metrics for look in looks) / 2**20,
        max(look.took_s for look in looks),
        faults,
    )  # fmt: skip


@contextmanager
def _vm(folder: Path, name: str, *words: str) -> Iterator[None]:
    path = folder / f"{name}.qmp"
    journal = str(folder / f"{name}.json")
    command = [sys.executable, "-m", "benchmarks.hostile.vm", str(path), journal, *words]
    paths = os.pathsep.join([str(PROJECT / "agent"), str(PROJECT)])
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}) as process:
        try:
            eventually(path.exists, process=process)
            yield
        finally:
            process.kill()


def _looks(agent: Agent, seconds: float) -> Iterator[Look]:
    assert agent.process is not None
    statm = Path(f"/proc/{agent.process.pid}/statm")
    page = os.sysconf("SC_PAGE_SIZE")
    until_s = time.monotonic() + seconds
    while (begun_s := time.monotonic()) < until_s:
        status, _, text = http(agent.socket, "GET", "/metrics")
        if status != 200:
            raise AssertionError(f"/metrics answers {status}: {text[:200]}")
        yield Look(
            begun_s,
            int(statm.read_text().split()[1]) * page,
            agent.log_file.stat().st_size,
            sum(file.stat().st_size for file in agent.state.rglob("*") if file.is_file()),
            len(text),
            time.monotonic() - begun_s,
        )
        time.sleep(max(0.0, begun_s + 1 - time.monotonic()))


def _journal(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _ratios(honest: Sequence[Sequence[Mapping[str, Any]]], begun_s: float) -> tuple[float, float]:
    """Return the lowest limits over the limit, and the highest over the ceiling."""
    told = [line for lines in honest for line in lines if "allowed" in line]
    settled = [line["allowed"] for line in told if line["at_s"] > begun_s + SETTLE_S]
    for lines in honest:  # what is in force from then on
        before = [n["allowed"] for n in lines if "allowed" in n and n["at_s"] <= begun_s + SETTLE_S]
        settled += before[-1:] or [0.0]
    return min(settled) / LIMIT, max(line["allowed"] for line in told) / CEILING


def _gap(lines: Sequence[Mapping[str, Any]], begun_s: float, ended_s: float) -> float:
    reads: list[float] = [line["at_s"] for line in lines if "read" in line]
    return max(b - a for a, b in pairwise([begun_s, *reads, ended_s]))


def _log_rate(looks: Sequence[Look]) -> float:
    """Return the most bytes a second over a minute, or over the whole of a shorter run."""
    span_s = min(_MINUTE_S, looks[-1].at_s - looks[0].at_s)
    rates = [0.0]
    for i, look in enumerate(looks):
        later = next((each for each in looks[i:] if each.at_s >= look.at_s + span_s), None)
        if later is not None and span_s:
            rates.append((later.log - look.log) / (later.at_s - look.at_s))
    return max(rates)


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        "benchmarks.hostile.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seconds", type=float, default=os.environ.get("SECONDS", "120"),
        help="how long tricks are played (make: SECONDS=)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=int, default=os.environ.get("SEED", str(secrets.randbelow(10**6))),
        help="repeats the tricks of a run (make: SEED=; default: a new one)",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=result_file.RESULTS / "hostile.json")
    found = parser.parse_args(words)
    print(f"iokeel hostile: {found.seconds:g} s, SEED={found.seed}", flush=True)
    result = run(found.seconds, found.seed)
    print("tricks: " + ", ".join(f"{n} x {name}" for name, n in result.tricks.items()))
    print(
        f"honest VMs: {result.least_ratio:.3f} of their limit at least, {result.most_ratio:.3f} of"
        f" their ceiling at most, read again within {result.gap_s:.1f} s\n"
        f"the agent: {result.memory_mib:.0f} MiB, {result.log_bytes_s:.0f} bytes of log a second,"
        f" {result.state_mib:.1f} MiB of state, {result.metrics_mib:.2f} MiB of metrics in"
        f" {result.answer_s:.1f} s"
    )
    for said in result.breaches:
        print(f"broken: {said}")
    print("A promise was broken." if result.breaches else "Every promise was kept.")
    result_file.write(found.out, result)
    return 1 if result.breaches else 0


if __name__ == "__main__":
    end_with(main)
