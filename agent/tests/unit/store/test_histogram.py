"""Histograms tell what their values do, however short they are on disk."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from math import inf, nan

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.store.histogram import Histogram, buckets

values = st.lists(st.floats(0, 2.0**31, width=32), min_size=1, max_size=200)


def histogram(of: Sequence[float]) -> Histogram:
    found = Histogram()
    found.add(memoryview(buckets(array("f", of))).cast("H"))
    return found


@given(values, st.integers(16, 200))
def test_a_packed_histogram_has_all_values_and_its_length(of: list[float], most: int) -> None:
    short = histogram(of).pack(most)
    assert len(short) <= most
    assert Histogram.unpack(short).total == len(of)


@given(values)
def test_quantiles_are_within_a_bucket(of: list[float]) -> None:
    parts = (0.01, 0.5, 0.95, 1.0)
    for part, found in zip(parts, histogram(of).quantiles(parts), strict=True):
        exact = sorted(of)[max(0, -int(-part * len(of) // 1) - 1)]
        if 2.0**-20 <= exact < 2.0**30:
            assert found == pytest.approx(exact, rel=0.032)


@given(values, st.floats(0, 2.0**31))
def test_part_above_counts_all_but_those_near_the_value(of: list[float], value: float) -> None:
    at_least = sum(each > 1.04 * value and each >= 2.0**-20 for each in of) / len(of)
    at_most = sum(each >= value / 1.04 or value >= 2.0**30 for each in of) / len(of)
    if value >= 2.0**-19 and value < 2.0**30:
        assert at_least - 1e-9 <= histogram(of).part_above(value) <= at_most + 1e-9


@pytest.mark.parametrize("spread", [0.1, 0.3, 1.0, 2.0])
def test_what_a_row_tells_is_within_a_point(spread: float) -> None:
    draw = random.Random(7)
    of = [1000 * draw.lognormvariate(0, spread) for _ in range(1800)]
    short = Histogram.unpack(histogram(of).pack(80))
    for part in (0.5, 0.9, 0.97, 0.99):
        limit = sorted(of)[round(part * len(of))]
        assert short.part_above(limit) == pytest.approx(1 - part, abs=0.012)


def test_what_is_no_number_is_not_counted() -> None:
    found = histogram([nan, inf, 5.0])
    assert found.total == 1
    assert Histogram().quantiles([0.5]) == [0.0]
    assert Histogram().part_above(1) == 0


@given(st.binary(max_size=100) | st.lists(st.integers(-5, 2**63)).map(msgspec.msgpack.encode))
def test_other_bytes_are_refused(short: bytes) -> None:
    try:
        found = Histogram.unpack(short)
    except ValueError:
        return
    found.quantiles([0.5])
    found.part_above(1.0)
