"""Burst credit: a second for each second under the limit, up to a cap, and never overdrawn."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.core.abilities import STOCK, Abilities
from iokeel.core.counters import NS_PER_S, Counters, DriveId, ThrottleCount, ThrottleCounters
from iokeel.core.decide import decide
from iokeel.core.drive.binding import Use
from iokeel.core.drive.burst import REOPEN_S, credit_after, credit_after_use, has_grown
from iokeel.core.limits import UNLIMITED
from iokeel.core.observation import DriveSeen, Observation
from iokeel.core.policy import DrivePolicy
from iokeel.core.state import Credit, Demand, DriveState, Measured, Pricing, Sent, State
from testing.hypervisors.abilities import PATCHED

POLICY = DrivePolicy(limit=1000, burst=2000, burst_seconds=60)


def after(credit: Credit, rate: float | None, seconds: int, policy: DrivePolicy = POLICY) -> Credit:
    for _ in range(seconds):
        credit = credit_after(credit, policy, rate, 1.0)
    return credit


def test_a_second_under_the_limit_earns_a_second() -> None:
    assert after(Credit(), 0, 10).seconds == 10
    assert after(Credit(), 500, 10).seconds == 10


def test_credit_stops_at_its_cap() -> None:
    assert after(Credit(), 0, 100).seconds == 60


def test_a_second_of_burst_spends_a_second_and_ends_it_in_time() -> None:
    full = after(Credit(), 0, 100)
    assert full.open
    assert after(full, 2000, 59).open
    spent = after(full, 2000, 60)
    assert spent == Credit(0, False)


def test_a_drive_at_its_limit_earns_and_spends_nothing() -> None:
    half = Credit(30, True)
    assert after(half, 1000, 100) == half
    assert after(half, 970, 100) == half
    assert after(half, 1030, 100) == half


def test_an_unknown_rate_changes_nothing() -> None:
    assert after(Credit(30, True), None, 10) == Credit(30, True)


def test_the_burst_opens_again_only_with_some_credit() -> None:
    assert not after(Credit(), 0, int(REOPEN_S) - 1).open
    assert after(Credit(), 0, int(REOPEN_S)).open


@pytest.mark.parametrize(
    "policy",
    [DrivePolicy(limit=1000), DrivePolicy(limit=1000, burst=1000), DrivePolicy(reservation=5)],
)
def test_without_a_burst_there_is_no_credit(policy: DrivePolicy) -> None:
    assert after(Credit(), 0, 100, policy) == Credit()


def test_no_burst_seconds_means_no_burst() -> None:
    policy = DrivePolicy(limit=1000, burst=2000, burst_seconds=0)
    assert not after(Credit(), 0, 100, policy).open


@pytest.mark.parametrize(
    ("held", "grown"),
    [(2000, True), (1250, True), (1100, False), (1000, False), (500, False)],
)
def test_credit_grows_only_into_a_burst_that_its_share_leaves_room_for(
    held: float, grown: bool
) -> None:
    at_limit = DriveState(
        POLICY,
        measured=Measured(budget_rate=min(1000, held)),
        demand=Demand(backlogged=True),
        credit=Credit(13, True),
        pricing=Pricing(held, min(1000, held)),
        sent=Sent(credit_s=13),
    )
    assert has_grown(at_limit, at_limit, POLICY, 10 * NS_PER_S) is grown


# With less than 4 s left, no share would make the burst long enough.
@pytest.mark.parametrize(("held", "open_s"), [(2000, 60), (1250, 60), (1100, 9), (1030, 12)])
def test_a_burst_that_is_too_short_to_be_set_demands_no_more_than_its_credit(
    held: float, open_s: int
) -> None:
    credit, seconds = Credit(12, True), 0
    while credit.open and seconds < 60:
        use = Use(full=True, bursting=1000 >= 0.95 * held)
        pricing = Pricing(held, 1000)
        credit = credit_after_use(credit, POLICY, 1000, 1.0, use, pricing, charged=False)
        seconds += 1
    assert seconds == open_s


@pytest.mark.parametrize("abilities", [STOCK, PATCHED])
@pytest.mark.parametrize(("rate", "earned"), [(500, True), (700, True), (1000, False)])
def test_each_of_two_budgets_has_the_limit(abilities: Abilities, rate: int, earned: bool) -> None:
    policy = replace(POLICY, separate_budgets=True)
    drive, state, in_force = DriveId("guest", "vda"), State(), UNLIMITED
    for second in range(1, 11):
        done, at_ns = second * rate, second * NS_PER_S
        each = ThrottleCount(done, 4096 * done, float(done), 0, 0, 0)
        group = ThrottleCounters(at_ns, each, each) if abilities is PATCHED else None
        counters = Counters(at_ns, done, 4096 * done, done, 4096 * done, 0, 0, group)
        seen = DriveSeen(policy, counters, in_force, abilities=abilities)
        state, orders = decide(state, Observation({drive: seen}), at_ns)
        in_force = orders[-1].limits if orders else in_force
    known = state.drives[drive]
    assert known.credit == (Credit(9.0, open=True) if earned else Credit())
    assert known.demand.backlogged is not earned
    assert known.measured.rate == 2 * rate


@given(st.lists(st.tuples(st.floats(0, 5000), st.floats(0.05, 3.0))))
def test_bursts_never_take_longer_than_what_was_earned(ticks: list[tuple[float, float]]) -> None:
    credit, earned, spent = Credit(), 0.0, 0.0
    for rate, elapsed in ticks:
        burst = credit.open and rate > 1.05 * 1000
        if not credit.open:
            rate = min(rate, 1000.0)
        if burst:
            spent += min(elapsed, credit.seconds)
        elif rate < 0.95 * 1000:
            earned += elapsed
        credit = credit_after(credit, POLICY, rate, elapsed)
        assert 0 <= credit.seconds <= 60
    assert spent <= earned + 1e-6
