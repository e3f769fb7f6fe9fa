"""Bounds beside the limit: bytes a second, and lower limits of reads or of writes."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.core.decide import decide
from iokeel.core.enforce.at_a_stop import static_orders
from iokeel.core.enforce.backstop import IoMax, vm_orders
from iokeel.core.enforce.bounds import with_bounds
from iokeel.core.enforce.pricing import exact_limits, fallback_of, may_be_fallback
from iokeel.core.measure.demand import full_bounds
from iokeel.core.values.counters import NS_PER_S, Counters
from iokeel.core.values.curve import DEFAULT_CURVE, DEFAULT_MODEL, KIB
from iokeel.core.values.limits import AVERAGES, STOCK, UNLIMITED, Abilities, ThrottleLimits
from iokeel.core.values.observation import DriveSeen, Observation, Reason, SetLimits
from iokeel.core.values.policy import DrivePolicy
from iokeel.core.values.state import DriveState, State, Verdict
from iokeel.core.values.storage import StoragePolicy
from testing.hypervisors.abilities import PATCHED
from testing.sim.drive import DRIVE, Phase, Run, Stream, run
from testing.sim.fleet import Fleet
from testing.sim.guests import Guest, Kind
from testing.sim.guests import Phase as Demand
from testing.sim.storage import Disk, steady

MB = 10**6
SIZE = 64 * KIB
COST = DEFAULT_CURVE.cost(SIZE)
WRITES = replace(Stream.of(SIZE), write_ratio=1.0)
# A change of limits lets a tenth of a second through, and so does a bucket after idleness.
WORST_RATIO = 1.25


def bytes_rate(did: Run, start_s: float, end_s: float) -> float:
    """Return the bytes a second of requests of SIZE."""
    return did.rate(start_s, end_s) / COST * SIZE


@pytest.mark.parametrize("stream", [Stream.of(SIZE), WRITES])
@pytest.mark.parametrize("separate", [False, True])
def test_no_second_has_more_than_max_bytes(stream: Stream, separate: bool) -> None:
    policy = DrivePolicy(limit=10_000, max_bytes=20 * MB, separate_budgets=separate)
    did = run([Phase(20, (stream,))], policy)
    assert bytes_rate(did, 3, 20) == pytest.approx(20 * MB, rel=0.02)
    assert did.worst_window(1, 20) <= WORST_RATIO * 20 * MB / SIZE * COST


def test_small_requests_have_their_limit_beside_max_bytes() -> None:
    did = run([Phase(20, (Stream.of(4 * KIB),))], DrivePolicy(limit=2000, max_bytes=20 * MB))
    assert did.rate(3, 20) == pytest.approx(2000, rel=0.02)


def test_a_burst_has_no_more_bytes() -> None:
    policy = DrivePolicy(limit=2000, burst=8000, burst_seconds=60, max_bytes=20 * MB)
    phases = [Phase(20, (Stream.of(4 * KIB, rate=100),)), Phase(20, (Stream.of(SIZE),))]
    did = run(phases, policy)
    assert bytes_rate(did, 22, 26) == pytest.approx(20 * MB, rel=0.02), "it is above its limit"
    assert did.worst_window(20, 40) <= WORST_RATIO * 20 * MB / SIZE * COST


@pytest.mark.parametrize("exact", [False, True])
def test_a_drive_at_max_bytes_leaves_the_rest_of_a_storage_to_others(exact: bool) -> None:
    """It wants no more than it does, though it is held."""
    bound = round(500 / COST * SIZE)  # as many bytes as cost 500
    kind = Kind.of(SIZE // KIB)
    guests = [
        Guest("one", DrivePolicy(limit=5000, max_bytes=bound), iter([Demand(inf, kind=kind)]),
              0, None, exact),
        Guest("other", DrivePolicy(limit=5000), iter([Demand(inf, kind=kind)]), 0, None, exact),
    ]  # fmt: skip
    fleet = Fleet(guests, [Disk(StoragePolicy(4000), steady(9000), 0.001, 1.0)], {})
    one, other = fleet.run(40).served[10:].mean(axis=0)
    assert one == pytest.approx(500, rel=0.03)
    assert other >= 0.95 * 3500


@pytest.mark.parametrize("exact", [False, True])
def test_a_drive_at_its_limit_of_writes_leaves_the_rest_to_others(exact: bool) -> None:
    kind = Kind.of(4, 1.0)
    policy = DrivePolicy(limit=5000, limit_write=500, separate_budgets=True)
    guests = [
        Guest("one", policy, iter([Demand(inf, kind=kind)]), 0, None, exact),
        Guest("other", DrivePolicy(limit=5000), iter([Demand(inf)]), 0, None, exact),
    ]
    fleet = Fleet(guests, [Disk(StoragePolicy(4000), steady(9000), 0.001, 1.0)], {})
    one, other = fleet.run(40).served[10:].mean(axis=0)
    assert one == pytest.approx(500, rel=0.03)
    assert other >= 0.95 * 3500


@pytest.mark.parametrize(("stream", "rate"), [(Stream.of(SIZE), 4000), (WRITES, 1000)])
def test_each_direction_has_its_own_limit(stream: Stream, rate: int) -> None:
    policy = DrivePolicy(limit=4000, limit_read=4000, limit_write=1000, separate_budgets=True)
    did = run([Phase(20, (stream,))], policy)
    assert did.rate(5, 20) == pytest.approx(rate, rel=0.02)
    assert did.worst_window(1, 20) <= WORST_RATIO * rate


@pytest.mark.parametrize("sizes", [(4, 1024), (1024, 4), (64, 512)])
def test_each_direction_is_priced_again_at_its_own_rate(sizes: tuple[int, int]) -> None:
    """The limit of one is low, so at its full rate the other would count as idle."""
    policy = DrivePolicy(limit=8000, limit_write=1000, separate_budgets=True)
    streams = [replace(Stream.of(size * KIB), write_ratio=1.0) for size in sizes]
    did = run([Phase(8, (each,)) for each in streams], policy)
    assert did.rate(4, 8) == pytest.approx(1000, rel=0.06)
    assert did.rate(12, 16) == pytest.approx(1000, rel=0.06)
    one = DEFAULT_CURVE.cost(1024 * KIB)
    assert did.worst_window(1, 16) <= WORST_RATIO * 1000 + one


def test_a_burst_of_one_direction_spends_credit_by_its_own_limit() -> None:
    """Or writes below the limit of reads would burst for good."""
    policy = DrivePolicy(
        limit=4000, burst=8000, burst_seconds=10, limit_write=1000, separate_budgets=True
    )
    idle, busy = Phase(15, (Stream.of(4 * KIB, rate=50),)), Phase(45, (WRITES,))
    did = run([idle, busy], policy)
    assert did.rate(16, 22) == pytest.approx(2000, rel=0.15), "in proportion"
    assert did.rate(35, 60) == pytest.approx(1000, rel=0.05)
    assert did.rate(15, 60) <= 1000 + 1000 * 12 / 45


@pytest.mark.parametrize(
    ("policy", "most"),
    [
        (DrivePolicy(limit=1000, max_bytes=MB), MB),
        (DrivePolicy(limit=5000, limit_write=150, separate_budgets=True), MB),
    ],
)
def test_a_large_request_is_paid_for_by_every_bound_before_it_is_forgiven(
    policy: DrivePolicy, most: int
) -> None:
    """An idle drive gets limits for no mix, which empties QEMU's buckets."""
    large = 32 * 1024 * KIB
    small = replace(Stream.of(512), write_ratio=1.0)
    one = replace(Stream.of(large, rate=1), write_ratio=1.0)
    did = run([Phase(4, (small,)), Phase(1, (one,)), Phase(16, ())] * 6, policy)
    costs = DEFAULT_CURVE.cost(large)
    served = sum(cost == costs for _, cost in did.requests)
    assert served * large <= 6 * 21 * most + large


LIMITS = st.builds(
    lambda separate, iops, bps, size, burst: UNLIMITED.with_fields(
        {"iops_size": size}
        | {
            f"{unit}_{way}{end}": value
            for unit, rate in (("iops", iops), ("bps", bps))
            for way in (("read", "write") if separate else ("total",))
            for end, value in (
                ("", rate),
                ("_max", burst * rate if burst and rate else None),
                ("_max_length", 20 if burst and rate else None),
            )
        }
    ),
    st.booleans(),
    st.integers(1, 100_000),
    st.none() | st.integers(1, 10**10),
    st.none() | st.sampled_from([4096, 65536]),
    st.none() | st.integers(2, 10),
)
OWN = st.none() | st.integers(1, 5000)


@given(LIMITS, st.none() | st.integers(1, 10**10), OWN, OWN, st.booleans())
def test_bounds_lift_nothing_and_qemu_takes_them(
    limits: ThrottleLimits, max_bytes: int | None, read: int | None, write: int | None, burst: bool
) -> None:
    separate = limits.budgets == 2
    own = (read, write) if separate else (None, None)
    policy = DrivePolicy(
        limit=5000, burst=9000, max_bytes=max_bytes, limit_read=own[0], limit_write=own[1],
        separate_budgets=separate,
    )  # fmt: skip
    made = with_bounds(limits, policy, 5000, 9000, burst=burst)
    for name in AVERAGES:
        average, most = getattr(made, name), getattr(made, f"{name}_max")
        before = getattr(limits, name)
        assert before is None or average <= before, name
        assert most is None or average <= most <= getattr(limits, f"{name}_max"), name
        assert (most is None) == (getattr(made, f"{name}_max_length") is None)
        if max_bytes is not None and name.startswith("bps") and average is not None:
            assert max(average, most or 0) <= max_bytes
    for unit in ("iops", "bps"):  # throttle_is_valid of QEMU's util/throttle.c
        total, *ways = (getattr(made, f"{unit}_{way}") for way in ("total", "read", "write"))
        assert not (total and any(ways))
    if max_bytes is not None:
        assert made.bps_total or (made.bps_read and made.bps_write)


@given(st.integers(100, 50_000), st.none() | st.integers(10**6, 10**9), OWN, st.booleans())
def test_the_fallback_of_exact_limits_has_their_bounds(
    limit: int, max_bytes: int | None, write: int | None, separate: bool
) -> None:
    """libvirt gives it to the next QEMU, which may be stock."""
    own = write if separate and write is not None and write <= limit else None
    policy = DrivePolicy(
        limit=limit, max_bytes=max_bytes, limit_write=own, separate_budgets=separate
    )
    exact = exact_limits(DEFAULT_MODEL, limit, separate=separate)
    exact = with_bounds(exact, policy, limit, limit)
    made = fallback_of(exact)
    assert may_be_fallback(made, exact)
    if max_bytes is not None:
        assert max(made.bps_total or 0, made.bps_read or 0, made.bps_write or 0) <= max_bytes
    if own is not None:
        at_size = DEFAULT_CURVE.cost(made.iops_size or 4096)
        assert (made.iops_write or 0) * at_size <= own + at_size


class Watched:
    """One drive, looked at once a second; orders are in force at once."""

    def __init__(self, abilities: Abilities = STOCK, in_force: ThrottleLimits = UNLIMITED) -> None:
        self.state, self.abilities, self.in_force = State(), abilities, in_force
        self.found, self.now_s, self.reads = in_force, 100, 0

    def look(self, policy: DrivePolicy | None, reads: int = 0) -> list[SetLimits]:
        self.now_s += 1
        self.reads += reads
        now_ns = self.now_s * NS_PER_S
        read = Counters(now_ns, self.reads, self.reads * SIZE, 0, 0, self.reads * 10**6, 0)
        seen = DriveSeen(policy, read, self.in_force, abilities=self.abilities)
        self.state, orders = decide(self.state, Observation({DRIVE: seen}), now_ns)
        if orders:
            self.in_force = orders[-1].limits
        return orders

    @property
    def known(self) -> DriveState:
        return self.state.drives[DRIVE]


@pytest.mark.parametrize("abilities", [STOCK, PATCHED])
def test_limits_follow_another_max_bytes_at_once(abilities: Abilities) -> None:
    drive = Watched(abilities)
    for most in (200 * MB, 100 * MB, None, 300 * MB):
        (order,) = drive.look(DrivePolicy(limit=1000, max_bytes=most))
        assert order.limits.bps_total == most
        assert order.reason is Reason.POLICY
        assert drive.look(DrivePolicy(limit=1000, max_bytes=most)) == []
    if abilities is PATCHED:
        assert drive.in_force.cost_read is not None


@pytest.mark.parametrize("abilities", [STOCK, PATCHED])
def test_a_drive_without_a_limit_is_held_to_its_bytes_alone(abilities: Abilities) -> None:
    before = ThrottleLimits(iops_total=700)
    drive, policy = Watched(abilities, before), DrivePolicy(max_bytes=200 * MB)
    (order,) = drive.look(policy)
    assert order.limits == ThrottleLimits(bps_total=200 * MB)
    assert drive.look(policy, 100) == []
    assert drive.known.finding.verdict is Verdict.BYTES
    assert not drive.known.demand.backlogged
    assert drive.look(policy, 3200) == []
    assert full_bounds(drive.known) == ["max-bytes"]
    assert not drive.known.demand.backlogged, "it wants no more"
    # Neither a stop nor somebody else's change lifts it, and the cgroup has no bound below it.
    (left,), _ = static_orders(drive.state, [DRIVE])
    assert left.limits == order.limits
    bounds = vm_orders(drive.state, {DRIVE: ["8:0"]})[DRIVE.domain]
    assert bounds is not None
    assert bounds.limits == {"8:0": IoMax()}
    drive.in_force = UNLIMITED
    (again,) = drive.look(policy)
    assert (again.limits, again.reason) == (order.limits, Reason.OVERWRITTEN)
    (lower,) = drive.look(replace(policy, max_bytes=100 * MB))
    assert lower.limits.bps_total == 100 * MB
    (other,) = drive.look(replace(policy, limit=500))
    assert other.limits.bps_total == 200 * MB
    assert other.limits.iops_total
    (alone,) = drive.look(policy)
    assert alone.limits == order.limits
    (released,) = drive.look(None)
    assert released.limits == before


def test_separate_budgets_have_max_bytes_each() -> None:
    (order,) = Watched().look(DrivePolicy(max_bytes=200 * MB, separate_budgets=True))
    assert order.limits == ThrottleLimits(bps_read=200 * MB, bps_write=200 * MB)


@pytest.mark.parametrize("abilities", [STOCK, PATCHED])
def test_limits_that_are_left_at_a_stop_have_the_bounds(abilities: Abilities) -> None:
    drive = Watched(abilities)
    policy = DrivePolicy(limit=4000, limit_write=400, max_bytes=50 * MB, separate_budgets=True)
    drive.look(policy)
    (left,), _ = static_orders(drive.state, [DRIVE])
    assert (left.limits.bps_read, left.limits.bps_write) == (50 * MB, 50 * MB)
    reads, writes = left.limits.iops_read, left.limits.iops_write
    assert reads
    assert writes
    assert writes == pytest.approx(reads / 10, abs=1)


def test_a_bound_that_was_there_before_is_taken_over_without_an_order() -> None:
    drive = Watched(in_force=ThrottleLimits(bps_total=200 * MB))
    assert drive.look(DrivePolicy(max_bytes=200 * MB)) == []
    assert drive.known.is_held
    drive.look(None)
    assert drive.in_force == ThrottleLimits(bps_total=200 * MB), "it is what was there before"
