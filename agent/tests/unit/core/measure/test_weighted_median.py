"""No single value moves a weighted median."""

from __future__ import annotations

from statistics import median_low

from hypothesis import given
from hypothesis import strategies as st

from iokeel.core.measure.storage import weighted_median

VALUES = st.floats(0, 1e15)
WEIGHTS = st.floats(0.01, 1e15)
WORDS = st.lists(st.tuples(VALUES, WEIGHTS), min_size=1, max_size=9)


@given(st.lists(VALUES, min_size=3, max_size=9))
def test_with_equal_weights_it_is_the_lower_median(values: list[float]) -> None:
    assert weighted_median([(value, 1.0) for value in values]) == median_low(values)


@given(WORDS, VALUES, WEIGHTS)
def test_no_word_lifts_it_above_all_others_together(
    others: list[tuple[float, float]], value: float, weight: float
) -> None:
    found = weighted_median([*others, (value, weight)])
    assert found is not None
    assert found <= max(each for each, _ in others)


@given(WORDS)
def test_it_is_between_the_least_and_the_most(words: list[tuple[float, float]]) -> None:
    found = weighted_median(words)
    assert found is not None
    assert min(words)[0] <= found <= max(words)[0]


def test_a_tie_is_one_though_sums_are_rounded() -> None:
    for weight in (128.0, 1e13, 1e300):
        assert weighted_median([(0.0, 1 / 3), (1.0, weight)]) == 0.0
    assert weighted_median([(0.0, 0.1), (0.0, 0.2), (1.0, 0.3)]) == 0.0


def test_the_lower_of_two_counts_whichever_is_heavier() -> None:
    for weights in ((1.0, 1.0), (9.0, 1.0), (1.0, 9.0)):
        assert weighted_median(zip((0.3, 1e6), weights, strict=True)) == 0.3


def test_the_heaviest_needs_others_that_agree() -> None:
    assert weighted_median([(1.0, 10.0), (2.0, 10.0), (40.0, 80.0)]) == 2.0
    assert weighted_median([(1.0, 10.0), (50.0, 20.0), (40.0, 80.0)]) == 40.0
    assert weighted_median([(0.1, 80.0), (30.0, 10.0), (40.0, 10.0)]) == 0.1


def test_however_little_others_do_the_heaviest_is_one_of_two() -> None:
    assert weighted_median([(40.0, 1e9), (0.1, 1.0)]) == 0.1


def test_without_weight_there_is_none() -> None:
    assert weighted_median([(0.0, 0.0)]) is None
    assert weighted_median([]) is None
