"""Burst credit: a second for each second under the limit, up to a cap, and never overdrawn."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.core.decide import decide
from iokeel.core.measure.burst import (
    REOPEN_S,
    carried_on,
    credit_after,
    credit_after_use,
    has_grown,
    with_burst,
)
from iokeel.core.measure.demand import Use
from iokeel.core.values.counters import NS_PER_S, Counters, DriveId, ThrottleCount, ThrottleCounters
from iokeel.core.values.limits import MOST, STOCK, UNLIMITED, Abilities, ThrottleLimits
from iokeel.core.values.observation import DriveSeen, Observation
from iokeel.core.values.policy import DrivePolicy
from iokeel.core.values.state import Credit, Demand, DriveState, Measured, Pricing, Sent, State
from iokeel.core.values.storage import StoragePolicy
from testing.hypervisors.abilities import PATCHED
from testing.sim.fleet import Fleet
from testing.sim.guests import Guest, Phase
from testing.sim.storage import Disk, steady

POLICY = DrivePolicy(limit=1000, burst=2000, burst_seconds=60)


def after(credit: Credit, rate: float | None, seconds: int, policy: DrivePolicy = POLICY) -> Credit:
    for _ in range(seconds):
        credit = credit_after(credit, policy, rate, 1.0)
    return credit


def test_a_second_under_the_limit_earns_a_second() -> None:
    assert after(Credit(), 0, 10).seconds == 10
    assert after(Credit(), 500, 10).seconds == 10


DRIVE = DriveId("db1", "vda")
STARTS = replace(POLICY, start_credit_seconds=30)


def booted(
    state: State, at_s: int, policy: DrivePolicy = STARTS, reads: int = 0
) -> tuple[State, ThrottleLimits | None]:
    """Return the state after a look at a drive whose guest has just booted, and its limits."""
    counters = Counters(at_s * NS_PER_S, reads, 4096 * reads, 0, 0, 0, 0)
    seen = {DRIVE: DriveSeen(policy, counters, None, abilities=STOCK)}
    look = Observation(seen, booted=["db1"], restarted=["db1"])
    state, orders = decide(state, look, at_s * NS_PER_S)
    return state, orders[-1].limits if orders else None


def test_a_guest_that_boots_begins_with_credit_and_its_burst_open() -> None:
    state, limits = booted(State(), 100)
    assert state.drives[DRIVE].credit == Credit(30, True)
    assert limits is not None
    assert limits.iops_total_max
    assert (limits.iops_total_max_length or 1) <= 30


@pytest.mark.parametrize(
    ("policy", "credit"),
    [
        (replace(STARTS, burst_seconds=10), Credit(10, True)),
        (replace(STARTS, burst=None), Credit()),
        (replace(STARTS, burst=1000), Credit()),
        (replace(STARTS, start_credit_seconds=3), Credit(3, False)),
        (POLICY, Credit()),
    ],
)
def test_credit_at_the_start_is_within_the_policys_burst(
    policy: DrivePolicy, credit: Credit
) -> None:
    assert booted(State(), 100, policy)[0].drives[DRIVE].credit == credit


def test_to_boot_again_and_again_earns_no_credit() -> None:
    state, given = State(), []
    for at_s in range(100, 1100, 20):
        state, _ = booted(state, at_s)
        given.append(state.drives[DRIVE].credit.seconds)
    assert [100 + 20 * i for i, seconds in enumerate(given) if seconds] == [100, 400, 700, 1000]


def test_no_other_start_gives_credit() -> None:
    """Neither a guest that comes here, nor one that runs when the agent starts."""
    counters = Counters(100 * NS_PER_S, 0, 0, 0, 0, 0, 0)
    seen = {DRIVE: DriveSeen(STARTS, counters, None, abilities=STOCK)}
    state, _ = decide(State(), Observation(seen, restarted=["db1"]), 100 * NS_PER_S)
    assert state.drives[DRIVE].credit == Credit()


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


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("quiet_s", [10, 15, 25, 40, 80])
def test_a_burst_lasts_for_its_credit(quiet_s: int, exact: bool) -> None:
    phases = iter([Phase(quiet_s, 500), Phase(inf, inf)])
    fleet = Fleet([Guest("db", POLICY, phases, exact=exact)], [disk(20_000)])
    credit_s = min(60, quiet_s - 1)  # nothing is known of the first second
    rates = rates_of(fleet, quiet_s + 100)
    bursting = [rate > 1.5 * 1000 for rate in rates[quiet_s:]]
    assert 0.9 * credit_s - 1 <= sum(bursting) <= credit_s + 1
    assert not any(bursting[credit_s + 2 :])


@pytest.mark.parametrize("exact", [False, True])
def test_a_burst_lasts_for_its_credit_while_its_share_comes_and_goes(exact: bool) -> None:
    """The share of a disk that two drives want is 900 to 1,700: below the limit, and above it."""
    phases = [Phase(6, rate) for _ in range(20) for rate in (1300, 1700)]
    neighbour = DrivePolicy(limit=5000, reservation=1200, weight=100)
    guests = [
        Guest("db", POLICY, iter([Phase(60, 500), Phase(inf, inf)]), exact=exact),
        Guest("neighbour", neighbour, iter([*phases, Phase(inf, 100)]), exact=exact),
    ]
    rates = rates_of(Fleet(guests, [disk(3000)]), 160)
    assert 15 < sum(max(0.0, rate - 1050) for rate in rates[60:]) / 1000 < 30


def disk(capacity: int) -> Disk:
    return Disk(StoragePolicy(capacity), steady(capacity), 0.0001)


def rates_of(fleet: Fleet, seconds: int) -> list[float]:
    """Return the rate of the first guest in each second, by the agent's measure."""
    rates = []
    for _ in range(seconds):
        fleet.run(1)
        known = fleet.state.drives[fleet.guests[0].drive]
        rates.append(known.measured.budget_rate or 0.0)
    return rates


@pytest.mark.parametrize(("abilities", "carries"), [(STOCK, 12), (PATCHED, 24)])
def test_limits_that_change_in_a_burst_carry_what_qemu_counts_from(
    abilities: Abilities, carries: float
) -> None:
    """Of a bucket that keeps its level, half is used up: the rest is 12 s."""
    last = ThrottleLimits(iops_total=1000, iops_total_max=2000, iops_total_max_length=12)
    drive = DriveState(POLICY, abilities=abilities, sent=Sent(limits=last, credit_s=24))
    assert carried_on(drive, 12, 60, last) == carries
    assert carried_on(drive, 30, 60, last) == 30
    assert carried_on(drive, 12, 15, last) == min(carries, 15)  # less is saved from now on
    assert carried_on(drive, 0, 60, last) == 0
    # Somebody has lifted them, so the next bucket is empty
    assert carried_on(drive, 12, 60, UNLIMITED) == 12
    assert carried_on(drive, 12, 60, None) == 12


def test_a_bucket_without_a_burst_has_used_up_none() -> None:
    last = ThrottleLimits(iops_total=900)
    drive = DriveState(POLICY, abilities=PATCHED, sent=Sent(limits=last, credit_s=24))
    assert carried_on(drive, 12, 60, last) == 12


# With less than 4 s left, no share would make the burst long enough.
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(("held", "open_s"), [(2000, 60), (1250, 60), (1100, 9), (1030, 12)])
def test_a_burst_that_is_too_short_to_be_set_demands_no_more_than_its_credit(
    held: float, open_s: int, waits: bool
) -> None:
    credit, seconds = Credit(12, True), 0
    while credit.open and seconds < 60:
        use = Use(full=True, bursting=1000 >= 0.95 * held)
        pricing = Pricing(held, 1000)
        credit = credit_after_use(credit, POLICY, 1000, 1.0, use, pricing, waits=waits)
        seconds += 1
    is_set = held > 1200  # QEMU has ended it, if requests wait
    assert seconds == (1 if waits and is_set else open_s)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("rate", [970, 1000, 1040])
def test_neighbours_have_what_a_drive_at_its_limit_leaves_of_its_burst(
    rate: int, exact: bool
) -> None:
    phases = iter([Phase(30, 0), Phase(5, inf), Phase(inf, rate)])
    guests = [
        Guest("db", replace(POLICY, burst=10_000), phases, exact=exact),
        Guest("neighbour", DrivePolicy(weight=1), iter([Phase(inf, inf)]), exact=exact),
    ]
    fleet = Fleet(guests, [disk(10_000)])
    fleet.run(45)
    db, neighbour = (fleet.state.drives[guest.drive] for guest in guests)
    assert db.credit.open
    assert db.measured.rate == pytest.approx(rate, rel=0.01)
    assert neighbour.pricing.rate is not None
    assert neighbour.pricing.rate >= 10_000 - max(rate, 1000) - 1


@pytest.mark.parametrize(
    ("waits", "left"), [([0, 0], 60), ([5, 0, 5], 60), ([0, 5], 60), ([5, 5], 0)]
)
def test_credit_stays_at_the_limit_until_requests_wait_for_it(waits: list[int], left: int) -> None:
    """How many requests have waited for 0.1 s each, in each second at the limit."""
    drive, state, in_force = DriveId("guest", "vda"), State(), UNLIMITED
    done = waited = 0
    for second, (rate, more) in enumerate([(100, 0)] * 70 + [(1000, more) for more in waits], 1):
        done, waited, at_ns = done + rate, waited + more, second * NS_PER_S
        reads = ThrottleCount(done, 4096 * done, float(done), waited, waited * NS_PER_S // 10, 0)
        group = ThrottleCounters(at_ns, reads, ThrottleCount(0, 0, 0.0, 0, 0, 0))
        counters = Counters(at_ns, done, 4096 * done, 0, 0, 0, 0, group)
        seen = DriveSeen(POLICY, counters, in_force, abilities=PATCHED)
        state, orders = decide(state, Observation({drive: seen}), at_ns)
        in_force = orders[-1].limits if orders else in_force
    assert state.drives[drive].credit.seconds == left


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


@given(
    st.integers(1, 10**8),
    st.floats(1.01, 1000),
    st.floats(0, 3600),
    st.sampled_from([1, 50, 12_800]),
)
def test_a_burst_is_one_that_qemu_takes(
    limit: int, ratio: float, credit_s: float, bytes_of_one: int
) -> None:
    """By throttle_is_valid(). bytes_of_one: of a request over its price."""
    base = ThrottleLimits(iops_total=limit, bps_total=min(limit * 512 * bytes_of_one, MOST))
    limits = with_burst(base, ratio, credit_s)
    for average in ("iops_total", "bps_total"):
        rate, length = getattr(limits, f"{average}_max"), getattr(limits, f"{average}_max_length")
        if rate is None:
            assert length is None
            continue
        assert getattr(limits, average) <= rate <= MOST
        assert 2 <= length <= MOST // rate
        assert length <= credit_s


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
