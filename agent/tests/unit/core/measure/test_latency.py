"""Latencies over their targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from iokeel.core.measure.storage import activity_of, device_latency_s, drive_strain, storage_strain
from iokeel.core.values.counters import (
    NS_PER_S,
    Flow,
    Rates,
    ThrottleCount,
    ThrottleCounters,
    Throttled,
    Took,
)
from iokeel.core.values.limits import ThrottleLimits
from iokeel.core.values.observation import StorageSeen
from iokeel.core.values.policy import DrivePolicy
from iokeel.core.values.state import Demand, DriveState, Measured, Sent, StorageState
from iokeel.core.values.storage import (
    StorageActivity,
    StorageCounters,
    StoragePolicy,
    activity_between,
)

POLICY = StoragePolicy(capacity=1000, latency_target_ms=5.0)
NOTHING = StorageCounters(0, 0, 0, 0, 0, 0, 0)
LATER = StorageCounters(NS_PER_S, 100, 1_000_000_000, 0, 0, 5, NS_PER_S)


def vms(drives: Sequence[DriveState]) -> list[str]:
    """Return a VM's name for each of some drives."""
    return [f"vm{i}" for i in range(len(drives))]


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


# A wait for a throttle is no latency. Stock QEMU's times contain it.

LIMITS = ThrottleLimits(iops_total=1000)


def reader(
    raw_iops: float, latency_ms: float, limits: ThrottleLimits | None = LIMITS
) -> DriveState:
    """Return a drive on stock QEMU that does as many 4 KiB reads in each second."""
    did = Rates(1.0, Flow(raw_iops, raw_iops * 4096), Flow(0, 0), latency_ms / 1000, None)
    return DriveState(
        policy=DrivePolicy(limit=1000, latency_target_ms=8.0),
        measured=Measured(rates=did, rate=raw_iops),
        demand=Demand(recent=(raw_iops, raw_iops)),
        sent=Sent(limits=limits),
    )


def device(raw_iops: int, read_ms: float) -> StorageActivity:
    """Return the activity of a device that counts, in a second of reads of 4 KiB."""
    later = StorageCounters(
        NS_PER_S, raw_iops, round(raw_iops * read_ms * 1e6), 0, 0, 1, NS_PER_S, raw_iops * 4096, 0
    )
    activity = activity_between(replace(NOTHING, read_bytes=0, write_bytes=0), later)
    assert activity is not None
    return activity


@pytest.mark.parametrize(
    ("raw_iops", "limits", "believed"),
    [
        (50, LIMITS, True),  # both intervals' requests fit into a bucket of 100
        (51, LIMITS, False),  # one more may have met a full one
        (800, LIMITS, False),  # far below its limit on average, and in bursts above it
        (800, None, True),  # nothing throttles it
        (800, ThrottleLimits(iops_total=20_000), True),
        (50, ThrottleLimits(bps_total=1_000_000), False),
    ],
)
def test_a_time_on_stock_qemu_counts_if_no_request_can_have_waited(
    raw_iops: float, limits: ThrottleLimits | None, believed: bool
) -> None:
    found = device_latency_s(reader(raw_iops, 100.0, limits), None)
    assert found == (0.1 if believed else None)


def test_of_a_drive_that_may_have_waited_its_device_tells() -> None:
    """As on a host: 300 requests at once, twice a second, on a disk that answers in 0.6 ms."""
    waits = reader(800, 100.0)
    assert device_latency_s(waits, device(3800, 0.6)) == pytest.approx(0.0006)
    assert drive_strain(waits, device(3800, 0.6)) == pytest.approx(0.075)
    assert drive_strain(waits, device(3800, 12.0)) == pytest.approx(1.5)
    assert device_latency_s(reader(800, 0.2), device(3800, 0.6)) == 0.0002  # it took no longer


def test_no_drive_waits_for_a_device_longer_than_all_its_requests_took() -> None:
    assert device_latency_s(reader(50, 100.0), device(1000, 0.5)) == pytest.approx(0.5 / 50)


def test_a_drive_that_shares_its_group_waits_for_others() -> None:
    known = reader(10, 100.0)
    assert device_latency_s(known._replace(sent=Sent(limits=LIMITS, group="g")), None) is None


def test_a_drive_that_did_more_just_before_may_have_waited() -> None:
    known = reader(20, 100.0)._replace(demand=Demand(recent=(20.0, 500.0)))
    assert device_latency_s(known, None) is None


@pytest.mark.parametrize(
    ("latencies_ms", "strain"),
    [((100.0, 2.0), 0.4), ((100.0, 4.0), None), ((100.0,), None), ((), None)],
)
def test_without_counters_drives_that_may_have_waited_tell_that_a_storage_is_calm_or_nothing(
    latencies_ms: Sequence[float], strain: float | None
) -> None:
    drives = [reader(800, latency_ms) for latency_ms in latencies_ms]
    activity = activity_of(StorageSeen(POLICY), None, drives, vms(drives))
    assert storage_strain(POLICY, activity) == (None if strain is None else pytest.approx(strain))


@pytest.mark.parametrize(
    ("words", "latency_ms"),
    [
        ([(1, 1e9), (800, 0.3)], 0.3),  # two VMs: the calmer one counts
        ([(1, 1e9), (800, 0.3), (40, 0.4)], 0.3),
        ([(10**9, 1e9), (800, 0.3), (40, 0.4)], 0.4),  # however many requests it claims
        ([(800, 9.0), (40, 0.3), (50, 0.4)], 0.4),  # the busiest is one of many
        ([(2000, 9.0), (1, 0.3)], 0.3),  # of two, the lower one counts, however little it does
        ([(2000, 9.0), (1, 0.3), (500, 8.0)], 8.0),  # but not of three
        ([(800, 9.0), (300, 0.3), (500, 8.0)], 8.0),  # most requests take so long
        ([(50, 9.0)], 9.0),
    ],
)
def test_no_vms_word_alone_moves_a_storage_without_counters(
    words: Sequence[tuple[float, float]], latency_ms: float
) -> None:
    drives = [reader(raw_iops, each_ms, None) for raw_iops, each_ms in words]
    activity = activity_of(StorageSeen(POLICY), None, drives, vms(drives))
    assert activity is not None
    assert activity.latency_s == pytest.approx(latency_ms / 1000)


def test_all_drives_of_a_vm_have_one_word() -> None:
    liar = [reader(500, 1e9, None) for _ in range(40)]
    others = [reader(500, 0.3, None), reader(500, 0.4, None)]
    names = ["evil"] * 40 + ["db1", "db2"]
    activity = activity_of(StorageSeen(POLICY), None, [*liar, *others], names)
    assert activity is not None
    assert activity.latency_s == pytest.approx(0.0004)


# Times below the throttle, if QEMU takes them


def timed(took: Took | None, wait_ms: float = 0.0, reads: int = 100) -> DriveState:
    """Return a drive whose 100 reads of a second took 8 ms each, with the wait for its throttle."""
    nothing = ThrottleCount(0, 0, 0.0, 0, 0, 0)
    count = ThrottleCount(reads, 0, 0.0, reads, round(wait_ms * 1e6) * reads, 0, took=took)
    earlier = ThrottleCounters(0, nothing._replace(took=took and Took()), nothing)
    throttled = Throttled(earlier, ThrottleCounters(NS_PER_S, count, nothing))
    did = Rates(1.0, Flow(reads, reads * 4096), Flow(0, 0), 0.008, None, throttled)
    return DriveState(
        policy=DrivePolicy(limit=1000, latency_target_ms=8.0), measured=Measured(rates=did)
    )


def test_a_time_below_the_throttle_is_the_latency_of_the_device() -> None:
    """A latency less the wait is noise if waits and requests end in different intervals."""
    known = timed(Took(50, 50 * 3_000_000), wait_ms=20.0)
    assert device_latency_s(known, None) == pytest.approx(0.003)
    assert known.measured.rates is not None
    assert known.measured.rates.device_latency_s(write=False) == pytest.approx(0.003)
    assert drive_strain(known, None) == pytest.approx(3 / 8)


@pytest.mark.parametrize("took", [None, Took()])
def test_a_latency_less_the_wait_counts_until_requests_are_timed(took: Took | None) -> None:
    assert device_latency_s(timed(took, wait_ms=3.0), None) == pytest.approx(0.005)


def test_a_time_below_the_throttle_is_known_of_a_drive_that_nobody_else_times() -> None:
    known = timed(Took(100, 100 * 3_000_000))
    assert known.measured.rates is not None
    did = known.measured.rates._replace(read_latency_s=None)
    assert device_latency_s(known._replace(measured=Measured(rates=did)), None) == 0.003


def test_pieces_of_reads_are_served_as_often_as_they_are_timed() -> None:
    known = timed(Took(1600, 1600 * 1_000_000))
    sent = Sent(ThrottleLimits(iops_total=1, split_size=16384))
    known = known._replace(measured=known.measured._replace(rate=3200.0), sent=sent)
    was = StorageState(POLICY, counters=NOTHING)
    activity = activity_of(StorageSeen(POLICY, LATER), was, [known])
    assert activity is not None
    assert activity.mean_cost == pytest.approx(2.0)
