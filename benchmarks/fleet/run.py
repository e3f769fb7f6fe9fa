"""Do the QEMUs of several hosts together ever get more than their tenant's limit, whatever fails?

Four hosts, each in a network namespace of its own, have an agent, a storage daemon with the
patches and fio, whose demand comes and goes. Three members of etcd are in namespaces of their own.
Faults come at random from a seed (faults.py). A monitor that shares nothing with the agent reads
the limits of all daemons ten times a second. Exit status: 0 if their sum was never
above 1.01 of the tenant's limit and all of it was given again at the end, 1 if not, 2 if the run
could not be made.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import result_file
from benchmarks.fleet.command import end_with
from benchmarks.fleet.faults import Faults
from benchmarks.fleet.site import BUDGET, GROUPS, HOSTS, needs, site
from testing.waiting import eventually

# QEMU takes no limit of 0, so a host whose part is less holds each drive to 1.
MOST_RATIO = 1.01
_SLACK = len(HOSTS) * len(GROUPS)
# At the end, at least this much of the limit is given again, within so many seconds.
_GIVEN_RATIO = 0.9
_RECOVER_S = 90.0


@dataclass(frozen=True)
class Result:
    """What a run showed.

    faults: made, by kind. worst_ratio: the highest sum of limits over the tenant's limit.
    mean_ratio: of all samples. operations: what fio did, by host. recovered_s: how long it took
    after the last fault until the limit was given again; None if it wasn't.
    """

    question: str
    date: str
    revision: str | None
    machine: result_file.Machine
    seed: int
    seconds: float
    faults: Mapping[str, int]
    samples: int
    worst_ratio: float
    mean_ratio: float
    operations: Mapping[str, int]
    recovered_s: float | None

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        most = MOST_RATIO + _SLACK / BUDGET
        return self.worst_ratio <= most and self.recovered_s is not None


def run(seconds: float, seed: int, daemon: Path, *, broken: bool = False) -> Result:
    """Make a run."""
    with site(daemon, seed, broken=broken) as there:
        monitor = there.monitor

        def given() -> bool:
            if monitor.error is not None:
                raise monitor.error
            return monitor.seen >= _GIVEN_RATIO * BUDGET

        try:
            eventually(given, _RECOVER_S)
            print("all of the limit is given; faults begin", flush=True)
            faults = Faults(there, seed, lambda line: print(line, flush=True))
            faults.run(seconds)
            there.busy.set()
            over_s, recovered_s = time.monotonic(), None
            try:
                eventually(given, _RECOVER_S)
                recovered_s = time.monotonic() - over_s
            except AssertionError:
                pass
        except BaseException:
            for host in there.hosts.values():
                print(f"--- the agent of {host.name}\n{host.agent.log()}")
            raise
        sums = [sum(rates.values()) for _, rates in monitor.history]
        result = Result(
            result_file.question(__doc__), result_file.now(), result_file.revision(),
            result_file.Machine.this(), seed, seconds, dict(faults.made), monitor.samples,
            monitor.worst / BUDGET, sum(sums) / len(sums) / BUDGET,
            {name: host.done for name, host in there.hosts.items()}, recovered_s,
        )  # fmt: skip
        if not result.kept:
            for at_s, rates in monitor.history:
                if sum(rates.values()) > MOST_RATIO * BUDGET + _SLACK:
                    print(f"above at {at_s - monitor.history[0][0]:.1f} s: {rates}")
            for host in there.hosts.values():
                print(f"--- the agent of {host.name}\n{host.agent.log()}")
    return result


def _show(result: Result) -> None:
    print("\nfaults: " + ", ".join(f"{n} x {kind}" for kind, n in sorted(result.faults.items())))
    print(f"samples: {result.samples}")
    print(f"highest sum of limits: {result.worst_ratio:.4f} of the tenant's limit")
    print(f"mean sum of limits:    {result.mean_ratio:.4f}")
    print("operations: " + ", ".join(f"{host} {n}" for host, n in result.operations.items()))
    if result.recovered_s is None:
        print(f"not given again within {_RECOVER_S:.0f} s of the last fault")
    else:
        print(f"given again {result.recovered_s:.0f} s after the last fault")
    print("Every promise was kept." if result.kept else "A promise was broken.")


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("benchmarks.fleet.run", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300, help="how long faults come")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument(
        "--broken", choices=("0", "1"), default="0",
        help="1: with agents that never lower their limits, to see that this is found; nothing is"
        " written (make: BROKEN=1)",
    )  # fmt: skip
    parser.add_argument("--daemon", type=Path, help="a storage daemon with the patches")
    parser.add_argument("--out", type=Path, default=result_file.RESULTS / "fleet.json")
    from_make = [
        f"--{name.lower()}={value}"
        for name in ("SECONDS", "SEED", "BROKEN")
        if (value := os.environ.get(name))
    ]
    options = parser.parse_args([*from_make, *words])
    if (missing := needs()) is not None:
        print(f"benchmarks.fleet: {missing}", file=sys.stderr)
        return 2
    if options.daemon is None:
        from testing.lab.qemu import storage_daemon

        options.daemon = storage_daemon()
    print(f"iokeel fleet: {options.seconds:g} s, SEED={options.seed}", flush=True)
    broken = options.broken == "1"
    result = run(options.seconds, options.seed, options.daemon, broken=broken)
    _show(result)
    if not broken:
        result_file.write(options.out, result)
    return 0 if result.kept else 1


if __name__ == "__main__":
    end_with(main)
