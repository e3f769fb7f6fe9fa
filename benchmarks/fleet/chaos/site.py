"""A site: three members of etcd, and hosts with an agent, two storage daemons and fio each.

The drives of one daemon are a tenant's. The drive of the other one is on a storage that all hosts
share.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from benchmarks.fleet.chaos.network import Network
from testing.agents import IOKEEL, Agent
from testing.fleet.daemon import start_daemon
from testing.fleet.etcd import Etcd, running
from testing.fleet.monitor import Monitor, WatchedGroups
from testing.host.clock import Clock
from testing.processes import end

HOSTS = ("a", "b", "c", "d")
MEMBERS = ("m0", "m1", "m2")
GROUPS = ("g0", "g1")
TENANT = "acme"
BUDGET = 4000  # normalized iops
STORAGE = "array"
CAPACITY = 3000  # normalized iops
_BROKEN = (sys.executable, str(Path(__file__).with_name("broken_agent.py")))
# What a host's load asks for, in 4 KiB reads a second; 0: all there is.
_RATES = (50, 300, 1500, 0, 0)
_PHASE_S = (4.0, 20.0)


class SiteAgent(Agent):
    """An agent with a wall clock of its own."""

    def __init__(self, folder: Path, tables: str) -> None:
        super().__init__(folder, tables)
        self.clock = Clock(folder / "clock")
        self.environment = self.clock.environment


@dataclass
class SiteHost:
    """A host of the site."""

    name: str
    folder: Path
    agent: SiteAgent
    done: int = 0
    """Operations that its load has done."""


@dataclass
class Site:
    """The whole site. busy: loads ask for all there is, instead of for this or that.

    tenant, storage: monitors of the drives that are the tenant's, and of those on the storage.
    """

    folder: Path
    network: Network
    etcd: Etcd
    hosts: dict[str, SiteHost]
    tenant: Monitor
    storage: Monitor
    busy: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    def load(self, host: SiteHost, seed: int) -> None:
        """Read a host's drives by fio until the site ends, now more and now less."""
        random = Random(seed)
        exports = [f"{group}?socket={host.folder}" for group in GROUPS]
        exports.append(f"{GROUPS[0]}?socket={host.folder}/{STORAGE}")
        while not self.ended.is_set():
            seconds = random.uniform(*_PHASE_S)
            rate = 0 if self.busy.is_set() else random.choice(_RATES)
            words = [
                *("fio", "--name=load", "--ioengine=nbd", "--rw=randread", "--bs=4k", "--size=64m"),
                *("--iodepth=16", "--time_based", f"--runtime={seconds:.0f}", "--minimal"),
                f"--uri=nbd+unix:///{random.choice(exports)}/nbd",
                *([f"--rate_iops={rate}"] if rate else []),
            ]
            with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as fio:
                while fio.poll() is None:
                    if self.ended.wait(0.2):
                        fio.terminate()
                        break
                out, _ = fio.communicate()
            fields = out.decode().split(";")
            if len(fields) > 5:
                host.done += int(fields[5]) // 4  # KiB read


def agent_of(
    site_folder: Path,
    name: str,
    network: Network,
    etcd: Etcd,
    daemons: Path,
    program: Sequence[str] = (str(IOKEEL),),
) -> SiteAgent:
    """Return a host's agent, not started. daemons: their folder. program: that runs it."""
    folder = site_folder / name
    folder.mkdir(exist_ok=True)
    drives = "".join(f"[vm.drives.{group}]\nlimit = {BUDGET}\n" for group in GROUPS)
    agent = SiteAgent(
        folder,
        f"[fleet]\netcd = {list(etcd.urls)}\nhost = '{name[0]}'\n[cgroup]\nenabled = false\n"
        f"[storage.{STORAGE}]\ndrives = ['{STORAGE}-*/*']\n"
        f"[[vm]]\nname = 'sd-{name}'\nsocket = '{daemons}/qmp.sock'\ntenant = '{TENANT}'\n{drives}"
        f"[[vm]]\nname = '{STORAGE}-{name}'\nsocket = '{daemons}/{STORAGE}/qmp.sock'\n"
        f"[vm.drives.{GROUPS[0]}]\nweight = 100\n",
    )
    agent.command = (*network.inside(name[0]), *program)
    return agent


@contextlib.contextmanager
def site(daemon: Path, seed: int, *, broken: bool = False) -> Iterator[Site]:
    """Start a site. daemon: a storage daemon with the patches. broken: see broken_agent.py."""
    program = _BROKEN if broken else (str(IOKEEL),)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="iokeel-fleet-")))
        network = Network([*MEMBERS, *HOSTS])
        stack.callback(network.end)
        network.start()
        places = tuple((network.address(name), network.inside(name)) for name in MEMBERS)
        etcd = Etcd(folder / "etcd", 3, places=places, inside=network.inside("hub"))
        stack.enter_context(running(etcd))
        hosts = {}
        for name in HOSTS:
            own = folder / name
            (own / STORAGE).mkdir(parents=True)
            stack.callback(end, start_daemon(daemon, own, GROUPS))
            stack.callback(end, start_daemon(daemon, own / STORAGE, GROUPS[:1]))
            agent = agent_of(folder, name, network, etcd, own, program)
            hosts[name] = SiteHost(name, own, agent)
        set_budgets(hosts["a"].agent)
        for host in hosts.values():
            stack.callback(host.agent.end)
            host.agent.start()

        def watched(part: str, groups: Sequence[str]) -> Monitor:
            daemons = {name: host.folder / part / "watch.sock" for name, host in hosts.items()}
            groups_of = {name: WatchedGroups(path, groups) for name, path in daemons.items()}
            return stack.enter_context(Monitor({**groups_of}))

        monitors = watched("", GROUPS), watched(STORAGE, GROUPS[:1])
        there = Site(folder, network, etcd, hosts, *monitors)
        loads = [
            threading.Thread(target=there.load, args=(host, seed + number))
            for number, host in enumerate(hosts.values())
        ]
        for load in loads:
            load.start()
            stack.callback(load.join)
        stack.callback(there.ended.set)
        yield there


def set_budgets(agent: Agent) -> None:
    """Set the tenant's limit and the storage's capacity by the command."""
    tenant = ("tenant", "set", TENANT, "--limit", str(BUDGET), "--reservation", "400")
    storage = ("storage", "set", STORAGE, "--capacity", str(CAPACITY))
    for words in (tenant, storage):
        command = [*agent.command, "fleet", *words, "--config", str(agent.config)]
        subprocess.run(command, check=True, capture_output=True)


def needs() -> str | None:
    """Return what is missing on this machine; None if nothing is."""
    missing = [name for name in ("ip", "etcd", "etcdctl", "fio") if shutil.which(name) is None]
    return f"{', '.join(missing)} not found" if missing else None
