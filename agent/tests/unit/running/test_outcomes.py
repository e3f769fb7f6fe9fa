"""Outcomes of orders that are on their way together, and of those that have failed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from iokeel.config.settings import Config
from iokeel.core.values.counters import DriveId
from iokeel.core.values.curve import DEFAULT_CURVE
from iokeel.core.values.limits import STOCK, UNLIMITED, Abilities, ThrottleLimits
from iokeel.core.values.observation import Reason, SetLimits
from iokeel.daemon import Agent
from iokeel.errors import ConnectionLost, IokeelError, LimitsRejected
from iokeel.host.process import Process
from iokeel.hypervisors.libvirt.source import LibvirtSource
from iokeel.hypervisors.source import DriveInfo, VmInfo
from iokeel.report.metrics.prometheus import Metrics
from iokeel.running.outcomes import Outcomes
from iokeel.store.store import StateStore
from testing.hypervisors.abilities import PATCHED

DRIVE = DriveId("db1", "vda")
INFO = DriveInfo("vda", in_force=UNLIMITED, abilities=PATCHED)
LIMITS = ThrottleLimits(iops_total=400)
CURVE = LIMITS._replace(cost_read=DEFAULT_CURVE, cost_write=DEFAULT_CURVE)
SILENT = ConnectionLost("db1", "no answer")
QEMU = Process(7, 70)
REFUSED = LimitsRejected("db1", "no")


class Clock:
    """Outcomes of one drive by a clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.outcomes = Outcomes(retry_s=1.0)

    def seen(
        self,
        info: DriveInfo = INFO,
        *,
        process: Process | None = QEMU,
        counted: bool = True,
    ) -> tuple[ThrottleLimits | None, bool, Abilities | None]:
        return self.outcomes.seen(DRIVE, info, process, counted=counted)

    def fail(self, error: IokeelError, limits: ThrottleLimits = LIMITS) -> None:
        self.outcomes.failed(SetLimits(DRIVE, limits, Reason.SHARE), error)

    def until_retry(self, *, counted: bool) -> float:
        """Return in how many seconds the order is sent again."""
        begun = self.now_s
        while not self.seen(counted=counted)[1]:
            self.now_s += 0.5
        return self.now_s - begun


@pytest.fixture
def clock() -> Iterator[Clock]:
    made = Clock()
    with patch("time.monotonic", lambda: made.now_s):
        yield made


def test_limits_are_not_known_until_the_last_order_has_ended(clock: Clock) -> None:
    outcomes = clock.outcomes
    outcomes.begun(DRIVE)
    outcomes.begun(DRIVE)
    assert not outcomes.ended(DRIVE)
    assert clock.seen() == (None, False, PATCHED)
    assert outcomes.ended(DRIVE)
    assert clock.seen() == (UNLIMITED, False, PATCHED)


def test_an_order_that_timed_out_has_succeeded_if_its_limits_are_in_force(clock: Clock) -> None:
    clock.fail(SILENT)
    clock.now_s += 1
    assert clock.seen() == (UNLIMITED, True, PATCHED)
    assert clock.seen(DriveInfo("vda", in_force=LIMITS)) == (LIMITS, False, None)
    assert not clock.outcomes.last
    assert clock.seen() == (UNLIMITED, False, PATCHED)


def test_a_qemu_that_does_not_answer_is_tried_ever_less_often(clock: Clock) -> None:
    waits = []
    for _ in range(8):
        clock.fail(SILENT)
        waits.append(clock.until_retry(counted=False))
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]


def test_a_qemu_that_answers_again_is_tried_at_once(clock: Clock) -> None:
    for _ in range(8):
        clock.fail(SILENT)
    assert clock.seen(counted=False) == (None, False, PATCHED)
    assert clock.seen() == (UNLIMITED, True, PATCHED)
    clock.fail(SILENT)  # the earlier call is about to end
    assert clock.until_retry(counted=True) == 1


def test_limits_that_were_refused_are_not_tried_again_because_a_sample_was_late(
    clock: Clock,
) -> None:
    clock.fail(REFUSED)
    clock.seen(counted=False)
    assert clock.until_retry(counted=True) == 30


def test_an_order_that_is_not_to_be_sent_again_leaves_no_failure(clock: Clock) -> None:
    clock.fail(SILENT)
    clock.outcomes.settle([DRIVE])
    clock.now_s += 100
    assert clock.seen() == (UNLIMITED, False, PATCHED)
    assert not clock.outcomes.last


def test_another_qemu_of_the_same_name_inherits_no_failure(clock: Clock) -> None:
    clock.fail(REFUSED, CURVE)
    assert clock.seen() == (UNLIMITED, False, STOCK)
    clock.fail(SILENT)
    assert clock.seen(process=None) == (None, False, STOCK)
    assert clock.seen(process=Process(8, 80)) == (UNLIMITED, False, PATCHED)
    assert not clock.outcomes.last
    assert not clock.outcomes.errors


class Vms(LibvirtSource):
    """A source with the VMs that a test gives it."""

    def __init__(self) -> None:
        super().__init__("test://host/", {}, {})
        self.found = {"db1": VmInfo("db1", {"vda": INFO, "vdb": INFO})}
        self.busy: set[str] = set()

    def vms(self) -> dict[str, VmInfo]:
        return self.found

    def unread(self) -> set[str]:
        return self.busy


@pytest.mark.parametrize("partial", [False, True])
async def test_a_drive_that_is_gone_leaves_no_failure_to_the_next_of_its_name(
    tmp_path: Path, partial: bool
) -> None:
    source = Vms()
    agent = Agent(Config(), [source], StateStore(tmp_path), Metrics())
    outcomes = agent.enforcer.outcomes
    vdb, other = DriveId("db1", "vdb"), DriveId("db2", "vda")
    for drive in (DRIVE, vdb, other):
        outcomes.failed(SetLimits(drive, CURVE, Reason.POLICY), REFUSED)
    source.busy = {"db2"}
    looked_at = {"db1"} if partial else None
    await agent.look(looked_at)
    assert outcomes.last.keys() == {DRIVE, vdb, other}
    source.found = {"db1": VmInfo("db1", {"vda": INFO})}
    await agent.look(looked_at)
    assert outcomes.last.keys() == {DRIVE, other}
    source.found, source.busy = {}, {"db1"}  # it may still run
    await agent.look(looked_at)
    assert outcomes.last.keys() == ({DRIVE, other} if partial else {DRIVE})
    source.busy = set()
    await agent.look(looked_at)
    assert outcomes.last.keys() == outcomes.errors.keys() == ({other} if partial else set())
    await asyncio.sleep(0)


def test_a_vm_whose_limits_are_set_all_the_time_fills_no_log(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(60):
        for number in range(10):
            drive = DriveId("evil", f"disk{number}")
            clock.outcomes.succeeded(SetLimits(drive, LIMITS, Reason.SHARE))
        clock.now_s += 1
    assert len(caplog.messages) == 101
    assert caplog.messages[-1] == "VM evil: further lines like this are left out for a while"
    clock.outcomes.succeeded(SetLimits(DRIVE, LIMITS, Reason.SHARE))
    assert caplog.messages[-1].startswith("db1/vda: limits set")
    clock.outcomes.succeeded(SetLimits(drive, LIMITS, Reason.SHARE))
    assert caplog.messages[-1].startswith("evil/disk9: limits set")
