"""When drives that are beyond their limits have these read again."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from iokeel.config.settings import Config
from iokeel.core.values.counters import NS_PER_S, Counters, DriveId
from iokeel.core.values.limits import STOCK, UNLIMITED, ThrottleLimits
from iokeel.core.values.policy import DomainPolicy, DrivePolicy
from iokeel.daemon import Agent
from iokeel.hypervisors.libvirt.source import LibvirtSource
from iokeel.hypervisors.source import DriveInfo, VmInfo
from iokeel.report.metrics.prometheus import Metrics
from iokeel.running.observer import Doubts
from iokeel.store.store import StateStore

VDA, VDB, OTHER = DriveId("db1", "vda"), DriveId("db1", "vdb"), DriveId("web", "vda")


def test_a_drive_is_doubted_at_once_and_then_ever_less_often() -> None:
    doubts = Doubts()
    asked = [second for second in range(200) if doubts.due([VDA], float(second))]
    assert asked == [0, 1, 3, 7, 15, 31, 63, 123, 183]


def test_each_drive_is_doubted_by_itself() -> None:
    doubts = Doubts()
    assert doubts.due([VDA], 0.0) == {"db1"}
    assert doubts.due([VDA, VDB, OTHER], 0.5) == {"db1", "web"}
    assert doubts.due([VDA, VDB, OTHER], 0.6) == set()


def test_a_drive_that_kept_to_its_limits_for_long_is_doubted_at_once_again() -> None:
    doubts = Doubts()
    for second in range(20):
        doubts.due([VDA], float(second))
    for second in range(20, 100):
        assert doubts.due([], float(second)) == set()
    assert [s for s in range(100, 103) if doubts.due([VDA], float(s))] == [100, 101]


class OneDrive(LibvirtSource):
    """A source with a drive that does as much as a test says, and takes all limits."""

    def __init__(self) -> None:
        super().__init__("test:///host", {}, {})
        drive = DriveInfo("vda", in_force=UNLIMITED, abilities=STOCK)
        self.vm = VmInfo("db1", {"vda": drive}, DomainPolicy({"vda": DrivePolicy(limit=400)}))
        self.at_ns, self.requests = time.monotonic_ns(), 0
        self.announced: list[str] = []

    def vms(self) -> dict[str, VmInfo]:
        return {"db1": self.vm}

    def unread(self) -> set[str]:
        return set()

    def announce(self, domain: str) -> None:
        self.announced.append(domain)

    async def sample(
        self, domains: Collection[str] | None, timeout_s: float
    ) -> Mapping[DriveId, Counters]:
        return {VDA: Counters(self.at_ns, self.requests, 4096 * self.requests, 0, 0, 0, 0)}

    async def set_limits(self, drive: DriveId, limits: ThrottleLimits, timeout_s: float) -> None:
        drives = {"vda": replace(self.vm.drives["vda"], in_force=limits)}
        self.vm = replace(self.vm, drives=drives)


async def test_a_drive_that_does_more_than_its_limits_allow_is_read_again_at_once(
    tmp_path: Path,
) -> None:
    source = OneDrive()
    agent = Agent(Config(), [source], StateStore(tmp_path), Metrics())
    for iops in (0, 390, 390, 390):
        source.at_ns, source.requests = source.at_ns + 2 * NS_PER_S, source.requests + 2 * iops
        await agent.look(None)
        await agent.tasks.wait(30.0)
    assert source.vm.drives["vda"].in_force not in (None, UNLIMITED)
    assert source.announced == []
    source.at_ns, source.requests = source.at_ns + NS_PER_S, source.requests + 4000
    await agent.look({"db1"})
    assert source.announced == [], "only a tick looks at all that may have changed"
    source.at_ns, source.requests = source.at_ns + NS_PER_S, source.requests + 4000
    await agent.look(None)
    assert source.announced == ["db1"]
