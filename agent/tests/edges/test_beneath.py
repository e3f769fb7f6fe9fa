"""A VM's bounds on a host of files: they follow what its images add, and its block jobs."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from iokeel.config.tables import CgroupConfig
from iokeel.core.enforce.jobs import BlockJob
from iokeel.core.measure.rates import rates
from iokeel.core.values.counters import NS_PER_S, Counters, DriveId
from iokeel.core.values.policy import DomainPolicy, DrivePolicy
from iokeel.core.values.state import NEW, Measured, Pricing, State
from iokeel.errors import ConnectionLost
from iokeel.host.cgroup.groups import Cgroups, Counted
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

VDA = DriveId("db1", "vda")
POLICY = DrivePolicy(limit=1000)
KIB = 1024
# A limit of 1000 of the default curve, times 1.25: the most bytes, and the most requests a second.
TIGHT = {"rbps": 8852478, "wbps": 8852478, "riops": 1250, "wiops": 1250}


class OnSda(DriveStorages):
    """All drives are on one disk; None once it has vanished."""

    there: tuple[str, ...] | None = ("8:0",)

    def devices_of(self, drive: DriveId) -> tuple[str, ...] | None:
        return self.there


class Source(QmpSource):
    """A source of one VM with block jobs; None: it doesn't answer."""

    def __init__(self, qemu: Process) -> None:
        super().__init__([])
        self._known = {
            "db1": VmInfo("db1", {"vda": DriveInfo("vda")}, DomainPolicy({}, POLICY), process=qemu)
        }
        self.told: list[BlockJob] | None = []
        self.asked = 0

    def copies(self) -> None:
        """Put its drive's image on another one."""
        drives = {"vda": DriveInfo("vda", beneath=("/base.raw",))}
        self._known["db1"] = replace(self._known["db1"], drives=drives)

    async def jobs(self, domain: str, timeout_s: float) -> list[BlockJob]:
        self.asked += 1
        if self.told is None:
            raise ConnectionLost(domain, "no answer", "see whether it hangs")
        return self.told


@dataclass
class Rig:
    """A VM's group on a host, and what its drive and the group have done so far."""

    group: Path
    groups: Cgroups
    source: Source
    backstop: Backstop
    jobs: BlockJobs
    tasks: Tasks
    storages: OnSda
    done: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TIGHT, 0))
    counters: Counters = field(default_factory=lambda: Counters(0, 0, 0, 0, 0, 0, 0))
    at_s: int = 0

    async def look(
        self, *, writes: int = 0, size: int = 4 * KIB, beneath: dict[str, int] | None = None
    ) -> dict[str, int]:
        """Let a second pass, and return the bounds after it.

        writes: of the drive. beneath: what the kernel counts beside them.
        """
        self.at_s += 1
        before = self.counters
        self.counters = before._replace(
            at_ns=self.at_s * NS_PER_S,
            write_requests=before.write_requests + writes,
            write_bytes=before.write_bytes + writes * size,
            write_time_ns=(before.write_time_ns or 0)
            + (NS_PER_S if writes else 0),  # it always waits
        )
        did = {"wbps": writes * size, "wiops": writes}
        for name in TIGHT:
            self.done[name] += did.get(name, 0) + (beneath or {}).get(name, 0)
        if (self.group / "io.stat").exists():
            rbytes, wbytes, rios, wios = self.done.values()
            (self.group / "io.stat").write_text(f"8:0 {rbytes=} {wbytes=} {rios=} {wios=}\n")
        state = NEW._replace(
            policy=POLICY,
            pricing=Pricing(rate=1000.0),
            measured=Measured(self.counters, rates(before, self.counters)),
        )
        self.backstop.look(State(drives={VDA: state}), CgroupConfig(), self.at_s * NS_PER_S)
        await self.tasks.wait(30)
        return self.bounds()

    async def idle(self) -> dict[str, int]:
        """Let some seconds pass without I/O, in which each VM is read at least once."""
        for _ in range(5):
            bounds = await self.look()
        return bounds

    def bounds(self) -> dict[str, int]:
        text = (self.group / "io.max").read_text()
        return {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", text)}


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    host = Host(tmp_path)
    group, qemu = host.guest(1, "db1")
    groups, metrics = Cgroups(Memory(), host.proc, host.sys), Metrics()
    tasks, source = Tasks(metrics), Source(qemu)
    storages = OnSda({})
    observer = Observer([source], storages)
    jobs = BlockJobs(observer, tasks, metrics)
    made = Rig(
        group, groups, source, Backstop(groups, observer, tasks, jobs), jobs, tasks, storages
    )
    monkeypatch.setattr("time.monotonic_ns", lambda: made.at_s * NS_PER_S)
    return made


COPIES = {"rbps": 135 * 60 * KIB, "wbps": 135 * 60 * KIB, "riops": 135, "wiops": 0}


async def test_bounds_that_held_copied_clusters_are_widened_with_the_next_look(rig: Rig) -> None:
    assert await rig.look() == TIGHT
    assert await rig.look(writes=135) == TIGHT
    held = await rig.look(writes=135, beneath=COPIES)
    assert rig.backstop.measured.known("db1").holding == {"vda": ("wbps",)}
    assert held["rbps"] > 1000 * 60 * KIB
    assert held["wbps"] > 1000 * 64 * KIB
    whole = {name: value * 1000 // 135 for name, value in COPIES.items()}
    assert await rig.look(writes=1000, beneath=whole) == held
    assert not rig.backstop.measured.known("db1").holding


async def test_a_drive_whose_image_is_on_another_has_room_for_copies_from_the_start(
    rig: Rig,
) -> None:
    rig.source.copies()
    bounds = await rig.look()
    assert bounds["rbps"] > 1000 * 78 * KIB
    assert bounds["wbps"] > 1000 * 62 * KIB


async def test_a_job_that_nobody_told_of_is_found_and_teaches_nothing(rig: Rig) -> None:
    job = BlockJob("backup-vda", "backup", None, 0)
    for _ in range(2):
        assert await rig.look(writes=15) == TIGHT
    assert rig.source.asked == 0
    rig.source.told = [job]
    assert await rig.look(writes=15, beneath={"rbps": 8_700_000, "riops": 70}) == {}
    assert rig.source.asked == 1
    rig.source.told = []
    await rig.jobs.ask("db1")
    assert await rig.idle() == TIGHT


async def test_bounds_are_widened_if_it_is_not_known_whether_there_are_jobs(rig: Rig) -> None:
    await rig.look()
    await rig.look(writes=135)
    rig.source.told = None
    assert (await rig.look(writes=135, beneath=COPIES))["wbps"] > 1000 * 64 * KIB


async def test_a_job_with_a_speed_has_room_beside_the_guest(rig: Rig) -> None:
    await rig.look()
    rig.source.told = [BlockJob("backup-vda", "backup", 20_000_000, 0)]
    await rig.jobs.ask("db1")
    bounds = await rig.idle()
    assert bounds["rbps"] > TIGHT["rbps"] + 25_000_000
    assert bounds["riops"] > TIGHT["riops"]


async def test_a_job_that_hangs_gives_the_bounds_back(rig: Rig) -> None:
    rig.source.told = [BlockJob("backup-vda", "backup", None, 0)]
    await rig.look()
    await rig.jobs.ask("db1")
    await rig.look()
    assert await rig.look() == {}
    for _ in range(12):
        rig.jobs.look(rig.at_s * NS_PER_S)
        last = await rig.look()
    assert last == TIGHT
    rig.source.told = [BlockJob("backup-vda", "backup", None, 1)]
    await rig.jobs.ask("db1")
    await rig.look()
    assert await rig.look() == {}


async def test_a_device_that_vanishes_in_mid_job_is_no_trouble(rig: Rig) -> None:
    rig.source.told = [BlockJob("backup-vda", "backup", 20_000_000, 0)]
    await rig.look()
    await rig.jobs.ask("db1")
    assert (await rig.idle())["rbps"] > TIGHT["rbps"]
    rig.storages.there = None
    for _ in range(11):
        await rig.look(writes=10)
    assert rig.bounds() == {}
    assert not rig.backstop.measured.known("db1").holding
    assert not rig.groups.errors
    rig.storages.there = ("8:0",)
    rig.source.told = []
    await rig.jobs.ask("db1")
    for _ in range(11):
        last = await rig.look(writes=10)
    assert last == TIGHT


async def test_a_group_whose_counters_can_not_be_read_has_no_bounds_until_they_can(
    rig: Rig,
) -> None:
    await rig.look()
    assert await rig.look() == TIGHT
    (rig.group / "io.stat").unlink()
    assert await rig.idle() == {}
    assert rig.backstop.measured.known("db1").uncounted
    (rig.group / "io.stat").write_text("")
    assert await rig.idle() == TIGHT


async def test_a_group_that_no_bound_can_hold_is_read_seldom(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Collection[str]] = []
    counted = rig.groups.counted

    def noted(vms: Collection[str]) -> dict[str, Counted]:
        read.append(vms)
        return counted(vms)

    monkeypatch.setattr(rig.groups, "counted", noted)
    await rig.look()
    for _ in range(8):
        await rig.look()
    assert len(read) == 2
    for _ in range(8):
        await rig.look(writes=100)
    assert len(read) == 10


async def test_nothing_is_known_any_more_of_a_vm_that_has_gone(rig: Rig) -> None:
    await rig.look()
    await rig.look(writes=135)
    await rig.look(writes=135, beneath=COPIES)
    rig.source._known.clear()
    for _ in range(12):
        rig.at_s += 1
        rig.backstop.look(State(), CgroupConfig(), rig.at_s * NS_PER_S)
        await rig.tasks.wait(30)
    assert not rig.backstop.measured.added(())
    assert not rig.backstop.measured.known("db1").devices
