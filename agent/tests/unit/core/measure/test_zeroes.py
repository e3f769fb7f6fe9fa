"""Zeroes on stock QEMU: what counts as such, and how long a drive waits for them.

Waits are those of the simulated throttle, which the law doesn't see.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from iokeel.core.decide import decide
from iokeel.core.enforce.in_force import rate_in_force
from iokeel.core.measure.zeroes import zeroes_in
from iokeel.core.values.counters import NS_PER_S, Counters
from iokeel.core.values.curve import DEFAULT_MODEL
from iokeel.core.values.limits import STOCK, ThrottleLimits
from iokeel.core.values.observation import DriveSeen, Observation
from iokeel.core.values.policy import DrivePolicy
from iokeel.core.values.state import DriveState, State
from testing.sim.drive import DRIVE, Phase, Run, Stream, run

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
READS = Stream.of(4 * KIB)
WRITES = Stream(((4 * KIB, 1.0),), write_ratio=1.0)
MIXED = Stream(((4 * KIB, 0.7), (64 * KIB, 0.3)), write_ratio=0.5)
STREAMING = Stream(((MIB, 1.0),), write_ratio=1.0)
POLICIES = [
    DrivePolicy(limit=300),
    DrivePolicy(limit=1000),
    DrivePolicy(limit=10_000),
    DrivePolicy(limit=1000, burst=3000, burst_seconds=60),
]


def _zeroes(size_bytes: int, every_s: float = 1000.0) -> Stream:
    return Stream(((size_bytes, 1.0),), write_ratio=1.0, depth=64, rate=1 / every_s)


def _longest_gap_s(log: Run, start_s: float) -> float:
    """Return the longest time without a small request, from a second on."""
    times = [at for at, cost in log.requests if at >= start_s and cost < 1000]
    return max(b - a for a, b in pairwise([start_s, *times]))


@pytest.mark.parametrize("size_bytes", [256 * MIB, GIB, 2 * GIB - 512])
@pytest.mark.parametrize("load", [READS, WRITES, MIXED, STREAMING])
@pytest.mark.parametrize("policy", POLICIES)
def test_zeroes_stop_a_drive_for_a_few_seconds_only(
    policy: DrivePolicy, load: Stream, size_bytes: int
) -> None:
    phases = [Phase(20, (load,)), Phase(20, (load, _zeroes(size_bytes)))]
    assert _longest_gap_s(run(phases, policy), 20.0) < 5.5


@pytest.mark.parametrize("load", [READS, WRITES, MIXED])
def test_a_drive_goes_on_at_its_limit_after_zeroes(load: Stream) -> None:
    log = run([Phase(20, (load,)), Phase(40, (load, _zeroes(GIB)))], DrivePolicy(limit=1000))
    assert log.rate(28.0, 60.0) == pytest.approx(1000, rel=0.05)
    assert log.worst_window(27.0, 60.0) <= 1280


def test_zeroes_one_after_the_other_take_a_few_seconds_each() -> None:
    load = (READS, _zeroes(2 * GIB - 512, every_s=0.01))
    log = run([Phase(20, (READS,)), Phase(120, load)], DrivePolicy(limit=1000))
    large = [at for at, cost in log.requests if cost > 100_000]
    assert len(large) == pytest.approx(120 / 4, abs=3)


@pytest.mark.parametrize("load", [READS, WRITES, MIXED])
def test_writes_of_zeroes_in_a_row_stop_no_reads_but_for_the_first(load: Stream) -> None:
    seen: list[tuple[bool, ThrottleLimits | None, bool]] = []

    def note(state: State) -> None:
        known = state.drives[DRIVE]
        seen.append((known.measured.zeroes is None, known.sent.limits, known.pricing.apart))

    phases = [Phase(20, (load,)), Phase(20, (load, _zeroes(GIB, every_s=0.01))), Phase(20, (load,))]
    run(phases, DrivePolicy(limit=1000), on_tick=note)
    first = next(i for i, (none, _, _) in enumerate(seen) if not none)
    forgiven = next(i for i, (_, _, apart) in enumerate(seen) if apart)
    assert forgiven - first <= 3
    for _, limits, apart in seen[forgiven : forgiven + 15]:
        assert apart
        assert limits is not None
        assert (limits.bps_total, limits.iops_total) == (None, None)
        assert limits.iops_read
        assert rate_in_force(limits, DEFAULT_MODEL) <= 1010
    _, limits, apart = seen[-1]
    assert not apart
    assert limits is not None
    assert limits.iops_total


@pytest.mark.parametrize("size_bytes", [2 * MIB, 4 * MIB, 8 * MIB, 32 * MIB])
@pytest.mark.parametrize("write_ratio", [0.5, 1.0])
def test_real_requests_are_paid_in_full(size_bytes: int, write_ratio: float) -> None:
    load = Stream(((size_bytes, 1.0),), write_ratio=write_ratio)
    log = run([Phase(20, (READS,)), Phase(1200, (load,))], DrivePolicy(limit=1000))
    assert log.rate(20.0, 1220.0) <= 1.08 * 1000


def test_requests_that_qemu_has_merged_are_paid_in_full() -> None:
    # The throttle sees one request of 128 MiB, the counters 32 of 4 MiB.
    counted = Counters(NS_PER_S, 0, 0, 32, 128 * MIB, 0, 0)
    limits = ThrottleLimits(bps_total=MIB)
    assert zeroes_in(Counters(0, 0, 0, 0, 0, 0, 0), counted, [limits]) is None


def _found(written: int, requests: int, *limits: ThrottleLimits, seconds: float = 1.0) -> float:
    """Return how many seconds a drive owes for the zeroes of an interval; 0 if there are none."""
    at_ns = round(seconds * NS_PER_S)
    later = Counters(at_ns, 0, 0, requests, written, 0, 0)
    found = zeroes_in(Counters(0, 0, 0, 0, 0, 0, 0), later, limits)
    return 0.0 if found is None else (found.paid_ns - at_ns) / NS_PER_S


def test_the_debt_is_that_of_the_fullest_bucket() -> None:
    # By hand: 1024 MiB, less a second's 100 MiB and a bucket of 10, at 100 MiB a second.
    by_bytes = ThrottleLimits(bps_total=100 * MIB)
    assert _found(GIB, 1, by_bytes) == pytest.approx(9.14)
    # 262,144 requests of 4 KiB, less 1,000 and 100, at 1,000 a second.
    by_requests = ThrottleLimits(iops_write=1000, iops_size=4096)
    assert _found(GIB, 1, by_requests) == pytest.approx(261.044)
    # A burst of 200 MiB a second for 2 s: 1024 less a second's 100 and a bucket of 400.
    burst = ThrottleLimits(bps_total=100 * MIB, bps_total_max=200 * MIB, bps_total_max_length=2)
    assert _found(GIB, 1, burst) == pytest.approx(5.24)


def test_bytes_that_the_limits_let_through_are_no_zeroes() -> None:
    limits = ThrottleLimits(bps_total=100 * MIB)
    assert not _found(100 * MIB, 5000, limits)
    assert not _found(140 * MIB, 5000, limits)  # with a full bucket, and the largest request
    assert _found(300 * MIB, 5000, limits)
    assert not _found(240 * MIB, 5000, limits, seconds=2.0)
    assert not _found(230 * MIB, 5000, limits, limits)  # new limits emptied the buckets


def test_limits_for_reads_alone_tell_nothing_of_writes() -> None:
    assert not _found(GIB, 100, ThrottleLimits(bps_read=MIB, iops_read=1, iops_size=4096))


def test_requests_of_more_than_32_mib_are_zeroes_even_if_nothing_bounds_bytes() -> None:
    limits = ThrottleLimits(iops_total=1000)
    counted = Counters(NS_PER_S, 0, 0, 3, GIB, 0, 0)
    found = zeroes_in(Counters(0, 0, 0, 0, 0, 0, 0), counted, [limits])
    assert found is not None
    assert found.paid_ns == NS_PER_S  # nothing is owed for them


def test_a_counter_that_goes_backwards_is_no_zeroes() -> None:
    later = Counters(NS_PER_S, 0, 0, 1, 2 * GIB, 0, 0)
    earlier = Counters(0, 0, 0, 5, 0, 0, 0)
    assert zeroes_in(earlier, later, [ThrottleLimits(bps_total=MIB)]) is None


def _orders(policy: DrivePolicy, reads: Sequence[tuple[int, int]]) -> list[tuple[int, str, bool]]:
    """Return (second, reason, whether the limits are others) of the orders to a drive.

    reads: of each second, how many and of which size.
    """
    state, orders = State(), []
    count = read_bytes = 0
    for second, (number, size) in enumerate(reads, 1):
        count, read_bytes = count + number, read_bytes + number * size
        counters = Counters(second * NS_PER_S, count, read_bytes, 0, 0, 0, 0)
        before = state.drives.get(DRIVE, DriveState()).sent.limits
        seen = Observation({DRIVE: DriveSeen(policy, counters, before, abilities=STOCK)})
        state, found = decide(state, seen, second * NS_PER_S)
        orders += [(second, order.reason.name, order.limits != before) for order in found]
    return orders


SILENCE = [(0, 0)] * 9


def test_a_busy_drive_that_falls_silent_gets_its_limits_anew_once() -> None:
    orders = _orders(DrivePolicy(limit=1000), [(1000, 4096)] * 10 + SILENCE)
    assert [order for order in orders if order[0] > 10] == [(13, "SILENT", False)]


@pytest.mark.parametrize(("number", "size"), [(60, 4096), (5, MIB)])
def test_a_drive_that_did_little_or_few_requests_is_only_idle(number: int, size: int) -> None:
    orders = _orders(DrivePolicy(limit=1000), [(number, size)] * 10 + SILENCE)
    assert [order for order in orders if order[0] > 10] == []


def test_what_is_owed_for_real_requests_is_paid_first() -> None:
    # 40 of 1 MiB cost 6,000 by the published table: five more seconds at 1,000.
    loads = [(1000, 4096)] * 10 + [(40, MIB)] + SILENCE
    assert [second for second, _, _ in _orders(DrivePolicy(limit=1000), loads) if second > 11] == [
        19
    ]
