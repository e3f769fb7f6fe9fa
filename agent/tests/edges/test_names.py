"""Names that pass from one VM to another, as by `virsh domrename`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from iokeel.config.settings import Config
from iokeel.core.values.counters import DriveId
from iokeel.core.values.limits import UNLIMITED, ThrottleLimits
from iokeel.core.values.policy import UNKNOWN, DomainPolicy, DrivePolicy
from iokeel.daemon import Agent
from iokeel.hypervisors.qmp.source import QmpSource
from iokeel.hypervisors.source import DriveInfo, VmInfo
from iokeel.report.metrics.prometheus import Metrics
from iokeel.store.store import StateStore

VDA = DriveId("web", "vda")
OURS, OTHERS = "1d8b4c9a-0e0f-4a7e-9d58-2f6b0a3c7e11", "2e9c5dab-1f10-4b8f-8e69-3a7c1b4d8f22"
POLICY = DomainPolicy({"vda": DrivePolicy(limit=500)})


class Guests(QmpSource):
    """A source of the VM `web`, and the limits that were set."""

    def __init__(self, vm: VmInfo) -> None:
        super().__init__([])
        self._known = {"web": vm}
        self.limits: list[ThrottleLimits] = []

    async def set_limits(self, drive: DriveId, limits: ThrottleLimits, timeout_s: float) -> None:
        self.limits.append(limits)


def web(uuid: str | None, policy: object, in_force: ThrottleLimits = UNLIMITED) -> VmInfo:
    return VmInfo("web", {"vda": DriveInfo("vda", "/a", in_force)}, policy, uuid=uuid)  # type: ignore[arg-type]


async def look(folder: Path, source: Guests) -> Agent:
    """Look once as a new agent, which is killed then."""
    agent = Agent(Config(), [source], StateStore(folder), Metrics())
    agent.remember()
    await agent.look(None)
    await asyncio.sleep(0)
    return agent


@pytest.mark.parametrize(
    ("before", "now", "keeps"),
    [(OURS, OURS, True), (OURS, OTHERS, False), (None, OTHERS, True)],
    ids=["the same", "another", "as an older version saved it"],
)
async def test_a_vm_that_takes_a_name_over_has_nothing_of_the_one_before(
    tmp_path: Path, before: str | None, now: str, keeps: bool
) -> None:
    first = Guests(web(before, POLICY))
    await look(tmp_path, first)
    (ours,) = first.limits
    assert ours.iops_total is not None
    second = Guests(web(now, UNKNOWN))
    for _ in range(2):  # nor has it after another crash
        agent = await look(tmp_path, second)
        known = agent.state.drives[VDA]
        assert (known.policy, known.sent.limits) == (
            (POLICY.drives["vda"], ours) if keeps else (None, None)
        )
    assert {*second.limits} == ({ours} if keeps else set())


async def test_a_name_passes_from_one_vm_to_another_between_two_looks(tmp_path: Path) -> None:
    source = Guests(web(OURS, POLICY))
    agent = await look(tmp_path, source)
    source._known["web"] = web(OTHERS, UNKNOWN, ThrottleLimits(iops_total=7777))
    await agent.look({"web"})
    await asyncio.sleep(0)
    assert agent.state.drives[VDA].policy is None
    assert len(source.limits) == 1, "the other's policy holds it no longer"
