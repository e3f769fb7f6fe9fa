"""Does every limit hold, whatever fails on a host?

Two real guests do I/O without a pause. Faults come at random: the agent or libvirtd is killed or
hangs, policies turn bad, a hand changes limits, disks come and go, the state folder fills up.
schedule.py draws them from a seed, verdict.py says what is judged, by measurements that are none
of the agent's. Everything that is started ends with the run. Exit status: 0 if every promise was
kept, 1 if one was broken, 2 if the run could not be made.
"""

from __future__ import annotations

import argparse
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from benchmarks import result_file
from benchmarks.chaos.faults import carry_out
from benchmarks.chaos.host import ChaosHost, Guest, chaos_host
from benchmarks.chaos.journal import SETTLE_S
from benchmarks.chaos.schedule import plan
from benchmarks.chaos.verdict import (
    BOUNDS,
    LEAST_RATIO,
    Bounds,
    Breach,
    Judged,
    joined,
    judge_guest,
    judge_limits,
    judge_passed,
    judge_requests,
)
from benchmarks.command import end_with
from benchmarks.demo.limits_in_force import ceiling
from testing.waiting import eventually

Mode = Literal["stock", "exact"]
_GUESTS = 2
_LAST_S = 5.0  # the time for limits to be right after the last fault
_SHOWN = 20  # breaches


@dataclass(frozen=True)
class Options:
    """What a run is made of."""

    seconds: float
    seed: int
    mode: Mode
    broken: bool = False


@dataclass(frozen=True)
class Result:
    """What a run showed.

    faults: made, by kind. drives: by domain and target. breaches: of guests and the agent.
    """

    question: str
    date: str
    revision: str | None
    machine: result_file.Machine
    mode: Mode
    seed: int
    seconds: float
    bounds: Bounds
    faults: Mapping[str, int]
    drives: Mapping[str, Judged]
    breaches: Sequence[Breach]

    @property
    def all_breaches(self) -> list[Breach]:
        """Every promise that was broken, by time."""
        return joined(
            [*self.breaches, *(b for drive in self.drives.values() for b in drive.breaches)]
        )


def run(options: Options, say: Callable[[str], None] = print) -> Result:
    """Make the run that `options` describe."""
    exact = options.mode == "exact"
    with chaos_host(exact=exact, broken=options.broken, guests=_GUESTS) as chaos:
        say("libvirtd, the agent and guests run")
        return make_faults(chaos, options, say)


def make_faults(chaos: ChaosHost, options: Options, say: Callable[[str], None] = print) -> Result:
    """Start the load on a host, make the faults that `options` describe, and judge."""
    faults = plan(options.seed, options.seconds, len(chaos.guests))
    chaos.begin(options.seed)
    zero_s = time.time()
    carry_out(chaos, faults, say)
    bounds = BOUNDS[options.mode]
    breaches = [*_end(chaos, bounds, zero_s)]
    say("faults are over; fio's logs are read")
    done = {guest.name: guest.end_load() for guest in chaos.guests}
    drives: dict[str, Judged] = {}
    for guest in chaos.guests:
        looks = tuple(guest.monitor.looks)
        for drive in ((guest.name, "vda"), (guest.name, "vdb")):
            judged = judge_limits(looks, drive, chaos.journal, bounds, zero_s)
            judge_passed(judged, looks, drive, chaos.journal, bounds, zero_s)
            if drive[1] == "vda":
                judge_requests(
                    judged, done[guest.name], looks, drive, chaos.journal, bounds, zero_s
                )
            drives[" ".join(drive)] = judged
        breaches += judge_guest(looks, guest.name, chaos.journal, zero_s)
    ended_s = time.time() - zero_s
    breaches += [Breach.at("log", "agent", ended_s, said) for said in chaos.agent.own_faults()]
    result = Result(
        result_file.question(__doc__), result_file.now(), result_file.revision(),
        result_file.Machine.this(), options.mode, options.seed, options.seconds, bounds,
        Counter(fault.kind for fault in faults), drives, joined(breaches),
    )  # fmt: skip
    if result.all_breaches:
        say(f"The agent's log:\n{chaos.agent.log()}")
    return result


def _is_right(guest: Guest, bounds: Bounds) -> bool:
    limits = guest.monitor.looks[-1].limits.get("vda")
    ratio = 0.0 if limits is None else ceiling(limits) / guest.limit
    return LEAST_RATIO <= ratio <= bounds.limits_ratio


def _end(chaos: ChaosHost, bounds: Bounds, zero_s: float) -> Sequence[Breach]:
    """Wait until QEMUs have the right limits, and return what is wrong if they don't."""
    wrong = []
    time.sleep(max(0.0, chaos.journal.followed_s(time.time()) - time.time() - SETTLE_S))
    for guest in chaos.guests:
        try:
            eventually(partial(_is_right, guest, bounds), _LAST_S)
        except AssertionError as error:
            what = f"not at {guest.limit} {_LAST_S:.0f} s after the last fault: {error}"
            wrong.append(Breach.at("end", guest.name, time.time() - zero_s, what))
    time.sleep(SETTLE_S)  # the monitor goes on meanwhile
    return wrong


def _show(result: Result) -> None:
    print("\nfaults: " + ", ".join(f"{n} x {kind}" for kind, n in sorted(result.faults.items())))
    print(f"{'drive':14}{'samples':>9}{'no limit':>10}{'too high':>10}{'too low':>9}"
          f"{'excused':>9}{'allowed':>9}{'by fio':>9}{'by QEMU':>9}")  # fmt: skip
    for name, drive in result.drives.items():
        worst = f"{drive.worst_ratio:.3f}" if drive.seconds else "-"
        passed = f"{drive.passed_ratio:.3f}" if drive.passed_ratio else "-"
        print(f"{name:14}{drive.samples:9}{drive.unlimited:10}{drive.too_high:10}"
              f"{drive.too_low:9}{drive.excused:9}{drive.highest_ratio:9.3f}"
              f"{worst:>9}{passed:>9}")  # fmt: skip
    breaches = result.all_breaches
    for breach in breaches[:_SHOWN]:
        when = f"{breach.at_s:.1f} to {breach.until_s:.1f} s"
        print(f"broken from {when}: {breach.drive}: {breach.what}")
    if len(breaches) > _SHOWN:
        print(f"and {len(breaches) - _SHOWN} more")
    print("A promise was broken." if breaches else "Every promise was kept.")


def _parse(words: Sequence[str]) -> tuple[Options, Path]:
    parser = argparse.ArgumentParser(
        "benchmarks.chaos.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seconds", type=float, default=120, help="how long faults come (make: SECONDS=)"
    )
    parser.add_argument(
        "--seed", type=int, default=secrets.randbelow(10**6),
        help="repeats the plan of a run (make: SEED=; default: a new one)",
    )  # fmt: skip
    parser.add_argument(
        "--mode", choices=("stock", "exact"), default="stock",
        help="exact: run the guests on a QEMU with this project's patches (make: MODE=exact)",
    )  # fmt: skip
    parser.add_argument(
        "--broken", choices=("0", "1"), default="0",
        help="1: with an agent that releases the drives of a bad policy, to see that this is"
        " found; nothing is written (make: BROKEN=1)",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, help="the result file (default: in results/)")
    from_make = [
        f"--{name.lower()}={value}"
        for name in ("SECONDS", "SEED", "MODE", "BROKEN")
        if (value := os.environ.get(name))
    ]
    found = parser.parse_args([*from_make, *words])
    options = Options(found.seconds, found.seed, found.mode, found.broken == "1")
    return options, found.out or result_file.RESULTS / f"chaos-{found.mode}.json"


def main(words: Sequence[str]) -> int:
    options, out = _parse(words)
    print(f"iokeel chaos: {options.seconds:g} s, SEED={options.seed}, MODE={options.mode}")
    for fault in plan(options.seed, options.seconds, _GUESTS):
        print(f"planned {fault}")
    result = run(options, lambda line: print(line, flush=True))
    _show(result)
    if not options.broken:
        result_file.write(out, result)
    return 1 if result.all_breaches else 0


if __name__ == "__main__":
    end_with(main)
