"""Which VMs' cgroups the agent leaves as they are, because it doesn't know enough."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from iokeel.backstop import Backstop
from iokeel.config.settings import CgroupConfig
from iokeel.core.backstop import CgroupOrder
from iokeel.core.counters import DriveId
from iokeel.core.policy import DrivePolicy
from iokeel.core.state import NEW, State
from iokeel.drive_storages import DriveStorages
from iokeel.host.cgroup.groups import Cgroups
from iokeel.host.process import Process
from iokeel.hypervisors.qmp.source import QmpSource
from iokeel.hypervisors.source import DriveInfo, VmInfo
from iokeel.observer import Observer
from iokeel.report.prometheus import Metrics
from iokeel.tasks import Tasks
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


class Source(QmpSource):
    """A source of a VM with a policy, one without, and one whose process isn't found."""

    def __init__(self, unread: set[str]) -> None:
        super().__init__([])
        self._unread = unread
        self._known = {
            name: VmInfo(name, {"vda": DriveInfo("vda")}, process=process)
            for name, process in (("db1", QEMU), ("free", QEMU), ("lost", None))
        }

    def unread(self) -> set[str]:
        return self._unread


@pytest.mark.parametrize("unread", [set(), {"slow"}])
async def test_it_tells_of_vms_that_can_not_be_read_and_of_processes_that_are_not_found(
    tmp_path: Path, unread: set[str]
) -> None:
    host = Host(tmp_path)
    groups, tasks = Groups(Memory(), host.proc, host.sys), Tasks(Metrics())
    backstop = Backstop(groups, Observer([Source(unread)], DriveStorages({})), tasks)
    limited = NEW._replace(policy=DrivePolicy(limit=100))
    drives = {"db1": limited, "free": NEW, "lost": limited, "slow": limited}
    state = State(drives={DriveId(name, "vda"): known for name, known in drives.items()})
    backstop.look(state, CgroupConfig(), 0)
    await tasks.wait(5)
    assert groups.asked == (["db1", "lost", "slow"], {"db1": QEMU, "free": QEMU}, unread)
