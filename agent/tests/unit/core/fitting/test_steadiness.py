"""Rates that are one figure, two or none."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.core.fitting import joined_windows, steadiness


def around(mean: float, spread: float, count: int, seed: int) -> list[float]:
    dice = random.Random(seed)
    return [dice.gauss(mean, spread * mean) for _ in range(count)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("spread", [0.0, 0.01, 0.04])
def test_one_figure_with_noise_is_steady(spread: float, seed: int) -> None:
    assert steadiness(around(5000, spread, 18, seed)).steady


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("highs", "lows"), [(12, 6), (6, 12), (9, 9), (15, 3)])
def test_two_figures_are_told_with_their_share(highs: int, lows: int, seed: int) -> None:
    rates = around(50_000, 0.02, highs, seed) + around(30_000, 0.02, lows, seed + 1)
    random.Random(seed).shuffle(rates)
    found = steadiness(rates)
    assert found.modes is not None
    assert found.modes == pytest.approx((30_000, 50_000), rel=0.04)
    assert found.lower_share == pytest.approx(lows / (highs + lows))
    assert not found.steady


def test_a_rate_that_is_anywhere_between_is_unsteady_and_has_no_modes() -> None:
    found = steadiness([1000.0 + 50 * i for i in range(20)])
    assert found.modes is None
    # From the third of twenty to the third last, over the median.
    assert found.spread_ratio == pytest.approx((1850 - 1100) / 1475)
    assert not found.steady


def test_one_hiccup_is_no_mode() -> None:
    found = steadiness([1000.0] * 17 + [400.0])
    assert found.modes is None
    assert found.steady


def test_two_figures_that_are_near_are_one() -> None:
    assert steadiness([1000.0] * 9 + [1100.0] * 9).steady


def test_a_stall_of_every_second_window_is_two_figures() -> None:
    assert steadiness([0.0, 2000.0] * 9).modes == (0.0, 2000.0)


def test_nothing_at_all_is_no_error() -> None:
    assert steadiness([0.0, 0.0]).steady
    assert not steadiness([0.0] * 5 + [10.0]).steady


@given(
    st.lists(st.just(0.0) | st.floats(1e-3, 1e7), min_size=1, max_size=50), st.floats(0.001, 1000)
)
def test_only_ratios_count(rates: list[float], factor: float) -> None:
    one, other = steadiness(rates), steadiness([factor * rate for rate in rates])
    assert one.spread_ratio == pytest.approx(other.spread_ratio, rel=1e-6, abs=1e-9)


def test_windows_are_joined_until_chance_is_small() -> None:
    # 500 requests a window: each counts. 120 a window: four in one, and what is over is left out.
    assert joined_windows([[1000.0, 1200.0], [900.0]], 0.5) == [1000.0, 1200.0, 900.0]
    assert joined_windows([[200.0] * 4 + [280.0] * 5], 0.5) == pytest.approx([200.0, 280.0])


def test_a_run_too_short_for_a_span_is_one() -> None:
    assert joined_windows([[20.0, 30.0], [40.0, 50.0]], 0.5) == [25.0, 45.0]
    assert joined_windows([[0.0, 0.0]], 0.5) == [0.0, 0.0]


def test_all_spans_are_as_long() -> None:
    # 450 a window on average; the slow run's spans have fewer requests, and count as much.
    assert joined_windows([[1200.0] * 4, [600.0] * 4], 0.5) == [1200.0] * 4 + [600.0] * 4
