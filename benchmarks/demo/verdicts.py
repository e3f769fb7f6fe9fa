"""Is the demo's verdict about iokeel, whatever else the machine does?

Runs the demo's first stage again and again beside a busy build: with a sound agent, which has to
keep every limit, and with an agent that is broken on purpose, which has to miss one each time.
Exit status: 0 if that is so, 1 if not.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TypedDict

from benchmarks.demo.broken_agent import BREAKS, Break
from benchmarks.demo.results import Json, host, revision
from benchmarks.demo.scenario import BENCHMARKS
from benchmarks.demo.verdict import Outcome

_OUT = BENCHMARKS / "results/demo-verdicts.json"
_RUNS = BENCHMARKS.parent / "build/demo-verdicts"
_SOUND = "sound"
# It ends with this process, however that ends.
_BUILD = 'while kill -0 $PPID; do for file in *.c; do cc -O2 -c "$file" -o /dev/null; done; done'


class Run(TypedDict):
    """One run. agent: "sound", or how it was broken. load: the average of its last minute."""

    agent: str
    outcome: str
    load: float
    stolen_ratio: float
    held_up_s: float
    missed: list[str]
    unclear: list[str]


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        "benchmarks.demo.verdicts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, default, what in (
        ("--runs", int(os.environ.get("RUNS") or 20), "runs with a sound agent (make: RUNS=20)"),
        ("--broken", 3, "runs with each kind of broken agent"),
        ("--jobs", 1, "runs at a time"),
        ("--build", 2, "compilers that run beside them"),
    ):
        parser.add_argument(name, type=int, default=default, help=f"{what} (default: %(default)s)")
    options = parser.parse_args(words)
    agents = _in_turn([None] * options.runs, BREAKS * options.broken)
    done: list[Run] = []
    with _busy_build(options.build), ThreadPoolExecutor(options.jobs) as pool:
        for run in pool.map(_run, range(len(agents)), agents):
            done.append(run)
            _write(done, options.build, options.jobs)
            print(
                f"{len(done):3} of {len(agents)}  agent {run['agent']:5}  {run['outcome']:9}"
                f"  load {run['load']:4.1f}  guests held up for {run['held_up_s']:4.1f} s",
                flush=True,
            )
    right = sum(map(_is_right, done))
    print(f"{right} of {len(done)} verdicts are right. Figures: {_OUT}")
    return 0 if right == len(done) else 1


def _in_turn(*kinds: Sequence[Break | None]) -> list[Break | None]:
    """Return all agents, each kind spread over the whole campaign."""
    places = [((i + 0.5) / len(kind), agent) for kind in kinds for i, agent in enumerate(kind)]
    return [agent for _, agent in sorted(places, key=lambda place: place[0])]


def _is_right(run: Run) -> bool:
    return run["outcome"] == ("kept" if run["agent"] == _SOUND else "missed")


def _run(number: int, broken: Break | None) -> Run:
    """Run the demo once and return its verdict. Raises RuntimeError if it could not run."""
    folder = _RUNS / f"{number:02}"
    words = [sys.executable, "-m", "benchmarks.demo.run", "--static=0", f"--out={folder}"]
    environment = {name: value for name, value in os.environ.items() if name != "BREAK"}
    process = subprocess.run(
        [*words, *([f"--break={broken}"] if broken else [])],
        env=environment,
        capture_output=True,
        text=True,
    )
    if process.returncode not in set(Outcome):
        raise RuntimeError(f"{' '.join(words)}: {process.stdout[-500:]}{process.stderr[-2000:]}")
    result = json.loads((folder / "results.json").read_text())
    stage = result["runs"]["iokeel"]
    rows = [(name, row) for name, phases in stage["drives"].items() for row in phases]
    return Run(
        agent=broken or _SOUND,
        outcome=result["outcome"],
        load=round(os.getloadavg()[0], 1),
        stolen_ratio=stage["stolen_ratio"],
        held_up_s=round(sum(row["held_up_s"] for _, row in rows), 1),
        missed=[
            f"{name}, {row['phase']}: {', '.join(row['misses'])}"
            for name, row in rows
            if row["verdict"] == "missed"
        ],
        unclear=[f"{name}, {row['phase']}" for name, row in rows if row["verdict"] == "unclear"],
    )


@contextmanager
def _busy_build(compilers: int) -> Iterator[None]:
    """Compile the disk simulator again and again until the end of the block."""
    build = partial(
        subprocess.Popen,
        ["sh", "-c", _BUILD],
        cwd=BENCHMARKS / "disksim",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    processes = [build() for _ in range(compilers)]
    try:
        yield
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def _write(done: Sequence[Run], compilers: int, jobs: int) -> None:
    """Write what is known so far: a campaign takes an hour."""
    kinds = {run["agent"] for run in done}
    result: Json = {
        "host": host(),
        "revision": revision(),
        "compilers": compilers,
        "at_once": jobs,
        "outcomes": {
            kind: dict(Counter(run["outcome"] for run in done if run["agent"] == kind))
            for kind in sorted(kinds)
        },
        "runs": done,
    }
    _OUT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
