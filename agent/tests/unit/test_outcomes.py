"""Outcomes of orders that are on their way together."""

from __future__ import annotations

from iokeel.core.abilities import STOCK
from iokeel.core.counters import DriveId
from iokeel.core.limits import UNLIMITED, ThrottleLimits
from iokeel.core.orders import Reason, SetLimits
from iokeel.errors import ConnectionLost
from iokeel.hypervisors.source import DriveInfo
from iokeel.outcomes import Outcomes

DRIVE = DriveId("db1", "vda")
INFO = DriveInfo("vda", in_force=UNLIMITED)


def test_limits_are_not_known_until_the_last_order_has_ended() -> None:
    outcomes = Outcomes(retry_s=1.0)
    outcomes.begun(DRIVE)
    outcomes.begun(DRIVE)
    assert not outcomes.ended(DRIVE)
    assert outcomes.seen(DRIVE, INFO) == (None, False, STOCK)
    assert outcomes.ended(DRIVE)
    assert outcomes.seen(DRIVE, INFO) == (UNLIMITED, False, STOCK)


def test_an_order_that_timed_out_has_succeeded_if_its_limits_are_in_force() -> None:
    limits = ThrottleLimits(iops_total=400)
    outcomes = Outcomes(retry_s=0.0)
    outcomes.failed(SetLimits(DRIVE, limits, Reason.SHARE), ConnectionLost("db1", "no answer"))
    assert outcomes.seen(DRIVE, INFO) == (UNLIMITED, True, STOCK)
    done = DriveInfo("vda", in_force=limits)
    assert outcomes.seen(DRIVE, done) == (limits, False, STOCK)
    assert not outcomes.last
    assert outcomes.seen(DRIVE, INFO) == (UNLIMITED, False, STOCK)
