"""Counters to rates: what is not known is never nonsense."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.workload import Counters, rates

START = Counters(1_000_000_000, 100, 409_600, 50, 819_200, 10_000_000, 20_000_000)
counters = st.builds(Counters, *[st.integers(0, 2**64) for _ in range(7)])


def test_rates_sizes_and_latencies_of_an_interval() -> None:
    later = Counters(3_000_000_000, 300, 409_600 + 200 * 8192, 50, 819_200, 410_000_000, 20_000_000)
    did = rates(START, later)
    assert did is not None
    assert did.elapsed_s == 2
    assert did.read.raw_iops == 100
    assert did.read.mean_size_bytes == 8192
    assert did.read_latency_s == pytest.approx(0.002)
    assert did.write.raw_iops == 0
    assert did.write.mean_size_bytes is None
    assert did.write_latency_s is None


@pytest.mark.parametrize("field", [f for f in START.__dataclass_fields__ if f != "at_ns"])
def test_rates_are_unknown_when_a_counter_goes_backwards(field: str) -> None:
    later = replace(START, at_ns=2_000_000_000)
    assert rates(START, replace(later, **{field: getattr(START, field) - 1})) is None


def test_rates_are_unknown_when_no_time_has_passed() -> None:
    assert rates(START, START) is None
    assert rates(START, replace(START, at_ns=0)) is None


@given(counters, counters)
def test_rates_are_never_negative(earlier: Counters, later: Counters) -> None:
    did = rates(earlier, later)
    if did is not None:
        assert did.elapsed_s > 0
        assert min(did.read.raw_iops, did.read.bps, did.write.raw_iops, did.write.bps) >= 0
