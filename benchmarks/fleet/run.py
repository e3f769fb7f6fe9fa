"""Do the QEMUs of several hosts together ever get more than their tenant's limit, whatever fails?

Or more than the capacity of a storage that they share? Four hosts, each in a network namespace of
its own, have an agent, storage daemons with the patches and fio, whose demand comes and goes. Three
members of etcd are in namespaces of their own. Faults come at random from a seed (chaos/).
Monitors that share nothing with the agent read the limits of all daemons ten times a second. Exit
status: 0 if their sums were never above 1.01 of the budgets, all of these was given again at the
end, each host's fio did something, no agent had a fault of its own, and none used more than 300 MiB
or logged more than 2 KiB a second; 1 if not; 2 if the run could not be made.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from benchmarks import result_file
from benchmarks.command import end_with
from benchmarks.fleet.chaos.faults import Faults
from benchmarks.fleet.chaos.site import BUDGET, CAPACITY, GROUPS, HOSTS, Site, needs, site
from testing.fleet.monitor import Monitor
from testing.waiting import eventually

# QEMU takes no limit of 0, so a host whose part is less holds each drive to 1.
MOST_RATIO = 1.01
# At the end, at least this much of the limit is given again, within so many seconds.
_GIVEN_RATIO = 0.9
_RECOVER_S = 90.0
# Of an agent, whatever other hosts write.
_MOST_MIB = 300.0
_MOST_LOG_BPS = 2048.0
_SAMPLE_S = 1.0


@dataclass(frozen=True)
class Held:
    """What QEMUs were held to under a budget. Ratios are sums of limits over the budget.

    samples: how often they were added up. worst_ratio: the highest sum. mean_ratio: of all samples.
    """

    budget: int
    samples: int
    worst_ratio: float
    mean_ratio: float

    @property
    def kept(self) -> bool:
        """Whether it was never above the budget."""
        return self.worst_ratio <= MOST_RATIO


@dataclass(frozen=True)
class Result:
    """What a run showed.

    faults: made, by kind. operations: what fio did, by host. recovered_s: how long it took after
    the last fault until all was given again; None if it wasn't. own_faults: of the agents, by their
    logs. memory_mib: the most that an agent had. log_bps: what one logged, in bytes a second.
    """

    question: str
    date: str
    revision: str | None
    machine: result_file.Machine
    seed: int
    seconds: float
    faults: Mapping[str, int]
    tenant: Held
    storage: Held
    operations: Mapping[str, int]
    recovered_s: float | None
    own_faults: Sequence[str]
    memory_mib: float
    log_bps: float

    @property
    def kept(self) -> bool:
        """Whether every promise was kept, and each host had its load."""
        held = self.tenant.kept and self.storage.kept and self.recovered_s is not None
        held = held and self.memory_mib <= _MOST_MIB and self.log_bps <= _MOST_LOG_BPS
        return held and all(self.operations.values()) and not self.own_faults


@dataclass(frozen=True)
class _Budget:
    """A budget, and the monitor of the drives under it."""

    amount: int
    drives: int
    monitor: Monitor

    @property
    def is_given(self) -> bool:
        """Whether nearly all of it is given."""
        self.monitor.check()
        return self.monitor.seen >= _GIVEN_RATIO * self.amount

    def held(self) -> Held:
        """Return what its QEMUs were held to. No drive can be held to less than 1."""
        sums = [max(0.0, sum(rates.values()) - self.drives) for _, rates in self.monitor.history]
        return Held(
            self.amount, len(sums), max(sums) / self.amount, sum(sums) / len(sums) / self.amount
        )

    def print_above(self, what: str) -> None:
        """Print when the sum was too high."""
        for at_s, rates in self.monitor.history:
            if sum(rates.values()) > MOST_RATIO * self.amount + self.drives:
                print(f"{what}: above at {at_s - self.monitor.history[0][0]:.1f} s: {rates}")


class _Memory:
    """Watches the memory of all agents. most_mib: the most that one of them had."""

    def __init__(self, there: Site) -> None:
        self.most_mib = 0.0
        self._there = there
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._watch.join()

    def _run(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            for host in self._there.hosts.values():
                with suppress(OSError, AttributeError, IndexError):  # it has just been killed
                    status = Path(f"/proc/{host.agent.process.pid}/status").read_text()  # type: ignore[union-attr]
                    kib = int(status.split("VmRSS:")[1].split()[0])
                    self.most_mib = max(self.most_mib, kib / 1024)


def run(seconds: float, seed: int, daemon: Path, *, broken: bool = False) -> Result:
    """Make a run."""
    with site(daemon, seed, broken=broken) as there:
        tenant = _Budget(BUDGET, len(HOSTS) * len(GROUPS), there.tenant)
        storage = _Budget(CAPACITY, len(HOSTS), there.storage)
        try:
            eventually(lambda: tenant.is_given and storage.is_given, _RECOVER_S)
            print("all of the budgets is given; faults begin", flush=True)
            faults = Faults(there, seed, lambda line: print(line, flush=True))
            begun_s, memory = time.monotonic(), _Memory(there)
            with memory:
                faults.run(seconds)
            logged = max(len(host.agent.log()) for host in there.hosts.values())
            log_bps = logged / (time.monotonic() - begun_s)
            there.busy.set()
            over_s, recovered_s = time.monotonic(), None
            try:
                eventually(lambda: tenant.is_given and storage.is_given, _RECOVER_S)
                recovered_s = time.monotonic() - over_s
            except AssertionError:
                pass
        except BaseException:
            _print_logs(there)
            raise
        result = Result(
            result_file.question(__doc__), result_file.now(), result_file.revision(),
            result_file.Machine.this(), seed, seconds, dict(faults.made), tenant.held(),
            storage.held(), {name: host.done for name, host in there.hosts.items()}, recovered_s,
            [f"{name}: {said}" for name, host in there.hosts.items()
             for said in host.agent.own_faults()],
            memory.most_mib, log_bps,
        )  # fmt: skip
        if not result.kept:
            tenant.print_above("tenant")
            storage.print_above("storage")
            _print_logs(there)
    return result


def _print_logs(there: Site) -> None:
    for host in there.hosts.values():
        print(f"--- the agent of {host.name}\n{host.agent.log()}")


def _show(result: Result) -> None:
    print("\nfaults: " + ", ".join(f"{n} x {kind}" for kind, n in sorted(result.faults.items())))
    for what, held in (("tenant's limit", result.tenant), ("storage's capacity", result.storage)):
        print(f"{what}: the sum of limits was {held.worst_ratio:.4f} of it at most, "
              f"{held.mean_ratio:.4f} on average ({held.samples} samples)")  # fmt: skip
    print("operations: " + ", ".join(f"{host} {n}" for host, n in result.operations.items()))
    if result.recovered_s is None:
        print(f"not given again within {_RECOVER_S:.0f} s of the last fault")
    else:
        print(f"given again {result.recovered_s:.0f} s after the last fault")
    print(f"an agent had {result.memory_mib:.0f} MiB at most, and logged {result.log_bps:.0f} B/s")
    for said in result.own_faults:
        print(f"a fault of an agent's own: {said}")
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
