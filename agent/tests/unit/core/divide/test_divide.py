"""Divisions of a capacity: properties of all, and against a slow, independent solution."""

from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.core.divide.divide import cut_by_weight, divide
from iokeel.core.values.claimant import Claim
from testing.sim.oracle import by_bisection

AMOUNTS = st.one_of(st.integers(0, 100_000).map(float), st.floats(1e-3, 1e8))
WEIGHTS = st.one_of(st.integers(1, 10_000).map(float), st.floats(1e-3, 1e12))
CLAIMS = st.lists(
    st.builds(Claim, AMOUNTS, WEIGHTS, st.one_of(AMOUNTS, st.just(inf))), min_size=1, max_size=12
)
# The error of sums of a dozen floats.
ROUNDING = 1e-9


def close(value: float, scale: float) -> object:
    return pytest.approx(value, rel=ROUNDING, abs=ROUNDING * (1 + scale))


@given(AMOUNTS, CLAIMS)
def test_division_is_what_bisection_finds(capacity: float, claims: list[Claim]) -> None:
    expected = by_bisection(capacity, claims)
    for amount, wanted in zip(divide(capacity, claims).amounts, expected, strict=True):
        assert amount == close(wanted, capacity)


@given(AMOUNTS, CLAIMS)
def test_all_that_is_wanted_or_all_there_is_is_given(capacity: float, claims: list[Claim]) -> None:
    amounts = divide(capacity, claims).amounts
    assert sum(amounts) == close(min(capacity, sum(c.wants for c in claims)), capacity)
    for amount, claim in zip(amounts, claims, strict=True):
        assert 0 <= amount <= claim.wants * (1 + ROUNDING)


@given(AMOUNTS, CLAIMS)
def test_reservations_are_met_or_all_scaled_alike(capacity: float, claims: list[Claim]) -> None:
    division = divide(capacity, claims)
    owed = [min(c.reservation, c.wants) for c in claims]
    assert division.kept == close(min(1.0, capacity / sum(owed) if sum(owed) else 1.0), 1)
    for amount, mine in zip(division.amounts, owed, strict=True):
        assert amount >= division.kept * mine * (1 - ROUNDING)
        if sum(owed) > capacity:
            assert amount == close(division.kept * mine, capacity)


@given(AMOUNTS, CLAIMS)
def test_who_wants_more_has_no_less_for_its_weight_than_anyone(
    capacity: float, claims: list[Claim]
) -> None:
    division = divide(capacity, claims)
    owed = [division.kept * min(c.reservation, c.wants) for c in claims]
    for amount, claim, mine in zip(division.amounts, claims, owed, strict=True):
        # Its own amount over its weight says little where that is tiny: all are held to one level.
        entitled = mine + division.level * claim.weight
        assert amount <= entitled + ROUNDING * (1 + capacity)
        if amount < claim.wants * (1 - 1e-6) - 1e-6:
            assert amount == close(entitled, capacity)


@given(AMOUNTS, CLAIMS, st.randoms(use_true_random=False))
def test_order_does_not_matter(capacity: float, claims: list[Claim], chance: object) -> None:
    before = divide(capacity, claims).amounts
    order = list(range(len(claims)))
    chance.shuffle(order)  # type: ignore[attr-defined]
    after = divide(capacity, [claims[i] for i in order]).amounts
    for place, i in enumerate(order):
        assert after[place] == close(before[i], capacity)


@given(AMOUNTS, CLAIMS)
def test_the_level_is_infinite_only_where_all_wants_fit(
    capacity: float, claims: list[Claim]
) -> None:
    division = divide(capacity, claims)
    if division.level == inf:
        assert division.amounts == tuple(c.wants for c in claims)
    else:
        assert sum(c.wants for c in claims) >= capacity * (1 - ROUNDING)


@given(AMOUNTS, CLAIMS)
def test_what_a_claim_is_entitled_to_is_at_least_what_it_got(
    capacity: float, claims: list[Claim]
) -> None:
    division = divide(capacity, claims)
    for amount, claim in zip(division.amounts, claims, strict=True):
        entitled = division.entitled(claim)
        assert entitled >= amount * (1 - ROUNDING) - ROUNDING * (1 + capacity)
        if amount < claim.wants * (1 - 1e-6) - 1e-6:
            assert entitled - amount <= 1e-6 * (1 + capacity) + division.kept * max(
                0.0, claim.reservation - claim.wants
            )


@given(st.lists(AMOUNTS, min_size=2, max_size=6), CLAIMS)
def test_more_capacity_gives_nobody_less(capacities: list[float], claims: list[Claim]) -> None:
    rows = [(c, divide(c, claims).amounts) for c in sorted(capacities)]
    for (_, less), (capacity, more) in pairwise(rows):
        for a, b in zip(less, more, strict=True):
            assert b >= a * (1 - 1e-6) - ROUNDING * (1 + capacity)


def test_a_capacity_of_nothing_gives_nobody_anything() -> None:
    division = divide(0, [Claim(0, 100, 50.0), Claim(10, 100, 50.0)])
    assert division.amounts == (0, 0)
    assert division.kept == 0
    assert divide(0, [Claim(0, 100, 50.0)]).level == 0
    assert divide(0, []).amounts == ()


def test_four_weights_that_want_all() -> None:
    division = divide(28_000, [Claim(0, w) for w in (1000, 800, 600, 400)])
    assert division.amounts == (10_000, 8_000, 6_000, 4_000)
    assert division.level == 10


def test_what_one_leaves_goes_to_the_others_by_weight() -> None:
    claims = [Claim(0, 100, 500.0), Claim(0, 100), Claim(300, 200)]
    assert divide(3_300, claims).amounts == pytest.approx((500, 2500 / 3, 300 + 5000 / 3))


@given(AMOUNTS, CLAIMS, st.floats(0, 1))
def test_a_cut_takes_from_the_lowest_weight_first_and_never_what_is_owed(
    capacity: float, claims: list[Claim], part: float
) -> None:
    amounts = divide(capacity, claims).amounts
    budget = part * sum(amounts)
    left = cut_by_weight(budget, claims, amounts)
    floors = [min(c.reservation, a) for c, a in zip(claims, amounts, strict=True)]
    assert sum(left) == close(max(budget, min(sum(amounts), sum(floors))), capacity)
    for amount, less, floor in zip(amounts, left, floors, strict=True):
        assert floor * (1 - ROUNDING) <= less <= amount
    cut = [
        c.weight for c, a, b in zip(claims, amounts, left, strict=True) if a - b > 1e-6 * (1 + a)
    ]
    spared = [
        c.weight
        for c, b, floor in zip(claims, left, floors, strict=True)
        if b - floor > 1e-6 * (1 + capacity)
    ]
    if cut and spared:
        assert max(cut) <= min(spared)


def test_equal_weights_give_up_the_same_part_of_what_is_above_what_they_are_owed() -> None:
    claims = [Claim(100, 50), Claim(0, 50), Claim(0, 200)]
    left = cut_by_weight(1_000, claims, [500, 200, 600])
    assert left == pytest.approx([300, 100, 600])


def test_what_is_owed_is_left_even_beyond_the_budget() -> None:
    left = cut_by_weight(100, [Claim(300, 50), Claim(0, 100)], [400, 50])
    assert left == [300, 0]
