"""The rates of the last two minutes, and how a row shows them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.cli.top.picture import (
    SPAN_S,
    Picture,
    Trends,
    drive_key,
    sparkline,
    storage_key,
    tenant_key,
)
from iokeel.report.records import DriveHistory, HistoryReport
from tests.unit.cli.reports import drive, vm

VDA = drive_key("db1", "vda")


def picture(rate: float | None) -> Picture:
    """Return two drives of one tenant and storage."""
    return Picture.of([vm(drive("vda", rate=rate), drive("vdb", rate=50.0))], [])


@pytest.mark.parametrize(
    ("rates", "width", "most", "shown"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7, 8], 9, 8, "▁▂▃▄▅▆▇██"),
        ([8, 8, 0, 0], 2, 8, "█▁"),
        ([None, None, 4, None], 4, 8, "  ▅ "),
        ([None, 8], 1, 8, "█"),
        ([100, 50], 2, 10, "█▅"),
        ([0, 0], 2, 0, "▁▁"),
        ([8], 3, 8, "███"),
        ([], 3, 8, "   "),
    ],
)
def test_rates_are_as_high_as_their_part_of_what_is_allowed(
    rates: list[float | None], width: int, most: float, shown: str
) -> None:
    assert sparkline(rates, width, most) == shown


@given(
    st.lists(st.none() | st.floats(0, 1e12), max_size=SPAN_S),
    st.integers(0, 60),
    st.floats(0, 1e12),
)
def test_a_sparkline_is_as_wide_as_asked(
    rates: list[float | None], width: int, most: float
) -> None:
    assert len(sparkline(rates, width, most)) == width


def test_a_new_top_begins_with_the_agents_history() -> None:
    trends = Trends()
    history = HistoryReport(
        ages_s=[119.2, 3.9, 1.9],
        drives=[
            DriveHistory(domain="db1", target="vda", series={"normalized_iops": [10, 20, 30]}),
            DriveHistory(domain="db1", target="vdb", series={"normalized_iops": [1, 2, None]}),
            DriveHistory(domain="gone", target="vda", series={"normalized_iops": [7, 7, 7]}),
        ],
    )
    trends.begin(history, picture(5.0))
    rates = [*trends.of(VDA)]
    assert len(rates) == SPAN_S
    assert (rates[:3], rates[-4:]) == ([10, 10, None], [20, 20, 30, 30])
    for key in (storage_key("sda"), tenant_key("acme")):
        assert [*trends.of(key)][-4:] == [22, 22, 30, 30]
    assert not trends.of(drive_key("gone", "vda"))


def test_seconds_are_added_and_an_agent_that_is_silent_leaves_a_gap() -> None:
    trends = Trends()
    for rate in (100.0, None, 300.0):
        trends.add(picture(rate) if rate else None)
    assert [*trends.of(VDA)][-3:] == [100, None, 300]
    assert [*trends.of(tenant_key("acme"))][-3:] == [150, None, 350]


def test_a_drive_that_has_gone_is_forgotten_after_two_minutes() -> None:
    trends = Trends()
    trends.add(picture(100.0))
    for _ in range(SPAN_S - 1):
        trends.add(None)
    assert trends.of(VDA)[0] == 100
    trends.add(None)
    assert not trends.of(VDA)
