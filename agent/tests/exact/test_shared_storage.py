"""Hosts that share a simulated disk, with real agents, storage daemons, fio and etcd.

Limits are read from the storage daemons themselves, and rates are counted by fio.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from iokeel.core.fleet.claims import Budget, Shared
from testing.agents import iokeel
from testing.fleet import etcd as real
from testing.fleet.shared_storage import Disk, Fleet, fleet
from testing.lab.disks.nbdkit import Nbdkit
from testing.lab.disks.shared_disk import SharedDisk
from testing.lab.qemu import storage_daemon
from testing.waiting import eventually

PATIENCE_S = 90.0
MOST_RATIO = 1.01
# At this slowdown the disk does about 730 random reads a second.
DEVICE = "sata-ssd-px-256m5s"
SLOWDOWN = 100
CAPACITY = 240


def held(there: Fleet, **expected: float) -> None:
    """Wait until hosts' QEMUs are held to these rates, within 5 % of the capacity."""

    def close() -> bool:
        last = there.monitor.last
        return all(abs(last.get(h, 0) - rate) <= 0.05 * CAPACITY for h, rate in expected.items())

    try:
        eventually(close, PATIENCE_S)
    except AssertionError:
        raise AssertionError(f"{there.monitor.last}, not {expected}") from None


@pytest.mark.timeout(400)
def test_hosts_share_a_storage_by_weight_and_a_dead_one_stays_charged(
    tmp_path: Path,
) -> None:
    hosts = {
        "a": {"g0": "weight = 100"},
        "b": {"g0": "weight = 100"},
        "c": {"g0": "weight = 100", "g1": "weight = 100"},
    }
    budget = Budget(CAPACITY, shared=Shared())
    with Nbdkit(DEVICE, slowdown=SLOWDOWN) as server, real.running(real.Etcd(tmp_path)) as etcd:
        disk = Disk.by_nbd(server)
        with fleet(tmp_path, storage_daemon(), etcd.urls, disk, hosts, budget) as there:
            for host in there.hosts.values():
                for drive in host.drives:
                    host.load(drive)
            held(there, a=CAPACITY / 4, b=CAPACITY / 4, c=CAPACITY / 2)
            settled_s = time.monotonic()
            time.sleep(10)
            ended_s = time.monotonic()
            why = there.hosts["a"].agent.why("sd-a", "g0")
            assert f"The fleet lets all drives on {there.storage} do" in why
            # What one host leaves is another's, but not what a dead agent's QEMUs are held to.
            done = {"c": there.hosts["c"].idle()}
            held(there, a=0.45 * CAPACITY, b=0.45 * CAPACITY)
            there.hosts["b"].agent.end()
            has = there.monitor.last["b"]
            for drive in there.hosts["c"].drives:
                there.hosts["c"].load(drive)
            # It may have been granted more than its QEMU had by then.
            charged = there.ledger.entries["b"].charged
            assert has <= charged <= 0.6 * CAPACITY
            rest = CAPACITY - charged
            held(there, a=rest / 3, b=has, c=2 * rest / 3)
            assert there.worst_ratio(settled_s) <= MOST_RATIO
            done |= {name: there.hosts[name].idle() for name in "ab"}
            counts = {
                name: sum(settled_s < at < ended_s for at, _ in requests)
                for name, requests in done.items()
            }
            total = sum(counts.values())
            assert total <= MOST_RATIO * CAPACITY * (ended_s - settled_s) + CAPACITY / 10
            assert counts["c"] == pytest.approx(total / 2, rel=0.05)
            assert counts["a"] == pytest.approx(counts["b"], rel=0.05)
            words = ("fleet", "why", there.storage, "--config", there.hosts["a"].agent.config)
            eventually(lambda: "host b doesn't report" in iokeel(*words).out, PATIENCE_S)


@pytest.mark.timeout(300)
def test_a_busy_drive_gets_no_more_because_it_has_neighbours_that_do_little(
    tmp_path: Path,
) -> None:
    little = [f"g{i}" for i in range(1, 5)]
    hosts = {"a": dict.fromkeys(["g0", *little], "weight = 100"), "b": {"g0": "weight = 100"}}
    budget = Budget(CAPACITY, shared=Shared())
    with Nbdkit(DEVICE, slowdown=SLOWDOWN) as server, real.running(real.Etcd(tmp_path)) as etcd:
        disk = Disk.by_nbd(server)
        with fleet(tmp_path, storage_daemon(), etcd.urls, disk, hosts, budget) as there:
            for drive in little:
                there.hosts["a"].load(drive, depth=1, iops=5)
            for host in there.hosts.values():
                host.load("g0")
            # By all weights on a host it would be 5 to 1.
            held(there, a=CAPACITY / 2 + 12, b=CAPACITY / 2 - 12)


@pytest.mark.timeout(300)
def test_a_tenant_has_its_weight_once_however_many_hosts_it_is_on(tmp_path: Path) -> None:
    hosts = {name: {"g0": ""} for name in "abc"}
    tenants = {"a": "acme", "b": "acme", "c": "umbra"}
    budget = Budget(CAPACITY, shared=Shared())
    with Nbdkit(DEVICE, slowdown=SLOWDOWN) as server, real.running(real.Etcd(tmp_path)) as etcd:
        disk = Disk.by_nbd(server)
        with fleet(tmp_path, storage_daemon(), etcd.urls, disk, hosts, budget, tenants) as there:
            for tenant in ("acme", "umbra"):
                there.set_tenant(tenant, Budget(10 * CAPACITY))
            for host in there.hosts.values():
                host.load("g0")
            held(there, a=CAPACITY / 4, b=CAPACITY / 4, c=CAPACITY / 2)


@pytest.mark.timeout(500)
def test_an_overloaded_storage_is_cut_on_all_hosts_and_a_new_coordinator_goes_on(
    tmp_path: Path,
) -> None:
    # It does 240 at most, and is believed to do 700.
    budget = Budget(700, shared=Shared(latency_target_ms=120.0, least_ratio=0.1))
    hosts = {name: {"g0": "weight = 100"} for name in "abc"}
    with (
        SharedDisk(DEVICE, drives=0, slowdown=300) as shared,
        real.running(real.Etcd(tmp_path)) as etcd,
    ):
        disk = Disk.by_device(shared.device)
        with fleet(tmp_path, storage_daemon(), etcd.urls, disk, hosts, budget) as there:
            eventually(lambda: there.monitor.seen > 0.7 * budget.amount, PATIENCE_S)
            for host in there.hosts.values():
                host.load("g0")
            eventually(lambda: there.ledger.amount < 300, PATIENCE_S)
            settled_s = time.monotonic()
            time.sleep(20)
            first, known = there.leader, there.ledger.learnt
            assert first is not None
            assert known is not None
            there.hosts[first].agent.end()
            ended_s = time.monotonic()
            eventually(lambda: there.leader not in (None, first), PATIENCE_S)
            time.sleep(20)
            ratios = [
                ledger.learnt.ratio
                for at_s, ledger in there.ledgers
                if at_s > ended_s and ledger.learnt is not None
            ]
            # It would be 1 if the new one began anew.
            assert max(ratios) < 0.5
            assert min(ratios) > 0.1
            assert there.worst_ratio(settled_s) <= MOST_RATIO
            done = [request for host in there.hosts.values() for request in host.idle()]
            latencies = [ms for at_s, ms in done if settled_s + 10 < at_s < ended_s]
            assert len(latencies) > 500
