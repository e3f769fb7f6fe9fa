"""Saturation depth and latency at load, against queues whose answers are in textbooks."""

from math import factorial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.core.fitting import MOST_DEPTH, open_latency_s, saturation_depth

DEPTHS = [1 << power for power in range(10)]


class Device:
    """Serves `units` requests at a time, `rate` a second each, and notes the depths asked for."""

    def __init__(self, units: int, rate: float = 100.0) -> None:
        self.units = units
        self.rate = rate
        self.asked: list[int] = []

    def __call__(self, depth: int) -> float:
        self.asked.append(depth)
        return min(depth, self.units) * self.rate


@pytest.mark.parametrize("units", [1, 2, 4, 32, 128])
def test_depth_is_doubled_until_nothing_is_gained(units: int) -> None:
    device = Device(units)
    assert saturation_depth(device) == units
    assert device.asked == [depth for depth in DEPTHS if depth <= 2 * units]


def test_with_patience_a_doubling_that_gains_nothing_is_no_end() -> None:
    # An arm has no choice between the request that it serves and one other.
    gains = {1: 80.0, 2: 80.0, 4: 100.0, 8: 120.0, 16: 122.0, 32: 124.0}
    assert saturation_depth(gains.__getitem__, patience=2) == 8
    assert saturation_depth(gains.__getitem__) == 1


def test_no_queue_is_tried_that_takes_too_long() -> None:
    device = Device(10_000, rate=0.5)  # every request takes 2 s, whatever the depth
    assert saturation_depth(device, most_latency_s=1.9) == 1
    assert device.asked == [1]
    gaining = {1: 100.0, 2: 120.0, 4: 144.0, 8: 173.0, 16: 207.0}
    assert (
        saturation_depth(gaining.__getitem__, most_latency_s=0.05) == 4
    )  # 8 would take 0.056 s at 144/s


def test_what_always_gains_ends_at_the_deepest() -> None:
    device = Device(10_000)
    assert saturation_depth(device) == MOST_DEPTH
    assert device.asked[-1] == MOST_DEPTH


def test_a_search_may_start_deeper() -> None:
    device = Device(4)
    assert saturation_depth(device, start=8) == 8
    assert device.asked == [8, 16]


@given(st.floats(0.05, 0.95), st.floats(1, 1e6))
def test_one_server_is_m_m_1(load: float, rate: float) -> None:
    assert open_latency_s({1: rate}, load) == pytest.approx(1 / (rate * (1 - load)))
    assert open_latency_s(dict.fromkeys(DEPTHS, rate), load) == pytest.approx(
        1 / (rate * (1 - load))
    )


def erlang_c(servers: int, load: float, rate: float) -> float:
    """Return the mean time in an M/M/c queue, by Erlang's formula; rate is one server's."""
    offered = servers * load
    top = offered**servers / factorial(servers) / (1 - load)
    wait = top / (sum(offered**n / factorial(n) for n in range(servers)) + top)
    return 1 / rate + wait / (servers * rate * (1 - load))


@pytest.mark.parametrize("load", [0.3, 0.8, 0.95])
@pytest.mark.parametrize("servers", [1, 2, 8, 64])
def test_several_servers_are_m_m_c(servers: int, load: float) -> None:
    rates = {depth: Device(servers, 50.0)(depth) for depth in DEPTHS if depth <= 2 * servers}
    assert open_latency_s(rates, load) == pytest.approx(erlang_c(servers, load, 50.0), rel=1e-9)


def test_a_storage_with_many_servers_is_no_trouble() -> None:
    rates = {depth: Device(512, 2000.0)(depth) for depth in DEPTHS}
    assert open_latency_s(rates) == pytest.approx(1 / 2000.0, rel=1e-6)


def test_rates_that_fall_with_depth_are_taken_as_the_best_so_far() -> None:
    assert open_latency_s({1: 50.0, 2: 100.0, 4: 90.0}) == pytest.approx(
        open_latency_s({1: 50.0, 2: 100.0})
    )
