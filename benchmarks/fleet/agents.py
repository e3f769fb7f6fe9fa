"""What do up to 200 real agents ask of three real members of etcd, and how fast do they divide?

    python -m benchmarks.fleet.agents [--hosts 20 60 200] [--shifts 3]

Each host is an agent's own process with one synthetic drive (benchmarks.agent_cost.synthetic) of a
patched QEMU; all drives are one tenant's. The three members of etcd and everything else are on this
machine. First nothing changes for QUIET_S. Then come shifts as in scale.py: half of the hosts want
nothing, the others 0 to 4 times their even part. scale.py's simulation of a tenant on as many hosts
stands beside it. At last all want the whole limit, and half of them stop at once.

worst_ratio is exact: the limits of all drives are added up whenever one of them changes. Where the
processors are busy nearly all of the time, times are theirs and not etcd's. Writes
results/fleet-agents.json.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import shutil
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks import result_file
from benchmarks.agent_cost.agent_process import cpu_s
from benchmarks.agent_cost.synthetic.drive import Arguments
from benchmarks.agent_cost.synthetic.exact_drive import ExactDrive
from benchmarks.agent_cost.synthetic.monitor import Client, Vm
from benchmarks.agent_cost.synthetic.serve import raise_file_limit
from benchmarks.command import end_with
from benchmarks.fleet.scale import BUDGET, SHIFT_S, Counted, demand, simulate, since_when
from testing.agents import Agent, iokeel
from testing.fleet.etcd import Etcd, running
from testing.lab.processors import Processors
from testing.waiting import eventually

RESULT = result_file.RESULTS / "fleet-agents.json"
TENANT = "acme"
QUIET_S = 30.0
_JOIN_S = 600.0
_AT_ONCE = 8  # agents that start at the same time
_READ_BYTES = 4096
# etcd's metrics: whether each member counts its own (and they are added up), or all count the same.
_COUNTED = {
    "requests": (r'grpc_server_handled_total\{.*grpc_method="(?:Range|Txn)"', True),
    "lease renewals": (r'grpc_server_msg_received_total\{.*grpc_method="LeaseKeepAlive"', True),
    "watch events": (r"etcd_debugging_mvcc_events_total", True),
    "bytes sent": (r"etcd_network_client_grpc_sent_bytes_total", True),
    "bytes received": (r"etcd_network_client_grpc_received_bytes_total", True),
    "writes": (r"etcd_server_proposals_committed_total", False),
}


@dataclass
class Sum:
    """The limits of all drives together. worst: the highest since the tenant's limit was set."""

    limits: dict[str, float] = field(default_factory=dict)
    worst: float = 0.0
    counts: bool = False

    def put(self, name: str, limit: float) -> None:
        """Add a drive's new limit."""
        self.limits[name] = limit
        if self.counts:
            self.worst = max(self.worst, sum(self.limits.values()))


class HostDrive(ExactDrive):
    """A host's only drive. It asks for `wants` reads of 4 KiB a second, which costs as much.

    seen: its limits, each with the time since when it is in force.
    """

    def __init__(self, name: str, limits: Sum) -> None:
        super().__init__(name, 0, 0)
        self._name, self._sum = name, limits
        self.seen: list[tuple[float, float]] = []
        self._shift_s = inf
        self.want(0)

    @property
    def wants(self) -> float:
        return self._workload[2]

    def want(self, rate: float) -> None:
        """Ask for another rate."""
        self._catch_up()
        self._workload = (_READ_BYTES, 1.0, float(rate))

    def last_before(self, at_s: float) -> float:
        """Return the limit that was in force at a time."""
        return [limit for since_s, limit in self.seen if since_s < at_s][-1]

    def set_limits(self, arguments: Arguments) -> str | None:
        complaint = super().set_limits(arguments)
        limit = self.limits.get("iops", inf)
        self.seen.append((time.monotonic(), limit))
        self._sum.put(self._name, limit)
        return complaint


@dataclass
class Host:
    """A host: its QEMU's drive, and its agent."""

    drive: HostDrive
    agent: Agent

    @property
    def pid(self) -> int:
        assert self.agent.process is not None
        return self.agent.process.pid


@dataclass(frozen=True)
class Phase:
    """A part of the run. a_second: etcd's counts.

    etcd_cores, agent_ratio: processor time over time, of all members together and of a mean agent.
    busy_ratio: the part of all processors' time in which they had work.
    """

    seconds: float
    a_second: Mapping[str, float]
    etcd_cores: float
    agent_ratio: float
    busy_ratio: float


@dataclass(frozen=True)
class Site:
    """What so many hosts did. joined_s: from the tenant's limit until all of it was given.

    used_s: by shift, until all hosts together could do 97 % of what they can at the end; divided_s:
    until each could. taken_s: as used_s, by the times that half of the hosts stop. simulated: what
    scale.py says of as many hosts, whose demand is known at once.
    """

    hosts: int
    joined_s: float
    quiet: Phase
    shifts: Phase
    used_s: Sequence[float]
    divided_s: Sequence[float]
    taken_s: Sequence[float]
    worst_ratio: float
    simulated: Counted


@dataclass(frozen=True)
class Result:
    """A run."""

    question: str
    date: str
    revision: str | None
    cpu: str
    machine: result_file.Machine
    etcd: str
    sites: Sequence[Site]


class Meter:
    """What etcd and the agents have used since it was made."""

    def __init__(self, etcd: Etcd, hosts: Sequence[Host]) -> None:
        self._etcd, self._hosts = etcd, hosts
        self._then = self._now()

    def _now(self) -> tuple[float, Mapping[str, float], float, float, Processors]:
        members = [m.process.pid for m in self._etcd.members if m.process is not None]
        return (
            time.monotonic(),
            counts(self._etcd.urls),
            sum(map(cpu_s, members)),
            sum(cpu_s(host.pid) for host in self._hosts),
            Processors.now(),
        )

    def phase(self) -> Phase:
        """Return the phase that ends now."""
        then, now = self._then, self._now()
        seconds = now[0] - then[0]
        return Phase(
            round(seconds, 1),
            {name: round((now[1][name] - then[1][name]) / seconds, 1) for name in _COUNTED},
            round((now[2] - then[2]) / seconds, 3),
            round((now[3] - then[3]) / seconds / len(self._hosts), 5),
            round(now[4].busy_ratio(then[4]), 3),
        )


def counts(urls: Sequence[str]) -> dict[str, float]:
    """Return etcd's counts so far."""
    found = dict.fromkeys(_COUNTED, 0.0)
    for url in urls:
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        for name, (pattern, adds) in _COUNTED.items():
            value = sum(float(line.rpartition(" ")[2]) for line in lines if re.match(pattern, line))
            found[name] = found[name] + value if adds else max(found[name], value)
    return found


@contextlib.contextmanager
def monitors(folder: Path, drives: Mapping[str, HostDrive]) -> Iterator[None]:
    """Serve the monitor of each drive's QEMU in a thread, as a socket in a folder."""
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        for name, drive in drives.items():
            vm = Vm(name, 0, 0, hung=False, exact=True)
            vm.drives = [drive]
            await loop.create_unix_server(partial(Client, vm), str(folder / f"{name}.qmp"))

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(serve(), loop).result()
        yield
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def agent_of(folder: Path, name: str, socket: Path, etcd: Etcd) -> Agent:
    """Return a host's agent, not started."""
    (folder / name).mkdir()
    return Agent(
        folder / name,
        f"[fleet]\netcd = {list(etcd.urls)}\nhost = '{name}'\n[cgroup]\nenabled = false\n"
        f"[[vm]]\nname = 'vm'\nsocket = '{socket}'\ntenant = '{TENANT}'\n"
        f"[vm.drives.vda]\nlimit = {BUDGET}\n",
    )


@contextlib.contextmanager
def hosts_on(folder: Path, size: int) -> Iterator[tuple[Etcd, list[Host], Sum, float]]:
    """Start all, and yield it with the time that it took until all was given."""
    limits = Sum()
    names = [f"hv{number:05d}" for number in range(size)]
    drives = {name: HostDrive(name, limits) for name in names}
    with contextlib.ExitStack() as stack:
        stack.enter_context(monitors(folder, drives))
        etcd = stack.enter_context(running(Etcd(folder / "etcd", 3)))
        hosts = [
            Host(drive, agent_of(folder, name, folder / f"{name}.qmp", etcd))
            for name, drive in drives.items()
        ]
        for host in hosts:
            stack.callback(host.agent.end)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda host: host.agent.start(), hosts))
        eventually(lambda: len(limits.limits) == size, _JOIN_S, what="each drive has a limit")
        words = ("tenant", "set", TENANT, "--limit", str(BUDGET))
        done = iokeel("fleet", *words, "--config", hosts[0].agent.config)
        if done.status:
            raise RuntimeError(done.err)
        for drive in drives.values():
            drive.want(BUDGET)
        set_s = time.monotonic()
        eventually(lambda: sum(limits.limits.values()) <= BUDGET, _JOIN_S, what="below the limit")
        limits.counts = True
        eventually(lambda: sum(limits.limits.values()) >= 0.97 * BUDGET, _JOIN_S, what="all given")
        yield etcd, hosts, limits, time.monotonic() - set_s


def divided_after(hosts: Sequence[Host], since_s: float) -> float:
    """Return how long after a shift the last host had nearly all that it has at the end."""
    ends = (
        since_when(host.drive.seen, min(host.drive.seen[-1][1], host.drive.wants), since_s)
        for host in hosts
    )
    return max(ends) - since_s


def used_after(hosts: Sequence[Host], since_s: float) -> float:
    """Return how long after a shift all hosts together could do nearly what they can at the end."""
    now = {host.drive: host.drive.last_before(since_s) for host in hosts}
    after = [(at_s, drive, limit) for drive in now for at_s, limit in drive.seen if at_s >= since_s]
    sums = [(since_s, _usable(now))]
    for at_s, drive, limit in sorted(after, key=lambda change: change[0]):
        now[drive] = limit
        sums.append((at_s, _usable(now)))
    return since_when(sums, sums[-1][1], since_s) - since_s


def _usable(limits: Mapping[HostDrive, float]) -> float:
    return sum(min(limit, drive.wants) for drive, limit in limits.items())


def run(size: int, shifts: int) -> Site:
    """Return what so many hosts did."""
    raise_file_limit(2 * size + 200)
    random = Random(size)
    used, divided, taken = [], [], []
    with TemporaryDirectory(prefix="iokeel-agents-") as name:
        with hosts_on(Path(name), size) as (etcd, hosts, limits, joined_s):
            print(f"{size} hosts have all of the limit after {joined_s:.0f} s", flush=True)
            time.sleep(SHIFT_S)
            meter = Meter(etcd, hosts)
            time.sleep(QUIET_S)
            quiet, meter = meter.phase(), Meter(etcd, hosts)
            for number in range(shifts):
                since_s = time.monotonic()
                for host in hosts:
                    host.drive.want(demand(random, size))
                time.sleep(SHIFT_S)
                used.append(round(used_after(hosts, since_s), 2))
                divided.append(round(divided_after(hosts, since_s), 2))
                print(f"shift {number + 1}: {used[-1]} s, {divided[-1]} s", flush=True)
            shifted = meter.phase()
            for _ in range(shifts):
                for host in hosts:
                    host.drive.want(BUDGET)
                time.sleep(SHIFT_S / 2 + random.random())  # at any moment of agents' ticks
                since_s = time.monotonic()
                for host in hosts[::2]:
                    host.drive.want(0)
                time.sleep(SHIFT_S / 2)
                taken.append(round(used_after(hosts, since_s), 2))
    return Site(
        size, round(joined_s, 1), quiet, shifted, used, divided, taken,
        round(limits.worst / BUDGET, 4), simulate(size, shifts, 0.0),
    )  # fmt: skip


def show(found: Site) -> None:
    """Print what so many hosts did."""
    for what, phase in (("nothing changes", found.quiet), ("shifts", found.shifts)):
        print(
            f"{what}: "
            + ", ".join(f"{count:,.1f} {name}/s" for name, count in phase.a_second.items())
            + f"; etcd {phase.etcd_cores:.2f} cores, an agent {100 * phase.agent_ratio:.2f} % of"
            f" one, processors {100 * phase.busy_ratio:.0f} % busy"
        )
    simulated = found.simulated
    a_second = {name: count / SHIFT_S for name, count in simulated.whole.items()}
    print(
        "simulated, in shifts: "
        + ", ".join(f"{count:,.1f} {name}/s" for name, count in a_second.items())
    )
    for what, after_s in (
        ("all together have what they can use", found.used_s),
        ("each has", found.divided_s),
        ("the others have what half of the hosts leave", found.taken_s),
        ("each has, simulated", simulated.divided_s),
    ):
        print(f"{what} after {median(after_s):.2f} s, {max(after_s):.2f} s at most")
    print(f"the sum of limits was {found.worst_ratio:.4f} of the tenant's limit at most")


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("benchmarks.fleet.agents", description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", default=[20, 60, 200])
    parser.add_argument("--shifts", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args(words)
    if shutil.which("etcd") is None:
        raise RuntimeError("etcd not found: run make setup")
    sites = []
    for size in options.hosts:
        sites.append(run(size, options.shifts))
        show(sites[-1])
    result = Result(
        result_file.question(__doc__), result_file.now(), result_file.revision(),
        result_file.cpu_model(), result_file.Machine.this(), result_file.version("etcd"), sites,
    )  # fmt: skip
    result_file.write(options.out, result)
    return 0 if all(found.worst_ratio <= 1 for found in sites) else 1


if __name__ == "__main__":
    end_with(main)
