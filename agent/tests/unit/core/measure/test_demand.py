"""The demand of a drive that its limits don't hold."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from iokeel.core.measure.demand import INTERVALS_WITH_GIFTS, demand_rate
from iokeel.core.values.limits import STOCK
from testing.hypervisors.abilities import PATCHED

RATES = st.floats(0, 1e6)


def demands(rates: Iterable[float], reservation: float = 0) -> list[float]:
    lately: tuple[float, ...] = ()
    found = []
    for rate in rates:
        lately, demand = demand_rate(lately, rate, reservation, STOCK)
        found.append(demand)
    return found


@given(st.lists(RATES, min_size=1, max_size=20), RATES)
def test_it_is_never_below_what_it_did_lately(rates: list[float], reservation: float) -> None:
    for i, demand in enumerate(demands(rates, reservation)):
        assert demand >= max(rates[max(0, i - INTERVALS_WITH_GIFTS) : i + 1])


@given(RATES, st.integers(1, 9), RATES)
def test_a_steady_drive_wants_what_it_does(rate: float, looks: int, reservation: float) -> None:
    assert demands([rate] * looks, reservation) == [rate] * looks


@given(st.lists(st.floats(1000, 1090), min_size=1, max_size=20), RATES)
def test_noise_is_no_growth(rates: list[float], reservation: float) -> None:
    assert max(demands(rates, reservation)) == max(rates)


def test_one_that_wakes_up_wants_what_it_is_owed_until_it_is_seen_not_to() -> None:
    assert demands([0, 0, 700, 5000, 5000, 5000], 5000)[2:] == [5000, 13_600, 5000, 5000]
    assert demands([0, 0, 700, 800, 800], 5000)[2:] == [5000, 5000, 800]


def test_a_few_requests_of_its_own_are_no_sign_that_it_wakes_up() -> None:
    assert demands([0, 0, 2, 0, 20, 0], 5000) == [0, 0, 16, 2, 160, 20]


def test_one_that_grows_is_ahead_of_itself_as_long_as_it_does() -> None:
    assert demands([100, 100, 200, 300, 300, 300]) == [100, 100, 400, 500, 300, 300]


def test_a_dip_is_neither_less_demand_nor_growth_when_it_ends() -> None:
    assert demands([1000, 1000, 700, 1000, 1000], 5000) == [1000] * 5
    lately, demand = demand_rate((1000,), 700, 5000, PATCHED)
    assert (lately, demand) == ((700,), 1000)


def test_what_a_drive_leaves_is_others_after_some_intervals() -> None:
    assert demands([1000, *[100] * 5]) == [1000] * (1 + INTERVALS_WITH_GIFTS) + [100] * (
        5 - INTERVALS_WITH_GIFTS
    )
