"""Agents of several hosts with a real etcd and real QEMUs: one tenant's limit over all of them.

The QEMUs have no guest, so nobody demands anything, and all may do what others leave. What counts
is what QEMU says over a monitor of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from iokeel.config.etcd_access import Access
from iokeel.core.fleet.claims import Budget
from iokeel.core.fleet.host import Me
from iokeel.fleet.etcd import Etcd
from iokeel.fleet.keys import BudgetId, Kind
from iokeel.fleet.store import FleetStore
from testing.agents import Agent, free_port, iokeel, start_qemu
from testing.api_doc import answer_faults
from testing.fleet import etcd as real
from testing.fleet.budgets import set_budget
from testing.fleet.monitor import Monitor, settled, sockets
from testing.hypervisors.iotune import TOLERANCE
from testing.packages.last_release import environment
from testing.processes import end
from testing.waiting import eventually

ACME = BudgetId(Kind.TENANT, "acme")
BUDGET = 4000
PATIENCE_S = 90.0
DRIVES = 2
COORDINATED = "iokeel_fleet_coordinated_tenants"
# By then an agent has found its guests, and keeps nothing only because it has just started.
SETTLED_SAMPLES = 150
# By then an order that an agent sent just before its end is carried out.
STILL_SAMPLES = 10


@dataclass
class Host:
    """A host of the fleet: a QEMU with two drives of the tenant's, and an agent."""

    name: str
    folder: Path
    agent: Agent
    qemu: subprocess.Popen[bytes]

    def limit(self, old: int, new: int) -> None:
        """Give each drive another limit."""
        text = self.agent.config.read_text()
        self.agent.config.write_text(text.replace(f"limit = {old}", f"limit = {new}"))
        self.agent.send(signal.SIGHUP)


def configure(host: str, folder: Path, urls: tuple[str, ...]) -> str:
    """Return a host's configuration. Its name in the fleet is a letter."""
    drives = "".join(f"[vm.drives.{drive}]\nlimit = {BUDGET}\n" for drive in ("vda", "vdb"))
    return (
        f"[fleet]\netcd = {list(urls)}\nhost = '{host[0]}'\n"
        f"[[vm]]\nname = 'vm-{host}'\nsocket = '{folder}/qmp.sock'\ntenant = 'acme'\n{drives}"
    )


def show(agent: Agent) -> None:
    print(agent.log())


@contextlib.contextmanager
def hosts(
    folder: Path,
    urls: tuple[str, ...],
    *names: str,
    budget: int = BUDGET,
    tables: str = "",
    former: Collection[str] = (),
) -> Iterator[tuple[dict[str, Host], Monitor]]:
    """Start hosts, and a monitor.

    tables: more of each agent's configuration. former: the hosts with the last release's agent.
    """
    there: dict[str, Host] = {}
    with contextlib.ExitStack() as stack:
        for name in names:
            own = folder / name
            own.mkdir()
            qemu, _ = start_qemu(own)
            stack.callback(end, qemu)
            agent = Agent(own, configure(name, own, urls) + tables)
            if name in former:
                agent.environment = environment()
            stack.callback(show, agent)
            stack.callback(agent.end)
            agent.start()
            there[name] = Host(name, own, agent, qemu)
        with Monitor(sockets(host.folder for host in there.values())) as monitor:
            yield there, monitor
            assert monitor.samples > 10
            # QEMU takes no limit of 0, so each drive has at least 1.
            assert monitor.worst <= TOLERANCE * budget + DRIVES * len(there)


def set_tenant(urls: tuple[str, ...], budget: Budget | None) -> None:
    """Set the tenant's budget, as an operator."""

    async def write() -> None:
        async with Etcd(Access(urls)) as etcd:
            store = FleetStore(etcd, Me("operator", "o"))
            await store.open()
            await set_budget(store, ACME, budget)

    asyncio.run(write())


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[real.Etcd]:
    """An etcd with a budget."""
    with real.running(real.Etcd(tmp_path / "etcd")) as etcd:
        set_tenant(etcd.urls, Budget(BUDGET))
        yield etcd


def begun(monitor: Monitor) -> Callable[[], bool]:
    """Return a question: has each host its part, and is most of the budget given?"""
    return lambda: (
        min(monitor.last.values(), default=0) > 0.15 * BUDGET and monitor.seen > 0.7 * BUDGET
    )


def kept(monitor: Monitor, name: str) -> float:
    """Return what a host without an agent keeps, once an order that was under way has come."""
    seen = monitor.samples
    eventually(lambda: monitor.samples > seen + STILL_SAMPLES)
    return monitor.last[name]


def test_a_dead_agents_host_stays_charged_and_others_divide_the_rest(
    tmp_path: Path, etcd: real.Etcd
) -> None:
    with hosts(tmp_path, etcd.urls, "a", "b", "c") as (there, monitor):
        eventually(begun(monitor), PATIENCE_S)
        there["c"].agent.end()
        dead = kept(monitor, "c")
        a = there["a"].agent
        eventually(lambda: "which is silent" in a.why("vm-a"), PATIENCE_S)
        there["a"].limit(BUDGET, 250)
        eventually(settled(monitor, a=500, b=BUDGET - 500 - dead, c=dead), PATIENCE_S)
        there["c"].agent.start()
        there["c"].limit(BUDGET, 250)
        eventually(settled(monitor, a=500, b=BUDGET - 1000, c=500), PATIENCE_S)


@pytest.mark.parametrize("former", ["a", "b"])
def test_the_last_releases_agent_and_this_one_share_a_budget(
    tmp_path: Path, etcd: real.Etcd, former: str
) -> None:
    """Whichever has signed in first and coordinates."""
    with hosts(tmp_path, etcd.urls, "a", "b", former={former}) as (there, monitor):
        eventually(begun(monitor), PATIENCE_S)
        assert there["a"].agent.metrics()[COORDINATED] == 1
        there["b"].limit(BUDGET, 250)
        eventually(settled(monitor, a=BUDGET - 500, b=500), PATIENCE_S)


def test_hosts_go_to_their_floors_without_etcd_and_a_hanging_agent_stays_charged(
    tmp_path: Path, etcd: real.Etcd
) -> None:
    with hosts(tmp_path, etcd.urls, "a", "b") as (there, monitor):
        eventually(begun(monitor), PATIENCE_S)
        there["b"].agent.send(signal.SIGSTOP)
        hanging = kept(monitor, "b")
        etcd.members[0].stop()
        eventually(settled(monitor, a=0.1 * BUDGET / 2, b=hanging), PATIENCE_S)
        eventually(lambda: there["a"].agent.says("goes down to its floors"))
        etcd.members[0].resume()
        eventually(settled(monitor, a=BUDGET - hanging, b=hanging), PATIENCE_S)
        assert there["a"].agent.says("etcd answers again")
        there["b"].agent.send(signal.SIGCONT)
        there["a"].limit(BUDGET, 250)
        eventually(settled(monitor, a=500, b=BUDGET - 500), PATIENCE_S)


def test_a_tenants_first_guest_finds_a_coordinator_that_is_there_already(tmp_path: Path) -> None:
    with real.running(real.Etcd(tmp_path / "etcd")) as etcd:
        set_tenant(etcd.urls, None)
        with hosts(tmp_path, etcd.urls, "a", budget=2 * BUDGET) as (first, _):
            a = first["a"].agent
            a.config.write_text(a.config.read_text().replace("'acme'", "'umbra'"))
            a.send(signal.SIGHUP)
            done = iokeel("fleet", "tenant", "set", "acme", "--limit", "4000", "--config", a.config)
            assert done.status == 0
            eventually(lambda: a.metrics()[COORDINATED] == 1, PATIENCE_S)
            with hosts(tmp_path, etcd.urls, "b") as (second, monitor):
                eventually(settled(monitor, b=BUDGET), PATIENCE_S)
                assert a.metrics()[COORDINATED] == 1
                assert second["b"].agent.metrics()[COORDINATED] == 0


def test_a_second_host_of_a_name_is_refused_and_gets_next_to_nothing(
    tmp_path: Path, etcd: real.Etcd
) -> None:
    with hosts(tmp_path, etcd.urls, "a") as (first, monitor):
        eventually(settled(monitor, a=BUDGET), PATIENCE_S)
        with hosts(tmp_path, etcd.urls, "a2") as (second, other):
            agent = second["a2"].agent
            eventually(lambda: agent.says("is in the fleet already, as another host"), PATIENCE_S)
            eventually(lambda: other.samples > SETTLED_SAMPLES, PATIENCE_S)
            assert agent.metrics()["iokeel_fleet_connected"] == 0
            assert 0 < other.worst <= 2 * DRIVES
        assert "The fleet lets acme do" in first["a"].agent.why("vm-a")
        told = first["a"].agent.ask("/v1/host")
        assert [tenant["name"] for tenant in told["fleet"]["tenants"]] == ["acme"]
        assert answer_faults("/v1/host", told) == []
        assert first["a"].agent.metrics()['iokeel_fleet_tenant_limit_iops{tenant="acme"}'] == BUDGET


def test_without_any_answer_of_etcd_hosts_go_by_their_configuration(tmp_path: Path) -> None:
    with hosts(tmp_path, (f"http://127.0.0.1:{free_port()}",), "a", budget=2 * BUDGET) as (
        there,
        monitor,
    ):
        agent = there["a"].agent
        eventually(lambda: agent.says("can't be reached: connection refused"))
        eventually(settled(monitor, a=2 * BUDGET), PATIENCE_S)
        assert agent.log().count("can't be reached") == 1


def test_hosts_with_different_rules_are_told_until_they_have_the_same(
    tmp_path: Path, etcd: real.Etcd
) -> None:
    rules = '[[rules]]\nname = "all"\nclass = "gold"\n'
    said = "hosts b: have other rules or classes than a, c; give all hosts the same [[rules]]"
    with hosts(tmp_path, etcd.urls, "a", "b", "c", tables=rules) as (there, _):
        b = there["b"].agent

        def told() -> bool:
            done = iokeel("fleet", "status", "--config", there["a"].agent.config)
            return said in done.out + done.err

        b.stop()
        b.config.write_text(b.config.read_text().replace("gold", "silver"))
        b.start()
        eventually(told, PATIENCE_S)
        b.config.write_text(b.config.read_text().replace("silver", "gold"))
        b.send(signal.SIGHUP)
        eventually(lambda: not told(), PATIENCE_S)


def test_without_fleet_nothing_of_it_is_imported() -> None:
    ask = "import sys, iokeel.service, iokeel.config.load as l; l.parse(b'', 'x');"
    ask += "print([m for m in sys.modules if m.startswith('iokeel.fleet')])"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
