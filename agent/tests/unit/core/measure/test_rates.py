"""Counters to rates: an unknown rate is None, never nonsense."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.core.measure.rates import is_absurd, rates
from iokeel.core.values.counters import (
    NO_FLOW,
    NS_PER_S,
    Counters,
    ThrottleCount,
    ThrottleCounters,
    Took,
    at_most_s,
)

START = Counters(1_000_000_000, 100, 409_600, 50, 819_200, 10_000_000, 20_000_000)
counters = st.builds(Counters, *[st.integers(0, 2**64) for _ in range(7)])


def test_rates_sizes_and_latencies_of_an_interval() -> None:
    later = Counters(3_000_000_000, 300, 409_600 + 200 * 8192, 50, 819_200, 410_000_000, 20_000_000)
    did = rates(START, later)
    assert did is not None
    assert did.elapsed_s == 2
    assert did.read.raw_iops == 100
    assert did.read.mean_size_bytes == 8192
    assert did.read_latency_s == pytest.approx(0.002)
    assert did.write.raw_iops == 0
    assert did.write.mean_size_bytes is None
    assert did.write_latency_s is None


@pytest.mark.parametrize("field", [f for f in START._fields[1:] if getattr(START, f) is not None])
def test_rates_are_unknown_when_a_counter_goes_backwards(field: str) -> None:
    later = START._replace(at_ns=2_000_000_000)
    assert rates(START, later._replace(**{field: getattr(START, field) - 1})) is None


def test_rates_are_unknown_when_no_time_has_passed() -> None:
    assert rates(START, START) is None
    assert rates(START, START._replace(at_ns=0)) is None


@given(counters, counters)
def test_rates_are_never_negative(earlier: Counters, later: Counters) -> None:
    did = rates(earlier, later)
    if did is not None:
        assert did.elapsed_s > 0
        assert min(did.read.raw_iops, did.read.bps, did.write.raw_iops, did.write.bps) >= 0


# Statistics of a throttle group

READS = ThrottleCount(100, 409_600, 100.0, 40, 8_000_000_000, 3, ((4096, 100),))
WRITES = ThrottleCount(50, 819_200, 135.0, 0, 0, 0, ((16384, 50),))
GROUP = ThrottleCounters(1_100_000_000, READS, WRITES)
BOTH = START._replace(throttle=GROUP)


def after(reads: ThrottleCount, writes: ThrottleCount = WRITES) -> Counters:
    """A reading 2 s later: 200 reads, which took 12 s in all."""
    return START._replace(
        at_ns=3_000_000_000,
        read_requests=300,
        read_bytes=409_600 + 200 * 8192,
        read_time_ns=12_010_000_000,
        throttle=ThrottleCounters(3_100_000_000, reads, writes),
    )


def test_cost_waits_and_sizes_are_those_between_two_readings() -> None:
    did = rates(
        BOTH,
        after(
            READS._replace(
                requests=300, cost=420.0, waited=140, wait_ns=18_000_000_000, waiting=7,
                sizes=((4096, 100), (8192, 200)),
            )
        ),
    )  # fmt: skip
    assert did is not None
    assert did.throttled is not None
    assert did.throttled.rate == 160.0
    assert did.throttled.wait_s(write=False) == 10.0
    assert did.throttled.held_s(write=False) == 2.0, "no more than has passed"
    assert did.throttled.held_s(write=True) == 0.0
    assert did.throttled.sizes(write=False) == {8192: 200}
    assert did.throttled.sizes(write=True) == {}
    assert did.read_latency_s == pytest.approx(0.06)
    assert did.device_latency_s(write=False) == pytest.approx(0.01)
    assert did.device_latency_s(write=True) is None


def test_requests_that_wait_on_and_on_are_held_all_the_time() -> None:
    did = rates(BOTH, after(READS))
    assert did is not None
    assert did.throttled is not None
    assert did.throttled.held_s(write=False) == 2.0


def test_a_device_latency_below_zero_is_unknown() -> None:
    did = rates(BOTH, after(READS._replace(wait_ns=READS.wait_ns + 12_000_000_001)))
    assert did is not None
    assert did.device_latency_s(write=False) is None


@pytest.mark.parametrize("field", ["requests", "cost", "waited", "wait_ns"])
def test_a_group_whose_counters_went_backwards_tells_nothing(field: str) -> None:
    did = rates(BOTH, after(READS._replace(**{field: getattr(READS, field) - 1})))
    assert did is not None
    assert did.throttled is None
    assert did.read.raw_iops == 100


TOOK = Took(10, 5_000_000, ((262_144, 10),))


@pytest.mark.parametrize("took", [None, Took(9, 5_000_000), Took(10, 4_999_999)])
def test_a_group_whose_times_went_backwards_tells_nothing(took: Took | None) -> None:
    group = GROUP._replace(read=READS._replace(took=TOOK))
    did = rates(BOTH._replace(throttle=group), after(READS._replace(took=took)))
    assert did is not None
    assert did.throttled is None


@pytest.mark.parametrize(
    ("before", "later", "took", "times"),
    [
        (None, TOOK, (10, 5_000_000), {262_144: 10}),
        (
            *(TOOK, Took(30, 9_000_000, ((1024, 8), (262_144, 22)))),
            *((20, 4_000_000), {1024: 8, 262_144: 12}),
        ),
        (TOOK, TOOK, (0, 0), {}),
        (None, None, (0, 0), {}),
        (None, Took(), (0, 0), {}),
    ],
)
def test_times_are_those_of_requests_that_ended_between_two_readings(
    before: Took | None, later: Took | None, took: tuple[int, int], times: dict[int, int]
) -> None:
    group = GROUP._replace(read=READS._replace(took=before))
    did = rates(BOTH._replace(throttle=group), after(READS._replace(took=later)))
    assert did is not None
    assert did.throttled is not None
    assert did.throttled.took() == did.throttled.took(write=False) == Took(*took)
    assert did.throttled.took(write=True) == Took()
    assert did.throttled.times(write=False) == times
    assert did.throttled.times(write=True) == {}


def test_a_part_of_requests_took_no_longer_than_the_end_of_their_range() -> None:
    times = {1 << 20: 9, 1024: 491, 0: 500, 1 << 30: 0}
    assert at_most_s(times, 0.5) == 0.0
    assert at_most_s(times, 0.99) == pytest.approx(2048e-9)
    assert at_most_s(times, 1.0) == pytest.approx(2 * (1 << 20) / NS_PER_S)
    assert at_most_s({}, 0.5) is None


def test_times_that_no_requests_can_take_are_absurd() -> None:
    """In two seconds at most: 10**10 requests in flight all the time."""
    more = READS._replace(took=Took(20, 21 * 10**18, ()))
    assert rates(BOTH, after(more)) is None
    assert is_absurd(BOTH, after(more))
    assert not is_absurd(BOTH, after(READS._replace(took=Took(20, 19 * 10**18, ()))))


def test_a_group_alone_has_rates_but_no_latency() -> None:
    more = ThrottleCounters(3_100_000_000, READS._replace(requests=300, bytes=4_096_000), WRITES)
    did = rates(Counters.of_group(GROUP), Counters.of_group(more))
    assert did is not None
    assert did.read.raw_iops == 100
    assert did.read_latency_s is None
    assert did.device_latency_s(write=False) is None


def test_means_over_both_directions_weigh_requests() -> None:
    """200 reads take 12 s, 8 s of which they wait; 50 writes take 0.5 s and don't wait."""
    reads = READS._replace(requests=300, waited=240, wait_ns=16_000_000_000)
    later = after(reads)._replace(write_requests=100, write_time_ns=520_000_000)
    did = rates(BOTH, later)
    assert did is not None
    assert did.mean_latency_s == pytest.approx(12.5 / 250)
    assert did.mean_wait_s == pytest.approx(8 / 250)


def test_waits_and_requests_are_rates_over_their_own_intervals() -> None:
    """100 reads a second, and 4 s of waits a second, of a group that is read half a second late."""
    group = ThrottleCounters(3_600_000_000, READS._replace(wait_ns=18_000_000_000), WRITES)
    did = rates(BOTH, after(READS)._replace(throttle=group))
    assert did is not None
    assert did.wait_s(write=False) == did.mean_wait_s == pytest.approx(4 / 100)
    assert did.device_latency_s(write=False) == pytest.approx(0.06 - 0.04)
    assert did.wait_s(write=True) is None


def test_means_over_both_directions_are_unknown_without_requests_or_counts() -> None:
    idle = rates(BOTH, BOTH._replace(at_ns=3_000_000_000))
    assert idle is not None
    assert (idle.mean_latency_s, idle.mean_wait_s) == (None, None)
    uncounted = rates(START, START._replace(at_ns=3_000_000_000, read_requests=300))
    assert uncounted is not None
    assert uncounted.mean_wait_s is None
    untimed = START._replace(read_time_ns=None, write_time_ns=None)
    did = rates(untimed, untimed._replace(at_ns=3_000_000_000, read_requests=300))
    assert did is not None
    assert did.mean_latency_s is None


def _two_looks(reads: tuple[int, int], sent: tuple[int, int]) -> tuple[float, ...]:
    """Return the sizes that a drive is known to use after two intervals with so many reads."""
    before = NO_FLOW
    for count, size in zip(reads, sent, strict=True):
        later = Counters(NS_PER_S, count, size, 0, 0, 0, 0)
        found = rates(Counters(0, 0, 0, 0, 0, 0, 0), later, before)
        assert found is not None
        before = found.read
    return before.seen_bytes


@pytest.mark.parametrize("pages", [3, 25, 48])
def test_a_size_that_is_no_power_of_two_is_known_once_it_was_seen_twice(pages: int) -> None:
    size = pages * 4096
    assert _two_looks((50, 70), (50 * size, 70 * size)) == (size,)
    assert _two_looks((0, 70), (0, 70 * size)) == ()
    assert _two_looks((50, 70), (50 * size, 70 * size - 4096)) == ()  # not all were alike
    assert _two_looks((50, 70), (50 * size + 50, 70 * size + 70)) == ()  # no whole pages
    assert _two_looks((20, 20), (20 * size, 20 * size)) == ()  # too few to tell


OTHERS = START._replace(flushes=10, flush_time_ns=5, discards=4, discard_bytes=1 << 20)


def test_flushes_and_discards_have_rates_if_they_are_counted() -> None:
    later = OTHERS._replace(
        at_ns=3_000_000_000, flushes=16, discards=8, discard_bytes=(1 << 20) + 4 * 65536
    )
    did = rates(OTHERS, later)
    assert did is not None
    assert did.flush_raw_iops == 3
    assert did.discards is not None
    assert (did.discards.raw_iops, did.discards.mean_size_bytes) == (2, 65536)
    assert did.idle, "they move no data"
    uncounted = rates(START, START._replace(at_ns=2_000_000_000))
    assert uncounted is not None
    assert (uncounted.flush_raw_iops, uncounted.discards) == (None, None)


@pytest.mark.parametrize("field", ["flushes", "discards", "discard_bytes"])
@pytest.mark.parametrize("value", [0, None])
def test_only_their_own_rate_is_unknown_if_they_go_backwards_or_are_gone(
    field: str, value: int | None
) -> None:
    did = rates(OTHERS, OTHERS._replace(at_ns=2_000_000_000, **{field: value}))  # type: ignore[arg-type]
    assert did is not None
    assert (did.flush_raw_iops is None) is (field == "flushes")
    assert (did.discards is None) is (field != "flushes")


# Counters that no drive can have


@pytest.mark.parametrize(
    "told",
    [
        {"read_requests": 10**13, "read_bytes": 4096 * 10**13},
        {"read_requests": 200, "write_bytes": 2**63 - 1, "write_requests": 60},
        {"read_requests": 10**308, "read_bytes": 10**308},
        {"read_requests": 101, "read_bytes": 413_696, "read_time_ns": 10**21},
    ],
)
def test_more_than_any_drive_does_is_no_rate(told: dict[str, Any]) -> None:
    later = START._replace(at_ns=2_000_000_000, **told)
    assert is_absurd(START, later)
    assert rates(START, later) is None
    steady = later._replace(at_ns=3_000_000_000)
    assert rates(later, steady) is not None, "it is known again after the jump"


@pytest.mark.parametrize("cost", [1e18, 1e300, float("inf"), 100.0 + 1e-9])
def test_charges_that_no_requests_have_are_no_rate(cost: float) -> None:
    assert rates(BOTH, after(READS._replace(requests=300, cost=cost))) is None


def test_what_a_drive_may_do_at_most_is_a_rate() -> None:
    """A second of 2 GiB zeroes in a row; and the end of a hang of a day with 1,000 in flight."""
    zeroes = START._replace(
        at_ns=2_000_000_000, write_requests=10_050, write_bytes=819_200 + 10_000 * 2**31
    )
    hang = START._replace(
        at_ns=2_000_000_000, read_requests=1100, read_bytes=409_600 + 4096 * 1000,
        read_time_ns=10_000_000 + 1000 * 86400 * NS_PER_S,
    )  # fmt: skip
    assert rates(START, zeroes) is not None
    assert rates(START, hang) is not None
