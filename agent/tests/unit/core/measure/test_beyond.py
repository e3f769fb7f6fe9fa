"""Drives that did more than their limits let through."""

from __future__ import annotations

import pytest

from iokeel.core.measure.beyond import beyond_limits
from iokeel.core.values.counters import NS_PER_S, Counters, DriveId, Flow, Rates
from iokeel.core.values.curve import DEFAULT_CURVE
from iokeel.core.values.limits import UNLIMITED, ThrottleLimits
from iokeel.core.values.observation import DriveSeen
from iokeel.core.values.state import NEW, Measured, Sent

VDA = DriveId("db1", "vda")
NOW_NS = 100 * NS_PER_S
READ = Counters(NOW_NS, 1, 1, 1, 1, 1, 1)
IOPS = ThrottleLimits(iops_total=1000, iops_size=4096)
# 5 s of 2,000, which is 10,000 at 2,000 a second.
BURST = IOPS._replace(iops_total_max=2000, iops_total_max_length=5)
AT_ONCE = IOPS._replace(iops_total_max=3000)
BPS = ThrottleLimits(bps_total=1 << 20)
SPLIT = ThrottleLimits(iops_read=1000, iops_write=10)


def beyond(
    limits: ThrottleLimits,
    read_iops: float,
    size_bytes: int = 4096,
    *,
    elapsed_s: float = 1.0,
    in_force: ThrottleLimits | None = None,
    set_s_ago: float = 10.0,
    write_iops: float = 0.0,
) -> bool:
    read, write = (Flow(iops, iops * size_bytes) for iops in (read_iops, write_iops))
    rates = Rates(elapsed_s, read, write, None, None)
    sent = Sent(limits=limits, at_ns=NOW_NS - round(set_s_ago * NS_PER_S))
    before = NEW._replace(sent=sent)
    after = before._replace(measured=Measured(counters=READ, rates=rates))
    seen = DriveSeen(None, READ, limits if in_force is None else in_force)
    return beyond_limits({VDA: before}, {VDA: after}, {VDA: seen}) == [VDA]


@pytest.mark.parametrize(
    ("limits", "within", "past"),
    [
        (IOPS, 1350, 1400),  # a tenth of a second at once, and a quarter for what ended late
        (BURST, 2700, 2800),
        (AT_ONCE, 4900, 5100),  # 3,000 at once, then 1,000 a second
        (BPS, 350, 355),  # 256 of 4 KiB are the limit
        (SPLIT, 1350, 1400),
    ],
)
def test_what_limits_cannot_have_let_through_is_beyond_them(
    limits: ThrottleLimits, within: float, past: float
) -> None:
    assert not beyond(limits, within)
    assert beyond(limits, past)


def test_a_large_request_counts_as_several() -> None:
    assert not beyond(IOPS, 80, 1 << 16)  # 1,280 of 4 KiB
    assert beyond(IOPS, 90, 1 << 16)


def test_each_direction_has_its_own_bound() -> None:
    assert not beyond(SPLIT, 900, write_iops=13)
    assert beyond(SPLIT, 0, write_iops=14)


def test_a_short_interval_may_begin_with_a_tenth_of_a_second() -> None:
    assert not beyond(IOPS, 2450, elapsed_s=0.1)
    assert beyond(IOPS, 2550, elapsed_s=0.1)


@pytest.mark.parametrize("in_force", [UNLIMITED, IOPS._replace(iops_total=999)])
def test_limits_that_are_known_to_be_others_need_no_reading(in_force: ThrottleLimits) -> None:
    assert not beyond(IOPS, 9000, in_force=in_force)


def test_limits_that_were_new_in_the_interval_tell_nothing() -> None:
    assert not beyond(IOPS, 9000, set_s_ago=0.5)


def test_no_limits_and_a_curves_let_nothing_be_told() -> None:
    exact = ThrottleLimits(iops_total=1, cost_read=DEFAULT_CURVE, cost_write=DEFAULT_CURVE)
    assert not beyond(exact, 9000)
    assert not beyond(UNLIMITED, 9000)


def test_a_drive_without_a_new_reading_is_not_judged() -> None:
    known = NEW._replace(sent=Sent(limits=IOPS), measured=Measured(READ))
    for counters in (None, READ):
        seen = {VDA: DriveSeen(None, counters, IOPS)}
        assert beyond_limits({VDA: known}, {VDA: known}, seen) == []
        assert beyond_limits({}, {VDA: known}, seen) == []
