"""Block jobs at a QMP socket: found, given their speed, and forgotten."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from iokeel.core.values.counters import NS_PER_S
from iokeel.core.values.policy import DomainPolicy
from iokeel.report.metrics.prometheus import Metrics
from iokeel.running.beneath import BlockJobs
from iokeel.running.observer import Observer
from iokeel.running.storages import DriveStorages
from iokeel.running.tasks import Tasks
from testing.hypervisors.qmp_server import QmpServer, error
from testing.waiting import until
from tests.edges.hypervisors.sources import GOLD, running, vm

MB = 1_000_000
NAME = "backup-vda"
BEGINS = "JOB_STATUS_CHANGE"


@dataclass
class Rig:
    """A VM's monitor, and its block jobs as they are followed. moved: how often room changed."""

    server: QmpServer
    jobs: BlockJobs
    metrics: Metrics
    moved: int = 0

    @property
    def speed(self) -> object:
        """The speed of the only job."""
        (job,) = self.server.jobs
        return job["speed"]

    async def ask(self) -> None:
        await self.jobs.ask("db1")

    def forget(self, default_bps: int | None) -> None:
        """Begin like another agent on the same VM."""
        self.jobs.running.clear()
        self.jobs.default_bps = default_bps


@contextlib.asynccontextmanager
async def followed(path: Path, policy: DomainPolicy | None = None) -> AsyncIterator[Rig]:
    server = await QmpServer(path).start()
    async with running(vm(server.path, policy=policy)) as source:
        await until(source.vms)
        metrics = Metrics()
        observer = Observer([source], DriveStorages({}))
        rig = Rig(server, BlockJobs(observer, Tasks(metrics), metrics), metrics)

        def count() -> None:
            rig.moved += 1

        rig.jobs.on_room = count
        source.on_job = rig.jobs.heard
        rig.jobs.default_bps = 50 * MB
        yield rig
    await server.stop()


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with followed(tmp_path / "db1.qmp") as made:
        yield made


async def test_a_job_gets_the_rate_as_soon_as_an_event_tells_of_it(rig: Rig) -> None:
    rig.server.job(NAME)
    rig.server.event(BEGINS)
    await until(lambda: rig.speed == 50 * MB)
    await until(lambda: "db1" in rig.jobs.room(1.0))
    assert not rig.jobs.endless
    rig.server.jobs = []
    rig.server.event(BEGINS)
    await until(lambda: not rig.jobs.running)
    assert not rig.jobs.room(1.0)


async def test_a_qemu_that_tells_of_jobs_without_end_is_asked_about_once_a_second(rig: Rig) -> None:
    def asked() -> int:
        return sum(each["execute"] == "query-block-jobs" for each in rig.server.asked)

    began, before = time.monotonic(), asked()
    for _ in range(200):
        rig.server.event(BEGINS)
        await asyncio.sleep(0.005)
    rig.server.job(NAME)
    rig.server.event(BEGINS)
    await until(lambda: rig.speed == 50 * MB)  # the last event is heard, too
    assert 3 <= asked() - before <= 5 + (time.monotonic() - began)


async def test_a_job_is_found_by_looks_too_and_another_vm_is_asked_seldom(rig: Rig) -> None:
    def looks(*at_s: int) -> None:
        for each in at_s:
            rig.jobs.look(rig.jobs._asked_ns.get("db1", 0) + each * NS_PER_S)

    async def asked() -> int:
        await rig.jobs._tasks.wait(30)
        return rig.server.commands().count("query-block-jobs")

    looks(0)
    assert await asked() == 1  # it may have a job from before
    rig.server.job(NAME)
    looks(3, 30)
    assert await asked() == 1
    looks(61)
    assert await asked() == 2
    assert rig.speed == 50 * MB
    looks(2)
    assert await asked() == 2
    looks(4)
    assert await asked() == 3


async def test_a_vm_at_rest_is_asked_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = rig.jobs._observer.sources
    monkeypatch.setattr(source, "resting", lambda: {"db1"})
    for _ in range(3):
        rig.jobs.look(rig.jobs._asked_ns.get("db1", 0) + 61 * NS_PER_S)
        await rig.jobs._tasks.wait(30)
    assert rig.server.commands().count("query-block-jobs") == 1


async def test_a_job_without_a_rate_has_no_end_of_room(rig: Rig) -> None:
    rig.jobs.default_bps = None
    rig.server.job(NAME)
    await rig.ask()
    assert rig.speed == 0
    assert rig.jobs.endless == {"db1"}
    assert rig.jobs.take_moved() == {"db1"}
    await rig.ask()
    assert rig.jobs.take_moved() == set()
    assert rig.moved == 1


async def test_a_speed_that_an_operator_has_set_stays(rig: Rig) -> None:
    rig.server.job(NAME, speed=7 * MB)
    await rig.ask()
    assert rig.speed == 7 * MB
    assert rig.jobs.room(1.0).keys() == {"db1"}


async def test_a_migrations_copy_counts_as_one_without_a_speed(rig: Rig) -> None:
    rig.server.job("drive-virtio-disk0", "mirror", speed=9223372036853727232)  # as libvirt sets it
    await rig.ask()
    assert rig.speed == 50 * MB


async def test_a_reload_changes_the_speed_of_a_job_that_runs(rig: Rig) -> None:
    rig.server.job(NAME)
    await rig.ask()
    rig.jobs.default_bps = 60 * MB
    await rig.ask()
    assert rig.speed == 60 * MB
    rig.jobs.default_bps = None
    await rig.ask()
    assert rig.speed == 0


async def test_an_agent_that_starts_in_mid_job_takes_it_over(rig: Rig) -> None:
    rig.server.job(NAME)
    await rig.ask()
    rig.forget(50 * MB)
    await rig.ask()
    rig.jobs.default_bps = 60 * MB
    await rig.ask()
    assert rig.speed == 60 * MB


async def test_the_policys_rate_comes_before_that_of_the_configuration(tmp_path: Path) -> None:
    policy = DomainPolicy({}, GOLD, job_bps=20 * MB)
    async with followed(tmp_path / "db1.qmp", policy) as rig:
        rig.server.job(NAME)
        await rig.ask()
        assert rig.speed == 20 * MB


async def test_the_jobs_of_a_vm_without_a_policy_are_left_alone(tmp_path: Path) -> None:
    async with followed(tmp_path / "db1.qmp", DomainPolicy({})) as rig:
        rig.server.job(NAME)
        await rig.ask()
        assert rig.speed == 0
        assert not rig.jobs.running
        assert "query-block-jobs" not in rig.server.commands()


@pytest.mark.parametrize("command", ["query-block-jobs", "block-job-set-speed"])
async def test_a_qemu_that_refuses_is_told_of_once_and_its_job_goes_on(
    rig: Rig, command: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig.server.job(NAME)
    rig.server.answers[command] = lambda request: error(request, "GenericError", "not now")
    for _ in range(2):
        await rig.ask()
    assert rig.speed == 0
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 1
    assert "not now" in told[0]
    assert rig.metrics.errors["jobs"] == 2
    del rig.server.answers[command]
    await rig.ask()
    assert rig.speed == 50 * MB


async def test_jobs_stay_as_last_known_while_qemu_does_not_answer(rig: Rig) -> None:
    rig.jobs.default_bps = None
    rig.server.job(NAME)
    await rig.ask()
    rig.server.answers["query-block-jobs"] = lambda _: None
    await rig.ask()
    assert rig.jobs.endless == {"db1"}


async def test_a_job_that_ends_before_its_speed_is_set_is_no_trouble(rig: Rig) -> None:
    rig.server.job(NAME)

    def ends(request: dict[str, object]) -> bytes:
        rig.server.jobs = []
        return rig.server._set_speed(request)

    rig.server.answers["block-job-set-speed"] = ends
    await rig.ask()
    await rig.ask()
    assert not rig.jobs.running


async def test_a_vm_that_has_gone_has_no_jobs(rig: Rig) -> None:
    rig.jobs.default_bps = None
    rig.server.job(NAME)
    await rig.ask()
    await rig.server.stop()
    rig.server.path.unlink()
    await until(lambda: not rig.jobs._observer.vms(), 60)
    rig.jobs.look(0)
    assert not rig.jobs.running
    assert not rig.jobs.endless


async def test_events_without_end_have_the_jobs_asked_for_now_and_then(rig: Rig) -> None:
    """A QEMU that a guest has taken over begins and ends jobs as it likes."""
    await rig.ask()
    began, before = time.monotonic(), rig.server.commands().count("query-block-jobs")
    for number in range(500):
        rig.server.jobs.clear()
        rig.server.job(f"job{number}")
        rig.server.event(BEGINS)
        await asyncio.sleep(0.002)
    most = 2 + (time.monotonic() - began) / 0.2
    assert 1 <= rig.server.commands().count("query-block-jobs") - before <= most
