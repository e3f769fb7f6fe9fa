"""How long a drive that its limits held counts as held, and what it needs of a part."""

from __future__ import annotations

import pytest

from iokeel.core.measure.rates import rates
from iokeel.core.values.claimant import BACKLOG_S, STEP_RATIO, next_step, own_wants
from iokeel.core.values.counters import NS_PER_S, Counters, Rates, ThrottleCount, ThrottleCounters
from iokeel.core.values.policy import DrivePolicy
from iokeel.core.values.state import Demand, DriveState, Measured

MOST = 5000.0


def reading(second: float, *, waited: int = 0, waiting: int = 0, counts: bool = True) -> Counters:
    """Return a reading of a drive that has done 100 reads, of which some have waited."""
    at_ns = round(second * NS_PER_S)
    read = ThrottleCount(100, 409_600, 100.0, waited, 10_000_000 * waited, waiting)
    none = ThrottleCount(0, 0, 0.0, 0, 0, 0)
    throttle = ThrottleCounters(at_ns, read, none) if counts else None
    return Counters(at_ns, 100, 409_600, 0, 0, 0, 0, throttle)


def wants_after(did: Rates | None, counters: Counters, held_s: float) -> float:
    """Return the demand of a drive that its limits last held at a time."""
    known = DriveState(
        measured=Measured(counters=counters, rates=did, rate=0.0),
        demand=Demand(rate=100.0, backlogged_ns=round(held_s * NS_PER_S)),
    )
    return own_wants(known, DrivePolicy(), MOST)


@pytest.mark.parametrize("counts", [False, True])
def test_a_drive_that_was_held_may_still_be_unless_qemu_tells_that_nothing_waits(
    counts: bool,
) -> None:
    before, now = reading(10.0, counts=counts), reading(11.0, counts=counts)
    assert wants_after(rates(before, now), now, 10.0) == (100.0 if counts else MOST)
    later = reading(10.0 + BACKLOG_S, counts=counts)
    assert wants_after(rates(now, later), later, 10.0) == 100.0


@pytest.mark.parametrize(("waited", "waiting"), [(1, 0), (0, 1)])
def test_one_request_that_waits_is_enough(waited: int, waiting: int) -> None:
    """A drive that may do a few large requests has seconds in which none of them ends."""
    now = reading(11.0, waited=waited, waiting=waiting)
    assert wants_after(rates(reading(10.0), now), now, 10.0) == MOST


@pytest.mark.parametrize(
    ("demand", "wants"),
    [
        (Demand((990.0,), 990.0, backlogged=True), MOST),
        (Demand((990.0,), 990.0, backlogged=True, at_limit=True), 1000.0),
        (Demand((1030.0,), 1030.0, backlogged=True, at_limit=True), 1030.0),
        (Demand((900.0, 990.0), 990.0, backlogged_ns=10 * NS_PER_S, at_limit=True), 1000.0),
        (Demand((900.0, 990.0), 990.0, at_limit=True), 990.0),
    ],
)
def test_a_drive_at_its_limit_doesnt_demand_its_open_burst(demand: Demand, wants: float) -> None:
    policy = DrivePolicy(limit=1000, burst=round(MOST))
    known = DriveState(policy, measured=Measured(reading(11.0, counts=False), None, 0.0))
    assert own_wants(known._replace(demand=demand), policy, MOST) == wants


@pytest.mark.parametrize(
    ("demand", "needs"),
    [
        (Demand((100.0,), 100.0), MOST),  # what an overloaded storage hides counts as well
        (Demand((100.0,), 100.0, backlogged=True), 100.0 * STEP_RATIO),
        (Demand((100.0,), 4000.0, backlogged=True), 4000.0),
        (Demand((3000.0,), 3000.0, backlogged=True), MOST),
        (Demand((100.0, 400.0), 400.0, backlogged_ns=10 * NS_PER_S), 400.0),
        (Demand((), 0.0, backlogged=True), MOST),
        (Demand((0.0,), 0.0, backlogged=True), MOST),
        (Demand((0.0,), 0.0, backlogged_ns=10 * NS_PER_S), 0.0),
    ],
)
def test_only_a_drive_that_its_limits_hold_needs_less_than_it_wants(
    demand: Demand, needs: float
) -> None:
    now = reading(11.0, counts=False)
    known = DriveState(measured=Measured(counters=now), demand=demand)
    assert next_step(known, DrivePolicy(), MOST) == needs
