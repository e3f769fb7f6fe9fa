"""The history in memory: what it keeps, how long, and what it costs."""

from __future__ import annotations

import sys
from math import nan

import pytest

from iokeel.core.values.counters import NS_PER_S, DriveId
from iokeel.core.values.observation import Reason
from iokeel.report.history import History
from iokeel.report.records import SERIES, SPAN_S

VDA, VDB = DriveId("db1", "vda"), DriveId("db1", "vdb")
RATE = ("normalized_iops",)


def values(rate: float, drives: int = 1) -> list[float]:
    """Return the values of drives that have that rate, and nothing else."""
    return [rate, *[nan] * (len(SERIES) - 1)] * drives


def filled(seconds: int, every_s: float = 1.0) -> History:
    """Return the history of a drive whose rate is the number of the second."""
    history = History()
    for tick in range(int(seconds / every_s)):
        at_ns = int(tick * every_s * NS_PER_S)
        if history.is_due(at_ns):
            history.add(at_ns, [VDA], values(tick * every_s))
    return history


def test_values_come_back_oldest_first_with_their_ages() -> None:
    span = filled(10).span(9 * NS_PER_S, 5)
    assert span.ages_s == [5, 3, 1]
    assert span.report(VDA, RATE).series == {"normalized_iops": [4, 6, 8]}


def test_every_series_is_kept_and_nothing_known_is_none() -> None:
    history = History()
    history.add(0, [VDA, VDB], [1000.5, 2000, 0.00125, nan, 60, nan, nan, nan, nan, 0])
    span = history.span(0, SPAN_S)
    assert span.report(VDA, SERIES).series == {
        "normalized_iops": [1000.5],
        "allowed_iops": [2000],
        "latency_s": [pytest.approx(0.00125)],
        "wait_s": [None],
        "credit_s": [60],
    }
    assert span.report(VDB, SERIES).series["normalized_iops"] == [None]


def test_drives_that_come_and_go_have_gaps() -> None:
    history = History()
    history.add(0, [VDA], values(1))
    history.add(2 * NS_PER_S, [VDB, VDA], [*values(20), *values(2)])
    history.add(4 * NS_PER_S, [VDB], values(30))
    span = history.span(4 * NS_PER_S, SPAN_S)
    assert span.drives == [VDA, VDB]
    assert span.report(VDA, RATE).series["normalized_iops"] == [1, 2, None]
    assert span.report(VDB, RATE).series["normalized_iops"] == [None, 20, 30]
    assert span.report(DriveId("x", "y"), RATE).series["normalized_iops"] == [None] * 3


@pytest.mark.parametrize("every_s", [0.2, 0.99, 1.0, 10.0])
def test_ten_minutes_are_kept_and_no_more(every_s: float) -> None:
    history = filled(1500, every_s)
    now_ns = 1500 * NS_PER_S
    span = history.span(now_ns, 10_000)
    assert SPAN_S - 25 <= span.ages_s[0] <= SPAN_S + 10
    assert len(span.ages_s) <= 343


def test_a_drive_takes_six_kb_at_a_tick_a_second() -> None:
    history, drives = History(), [DriveId(f"vm{n}", "vda") for n in range(200)]
    for second in range(0, 2 * SPAN_S, 2):
        history.add(second * NS_PER_S, list(drives), values(1000.0, len(drives)))
    samples = history._samples
    assert len({id(sample.drives) for sample in samples}) == 1
    assert sum(sys.getsizeof(sample.values) for sample in samples) / len(drives) < 6500


def test_orders_are_kept_with_their_reasons_while_the_drive_is_there() -> None:
    history = History()
    history.add(0, [VDA], values(1))
    for second in range(40):
        history.add_order(second * NS_PER_S, VDA, Reason.SHIFT)
    orders = history.orders(VDA, 40 * NS_PER_S, SPAN_S)
    assert [order.age_s for order in orders] == list(range(32, 0, -1))
    assert {order.reason for order in orders} == {"the mix of request sizes has shifted"}
    assert [order.age_s for order in history.orders(VDA, 40 * NS_PER_S, 2.5)] == [2, 1]
    history.add(40 * NS_PER_S, [VDB], values(1))
    assert history.orders(VDA, 40 * NS_PER_S, SPAN_S) == []
