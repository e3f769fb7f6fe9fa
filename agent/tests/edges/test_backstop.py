"""Which VMs' cgroups the agent leaves as they are, because it doesn't know enough."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from iokeel.config.settings import Config
from iokeel.config.tables import CgroupConfig
from iokeel.core.enforce.backstop import CgroupOrder, IoMax
from iokeel.core.values.counters import NS_PER_S, DriveId
from iokeel.core.values.policy import DrivePolicy
from iokeel.core.values.state import NEW, Pricing, State
from iokeel.host.cgroup.groups import Cgroups
from iokeel.host.process import Process
from iokeel.hypervisors.qmp.source import QmpSource
from iokeel.hypervisors.source import DriveInfo, VmInfo
from iokeel.report.metrics.prometheus import Metrics
from iokeel.running.beneath import BlockJobs
from iokeel.running.cgroups import Backstop
from iokeel.running.observer import Observer
from iokeel.running.storages import DriveStorages
from iokeel.running.tasks import Tasks
from testing.host.cgroups import Host, Memory

QEMU = Process(7, 70)


class Groups(Cgroups):
    """Notes what it is asked."""

    def apply(
        self,
        orders: Mapping[str, CgroupOrder | None],
        processes: Mapping[str, Process],
        *,
        unread: Collection[str] | None = (),
    ) -> None:
        self.asked = sorted(orders), dict(processes), unread
        self.orders = dict(orders)


class OnSda(DriveStorages):
    """All drives are on one disk."""

    def devices_of(self, drive: DriveId) -> tuple[str, ...]:
        return ("8:0",)


class Source(QmpSource):
    """A source of a VM with a policy, one without, and one whose process isn't found."""

    def __init__(self, unread: set[str]) -> None:
        super().__init__([])
        self._unread = unread
        self.writes: set[str] = set()
        self._known = {
            name: VmInfo(name, {"vda": DriveInfo("vda")}, process=process)
            for name, process in (("db1", QEMU), ("free", QEMU), ("lost", None))
        }

    def unread(self) -> set[str]:
        return self._unread

    def saving(self) -> set[str]:
        return self.writes

    def restart(self, name: str) -> None:
        self._known[name] = replace(self._known[name], process=Process(8, 80))


def backstop_of(groups: Cgroups, observer: Observer, tasks: Tasks) -> Backstop:
    return Backstop(groups, observer, tasks, BlockJobs(observer, tasks, Metrics()))


@pytest.mark.parametrize("unread", [set(), {"slow"}])
async def test_it_tells_of_vms_that_can_not_be_read_and_of_processes_that_are_not_found(
    tmp_path: Path, unread: set[str]
) -> None:
    host = Host(tmp_path)
    groups, tasks = Groups(Memory(), host.proc, host.sys), Tasks(Metrics())
    backstop = backstop_of(groups, Observer([Source(unread)], DriveStorages({})), tasks)
    limited = NEW._replace(policy=DrivePolicy(limit=100))
    drives = {"db1": limited, "free": NEW, "lost": limited, "slow": limited}
    state = State(drives={DriveId(name, "vda"): known for name, known in drives.items()})
    backstop.look(state, CgroupConfig(), 0)
    await tasks.wait(5)
    assert groups.asked == (["db1", "lost", "slow"], {"db1": QEMU, "free": QEMU}, unread)


def weights(groups: Groups) -> dict[str, int | None]:
    return {vm: order.weight for vm, order in groups.orders.items() if order is not None}


async def test_only_vms_that_moved_follow_at_once_and_all_of_them_at_each_check(
    tmp_path: Path,
) -> None:
    host = Host(tmp_path)
    groups, tasks = Groups(Memory(), host.proc, host.sys), Tasks(Metrics())
    source = Source(set())
    backstop = backstop_of(groups, Observer([source], DriveStorages({})), tasks)

    async def look(at_s: int, moved: Collection[str] = (), **weight: int) -> dict[str, int | None]:
        groups.orders = {}
        backstop.moved.update(moved)
        drives = {
            DriveId(vm, "vda"): NEW._replace(policy=DrivePolicy(limit=100, weight=value))
            for vm, value in weight.items()
        }
        backstop.look(State(drives=drives), CgroupConfig(), at_s * NS_PER_S)
        await tasks.wait(5)
        return weights(groups)

    assert await look(0, db1=1, lost=1) == {"db1": 1, "lost": 1}
    assert await look(2, {"db1"}, db1=2, lost=2) == {"db1": 2, "lost": 1}
    assert await look(3, {"db1"}, db1=3, lost=3) == {}  # too soon
    assert await look(4, db1=4, lost=4) == {"db1": 4, "lost": 1}
    assert await look(6, db1=5, lost=5) == {}
    assert await look(10, db1=6, lost=6) == {"db1": 6, "lost": 6}
    # A new VM counts for others' weights. One without a policy has no order.
    assert await look(12, {"slow"}, db1=7, lost=7, slow=7) == {"db1": 7, "lost": 7, "slow": 7}
    assert await look(14, {"slow"}, db1=8) == {"db1": 7, "lost": 7}
    backstop.reconfigured(Config())
    assert await look(16, db1=9, lost=9) == {"db1": 9, "lost": 9}
    source.restart("lost")  # what its last QEMU needed may be wrong for this one
    assert await look(18, {"db1"}, db1=10) == {"db1": 10}


async def test_bounds_go_while_a_vms_memory_is_written_and_come_back(tmp_path: Path) -> None:
    host = Host(tmp_path)
    groups, tasks = Groups(Memory(), host.proc, host.sys), Tasks(Metrics())
    source, storages = Source(set()), OnSda({})
    backstop = backstop_of(groups, Observer([source], storages), tasks)
    limited = NEW._replace(policy=DrivePolicy(limit=100), pricing=Pricing(rate=100.0))
    state = State(drives={DriveId(name, "vda"): limited for name in ("db1", "lost")})

    async def bounded(at_s: int, *saving: str) -> set[str] | None:
        """Return the VMs with bounds after a look; None if it has brought nothing up to date."""
        source.writes, groups.orders = {*saving}, {}
        backstop.look(state, CgroupConfig(), at_s * NS_PER_S)
        await tasks.wait(5)
        found = {vm for vm, order in groups.orders.items() if order and any_of(order)}
        return found if groups.orders else None

    def any_of(order: CgroupOrder) -> bool:
        return order.limits != {"8:0": IoMax()}

    assert await bounded(0) == {"db1", "lost"}
    assert await bounded(2, "db1") == {"lost"}
    assert await bounded(3) is None  # too soon
    assert await bounded(4) == {"db1", "lost"}
    assert await bounded(6) is None
    assert await bounded(10, "db1") == {"lost"}
    assert await bounded(20, "db1") == {"lost"}
