"""Hosts of a fleet on one simulated disk: each with an agent, a storage daemon and fio."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from iokeel.config.etcd_access import Access
from iokeel.core.fleet.claims import Budget
from iokeel.core.fleet.host import TERM_S, Me
from iokeel.core.fleet.ledger import Ledger
from iokeel.core.values.curve import DEFAULT_CURVE, CostCurve
from iokeel.fleet.etcd import Etcd
from iokeel.fleet.keys import BudgetId, Kind
from iokeel.fleet.store import FleetStore
from testing.agents import Agent
from testing.fleet.budgets import set_budget
from testing.fleet.daemon import start_daemon
from testing.fleet.monitor import Monitor, WatchedGroups
from testing.lab.disks.nbdkit import Nbdkit
from testing.processes import end

_LOOK_S = 0.3
_SIZE_MIB = 512
_CONNECTION_DEPTH = 16  # QEMU's MAX_NBD_REQUESTS (nbd/server.c)


class Disk(NamedTuple):
    """A disk that hosts share.

    name: as agents know it. node: options of the block node that reaches it. table: describes it in
    each host's configuration, if that is needed. curve: what its requests cost.

    An NBD server has no counters on hosts. A block device has. Hosts that use the same one see the
    counters of all of them, which makes no difference to its latency.
    """

    name: str
    node: str
    table: str = ""
    curve: CostCurve = DEFAULT_CURVE

    @classmethod
    def by_nbd(cls, server: Nbdkit) -> Disk:
        node = f"nbd,server.type=unix,server.path={server.socket}"
        return cls(f"nbd:unix:{server.socket}", node)

    @classmethod
    def by_device(cls, device: Path) -> Disk:
        node = f"host_device,filename={device},cache.direct=on,aio=native"
        return cls("san", node, f"[storage.san]\ndevice = '{device}'\n")


class Fio:
    """Random reads of a drive at some depth, until it is ended. iops: no more than that."""

    def __init__(
        self,
        folder: Path,
        socket: Path,
        export: str,
        *,
        depth: int = 16,
        bs: str = "4k",
        iops: int | None = None,
    ) -> None:
        self._folder, self._logs = folder, f"fio-{export}_clat.*.log"
        jobs = -(-depth // _CONNECTION_DEPTH)
        words = [
            *("fio", "--name=load", "--ioengine=nbd", "--rw=randread", f"--bs={bs}"),
            *(f"--numjobs={jobs}", f"--iodepth={depth // jobs}", f"--size={_SIZE_MIB}m"),
            *("--time_based", "--runtime=3600", "--allrandrepeat=0", "--disable_slat=1"),
            f"--write_lat_log={folder}/fio-{export}",
            "--log_unix_epoch=1",  # it may take seconds until it begins
            f"--uri=nbd+unix:///{export}?socket={socket}",
            *([] if iops is None else [f"--rate_iops={iops}"]),
        ]
        # A log has each request: its end and its latency, without what fio itself took.
        self._process = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def end(self) -> list[tuple[float, float]]:
        """End it, and return its requests: when they ended, and their latency in ms.

        Times are by the monotonic clock. The requests of each connection are in order.
        """
        self._process.terminate()
        self._process.wait(60)
        epoch_s = time.time() - time.monotonic()
        requests = []
        for log in self._folder.glob(self._logs):
            fields = (line.split(",") for line in log.read_text().splitlines())
            requests += [(int(at) / 1000 - epoch_s, int(ns) / 1e6) for at, ns, *_ in fields]
            log.unlink()
        return requests


@dataclass
class StorageHost:
    """A host. drives: its throttle groups."""

    name: str
    folder: Path
    agent: Agent
    daemon: subprocess.Popen[bytes]
    drives: Sequence[str]
    loads: dict[str, Fio] = field(default_factory=dict)

    def load(self, drive: str, **options: Any) -> Fio:
        """Read a drive until `idle` ends it."""
        self.loads[drive] = Fio(self.folder, self.folder / "nbd", drive, **options)
        return self.loads[drive]

    def idle(self) -> list[tuple[float, float]]:
        """End its loads, and return their requests; see Fio."""
        loads, self.loads = self.loads, {}
        return [request for load in loads.values() for request in load.end()]


@dataclass
class Fleet:
    """Hosts on one disk. storage: its name. ledgers: those that were in etcd, with their times."""

    urls: tuple[str, ...]
    storage: str
    hosts: dict[str, StorageHost]
    monitor: Monitor
    ledgers: list[tuple[float, Ledger]] = field(default_factory=list)
    leader: str | None = None
    error: BaseException | None = None
    _ended: threading.Event = field(default_factory=threading.Event)

    @property
    def ledger(self) -> Ledger:
        """The newest ledger."""
        return self.ledgers[-1][1]

    def set_capacity(self, budget: Budget | None) -> None:
        """Set the storage's budget, as an operator."""
        self._set(BudgetId(Kind.STORAGE, self.storage), budget)

    def set_tenant(self, name: str, budget: Budget) -> None:
        """Set a tenant's budget, as an operator."""
        self._set(BudgetId(Kind.TENANT, name), budget)

    def _set(self, which: BudgetId, budget: Budget | None) -> None:
        async def write() -> None:
            async with Etcd(Access(self.urls)) as etcd:
                store = FleetStore(etcd, Me("operator", "o"))
                await store.open()
                await set_budget(store, which, budget)

        asyncio.run(write())

    def follow(self) -> None:
        """Read the ledger often, until the fleet ends."""

        async def look() -> None:
            async with Etcd(Access(self.urls)) as etcd:
                store = FleetStore(etcd, Me("observer", "o"))
                await store.open()
                while not self._ended.is_set():
                    view = await store.view(BudgetId(Kind.STORAGE, self.storage))
                    self.leader = view.leader
                    if view.ledger is not None:
                        self.ledgers.append((time.monotonic(), view.ledger))
                    await asyncio.sleep(_LOOK_S)

        try:
            asyncio.run(look())
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self._ended.set()

    def worst_ratio(self, since_s: float) -> float:
        """Return the highest sum of limits, over the highest amount of the two terms before.

        If a coordinator dies after it has lowered the amount, what its own host holds stays. The
        others make room for that about a term later, once there is a new one. QEMU takes no limit
        of 0, so 1 a drive is left out.
        """
        if self.error is not None:
            raise self.error
        slack = sum(len(host.drives) for host in self.hosts.values())
        worst = 0.0
        for at_s, rates in self.monitor.history:
            if at_s >= since_s:
                amounts = [
                    ledger.amount
                    for seen_s, ledger in self.ledgers
                    if at_s - 2 * TERM_S <= seen_s <= at_s + _LOOK_S
                ]
                worst = max(worst, (sum(rates.values()) - slack) / max(amounts))
        return worst


def _tables(
    name: str, folder: Path, urls: Sequence[str], drives: dict[str, str], tenant: str | None
) -> str:
    of_tenant = "" if tenant is None else f"tenant = '{tenant}'\n"
    own = "".join(f"[vm.drives.{drive}]\n{policy}\n" for drive, policy in drives.items())
    return (
        f"[fleet]\netcd = {list(urls)}\nhost = '{name}'\n[cgroup]\nenabled = false\n"
        f"[[vm]]\nname = 'sd-{name}'\nsocket = '{folder}/qmp.sock'\n{of_tenant}{own}"
    )


@contextlib.contextmanager
def fleet(
    folder: Path,
    program: Path,
    urls: tuple[str, ...],
    disk: Disk | Mapping[str, Disk],
    hosts: dict[str, dict[str, str]],
    budget: Budget | None,
    tenants: Mapping[str, str] | None = None,
) -> Iterator[Fleet]:
    """Start hosts, once their storage has a budget; None for a storage that isn't shared.

    program: a storage daemon with the patches. disk: all hosts', or each host's way to it, of one
    name. hosts: the policy of each drive, by host and drive, as it is written in the configuration.
    tenants: whose the drives of a host are.
    """
    disks = dict.fromkeys(hosts, disk) if isinstance(disk, Disk) else disk
    (storage,) = {each.name for each in disks.values()}
    with contextlib.ExitStack() as stack:
        there: dict[str, StorageHost] = {}
        for name, drives in hosts.items():
            own = folder / name
            own.mkdir()
            daemon = start_daemon(program, own, [*drives], disks[name].node)
            stack.callback(end, daemon)
            agent = Agent(
                own, disks[name].table + _tables(name, own, urls, drives, (tenants or {}).get(name))
            )
            there[name] = StorageHost(name, own, agent, daemon, [*drives])
        watched = {
            name: WatchedGroups(host.folder / "watch.sock", host.drives, disks[name].curve)
            for name, host in there.items()
        }
        monitor = stack.enter_context(Monitor({**watched}))
        site = Fleet(urls, storage, there, monitor)
        site.set_capacity(budget)
        for host in there.values():
            stack.callback(host.agent.end)
            stack.callback(host.idle)
            host.agent.start()
        follower = threading.Thread(target=site.follow)
        follower.start()
        stack.callback(follower.join)
        stack.callback(site.end)
        try:
            yield site
        except BaseException:
            for host in there.values():
                print(f"--- the agent of {host.name}\n{host.agent.log()}")
            raise
