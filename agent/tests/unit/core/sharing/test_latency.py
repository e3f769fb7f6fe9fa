"""Latencies over their targets."""

from __future__ import annotations

import pytest

from iokeel.core.counters import NS_PER_S, Flow, Rates
from iokeel.core.limits import ThrottleLimits
from iokeel.core.observation import StorageSeen
from iokeel.core.sharing.latency import activity_of, storage_strain
from iokeel.core.state import Demand, DriveState, Measured, Sent, StorageState
from iokeel.core.storage import StorageCounters, StoragePolicy

POLICY = StoragePolicy(capacity=1000, latency_target_ms=5.0)
NOTHING = StorageCounters(0, 0, 0, 0, 0, 0, 0)
LATER = StorageCounters(NS_PER_S, 100, 1_000_000_000, 0, 0, 5, NS_PER_S)


def drive(raw_iops: float, cost: float) -> DriveState:
    """Return a drive whose requests cost so much each, in the last second."""
    did = Rates(1.0, Flow(raw_iops, raw_iops * 4096), Flow(0, 0), 0.001, None)
    return DriveState(measured=Measured(rates=did, rate=raw_iops * cost))


@pytest.mark.parametrize(
    ("drives", "allowed_ms"),
    [
        ([drive(800, 1)], 5.0),
        ([drive(800, 0.5)], 5.0),  # what is cheaper isn't quicker
        (
            [drive(100, 8)],
            5 + 7 + 2 * 7,
        ),  # each takes 7 ms more, and waits for one that does, twice
        # Of a mix half the requests are small, but eight times in nine it's a large one that is
        # being served: (1 x 1 + 8 x 8) / 9 is its cost.
        ([drive(80, 1), drive(80, 8)], 5 + 3.5 + 2 * (65 / 9 - 1)),
        ([drive(80, 1), drive(80, 8), drive(0, 1), DriveState()], 5 + 3.5 + 2 * (65 / 9 - 1)),
        ([], 5.0),
    ],
)
def test_a_target_grows_with_requests_and_with_those_they_wait_for(
    drives: list[DriveState], allowed_ms: float
) -> None:
    activity = activity_of(
        StorageSeen(POLICY, LATER), StorageState(POLICY, counters=NOTHING), drives
    )
    assert storage_strain(POLICY, activity) == pytest.approx(10 / allowed_ms)


@pytest.mark.parametrize(
    ("split_size", "backlogged", "requests"),
    [(16384, True, 410), (16384, False, 110), (None, True, 110)],
)
def test_reads_that_wait_in_parts_are_served_as_parts(
    split_size: int | None, backlogged: bool, requests: float
) -> None:
    did = Rates(1.0, Flow(100, 100 * 65536), Flow(10, 10 * 65536), 0.001, None)
    sent = ThrottleLimits(iops_total=800, split_size=split_size)
    known = DriveState(
        measured=Measured(rates=did, rate=820),
        demand=Demand(backlogged=backlogged),
        sent=Sent(limits=sent),
    )
    was = StorageState(POLICY, counters=NOTHING)
    activity = activity_of(StorageSeen(POLICY, LATER), was, [known])
    assert activity is not None
    assert (activity.mean_cost, activity.served_cost) == pytest.approx((820 / requests,) * 2)
