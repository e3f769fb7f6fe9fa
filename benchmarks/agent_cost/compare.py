"""Which of two checkouts' agents costs less CPU time per drive and tick?

Runs both agents in turn, each with its own .venv, against the same synthetic VMs: first A then B,
then B then A, and so on. Prints each run, each side's median, and the ratio B / A: its median over
the pairs, with the lowest and the highest pair. "Least disturbed" compares the lowest run of each
side, or with --law the lowest run of each tick: other work on the machine only adds time.

    python -m benchmarks.agent_cost.compare /path/to/A --scenario 100x1 --pairs 5
    python -m benchmarks.agent_cost.compare /path/to/A --law 1000 --pairs 10

A is the checkout given, B is this one, or --with another. A run takes --warm-up and --ticks
seconds and a few more. --law measures only decide(), on a simulated host of so many drives, which
takes seconds (see law_time.py). The CPU time is that of the agent's process, so nothing of a
checkout is imported here.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median

from benchmarks.agent_cost.measure import measure
from benchmarks.agent_cost.scenario import Scenario
from benchmarks.result_file import question

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
SIDES = "AB"
#: Returns us per drive: one mean of all ticks, or one figure for each tick.
Measure = Callable[[Path], list[float]]


def agent_us(scenario: Scenario, ticks: int, warm_up_s: float) -> Measure:
    """Return a function that measures the agent of a checkout."""

    def run(checkout: Path) -> list[float]:
        command = ["env", _compiled(checkout), str(checkout / ".venv/bin/iokeel")]
        found = measure(scenario, ticks, command, warm_up_s)
        if found.errors:
            print(f"errors: {found.errors}")
        print(f"tick p50 {found.tick_p50_ms:5.1f} ms  RSS {found.rss_mib:5.1f} MiB", end="  ")
        return [found.cpu_us_per_drive_and_tick]

    return run


def _compiled(checkout: Path) -> str:
    """Return the environment in which a checkout's programs run its compiled law."""
    return f"PYTHONPATH={checkout.resolve()}/build/law"


def law_us(drives: int, ticks: int, exact: bool) -> Measure:
    """Return a function that measures the control law of a checkout."""

    def run(checkout: Path) -> list[float]:
        python = ["env", _compiled(checkout), str(checkout / ".venv/bin/python")]
        command = [*python, str(HERE / "law_time.py"), str(checkout)]
        command += [f"--drives={drives}", f"--ticks={ticks}", *["--exact"] * exact]
        # PYTHONPATH would put this checkout's modules before the other's.
        done = subprocess.run(command, stdout=subprocess.PIPE, env={}, check=False)
        if done.returncode:
            sys.exit(f"law_time.py failed in {checkout}")
        found: list[float] = json.loads(done.stdout)["us_per_drive_and_tick"]
        return found

    return run


def in_turn(checkouts: Sequence[Path], pairs: int, run: Measure) -> list[list[list[float]]]:
    """Measure each checkout so often, alternately; return the runs by checkout."""
    found: list[list[list[float]]] = [[] for _ in checkouts]
    for pair in range(pairs):
        sides = range(len(checkouts)) if pair % 2 == 0 else reversed(range(len(checkouts)))
        for side in sides:
            found[side].append(us := run(checkouts[side]))
            print(f"pair {pair + 1:2}  {SIDES[side]}  {fmean(us):8.1f} us", flush=True)
    return found


def show(checkouts: Sequence[Path], found: Sequence[list[list[float]]]) -> None:
    """Print each side's median run and its least disturbed ticks, and their ratios."""
    least = []
    for side, checkout in enumerate(checkouts):
        runs = [fmean(run) for run in found[side]]
        least.append(fmean(min(ticks) for ticks in zip(*found[side], strict=True)))
        print(
            f"{SIDES[side]}      {median(runs):8.1f} us  ({min(runs):.1f} to {max(runs):.1f})"
            f"  least disturbed {least[side]:.1f}  {checkout}"
        )
    ratios = [fmean(b) / fmean(a) for a, b in zip(*found, strict=True)]
    print(
        f"B / A  {median(ratios):8.3f}     ({min(ratios):.3f} to {max(ratios):.3f})"
        f"  least disturbed {least[1] / least[0]:.3f}"
    )


def main() -> None:
    """Compare two checkouts."""
    parser = argparse.ArgumentParser(description=question(__doc__))
    parser.add_argument("checkout", type=Path, help="A: a checkout after `make law`")
    parser.add_argument(
        "--with", dest="other", type=Path, default=CHECKOUT, help="B: by default this checkout"
    )
    parser.add_argument(
        "--scenario",
        type=Scenario.of,
        default=Scenario.of("100x1"),
        help="such as 100x1 or 25x4/exact",
    )
    parser.add_argument("--law", type=int, metavar="DRIVES", help="measure only decide()")
    parser.add_argument("--exact", action="store_true", help="with --law: QEMUs with cost curves")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--ticks", type=int, default=40, help="ticks of a run")
    parser.add_argument(
        "--warm-up", type=float, default=15.0, help="seconds before a run is measured"
    )
    options = parser.parse_args()
    checkouts = [options.checkout.resolve(), options.other.resolve()]
    for checkout in checkouts:
        if not (checkout / ".venv/bin/iokeel").exists():
            parser.error(f"{checkout} has no .venv/bin/iokeel: run make law there")
    if options.law:
        run = law_us(options.law, options.ticks, options.exact)
    else:
        run = agent_us(options.scenario, options.ticks, options.warm_up)
    show(checkouts, in_turn(checkouts, options.pairs, run))


if __name__ == "__main__":
    main()
