"""A guest's credit in a real etcd: it is taken once."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from unittest.mock import patch

import pytest

from iokeel.config.load import parse
from iokeel.config.settings import Config
from iokeel.core.enforce.jobs import BlockJob
from iokeel.core.fleet.handover import GuestCredit
from iokeel.core.values.counters import Counters, DriveId
from iokeel.core.values.limits import UNLIMITED, ThrottleLimits
from iokeel.core.values.policy import DomainPolicy, DrivePolicy
from iokeel.core.values.state import Credit, DriveState, Measured
from iokeel.daemon import Agent
from iokeel.errors import FleetRefused, NewerSchema
from iokeel.fleet import handover
from iokeel.fleet.etcd import Etcd
from iokeel.fleet.handover import Handovers
from iokeel.fleet.keys import Keys, Kind
from iokeel.fleet.member import Member
from iokeel.fleet.messages import Put
from iokeel.hypervisors.source import DriveInfo, SourceNews, VmInfo
from iokeel.report.metrics.prometheus import Metrics
from iokeel.store.store import StateStore
from testing.agents import free_port
from testing.fleet import etcd as real
from testing.waiting import until

UUID = "6d7b1f0a-3c2e-4b57-9f60-b0d1a5a3e2c1"
CREDIT = GuestCredit({"vda": 12.5, "vdb": 0.0}, 3.0)
DRIVE = DriveId("db1", "vda")


def key(etcd: Etcd) -> str:
    return Keys(etcd.access.prefix).credit(UUID)


async def test_credit_is_taken_once_whoever_asks(etcd: Etcd) -> None:
    assert await handover.take(etcd, key(etcd)) is None
    await handover.leave(etcd, key(etcd), CREDIT)
    found = await asyncio.gather(*(handover.take(etcd, key(etcd)) for _ in range(10)))
    assert [credit for credit in found if credit is not None] == [CREDIT]


async def test_later_credit_replaces_what_nobody_has_taken(etcd: Etcd) -> None:
    await handover.leave(etcd, key(etcd), CREDIT)
    await handover.leave(etcd, key(etcd), GuestCredit({"vda": 1.0}))
    assert await handover.take(etcd, key(etcd)) == GuestCredit({"vda": 1.0})
    assert await handover.take(etcd, key(etcd)) is None


async def test_credit_that_nobody_takes_goes_in_the_end(etcd: Etcd, one_etcd: real.Etcd) -> None:
    await handover.leave(etcd, key(etcd), CREDIT)
    (found,) = json.loads(one_etcd.ctl("get", key(etcd)))["kvs"]
    told = json.loads(one_etcd.ctl("lease", "timetolive", f"{found['lease']:x}"))
    assert 0 < told["ttl"] <= handover.KEPT_S == told["granted-ttl"]


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (b'{"v":1,"drives":{"vda":-1}}', FleetRefused),
        (b'{"v":1,"drives":{"vda":1e99}}', FleetRefused),
        (b'{"v":2,"credits":[]}', NewerSchema),
        (b"\xff", FleetRefused),
    ],
)
async def test_what_iokeel_has_not_written_is_no_credit(
    etcd: Etcd, value: bytes, error: type[Exception]
) -> None:
    await etcd.write([], [Put(key(etcd), value)])
    with pytest.raises(error):
        await handover.take(etcd, key(etcd))


def state(seconds: float) -> dict[DriveId, DriveState]:
    """Return the drives of a host with one guest."""
    last = Counters(time.monotonic_ns(), 0, 0, 0, 0, None, None)
    policy = DrivePolicy(limit=100, burst=200)
    return {DRIVE: DriveState(policy=policy, measured=Measured(last), credit=Credit(seconds))}


async def test_a_guest_that_moves_takes_its_credit_along(etcd: Etcd) -> None:
    keys, came = Keys(etcd.access.prefix), {}
    one, other = (Handovers(keys, lambda: etcd) for _ in range(2))
    other.on_credit = lambda domain, credit: came.update({domain: credit})
    vms = {"db1": VmInfo("db1", {}, uuid=UUID)}
    before = state(30)
    one.looked({}, before, vms, 0)
    other.looked({}, {}, {}, 0)
    other.looked(state(0), state(0), vms, 0)  # a look at it alone came before
    one.looked(before, {}, {}, time.monotonic_ns())
    await until(lambda: "db1" in came)
    assert 27 <= came["db1"].drives["vda"] <= 28


async def test_a_drive_that_is_unplugged_leaves_nothing(etcd: Etcd) -> None:
    one = Handovers(Keys(etcd.access.prefix), lambda: etcd)
    vms = {"db1": VmInfo("db1", {}, uuid=UUID)}
    before = state(30)
    one.looked({}, before, vms, 0)
    one.looked(before, {}, vms, time.monotonic_ns())
    await asyncio.sleep(0.5)
    assert await handover.take(etcd, key(etcd)) is None


class Vms(SourceNews):
    """A source of VMs that come and go as a test says, and take any limits."""

    def __init__(self) -> None:
        super().__init__()
        self.there: dict[str, VmInfo] = {}

    async def run(self) -> None:
        pass

    def configure(self, config: Config) -> None:
        pass

    def announce(self, domain: str) -> None:
        pass

    def vms(self) -> Mapping[str, VmInfo]:
        return self.there

    def unread(self) -> Collection[str]:
        return ()

    def saving(self) -> Collection[str]:
        return ()

    async def sample(
        self, domains: Collection[str] | None, timeout_s: float
    ) -> Mapping[DriveId, Counters]:
        return {}

    async def set_limits(self, drive: DriveId, limits: ThrottleLimits, timeout_s: float) -> None:
        pass

    async def jobs(self, domain: str, timeout_s: float) -> list[BlockJob]:
        return []

    async def set_job_speed(self, domain: str, job: str, bps: int, timeout_s: float) -> None:
        pass


def member_of_a_fleet(folder: Path, vms: Vms) -> Agent:
    """Return an agent with a state folder, whose etcd doesn't answer."""
    text = f"[fleet]\netcd = ['http://127.0.0.1:{free_port()}']\nhost = 'a'\n"
    config = parse(text.encode(), "x")
    agent = Agent(config, [vms], StateStore(folder), Metrics())
    sums = {Kind.TENANT: agent.tenant_sums, Kind.STORAGE: agent.storage_sums}
    assert config.fleet is not None
    agent.fleet = Member(config.fleet, folder, sums)
    agent.remember()
    return agent


async def test_limits_that_are_set_together_are_told_together(tmp_path: Path) -> None:
    vms = Vms()
    agent = member_of_a_fleet(tmp_path, vms)
    policy = DomainPolicy({"vda": DrivePolicy(limit=100)})
    for i in range(40):
        drives = {"vda": DriveInfo("vda", in_force=UNLIMITED)}
        vms.there[f"db{i}"] = VmInfo(f"db{i}", drives, policy, uuid=f"{UUID[:-2]}{i:02}")
    assert agent.fleet is not None
    with patch.object(agent.fleet, "looked", wraps=agent.fleet.looked) as told:
        await agent.look(None)
        assert told.call_count == 1
        await agent.tasks.wait(10)  # for the orders
        await agent.tasks.wait(10)  # for what follows them
        assert told.call_count == 2


async def test_a_crash_does_not_leave_credit_here_that_has_left(tmp_path: Path) -> None:
    vms = Vms()
    agent = member_of_a_fleet(tmp_path, vms)
    policy = DomainPolicy({"vda": DrivePolicy(limit=100, burst=200)})
    vms.there = {
        "db1": VmInfo("db1", {"vda": DriveInfo("vda", in_force=UNLIMITED)}, policy, uuid=UUID)
    }
    await agent.look(None)
    assert StateStore(tmp_path).load().keys() == {DRIVE}
    vms.there = {}
    await agent.look(None)
    assert not StateStore(tmp_path).load()
