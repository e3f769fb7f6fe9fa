"""The control law, in a simulated throttle that charges as QEMU's does, and by its decisions."""

from dataclasses import replace
from itertools import permutations
from statistics import mean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iokeel.core.decide import decide
from iokeel.core.enforce.envelope import OVERSHOOT_RATIO, limits_for_any_size
from iokeel.core.enforce.pricing import exact_limits
from iokeel.core.measure.demand import full_bounds
from iokeel.core.measure.drive import IDLE_S
from iokeel.core.values.counters import NS_PER_S, Counters, DriveId, ThrottleCount, ThrottleCounters
from iokeel.core.values.curve import DEFAULT_CURVE, DEFAULT_MODEL, KIB, CostCurve, CostModel
from iokeel.core.values.limits import STOCK, UNLIMITED, Abilities, ThrottleLimits
from iokeel.core.values.observation import DriveSeen, Observation, Reason, SetLimits, StorageSeen
from iokeel.core.values.policy import UNKNOWN, DrivePolicy, TenantPolicy, UnknownPolicy, VmPolicy
from iokeel.core.values.state import DriveState, Measured, Pricing, Sent, State, Verdict
from iokeel.core.values.storage import StorageCounters, StoragePolicy
from testing.hypervisors.abilities import PATCHED
from testing.sim.drive import DRIVE, Phase, Run, Stream, run
from tests.unit.core.stopping import left_at_stop

LIMIT = 10_000
POLICY = DrivePolicy(limit=LIMIT)
SIZES = [4 * KIB, 8 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 1024 * KIB]
BY_HAND = ThrottleLimits(iops_total=123)


def counters(at_s: float, reads: int = 0, size: int = 8 * KIB) -> Counters:
    return Counters(round(at_s * NS_PER_S), reads, reads * size, 0, 0, reads * 1_000_000, 0)


class Watched:
    """One drive, looked at once a second; orders are in force at once unless told otherwise."""

    def __init__(self, in_force: ThrottleLimits | None = UNLIMITED) -> None:
        self.state = State()
        self.in_force = in_force
        self.now_s = 100.0
        self.reads = 0

    def look(
        self,
        policy: DrivePolicy | UnknownPolicy | None = POLICY,
        reads: int | None = 0,
        size: int = 8 * KIB,
        failed: bool = False,
    ) -> list[SetLimits]:
        self.now_s += 1
        self.reads += reads or 0
        read = None if reads is None else counters(self.now_s, self.reads, size)
        seen = Observation({DRIVE: DriveSeen(policy, read, self.in_force, failed, STOCK)})
        self.state, orders = decide(self.state, seen, round(self.now_s * NS_PER_S))
        if orders and self.in_force is not None:
            self.in_force = orders[-1].limits
        return orders

    @property
    def known(self) -> DriveState:
        return self.state.drives[DRIVE]


def seconds_off(did: Run, start: float, end: float) -> list[int]:
    rates = [did.rate(start + i, start + i + 1) / LIMIT for i in range(int(end - start))]
    return [i for i, rate in enumerate(rates) if abs(rate - 1) > 0.05]


DEAR_WRITES = CostModel(
    DEFAULT_CURVE, CostCurve(tuple((size, 5 * cost) for size, cost in DEFAULT_CURVE.points))
)


@pytest.mark.parametrize("limit", [3_000, LIMIT])
@pytest.mark.parametrize("offset", [0.05, 0.5, 0.95])
def test_large_writes_after_reads_are_not_starved_if_they_cost_more(
    limit: int, offset: float
) -> None:
    dear = DEAR_WRITES.write
    reads = Stream.of(1024 * KIB)
    phases = [Phase(12, (reads,)), Phase(12, (replace(reads, write_ratio=1.0),))]
    did = run(
        phases,
        DrivePolicy(limit=limit),
        model=DEAR_WRITES,
        tick_offset_s=offset,
    )
    one = dear.cost(1024 * KIB)
    for second in range(16, 24):
        assert abs(did.rate(second, second + 1) - limit) <= 0.05 * limit + one
    assert did.worst_window(11, 24) <= 1.25 * limit + one


@pytest.mark.parametrize("limit", [10, 50, 200])
@pytest.mark.parametrize("times", [2, 5, 20])
def test_large_reads_from_the_start_get_their_limit_if_writes_cost_more(
    limit: int, times: float
) -> None:
    dear = CostCurve(tuple((size, times * cost) for size, cost in DEFAULT_CURVE.points))
    model = CostModel(DEFAULT_CURVE, dear)
    did = run([Phase(300, (Stream.of(1024 * KIB),))], DrivePolicy(limit=limit), model=model)
    one = DEFAULT_CURVE.cost(1024 * KIB)
    assert abs(did.rate(15, 300) - limit) <= 0.01 * limit + one / 285


def test_a_large_read_under_the_first_limits_is_paid_for_before_others_are_set() -> None:
    large = Stream.of(4096 * KIB)
    did = run([Phase(5, ()), Phase(115, (large,))], DrivePolicy(limit=10), model=DEAR_WRITES)
    first, second, *_ = (at_s for at_s, _ in did.requests)
    assert second - first >= DEFAULT_CURVE.cost(4096 * KIB) / 10 - 1


def test_reads_after_a_single_large_write_and_a_pause_get_over_half_of_their_limit() -> None:
    reads = Phase(10, (Stream.of(1024 * KIB),))
    write = Phase(0.05, (Stream(((1024 * KIB, 1.0),), write_ratio=1.0, rate=20),))
    did = run([reads, write, Phase(2.95, ()), reads], POLICY, model=DEAR_WRITES)
    assert did.rate(13, 14) > 0.5 * LIMIT
    assert seconds_off(did, 13, 23)[-1] < 3


@pytest.mark.parametrize(("before", "after"), list(permutations(SIZES[::2] + SIZES[-1:], 2)))
@pytest.mark.parametrize("offset", [0.05, 0.85])
def test_every_shift_is_priced_again_within_three_seconds(
    before: int, after: int, offset: float
) -> None:
    phases = [Phase(5, (Stream.of(before),)), Phase(6, (Stream.of(after),))]
    did = run(phases, POLICY, tick_offset_s=offset)
    assert max(seconds_off(did, 5, 11), default=0) < 3
    assert did.worst_window(3, 11) <= 1.25 * LIMIT


DISK = CostCurve(((4 * KIB, 1.0), (64 * KIB, 1.2), (1024 * KIB, 4.0)))
STEEPER = CostCurve(((4 * KIB, 1.0), (64 * KIB, 10.0), (1024 * KIB, 400.0)))
DEAR = CostCurve(tuple((size, 3 * cost) for size, cost in DEFAULT_CURVE.points))


@pytest.mark.parametrize(
    ("read", "write", "limit", "size", "write_ratio"),
    [
        (DISK, DISK, 100, 1024 * KIB, 0.0),
        (DEFAULT_CURVE, DEAR, 1000, 1024 * KIB, 1.0),
        (DEFAULT_CURVE, DEFAULT_CURVE, 100, 1024 * KIB, 0.0),
        (DEFAULT_CURVE, DEFAULT_CURVE, 200, 2048 * KIB, 0.0),
        (STEEPER, STEEPER, 100, 1024 * KIB, 0.0),
    ],
)
@pytest.mark.parametrize("offset", [0.05, 0.85])
def test_limits_that_let_no_request_a_second_through_are_priced_again(
    read: CostCurve, write: CostCurve, limit: int, size: int, write_ratio: float, offset: float
) -> None:
    large = Stream(((size, 1.0),), write_ratio)
    did = run(
        [Phase(10, (Stream.of(4 * KIB),)), Phase(90, (large,))],
        DrivePolicy(limit=limit),
        model=CostModel(read, write),
        tick_offset_s=offset,
    )
    assert did.rate(20, 100) == pytest.approx(limit, rel=0.1)


@pytest.mark.parametrize(("reads", "until_s"), [(1, IDLE_S), (100, 1)])
def test_a_drive_of_few_requests_is_taken_for_active_until_it_has_done_none_for_long(
    reads: int, until_s: float
) -> None:
    watched = Watched()
    for _ in range(4):
        watched.look(reads=reads)
    since_ns = watched.known.measured.active_ns
    assert since_ns is not None
    for idle_s in range(1, 15):
        watched.look()
        active_ns = watched.known.measured.active_ns
        assert active_ns == (since_ns if idle_s < until_s else None)
    watched.look(reads=reads)
    assert watched.known.measured.active_ns == round(watched.now_s * NS_PER_S)


def test_a_drive_that_waits_for_what_it_owes_is_not_idle() -> None:
    watched, policy, size = Watched(), DrivePolicy(limit=10), 4096 * KIB
    for _ in range(4):
        watched.look(policy, reads=1, size=size)
    owed_s = DEFAULT_CURVE.cost(size) / 10 - 1
    for _ in range(int(owed_s + IDLE_S)):
        assert watched.look(policy, size=size) == []
    assert [order.reason for order in watched.look(policy, size=size)] == [Reason.IDLE]


@pytest.mark.parametrize("limit", [8, 10])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_large_read_among_small_ones_is_paid_for(limit: int, seed: int) -> None:
    mixed = Stream(((4 * KIB, 0.95), (4096 * KIB, 0.05)))
    did = run([Phase(600, (mixed,))], DrivePolicy(limit=limit), seed=seed)
    assert did.rate(5, 600) <= 1.05 * limit + DEFAULT_CURVE.cost(4096 * KIB) / 595


@pytest.mark.parametrize("curve", [((4096, 1.0), (1048576, 100.0)), ((16384, 1.0), (262144, 5.0))])
def test_a_shift_under_another_curve_is_priced_again_too(
    curve: tuple[tuple[int, float], ...],
) -> None:
    model = CostModel(CostCurve(curve), CostCurve(curve))
    phases = [Phase(6, (Stream.of(4096),)), Phase(6, (Stream.of(262144),))]
    phases += [Phase(6, (Stream.of(8192),))]
    did = run(phases, POLICY, model=model)
    for start in (6, 12):
        assert max(seconds_off(did, start, start + 6), default=0) < 3
    assert did.worst_window(3, 18) <= 1.25 * LIMIT


@pytest.mark.parametrize(
    "stream",
    [
        Stream(((8 * KIB, 0.5), (64 * KIB, 0.5))),
        Stream(((4 * KIB, 0.9), (64 * KIB, 0.1))),
        Stream(((4 * KIB, 0.4), (16 * KIB, 0.4), (256 * KIB, 0.2))),
        Stream(((8 * KIB, 1.0),), write_ratio=0.4),
    ],
)
def test_a_steady_mix_gets_its_limit_and_is_left_alone(stream: Stream) -> None:
    did = run([Phase(30, (stream,))], POLICY)
    assert did.rate(4, 30) == pytest.approx(LIMIT, rel=0.03)
    assert len([at for at, _ in did.changes if at > 5]) <= 1


def test_a_mix_of_few_requests_is_no_shift_because_it_varies() -> None:
    mix = Phase(12, (Stream.of(8 * KIB), Stream.of(64 * KIB)))  # 176 requests a second
    late = 0
    for seed in range(24):
        phases = [Phase(4, (Stream.of(64 * KIB),)), mix]
        did = run(phases, DrivePolicy(limit=1000), tick_offset_s=seed / 24, seed=seed)
        late += sum(at > 4 + 3 for at, _ in did.changes)  # each lets a tenth of a second through
    assert late <= 1


@pytest.mark.parametrize(
    ("before", "after"), [((8,), (64,)), ((64,), (8,)), ((8, 64), (16,)), ((4, 16), (8,))]
)
def test_a_guests_own_requests_cause_no_late_change(
    before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    own = Stream(((4 * KIB, 0.7), (16 * KIB, 0.3)), 0.5, depth=1, rate=1.0, at_random=True)
    for seed in range(8):
        phases = [
            Phase(seconds, (*[Stream.of(kib * KIB) for kib in sizes], own), in_turn=True)
            for seconds, sizes in ((5, before), (15, after))
        ]
        policy = DrivePolicy(limit=1000)
        did = run(phases, policy, tick_offset_s=(seed + 0.5) / 8, tick_late_s=0.1, seed=seed)
        rates = [did.rate(second, second + 1) / 1000 for second in range(8, 20)]
        assert rates == pytest.approx([1] * 12, abs=0.05)


def test_limits_after_a_small_shift_are_made_for_the_requests_after_it() -> None:
    sizes = [9000, 7600]  # too close for the mean size alone to be another
    priced: list[float | None] = []

    def note(state: State) -> None:
        mix = state.drives[DRIVE].pricing.mix
        priced.append(mix and mix.read.mean_size_bytes)

    run([Phase(6, (Stream.of(size),)) for size in sizes], POLICY, on_tick=note)
    assert priced[-1] == pytest.approx(sizes[-1], rel=1e-3)


def test_reads_and_writes_of_different_cost_share_a_budget() -> None:
    dear = CostCurve(tuple((size, 2 * cost) for size, cost in DEFAULT_CURVE.points))
    stream = Stream(((16 * KIB, 1.0),), write_ratio=0.5)
    did = run([Phase(15, (stream,))], POLICY, model=CostModel(DEFAULT_CURVE, dear))
    assert did.rate(4, 15) == pytest.approx(LIMIT, rel=0.03)


def test_an_error_that_stays_is_mended_although_looks_are_noisy() -> None:
    """Of so few requests, some seconds are all reads, and writes cost four times as much."""
    dear = CostCurve(tuple((size, 4 * cost) for size, cost in DEFAULT_CURVE.points))
    phases = [Phase(60, (Stream(((64 * KIB, 1.0),), write_ratio=0.3),))]
    model, policy = CostModel(DEFAULT_CURVE, dear), DrivePolicy(limit=500)
    runs = [run(phases, policy, model=model, seed=seed) for seed in range(12)]
    rates = [did.rate(10, 60) / 500 for did in runs]
    # Limits for just this mix, which never change, leave it 0.90 to 0.96, and 0.93 on average.
    assert mean(rates) > 0.87
    assert min(rates) > 0.8


def test_a_drive_that_does_less_than_its_limit_is_not_retuned() -> None:
    streams = [Stream.of(8 * KIB, rate=500.0), Stream.of(64 * KIB, rate=100.0)]
    did = run([Phase(10, (s,)) for s in streams * 2], POLICY)
    assert [reason for _, reason in did.changes] == ["POLICY"]


def test_a_burst_ends_with_its_credit() -> None:
    policy = DrivePolicy(limit=1000, burst=2000, burst_seconds=10)
    did = run([Phase(12, ()), Phase(25, (Stream.of(8 * KIB),))], policy)
    above = did.rate(12, 37) * 25 - 1000 * 25
    assert above <= 1000 * 10.5
    assert did.rate(14, 20) == pytest.approx(2000, rel=0.05)
    assert did.rate(26, 37) == pytest.approx(1000, rel=0.05)
    assert did.worst_window(13, 37) <= 2000 * 1.25


@pytest.mark.parametrize("share", [0.5, 0.8, 0.94])
def test_credit_earned_by_a_busy_drive_is_there_when_it_bursts(share: float) -> None:
    """QEMU's own bucket has leaked only what the drive left of its limit by then."""
    policy = DrivePolicy(limit=1000, burst=2000, burst_seconds=20)
    busy = Stream.of(8 * KIB, rate=share * 1000 / 1.6)
    did = run([Phase(60, (busy,)), Phase(40, (Stream.of(8 * KIB),))], policy)
    above = (did.rate(60, 100) - 1000) * 40
    assert 1000 * 15 <= above <= 1000 * 21


def test_a_burst_ends_even_where_the_agent_does_not_come_back() -> None:
    watched = Watched()
    policy = DrivePolicy(limit=1000, burst=2000, burst_seconds=10)
    for _ in range(30):
        watched.look(policy)
    limits = watched.in_force
    assert limits is not None
    assert limits.iops_total is not None
    assert limits.iops_total_max is not None
    assert limits.iops_total_max_length is not None
    # QEMU's bucket of max * length fills at max - average.
    bucket = limits.iops_total_max * limits.iops_total_max_length
    assert bucket / (limits.iops_total_max - limits.iops_total) <= 10


def test_the_same_look_twice_orders_nothing_new() -> None:
    watched = Watched()
    assert watched.look()
    assert watched.look() == []


def test_limits_that_somebody_changed_are_put_back_and_counted() -> None:
    watched = Watched()
    (first,) = watched.look()
    watched.in_force = BY_HAND
    (again,) = watched.look()
    assert again.limits == first.limits
    assert again.reason is Reason.OVERWRITTEN
    assert watched.known.sent.overwritten == 1


def test_a_failed_order_is_sent_again_and_is_nobodys_overwriting() -> None:
    watched = Watched(in_force=None)
    (first,) = watched.look()
    (again,) = watched.look(failed=True)
    assert again.limits == first.limits
    assert watched.known.sent.overwritten == 0


def test_a_drive_without_a_policy_is_left_alone() -> None:
    watched = Watched(in_force=BY_HAND)
    for _ in range(3):
        assert watched.look(policy=None, reads=1000) == []
    assert watched.known.finding.verdict is Verdict.NO_POLICY


def test_a_drive_that_loses_its_policy_gets_back_what_it_had() -> None:
    watched = Watched(in_force=BY_HAND)
    assert watched.look()
    (back,) = watched.look(policy=None)
    assert back.limits == BY_HAND
    assert watched.look(policy=None) == []


@pytest.mark.parametrize("partial", [False, True])
def test_a_drive_of_a_restarted_guest_gets_back_what_its_new_qemu_had(partial: bool) -> None:
    state, orders = State(), list[SetLimits]()
    for at_s, policy, in_force in ((1, POLICY, UNLIMITED), (2, POLICY, BY_HAND)):
        seen = DriveSeen(policy, None, in_force, abilities=STOCK)
        restarted = [DRIVE.domain] if at_s == 2 else []
        observation = Observation({DRIVE: seen}, partial, restarted=restarted)
        state, orders = decide(state, observation, at_s * NS_PER_S)
        assert [order.reason for order in orders] == [Reason.POLICY]
        assert (state.drives[DRIVE].sent.found, state.drives[DRIVE].sent.overwritten) == (
            in_force,
            0,
        )
    seen = DriveSeen(None, None, orders[0].limits, abilities=STOCK)
    _, orders = decide(state, Observation({DRIVE: seen}, partial), 3 * NS_PER_S)
    assert [order.limits for order in orders] == [BY_HAND]


ANOTHER_AGENTS = ThrottleLimits(iops_total=LIMIT, iops_size=4096)


@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize("found", [UNLIMITED, BY_HAND])
def test_a_guest_that_carries_limits_of_an_agents_along_gets_back_what_it_had_before_them(
    found: ThrottleLimits, restored: bool
) -> None:
    state = State()
    if restored:  # and it ran here before
        known = DriveSeen(POLICY, None, BY_HAND, abilities=STOCK)
        state, _ = decide(state, Observation({DRIVE: known}), 0)
    came = DriveSeen(POLICY, None, ANOTHER_AGENTS, abilities=STOCK, found=found)
    restarted = [DRIVE.domain] if restored else []
    state, (order,) = decide(state, Observation({DRIVE: came}, restarted=restarted), NS_PER_S)
    # The record may be gone by then.
    ended = DriveSeen(None, None, order.limits, abilities=STOCK)
    _, orders = decide(state, Observation({DRIVE: ended}), 2 * NS_PER_S)
    assert [order.limits for order in orders] == [found]


@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize("policy", [None, DrivePolicy()])
def test_limits_that_come_along_go_if_nothing_limits_the_guest_here(
    policy: DrivePolicy | None, restored: bool
) -> None:
    state = State()
    if restored:
        known = DriveSeen(POLICY, None, BY_HAND, abilities=STOCK)
        state, _ = decide(state, Observation({DRIVE: known}), 0)
    came = DriveSeen(policy, None, ANOTHER_AGENTS, abilities=STOCK, found=BY_HAND)
    restarted = [DRIVE.domain] if restored else []
    state, (order,) = decide(state, Observation({DRIVE: came}, restarted=restarted), NS_PER_S)
    assert (order.limits, order.reason) == (BY_HAND, Reason.RELEASED)
    for in_force in (BY_HAND, ThrottleLimits(iops_total=7)):  # somebody's, later
        seen = came._replace(in_force=in_force)
        state, orders = decide(state, Observation({DRIVE: seen}), 2 * NS_PER_S)
        assert orders == []


@pytest.mark.parametrize("default", [None, DrivePolicy(limit=20 * LIMIT)])
def test_limits_that_come_along_stay_while_the_policy_cannot_be_told(
    default: DrivePolicy | None,
) -> None:
    came = DriveSeen(UNKNOWN, None, ANOTHER_AGENTS, abilities=STOCK, found=BY_HAND, default=default)
    _, orders = decide(State(), Observation({DRIVE: came}), NS_PER_S)
    assert orders == []


def test_a_restored_guest_is_held_to_its_last_policy_while_it_cannot_be_told() -> None:
    known = DriveSeen(POLICY, None, BY_HAND, abilities=STOCK)
    state, (order,) = decide(State(), Observation({DRIVE: known}), 0)
    came = DriveSeen(UNKNOWN, None, ANOTHER_AGENTS, abilities=STOCK, found=BY_HAND)
    again = Observation({DRIVE: came}, restarted=[DRIVE.domain])
    _, orders = decide(state, again, NS_PER_S)
    assert [one.limits for one in orders] == [order.limits]


@pytest.mark.parametrize("unread", [False, True])
@pytest.mark.parametrize("found", [UNLIMITED, BY_HAND])
def test_a_drive_of_a_restarted_guest_keeps_its_policy_while_that_cannot_be_told(
    found: ThrottleLimits, unread: bool
) -> None:
    known = DriveSeen(POLICY, None, found, abilities=STOCK)
    state, (order,) = decide(State(), Observation({DRIVE: known}), NS_PER_S)
    looser = DrivePolicy(limit=20 * LIMIT)
    unknown = DriveSeen(UNKNOWN, None, found, abilities=STOCK, default=looser)
    if unread:
        away = Observation({}, unread=[DRIVE], restarted=[DRIVE.domain])
        state, _ = decide(state, away, 2 * NS_PER_S)
    again = Observation({DRIVE: unknown}, restarted=[] if unread else [DRIVE.domain])
    state, orders = decide(state, again, 3 * NS_PER_S)
    assert [one.limits for one in orders] == [order.limits]
    assert state.drives[DRIVE].sent.found == found


def test_a_restarted_guest_with_other_limits_of_its_own_is_held_to_its_last_policy() -> None:
    known = DriveSeen(POLICY, None, BY_HAND, abilities=STOCK)
    state, (order,) = decide(State(), Observation({DRIVE: known}), NS_PER_S)
    own = ThrottleLimits(iops_total=77)
    unknown = DriveSeen(UNKNOWN, None, own, abilities=STOCK)
    again = Observation({DRIVE: unknown}, restarted=[DRIVE.domain])
    state, orders = decide(state, again, 2 * NS_PER_S)
    assert [one.limits for one in orders] == [order.limits]
    assert state.drives[DRIVE].sent.found == own


def test_a_drive_of_a_restarted_guest_is_held_though_its_definition_has_other_limits() -> None:
    known = DriveSeen(POLICY, None, UNLIMITED, abilities=STOCK)
    state, (order,) = decide(State(), Observation({DRIVE: known}), NS_PER_S)
    unknown = DriveSeen(UNKNOWN, None, BY_HAND, abilities=STOCK)
    again = Observation({DRIVE: unknown}, restarted=[DRIVE.domain])
    state, orders = decide(state, again, 2 * NS_PER_S)
    assert [one.limits for one in orders] == [order.limits]
    assert state.drives[DRIVE].sent.found == BY_HAND


def test_a_drive_of_a_restarted_guest_keeps_its_part_of_what_others_share() -> None:
    seen = DriveSeen(
        DrivePolicy(), None, UNLIMITED, False, STOCK, None, "acme", VmPolicy(limit=2 * LIMIT)
    )
    tenants = {"acme": TenantPolicy(limit=LIMIT)}
    state, (order,) = decide(State(tenants=tenants), Observation({DRIVE: seen}), NS_PER_S)
    unknown = DriveSeen(UNKNOWN, None, UNLIMITED, abilities=STOCK)
    again = Observation({DRIVE: unknown}, restarted=[DRIVE.domain])
    state, orders = decide(state, again, 2 * NS_PER_S)
    assert [one.limits for one in orders] == [order.limits]
    vm = state.drives[DRIVE].vm
    assert vm is not None
    assert vm.policy == VmPolicy(limit=2 * LIMIT)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_policy_that_cannot_be_told_lifts_no_limit(restarted: bool) -> None:
    watched = Watched(in_force=BY_HAND)
    watched.look()
    limits = watched.in_force
    if restarted:
        saved = watched.known._replace(measured=Measured(), pricing=Pricing())
        watched.state = State(drives={DRIVE: saved})
    for reads in (None, 0, 5000, 6250):
        watched.look(policy=UNKNOWN, reads=reads)
        assert watched.known.policy == POLICY
    assert watched.known.sent.found == BY_HAND
    assert left_at_stop(watched.state)[0].limits.iops_total is not None
    if not restarted:
        assert watched.look(policy=POLICY) == []
    assert limits is not None
    assert watched.in_force is not None
    assert watched.in_force.iops_total


def test_a_burst_that_goes_from_a_policy_while_it_is_open_lifts_no_limit() -> None:
    watched = Watched()
    for _ in range(10):
        watched.look(replace(POLICY, burst=2 * LIMIT))
    assert watched.known.credit.open
    watched.look(POLICY, reads=None)  # its credit can't follow before its rate is known
    assert watched.known.pricing.rate == LIMIT
    assert watched.in_force != UNLIMITED


def test_a_policy_that_was_never_told_changes_nothing() -> None:
    watched = Watched(in_force=BY_HAND)
    saved = DriveState(sent=Sent(limits=BY_HAND, found=UNLIMITED))
    for state in (State(), State(drives={DRIVE: saved})):
        watched.state = state
        assert watched.look(policy=UNKNOWN, reads=5000) == []
        assert watched.known.finding.verdict is Verdict.POLICY_UNKNOWN
        assert left_at_stop(watched.state) == []
        (order,) = watched.look(policy=POLICY)
        assert order.reason is Reason.POLICY
        watched.in_force = BY_HAND


def test_limits_changed_by_hand_before_a_policy_went_stay() -> None:
    watched = Watched()
    watched.look()
    watched.in_force = BY_HAND
    assert watched.look(policy=None) == []


def test_a_restarted_agent_finds_its_limits_in_force_and_changes_nothing() -> None:
    watched = Watched()
    watched.look()
    for _ in range(5):
        watched.look(reads=6250, size=8 * KIB)
    known = watched.known
    saved = DriveState(
        credit=known.credit,
        pricing=Pricing(mix=known.pricing.mix),
        sent=Sent(limits=known.sent.limits, found=known.sent.found),
    )
    watched.state = State(drives={DRIVE: saved})
    assert watched.look() == []
    assert watched.known.sent.limits == known.sent.limits


def test_limits_are_kept_when_counters_go_backwards() -> None:
    watched = Watched()
    watched.look()
    watched.look(reads=5000)
    watched.reads = 0
    assert watched.look(reads=10) == []
    assert watched.known.measured.rate is None


def test_limits_are_kept_when_counters_cannot_be_read() -> None:
    watched = Watched()
    watched.look()
    watched.look(reads=6250)
    assert watched.look(reads=None) == []
    assert watched.known.measured.rate is None


def test_a_new_limit_is_in_force_at_once() -> None:
    watched = Watched()
    watched.look()
    (order,) = watched.look(policy=replace(POLICY, limit=LIMIT // 2))
    assert order.reason is Reason.POLICY
    assert order.limits.iops_total is not None
    assert order.limits.iops_total <= 0.55 * LIMIT


def test_a_drive_that_went_idle_is_ready_for_any_mix() -> None:
    watched = Watched()
    (fresh,) = watched.look()
    for _ in range(5):
        watched.look(reads=800, size=64 * KIB)
    assert watched.in_force != fresh.limits
    for _ in range(int(IDLE_S) + 1):
        watched.look()
    assert watched.in_force == fresh.limits


def test_static_limits_let_no_size_above_the_limit() -> None:
    watched = Watched()
    watched.look()
    (order,) = left_at_stop(watched.state)
    assert order.reason is Reason.STOPPING
    limits = order.limits
    assert limits.iops_total is not None
    assert limits.iops_size is not None
    for size in range(4096, 1 << 20, 4096):
        passed = limits.iops_total / max(1, size / limits.iops_size)
        assert passed * DEFAULT_CURVE.cost(size) <= 1.001 * LIMIT


@pytest.mark.parametrize("limit", range(1, 21))
def test_a_tiny_limit_is_not_rounded_up(limit: int) -> None:
    watched = Watched()
    watched.look(DrivePolicy(limit=limit))
    limits = watched.in_force
    assert limits is not None
    assert limits.iops_total is not None
    assert limits.iops_size is not None
    for size in SIZES:
        passed = limits.iops_total / max(1, size / limits.iops_size)
        if limits.bps_total is not None:
            passed = min(passed, limits.bps_total / size)
        assert passed * DEFAULT_CURVE.cost(size) <= (1 + OVERSHOOT_RATIO + 0.001) * limit


@pytest.mark.parametrize("broken", ["counters", "policy"])
def test_a_drive_on_which_the_law_fails_is_set_aside_and_the_others_are_served(broken: str) -> None:
    nonsense: Any = object()
    other = DriveId("other", "vda")
    watched = Watched()
    watched.look()
    before = watched.known
    for second in range(2):
        counts, policy = counters(101.5 + second, 5000 * second), POLICY
        if broken == "counters":
            counts = counts._replace(read_bytes=nonsense)
        else:
            policy = replace(POLICY, burst=nonsense)
        drives = {
            DRIVE: DriveSeen(policy, counts, watched.in_force, abilities=STOCK),
            other: DriveSeen(
                POLICY, counters(101.5 + second, 5000 * second), None, abilities=STOCK
            ),
        }
        watched.state, orders = decide(
            watched.state, Observation(drives), (102 + second) * NS_PER_S
        )
        assert [order.drive for order in orders] == [other] * (second == 0)
        assert watched.state.failures.keys() == {DRIVE}
        assert watched.known.sent == before.sent
    assert watched.look() == []
    assert watched.state.failures == {}


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("writes", [0, 5000])
def test_reads_without_data_set_no_drive_aside(writes: int, separate: bool) -> None:
    policy = DrivePolicy(limit=LIMIT, separate_budgets=separate)
    watched = Watched()
    watched.look(policy)
    watched.look(policy, reads=2000)
    lowered = replace(policy, limit=LIMIT // 2)
    read = watched.reads
    for second in range(1, 15):
        counts = counters(watched.now_s + second, read)._replace(
            read_requests=read + second,
            write_requests=second * writes,
            write_bytes=second * writes * 4096,
        )
        promise = policy if second < 14 else lowered
        seen = DriveSeen(promise, counts, watched.in_force, abilities=STOCK)
        watched.state, orders = decide(watched.state, Observation({DRIVE: seen}), counts.at_ns)
        assert watched.state.failures == {}
        assert watched.known.measured.rate == 1 + writes
        if orders:
            watched.in_force = orders[-1].limits
    assert [order.reason for order in orders] == [Reason.POLICY]


def test_another_disk_at_a_drives_target_is_not_taken_for_it() -> None:
    """Although all of it happens between two looks at all drives."""
    other = DriveId(DRIVE.domain, "vdb")
    own = ThrottleLimits(iops_total=500)

    def seen(*, policy: DrivePolicy | None, limits: ThrottleLimits | None) -> DriveSeen:
        return DriveSeen(policy, counters(1), limits, abilities=STOCK)

    root = {DRIVE: seen(policy=POLICY, limits=None)}
    both = {**root, other: seen(policy=POLICY, limits=UNLIMITED)}
    state, _ = decide(State(), Observation(both), 0)
    state, _ = decide(state, Observation(root, partial=True, gone=[other]), 1)
    assert state.drives.keys() == {DRIVE}
    plugged = {**root, other: seen(policy=POLICY, limits=own)}
    state, orders = decide(state, Observation(plugged, partial=True), 2)
    assert [order.reason for order in orders if order.drive == other] == [Reason.POLICY]
    freed = {**root, other: seen(policy=None, limits=orders[0].limits)}
    _, orders = decide(state, Observation(freed), 3)
    assert [order.limits for order in orders if order.drive == other] == [own]


def test_a_partial_look_keeps_the_other_drives() -> None:
    watched = Watched()
    watched.look()
    other = DriveId("other", "vda")
    seen = Observation({other: DriveSeen(POLICY, counters(1), None, abilities=STOCK)}, partial=True)
    state, _ = decide(watched.state, seen, 0)
    assert set(state.drives) == {DRIVE, other}
    state, _ = decide(
        state, Observation({other: DriveSeen(POLICY, counters(2), None, abilities=STOCK)}), 0
    )
    assert set(state.drives) == {other}


@settings(max_examples=12, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(SIZES), st.sampled_from(SIZES), st.floats(0, 1), st.integers(2, 6)
        ),
        min_size=1,
        max_size=4,
    ),
    st.floats(0.02, 0.98),
    st.integers(0, 1000),
)
def test_no_second_is_a_quarter_over_whatever_comes(
    phases: list[tuple[int, int, float, int]], offset: float, seed: int
) -> None:
    did = run(
        [Phase(s, (Stream(((a, 1 - p), (b, p))),)) for a, b, p, s in phases],
        POLICY,
        tick_offset_s=offset,
        seed=seed,
    )
    # In the first second the drive is not yet seen; later a single request may round up.
    largest = DEFAULT_CURVE.cost(1024 * KIB)
    end = sum(s for *_, s in phases)
    assert did.worst_window(1.5, end) <= 1.25 * LIMIT + largest


# QEMU charges by the curve itself

EXACT = ThrottleLimits(
    iops_total=LIMIT, cost_read=DEFAULT_CURVE, cost_write=DEFAULT_CURVE, idle_credit_ms=10
)


class Exact:
    """A drive whose QEMU has cost curves, looked at once a second."""

    def __init__(self, in_force: ThrottleLimits = UNLIMITED) -> None:
        self.state = State()
        self.in_force = in_force
        self.now_s = 100.0
        self.group = ThrottleCount(0, 0, 0.0, 0, 0, 0)

    def look(self, policy: DrivePolicy | None = POLICY, **passed: float) -> list[SetLimits]:
        """Look, after so much more of what a ThrottleCount has; `waiting` is as of now."""
        self.now_s += 1
        now_ns = round(self.now_s * NS_PER_S)
        old = self.group._asdict()
        waiting = int(passed.pop("waiting", 0))
        self.group = self.group._replace(
            **{name: old[name] + value for name, value in passed.items()}, waiting=waiting
        )
        group = ThrottleCounters(now_ns, self.group, ThrottleCount(0, 0, 0.0, 0, 0, 0))
        seen = DriveSeen(policy, Counters.of_group(group), self.in_force, abilities=PATCHED)
        self.state, orders = decide(self.state, Observation({DRIVE: seen}), now_ns)
        if orders:
            self.in_force = orders[-1].limits
        return orders

    @property
    def known(self) -> DriveState:
        return self.state.drives[DRIVE]


def test_exact_limits_carry_the_curve_and_need_no_retune() -> None:
    drive = Exact()
    assert [order.limits for order in drive.look()] == [EXACT]
    for size in SIZES:
        assert drive.look(requests=100, bytes=100 * size, cost=100 * DEFAULT_CURVE.cost(size)) == []
    assert drive.known.sent.retunes == 0


@pytest.mark.parametrize(("rate", "figure"), [(0.2, 1), (1.5, 1), (3.5, 3), (7 - 1e-9, 7)])
def test_exact_limits_of_a_part_are_rounded_down(rate: float, figure: int) -> None:
    """Else two drives with a half of 7 each would do 8."""
    assert exact_limits(DEFAULT_MODEL, rate).iops_total == figure


@pytest.mark.parametrize(
    ("in_force", "failed", "reason"),
    [
        (UNLIMITED, False, Reason.OVERWRITTEN),
        (UNLIMITED, True, Reason.RETRY),
        (None, True, Reason.RETRY),
        (None, False, None),
    ],
)
def test_a_share_that_moves_by_less_than_a_figure_hides_no_limit_that_was_lost(
    in_force: ThrottleLimits | None, failed: bool, reason: Reason | None
) -> None:
    drives = [DriveId(f"guest{i}", "vda") for i in range(4)]
    held: dict[DriveId, ThrottleLimits | None] = dict.fromkeys(drives, UNLIMITED)
    state = State()

    def look(at_s: int, capacity: int, failed: bool = False) -> list[SetLimits]:
        nonlocal state
        n = 20 * at_s
        done = ThrottleCount(n, 4096 * n, float(n), n, 0, waiting=9)
        nothing = ThrottleCount(0, 0, 0.0, 0, 0, 0)
        read = Counters.of_group(ThrottleCounters(at_s * NS_PER_S, done, nothing))
        seen = {
            drive: DriveSeen(
                DrivePolicy(), read, held[drive], failed and drive == drives[0], PATCHED, "disk0"
            )
            for drive in drives
        }
        full = StorageCounters(now_ns := at_s * NS_PER_S, 4 * n, 4 * n * NS_PER_S, 0, 0, 9, now_ns)
        storages = {"disk0": StorageSeen(StoragePolicy(capacity), full)}
        state, orders = decide(state, Observation(seen, storages=storages), now_ns)
        held.update({order.drive: order.limits for order in orders})
        return orders

    for at_s in range(1, 10):
        look(at_s, 81)
    before = state.drives[drives[0]]
    assert before.sent.limits == held[drives[0]] == EXACT._replace(iops_total=20)
    held[drives[0]] = in_force
    orders = look(10, 82, failed)
    after = state.drives[drives[0]]
    assert after.pricing.rate != before.pricing.rate
    assert [(order.drive, order.reason) for order in orders] == [(drives[0], reason)] * bool(reason)
    assert after.sent.limits == before.sent.limits
    assert after.sent.overwritten == (reason is Reason.OVERWRITTEN)


def test_the_rate_is_what_was_charged_once_the_curve_is_in_force() -> None:
    drive = Exact()
    drive.look(requests=10, bytes=10 * 64 * KIB, cost=10.0)
    drive.look(requests=100, bytes=100 * 6000, cost=777.0)
    assert drive.known.measured.rate == pytest.approx(777.0)


def test_requests_without_data_are_charged_and_leave_the_mix_as_it_was() -> None:
    drive = Exact()
    drive.look()
    for _ in range(3):
        drive.look(requests=LIMIT, cost=float(LIMIT), waited=9)
        assert drive.state.failures == {}
        assert drive.known.measured.rate == LIMIT
        assert drive.known.demand.backlogged
    drive.look(requests=100, bytes=100 * 6000, cost=150.0)
    assert drive.state.failures == {}
    assert drive.known.measured.size[0] == 6000


def test_a_request_that_passes_in_parts_is_charged_as_they_pass() -> None:
    burst = DrivePolicy(limit=LIMIT, burst=2 * LIMIT)
    drive = Exact()
    for _ in range(12):
        drive.look(burst)
    parts = {"bytes": 136 * 1024 * KIB, "cost": 2.0 * LIMIT, "waiting": 1}
    drive.look(burst, requests=1, waited=1, **parts)
    before = drive.known
    for second in range(1, 4):
        drive.look(burst, **parts)
        assert drive.known.measured.rate == 2 * LIMIT
        assert drive.known.demand.backlogged
        assert drive.known.credit.seconds == before.credit.seconds - second
    drive.look(burst, waiting=1)
    assert drive.known.measured.rate == 0
    assert drive.known.demand.backlogged, "it waits for more than a second's worth"
    drive.look(burst)
    assert not drive.known.demand.backlogged


@pytest.mark.parametrize(
    "lost",
    [
        EXACT._replace(cost_read=None),
        EXACT._replace(cost_write=CostCurve(((4096, 1.0),))),
        EXACT._replace(cost_read=None, cost_write=None),
        EXACT._replace(split_size=4096),
        EXACT._replace(idle_credit_ms=100),
    ],
)
def test_a_curve_that_was_lost_is_put_back_and_counted(lost: ThrottleLimits) -> None:
    drive = Exact()
    drive.look()
    drive.look()
    drive.in_force = lost
    (order,) = drive.look()
    assert (order.limits, order.reason) == (EXACT, Reason.OVERWRITTEN)
    assert drive.look() == []
    assert drive.known.sent.overwritten == 1


def test_a_drive_is_throttled_while_its_requests_wait() -> None:
    drive = Exact()
    drive.look()
    drive.look(requests=10, bytes=40960, cost=4000.0, waited=2, wait_ns=300_000_000)
    assert drive.known.demand.throttled_s == pytest.approx(0.3)
    assert full_bounds(drive.known) == ["iops_total"], "far below its limit in the mean"
    drive.look(requests=9000, bytes=9000 * 4096, cost=9999.0)
    assert drive.known.demand.throttled_s == pytest.approx(0.3)
    assert full_bounds(drive.known) == [], "nothing had to wait"
    drive.look(requests=99, cost=10_500.0, waited=99, wait_ns=9 * NS_PER_S, waiting=9)
    assert drive.known.demand.throttled_s == pytest.approx(1.3), "no more than has passed"


def test_waits_side_by_side_count_once() -> None:
    policy = DrivePolicy(limit=4000)
    drive = Exact()
    drive.look(policy)
    for second in range(1, 4):
        burst = {"requests": 125, "bytes": 125 * 4096, "cost": 125.0}
        drive.look(policy, waited=85, wait_ns=910_000_000, **burst)
        # 125 take 31 ms, less what the bucket holds
        assert drive.known.demand.throttled_s <= 0.04 * second
        assert full_bounds(drive.known) == []


def test_charges_are_paid_at_the_whole_rate_that_qemu_has() -> None:
    drive = Exact()
    drive.look()
    pricing = drive.known.pricing._replace(base_rate=LIMIT - 0.4)
    known = drive.known._replace(pricing=pricing)
    drive.state = replace(drive.state, drives={DRIVE: known})
    full: dict[str, Any] = {"requests": LIMIT, "bytes": LIMIT * 4096, "cost": float(LIMIT)}
    for _ in range(5):
        assert drive.look(waited=1, wait_ns=NS_PER_S // 2, **full) == []
    assert drive.known.demand.unpaid == 0


def test_a_wait_counts_in_each_interval_that_it_spans() -> None:
    drive = Exact()
    drive.look()
    drive.look(requests=1, bytes=1 << 30, cost=3.6 * LIMIT, waiting=1)
    assert drive.known.demand.throttled_s == pytest.approx(1.0)
    for second in (2, 3):
        drive.look(waiting=1)
        assert drive.known.demand.throttled_s == pytest.approx(second)
        assert full_bounds(drive.known) == ["iops_total"]
    drive.look(requests=1, bytes=4096, cost=1.0, waited=1, wait_ns=3_590_000_000)
    assert drive.known.demand.throttled_s == pytest.approx(3.6, abs=0.01)
    drive.look(requests=1, bytes=4096, cost=1.0, waited=1, wait_ns=NS_PER_S)
    assert drive.known.demand.throttled_s == pytest.approx(3.6, abs=0.01)


def test_a_drive_whose_policy_goes_gets_back_its_limits_without_our_curve() -> None:
    drive = Exact(BY_HAND)
    drive.look()
    assert [order.limits for order in drive.look(policy=None)] == [BY_HAND]


def test_a_curve_that_libvirt_does_not_tell_is_taken_back_with_its_limits() -> None:
    drive = Exact(BY_HAND)
    drive.look()
    drive.in_force = ThrottleLimits(iops_total=EXACT.iops_total)
    assert [order.limits for order in drive.look(policy=None)] == [BY_HAND]


@pytest.mark.parametrize("ratio", [1, 0.7, 0.5])
@pytest.mark.parametrize("separate", [False, True])
def test_the_fallback_that_libvirt_has_is_taken_back_with_its_limits(
    ratio: float, separate: bool
) -> None:
    """It may be for less than the curve's limits."""
    drive = Exact(BY_HAND)
    drive.look(replace(POLICY, separate_budgets=separate))
    model = CostModel(DEFAULT_CURVE, DEFAULT_CURVE)
    drive.in_force = limits_for_any_size(model, ratio * LIMIT, separate=separate)
    assert [order.limits for order in drive.look(policy=None)] == [BY_HAND]


@pytest.mark.parametrize(
    "changed",
    [
        {"iops_total": LIMIT // 4},
        {"iops_total": 2 * LIMIT},
        {"iops_size": 4096},
        {"iops_size": None},
        {"bps_total": 1 << 20},
    ],
    ids=str,
)
def test_limits_that_are_no_fallback_stay_when_a_policy_goes(
    changed: dict[str, int | None],
) -> None:
    drive = Exact()
    drive.look()
    model = CostModel(DEFAULT_CURVE, DEFAULT_CURVE)
    drive.in_force = limits_for_any_size(model, LIMIT).with_fields(changed)
    assert drive.look(policy=None) == []


def test_a_stopping_agent_leaves_limit_and_curve() -> None:
    drive = Exact()
    drive.look()
    assert [order.limits for order in left_at_stop(drive.state)] == [EXACT]


# Large requests beside drives with a latency target wait in pieces

OTHER = DriveId("db1", "vda")
PROTECTED = DrivePolicy(limit=LIMIT, latency_target_ms=2.0)
LINE = CostCurve(((4 * KIB, 1.0), (16 * KIB, 2.25), (1024 * KIB, 144.0)))
SEEKS = CostCurve(((4 * KIB, 1.0), (1024 * KIB, 2.2)))
OWN = StoragePolicy(model=CostModel(LINE, LINE))


class Beside:
    """Two drives that QEMU itself charges on a storage, looked at once a second."""

    def __init__(self, policy: StoragePolicy = OWN) -> None:
        self.policy = policy
        self.state = State()
        self.second = 0
        self.in_force: dict[DriveId, ThrottleLimits] = {DRIVE: UNLIMITED, OTHER: UNLIMITED}

    def look(
        self,
        other: DrivePolicy | None = PROTECTED,
        mine: DrivePolicy = POLICY,
        requests: int = 0,
        local: bool = True,
        abilities: Abilities = PATCHED,
        storage: str = "sda",
    ) -> list[SetLimits]:
        """Look; requests: what the other drive has done so far. local: whether a disk counts."""
        self.second += 1
        now_ns = self.second * NS_PER_S
        seen = {
            DRIVE: DriveSeen(
                mine,
                counters(self.second),
                self.in_force[DRIVE],
                abilities=abilities,
                storage="sda",
            ),
            OTHER: DriveSeen(
                other,
                counters(self.second, requests),
                self.in_force[OTHER],
                abilities=abilities,
                storage=storage,
            ),
        }
        disk = StorageCounters(now_ns, 0, 0, 0, 0, 0, 0) if local else None
        storages = {name: StorageSeen(self.policy, disk) for name in ("sda", "sdb")}
        self.state, orders = decide(self.state, Observation(seen, storages=storages), now_ns)
        self.in_force |= {order.drive: order.limits for order in orders}
        return orders

    @property
    def sizes(self) -> tuple[int | None, int | None]:
        return self.in_force[DRIVE].split_size, self.in_force[OTHER].split_size


def test_large_reads_beside_a_latency_target_wait_in_parts_and_its_own_whole() -> None:
    beside = Beside()
    beside.look()
    assert beside.sizes == (16 * KIB, None)
    assert beside.in_force[DRIVE].cost_read == LINE
    assert [beside.look(requests=100 * i) for i in (0, 1, 2, 2, 2)] == [[]] * 5, "active or not"
    assert [order.limits.split_size for order in left_at_stop(beside.state)] == [16 * KIB, None]


def test_parts_come_and_go_with_latency_targets() -> None:
    beside = Beside()
    beside.look(POLICY)
    assert beside.sizes == (None, None)
    for other, size in ((PROTECTED, 16 * KIB), (None, None)):
        (order,) = [order for order in beside.look(other) if order.drive == DRIVE]
        assert (order.limits.split_size, order.reason) == (size, Reason.SPLIT)
        assert beside.look(other) == []


def test_parts_are_by_the_agents_curves_where_a_storage_has_none_of_its_own() -> None:
    beside = Beside(StoragePolicy())
    beside.look()
    assert beside.sizes == (128 * KIB, None)


def test_reads_of_a_disk_that_seeks_stay_nearly_whole() -> None:
    beside = Beside(StoragePolicy(model=CostModel(SEEKS, SEEKS)))
    beside.look()
    assert beside.sizes == (1024 * KIB, None)


@pytest.mark.parametrize(
    ("policy", "other"),
    [
        (OWN, {"other": POLICY}),
        (OWN, {"other": None}),
        (OWN, {"storage": "sdb"}),
        (OWN, {"mine": PROTECTED}),
        (OWN, {"abilities": STOCK}),
        (OWN, {"local": False}),  # its latency is that of its guests' requests, parts' waits too
    ],
)
def test_requests_stay_whole_where_parts_would_help_nobody(
    policy: StoragePolicy, other: dict[str, Any]
) -> None:
    beside = Beside(policy)
    beside.look(**other)
    assert beside.in_force[DRIVE] != UNLIMITED
    assert beside.sizes == (None, None)


def test_a_storages_own_curve_comes_with_the_storage() -> None:
    beside = Beside()
    seen = DriveSeen(POLICY, None, UNLIMITED, abilities=PATCHED)
    beside.state, (order,) = decide(beside.state, Observation({DRIVE: seen}, partial=True), 1)
    assert order.limits == EXACT
    beside.in_force[DRIVE] = order.limits
    (order,) = [order for order in beside.look(other=POLICY) if order.drive == DRIVE]
    assert order.reason is Reason.CURVE
    assert order.limits == EXACT._replace(cost_read=LINE, cost_write=LINE)
    assert beside.look(other=POLICY) == []


def test_parts_that_somebody_changed_are_put_back() -> None:
    beside = Beside()
    beside.look()
    wanted = beside.in_force[DRIVE]
    for size in (None, 4 * KIB):
        beside.in_force[DRIVE] = wanted._replace(split_size=size)
        assert beside.look() == [SetLimits(DRIVE, wanted, Reason.OVERWRITTEN)]


@pytest.mark.parametrize("storage", ["sda", None])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_look_before_the_storage_is_known_changes_no_parts(
    storage: str | None, restarted: bool
) -> None:
    beside = Beside(StoragePolicy())
    beside.look()
    if restarted:
        sent = {drive: DriveState(sent=Sent(limits)) for drive, limits in beside.in_force.items()}
        beside.state = State(drives=sent)
    seen = DriveSeen(POLICY, None, beside.in_force[DRIVE], abilities=PATCHED, storage=storage)
    beside.state, orders = decide(
        beside.state, Observation({DRIVE: seen}, partial=True), NS_PER_S + NS_PER_S // 2
    )
    assert orders == []
    assert beside.look() == []


PLATEAU = CostCurve(((4 * KIB, 1.0), (128 * KIB, 10.0), (1024 * KIB, 12.0)))


@pytest.mark.parametrize("kib", [12, 24, 96, 192])
def test_one_size_keeps_its_limit_on_a_curve_that_flattens(kib: int) -> None:
    log = run(
        [Phase(12, (Stream.of(kib * KIB),))],
        DrivePolicy(limit=3000),
        model=CostModel(PLATEAU, PLATEAU),
    )
    assert log.rate(4, 12) == pytest.approx(3000, rel=0.01)


@pytest.mark.parametrize("limit", [10, 300])
def test_requests_that_all_cost_the_same_keep_to_their_limit_from_the_start(limit: int) -> None:
    curve = CostCurve(((4 * KIB, 1.0),))
    mixed = Stream(((5 * KIB, 0.3), (100 * KIB, 0.4), (4096 * KIB, 0.3)), write_ratio=0.3)
    small = Stream.of(4 * KIB)
    log = run(
        [Phase(10, (small,)), Phase(20, (mixed, small))],
        DrivePolicy(limit=limit),
        model=CostModel(curve, curve),
    )
    assert [reason for _, reason in log.changes] == ["POLICY"]
    assert log.rate(3, 30) == pytest.approx(limit, rel=0.005)
    assert log.worst_window(3, 30) <= limit + 1


@pytest.mark.parametrize("kib", [64, 1024, 4096])
@pytest.mark.parametrize("write_ratio", [0.0, 1.0])
def test_a_direction_whose_requests_all_cost_the_same_keeps_its_own_budget(
    kib: int, write_ratio: float
) -> None:
    same = CostCurve(((4 * KIB, 1.0),))
    curves = (DEFAULT_CURVE, same) if write_ratio else (same, DEFAULT_CURVE)
    log = run(
        [Phase(30, (Stream(((kib * KIB, 1.0),), write_ratio=write_ratio),))],
        DrivePolicy(limit=1000, separate_budgets=True),
        model=CostModel(*curves),
    )
    assert log.rate(10, 30) == pytest.approx(1000, rel=0.01)


@pytest.mark.parametrize("sizes", [(8, 64), (64, 1024), (16, 144)])
def test_sizes_never_seen_alone_pass_by_a_tenth_at_most(sizes: tuple[int, int]) -> None:
    stream = Stream(tuple((kib * KIB, 0.5) for kib in sizes))
    log = run([Phase(12, (stream,))], DrivePolicy(limit=3000), model=CostModel(PLATEAU, PLATEAU))
    assert log.rate(4, 12) <= 1.1 * 3000
    assert log.worst_window(4, 12) <= 1.25 * 3000


@pytest.mark.parametrize("before", [4, 8, 32])
@pytest.mark.parametrize("after", [(128, 256), (64, 192, 512)])
def test_a_size_of_before_a_shift_makes_other_sizes_no_cheaper(
    before: int, after: tuple[int, ...]
) -> None:
    """A tenth too much, a deadband, and a gift. It was 2 to 4 times the limit."""
    mixed = Stream(tuple((kib * KIB, 1 / len(after)) for kib in after))
    phases = [Phase(6, (Stream.of(before * KIB),)), Phase(10, (mixed,))]
    log = run(phases, DrivePolicy(limit=3000), model=CostModel(PLATEAU, PLATEAU))
    assert log.rate(9, 16) <= 1.15 * 3000
    assert log.worst_window(3, 16) <= 1.3 * 3000


FLAT_THEN_STEEP = CostCurve(((4 * KIB, 1.0), (64 * KIB, 1.0), (128 * KIB, 17.0)))


@pytest.mark.parametrize("sizes", [(4, 124), (32, 96), (4, 4, 184)])
def test_sizes_in_turn_whose_mean_is_a_power_of_two_pass_by_a_tenth_at_most(
    sizes: tuple[int, ...],
) -> None:
    """They are counted like 64 KiB alone. It was 5 to 11 times the limit in a second."""
    streams = tuple(Stream(((kib * KIB, 1.0),), depth=1) for kib in sizes)
    log = run(
        [Phase(12, streams, in_turn=True)],
        DrivePolicy(limit=3000),
        model=CostModel(FLAT_THEN_STEEP, FLAT_THEN_STEEP),
    )
    assert log.rate(4, 12) <= 1.1 * 3000
    assert log.worst_window(4, 12) <= 1.25 * 3000


@pytest.mark.parametrize("kib", [4, 8, 12, 16, 24, 48, 64, 192, 1024])
def test_one_size_keeps_its_limit_on_a_disk_whose_small_reads_all_cost_the_same(kib: int) -> None:
    curve = CostCurve(((4 * KIB, 1.0), (16 * KIB, 1.06), (64 * KIB, 3.75), (1024 * KIB, 60.0)))
    log = run(
        [Phase(12, (Stream.of(kib * KIB),))],
        DrivePolicy(limit=3000),
        model=CostModel(curve, curve),
    )
    assert log.rate(4, 12) == pytest.approx(3000, rel=0.01)
