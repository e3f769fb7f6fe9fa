"""Limits in force under libvirt, when somebody else changes them while the agent does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from iokeel.core.abilities import STOCK
from iokeel.core.counters import DriveId
from iokeel.core.limits import UNLIMITED, ThrottleLimits
from iokeel.hypervisors.libvirt.calls import Calls
from iokeel.hypervisors.libvirt.domain import Domain
from iokeel.hypervisors.libvirt.limits import LimitsInForce
from iokeel.hypervisors.source import DriveInfo, SourceNews, VmInfo
from iokeel.policy_xml.domain import parse_domain
from iokeel.policy_xml.iotune import to_libvirt

VDA = DriveId("db1", "vda")
OURS = UNLIMITED._replace(iops_total=300, iops_size=16_384)
OTHERS = UNLIMITED._replace(iops_total=200, iops_size=16_384)  # ours, later
THEIRS = UNLIMITED._replace(iops_total=50)
XML = """
<domain type='qemu' id='1'><name>db1</name><uuid>1d8b4c9a-0e0f-4a7e-9d58-2f6b0a3c7e11</uuid>
<devices><disk type='file' device='disk'><source file='/img'/><target dev='vda'/></disk>
</devices></domain>
"""


class Slow(Calls):
    """libvirtd, whose answers come when they are let go."""

    def __init__(self) -> None:
        super().__init__("test:///default")
        self.go_on = asyncio.Event()

    async def call_domain(self, *_: Any) -> Any:
        await self.go_on.wait()
        return STOCK, None


def event(limits: ThrottleLimits) -> dict[str, object]:
    """Return the values of the TUNABLE event of somebody who sets limits."""
    values = {f"blkdeviotune.{name}": n for name, n in to_libvirt(limits).items()}
    return {"blkdeviotune.disk": "vda", **values}


def running() -> dict[str, Domain]:
    """Return a domain with a drive, by its name."""
    info = VmInfo("db1", {"vda": DriveInfo("vda", "/img", UNLIMITED, STOCK)}, None, None, None, "")
    return {"db1": Domain(parse_domain(XML), info, 1, STOCK)}


@pytest.mark.parametrize(
    ("heard", "read_again"),
    [
        ([], False),
        ([OURS], False),
        ([THEIRS], True),
        ([OURS, THEIRS], True),
        ([THEIRS, OURS], True),
    ],
)
async def test_limits_that_somebody_sets_while_the_agent_does_are_read_again(
    heard: list[ThrottleLimits], read_again: bool
) -> None:
    domains, libvirt, changed = running(), Slow(), list[str]()
    limits = LimitsInForce(domains, libvirt, SourceNews(), changed.append)
    setting = asyncio.create_task(limits.set_limits(VDA, OURS, 30.0))
    await asyncio.sleep(0)
    for each in heard:
        limits.tuned("db1", event(each))
    libvirt.go_on.set()
    await setting
    assert domains["db1"].info.drives["vda"].in_force == OURS  # until it is read again
    assert changed == (["db1"] if read_again else [])


async def test_a_drives_next_limits_may_be_sent_before_the_last_are_in_force() -> None:
    domains, libvirt, changed = running(), Slow(), list[str]()
    limits = LimitsInForce(domains, libvirt, SourceNews(), changed.append)
    first = asyncio.create_task(limits.set_limits(VDA, OURS, 30.0))
    second = asyncio.create_task(limits.set_limits(VDA, OTHERS, 30.0))
    await asyncio.sleep(0)
    limits.tuned("db1", event(OURS))
    libvirt.go_on.set()
    await first
    limits.tuned("db1", event(OTHERS))
    await second
    assert domains["db1"].info.drives["vda"].in_force == OTHERS
    assert changed == []


async def test_it_counts_what_somebody_sets_while_a_domain_is_read() -> None:
    limits = LimitsInForce({}, Slow(), SourceNews(), lambda _: None)
    before = limits.changes("db1")
    limits.tuned("db1", event(THEIRS))  # the domain isn't known yet
    assert limits.changes("db1") != before


@pytest.mark.parametrize(
    "values",
    [
        event(UNLIMITED) | {"blkdeviotune.disk": "/img"},  # libvirt takes a disk's path, too
        {"blkdeviotune.disk": "vda", "blkdeviotune.total_iops_sec": 50},  # the rest stays
    ],
    ids=["a path", "some fields"],
)
async def test_an_event_that_does_not_tell_a_drives_limits_has_the_domain_read_again(
    values: dict[str, object],
) -> None:
    domains, changed = running(), list[str]()
    limits = LimitsInForce(domains, Slow(), SourceNews(), changed.append)
    before = limits.changes("db1")
    limits.tuned("db1", values)
    assert changed == ["db1"]
    assert limits.changes("db1") != before  # a reading from before is too old
    assert domains["db1"].info.drives["vda"].in_force == UNLIMITED  # until it is read again


async def test_an_event_of_limits_that_are_in_force_has_nothing_read_again() -> None:
    domains, changed = running(), list[str]()
    limits = LimitsInForce(domains, Slow(), SourceNews(), changed.append)
    limits.tuned("db1", event(UNLIMITED))
    assert changed == []
