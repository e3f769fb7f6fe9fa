"""Feedback by latency: which way it goes, how fast at most, and when it stays."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.capacity import CALM_RATIO, DOWN_MOST, UP_RATIO, follow

RATIOS = st.floats(0.01, 10)
STRAINS = st.floats(0.001, 1e6)
TIMES = st.floats(0.05, 2)


@given(RATIOS, STRAINS, TIMES, st.booleans(), st.booleans())
def test_it_never_moves_faster_than_it_may(
    ratio: float, strain: float, elapsed_s: float, short: bool, loaded: bool
) -> None:
    after = follow(ratio, strain, short=short, loaded=loaded, elapsed_s=elapsed_s)
    assert DOWN_MOST**elapsed_s * 0.999 <= after / ratio <= (1 + UP_RATIO) ** elapsed_s * 1.001


@given(RATIOS, STRAINS, TIMES)
def test_it_goes_up_only_where_somebody_wants_more_and_down_only_where_it_is_loaded(
    ratio: float, strain: float, elapsed_s: float
) -> None:
    def after(short: bool, loaded: bool) -> float:
        return follow(ratio, strain, short=short, loaded=loaded, elapsed_s=elapsed_s)

    assert after(False, True) <= ratio
    assert after(True, False) >= ratio
    assert after(False, False) == ratio


@given(RATIOS, TIMES, st.floats(CALM_RATIO, 1), st.booleans())
def test_it_stays_while_latency_is_just_below_its_target(
    ratio: float, elapsed_s: float, strain: float, short: bool
) -> None:
    assert follow(ratio, strain, short=short, loaded=True, elapsed_s=elapsed_s) == ratio
    assert follow(ratio, None, short=True, loaded=True, elapsed_s=elapsed_s) == ratio


@given(RATIOS, TIMES, STRAINS, STRAINS)
def test_a_higher_latency_never_lets_through_more(
    ratio: float, elapsed_s: float, one: float, other: float
) -> None:
    low, high = sorted((one, other))
    calm = follow(ratio, low, short=True, loaded=True, elapsed_s=elapsed_s)
    worse = follow(ratio, high, short=True, loaded=True, elapsed_s=elapsed_s)
    assert worse <= calm * 1.000001


@given(RATIOS, STRAINS, st.integers(1, 20))
def test_it_depends_on_the_time_and_not_on_how_often_it_is_asked(
    ratio: float, strain: float, times: int
) -> None:
    once = follow(ratio, strain, short=True, loaded=True, elapsed_s=1.0)
    often = ratio
    for _ in range(times):
        often = follow(often, strain, short=True, loaded=True, elapsed_s=1.0 / times)
    assert often == pytest.approx(once)


@given(RATIOS, STRAINS)
def test_one_reading_after_a_long_gap_counts_for_two_seconds_at_most(
    ratio: float, strain: float
) -> None:
    after = follow(ratio, strain, short=True, loaded=True, elapsed_s=3600.0)
    assert after == follow(ratio, strain, short=True, loaded=True, elapsed_s=2.0)
