"""Bounds on requests in flight, and times below the throttle, for a latency target."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.core.decide import decide
from iokeel.core.enforce.at_a_stop import static_orders
from iokeel.core.enforce.in_flight import is_off, with_aids
from iokeel.core.values.counters import NS_PER_S, Counters, DriveId
from iokeel.core.values.curve import DEFAULT_CURVE, DEFAULT_MODEL
from iokeel.core.values.limits import STOCK, UNLIMITED, Abilities, ThrottleLimits
from iokeel.core.values.observation import DriveSeen, Observation, Reason, SetLimits, StorageSeen
from iokeel.core.values.policy import DrivePolicy
from iokeel.core.values.state import DriveState, State, StorageState
from iokeel.core.values.storage import StorageCounters, StoragePolicy
from iokeel.store.rows import drive_text, kept_of, state_of
from testing.hypervisors.abilities import PATCHED, TODAYS

DRIVE = DriveId("db1", "vda")
POLICY = DrivePolicy(limit=4000)
SSD = StoragePolicy(capacity=100_000, latency_target_ms=1.0)
KIB = 1024
# At 4,000 requests a second of 2 ms each, eight are in flight: by Little's law.
EIGHT = 8.0


class Disk:
    """A drive on a storage, looked at once a second. Its QEMU does what it is sent."""

    def __init__(self, storage: StoragePolicy = SSD, policy: DrivePolicy | None = POLICY) -> None:
        self.storage, self.policy = storage, policy
        self.abilities: Abilities | None = TODAYS
        self.state = State()
        self.in_force: ThrottleLimits | None = UNLIMITED
        self.second = 0
        self.done = [0, 0]
        self.of_guest = True

    def look(self, reads: int = 0, size: int = 4096, **seen: Any) -> list[SetLimits]:
        """Look after so many reads more of a size."""
        self.second += 1
        self.done = [self.done[0] + reads, self.done[1] + reads * size]
        at_ns = self.second * NS_PER_S
        times = (0, 0) if self.of_guest else (None, None)
        counters = Counters(at_ns, self.done[0], self.done[1], 0, 0, *times)
        drive = DriveSeen(self.policy, counters, self.in_force, abilities=self.abilities)
        disk = StorageSeen(self.storage, StorageCounters(at_ns, 0, 0, 0, 0, 0, 0))
        observation = Observation({DRIVE: drive._replace(storage="sda")}, storages={"sda": disk})
        if seen:
            observation = Observation({DRIVE: drive._replace(**seen)}, partial=True)
        self.state, orders = decide(self.state, observation, at_ns)
        for order in orders:
            self.in_force = order.limits
        return orders

    @property
    def bound(self) -> float | None:
        assert self.in_force is not None
        return self.in_force.max_in_flight

    @property
    def known(self) -> DriveState:
        return self.state.drives[DRIVE]


@pytest.mark.parametrize(
    ("storage", "policy", "needed"),
    [
        (SSD, POLICY, EIGHT),
        (StoragePolicy(), DrivePolicy(limit=4000, latency_target_ms=1.0), EIGHT),
        (SSD, DrivePolicy(limit=4000, latency_target_ms=3.0), 3 * EIGHT),  # the longer one
        (SSD, DrivePolicy(limit=4000, latency_target_ms=0.1), EIGHT),
        (SSD, DrivePolicy(limit=4000, separate_budgets=True), 2 * EIGHT),
        (SSD, DrivePolicy(limit=1000), EIGHT / 4),
        (SSD, DrivePolicy(limit=10), 1.0),  # one request must be possible
    ],
)
def test_a_bound_is_what_the_limit_needs_at_twice_the_target(
    storage: StoragePolicy, policy: DrivePolicy, needed: float
) -> None:
    disk = Disk(storage, policy)
    (order,) = disk.look()
    assert order.limits.latency
    assert order.limits.max_in_flight is not None
    assert needed <= order.limits.max_in_flight <= 1.25 * needed
    assert [disk.look(reads=500) for _ in range(20)] == [[]] * 20


@pytest.mark.parametrize(
    ("storage", "policy", "abilities"),
    [
        (StoragePolicy(capacity=100_000), POLICY, TODAYS),
        (SSD, DrivePolicy(), TODAYS),  # without a limit
        (SSD, POLICY, PATCHED),
        (SSD, POLICY, STOCK),
        (SSD, POLICY, None),
    ],
)
def test_nothing_is_asked_without_a_target_a_limit_or_a_qemu_that_can(
    storage: StoragePolicy, policy: DrivePolicy, abilities: Abilities | None
) -> None:
    disk = Disk(storage, policy)
    disk.abilities = abilities
    disk.look()
    disk.look(reads=1000)
    assert disk.in_force is not None
    assert (disk.in_force.latency, disk.bound) == (False, None)


@pytest.mark.parametrize("abilities", [TODAYS, TODAYS._replace(cost_curve=False)])
@pytest.mark.parametrize("lost", ["measures_latency", "bounds_in_flight"])
def test_a_qemu_that_can_do_one_of_them_is_asked_for_that(abilities: Abilities, lost: str) -> None:
    disk = Disk()
    without: dict[str, Any] = {lost: False}
    disk.abilities = abilities._replace(**without)
    disk.look()
    assert disk.in_force is not None
    assert disk.in_force.latency == (lost != "measures_latency")
    assert (disk.bound is None) == (lost == "bounds_in_flight")


def test_larger_requests_are_fewer_and_have_more_time() -> None:
    disk = Disk()
    disk.look()
    for _ in range(15):
        disk.look(reads=100, size=64 * KIB)
    cost = DEFAULT_CURVE.cost(64 * KIB)
    needed = 2 * 4000 / cost * (0.001 + 3 * (cost - 1) / 100_000)
    assert disk.bound is not None
    assert needed <= disk.bound < 2 * needed < EIGHT
    assert disk.known.sent.reason is Reason.LATENCY


def test_smaller_requests_raise_the_bound_in_the_next_look_and_larger_ones_lower_it_later() -> None:
    disk = Disk()
    disk.look()
    for _ in range(15):
        disk.look(reads=100, size=64 * KIB)
    (order,) = disk.look(reads=2000)
    assert order.reason is Reason.LATENCY
    assert (disk.bound or 0) >= EIGHT
    sent = [disk.look(reads=100, size=64 * KIB) for _ in range(15)]
    assert sum(map(len, sent)) == 1
    assert sent[:8] == [[]] * 8


def test_a_storage_without_a_known_capacity_lets_large_requests_take_as_much_longer() -> None:
    disk = Disk(StoragePolicy(latency_target_ms=1.0))
    disk.look()
    assert [disk.look(reads=50, size=1024 * KIB) for _ in range(15)] == [[]] * 15
    assert (disk.bound or 0) >= EIGHT


@given(
    limit=st.integers(1, 10**6),
    target_ms=st.floats(0.05, 100),
    size=st.sampled_from([4 * KIB, 16 * KIB, 256 * KIB, 1024 * KIB]),
    reads=st.integers(1, 5000),
    capacity=st.none() | st.integers(1000, 10**6),
)
def test_a_bound_never_holds_a_drive_whose_requests_take_twice_the_target(
    limit: int, target_ms: float, size: int, reads: int, capacity: int | None
) -> None:
    """Requests larger than 4 KiB may take as much longer as a storage's target allows them."""
    policy = DrivePolicy(limit=limit, latency_target_ms=target_ms)
    disk = Disk(StoragePolicy(capacity), policy)
    for _ in range(3):
        disk.look(reads=reads, size=size)
    cost = DEFAULT_CURVE.cost(size)
    raw_iops = limit / cost
    longer_s = 0.0 if capacity is None else 3 * (cost - 1) / capacity
    assert disk.bound is not None
    assert raw_iops * 2 * (target_ms / 1000 + longer_s) <= disk.bound * (1 + 1e-3)


def test_it_goes_with_the_target_the_policy_and_the_agent() -> None:
    disk = Disk()
    disk.look()
    (order,), _ = static_orders(disk.state, [DRIVE])
    assert (order.limits.max_in_flight, order.limits.latency) == (None, False)
    disk.storage = StoragePolicy(capacity=100_000)
    (order,) = disk.look()
    assert (order.limits.max_in_flight, order.limits.latency) == (None, False)
    assert order.reason is Reason.LATENCY
    disk.storage = SSD
    (order,) = disk.look()
    assert order.limits.max_in_flight is not None
    disk.policy = None
    (order,) = disk.look()
    assert (order.limits, order.reason) == (UNLIMITED, Reason.RELEASED)


def test_a_bound_from_before_the_agent_is_given_back() -> None:
    disk = Disk()
    disk.in_force = ThrottleLimits(iops_total=9, max_in_flight=0.5)
    disk.look()
    disk.policy = None
    (order,) = disk.look()
    assert order.limits == ThrottleLimits(iops_total=9, max_in_flight=0.5)


@pytest.mark.parametrize("field", ["max_in_flight", "latency"])
def test_what_somebody_else_changed_is_put_back(field: str) -> None:
    disk = Disk()
    disk.look()
    wanted = disk.in_force
    assert wanted is not None
    disk.in_force = wanted._replace(**{field: getattr(UNLIMITED, field)})
    assert disk.look() == [SetLimits(DRIVE, wanted, Reason.OVERWRITTEN)]


@pytest.mark.parametrize("storage", ["sda", None])
def test_a_look_before_the_storage_or_the_qemu_is_known_changes_nothing(
    storage: str | None,
) -> None:
    disk = Disk()
    disk.look()
    assert disk.look(storage=storage) == []
    disk.abilities = None
    assert disk.look() == []
    disk.in_force = None
    assert disk.look() == []


def test_a_guest_that_moves_between_qemus_has_what_each_can() -> None:
    """Its limits come along only as far as libvirt knows them, which is stock QEMU's fields."""
    disk = Disk()
    disk.look()
    for abilities, can in ((PATCHED, False), (TODAYS, True), (STOCK, False), (TODAYS, True)):
        assert disk.in_force is not None
        disk.in_force, disk.abilities = disk.in_force.stock, abilities
        (order,) = disk.look()
        assert (order.limits.max_in_flight is not None, order.limits.latency) == (can, can)
        assert (order.limits.cost_read is None) == (abilities == STOCK)
        assert disk.look() == []


def test_a_restarted_agent_finds_its_bound_and_changes_nothing() -> None:
    disk = Disk()
    for _ in range(15):
        disk.look(reads=100, size=64 * KIB)
    bound, sent = disk.bound, disk.known.sent
    disk.state = State(drives={DRIVE: DriveState(policy=POLICY, storage="sda", sent=sent)})
    assert [disk.look(reads=100, size=64 * KIB) for _ in range(5)] == [[]] * 5
    assert disk.bound == bound


def test_reads_in_pieces_are_as_many_requests_as_the_storage_sees() -> None:
    disk = Disk()
    for _ in range(3):
        disk.look(reads=10, size=256 * KIB)
    known = disk.known
    assert known.sent.limits is not None
    limits = known.sent.limits._replace(split_size=16 * KIB)
    known = known._replace(sent=known.sent._replace(limits=limits))
    bound = with_aids(limits, known, StorageState(SSD), DEFAULT_MODEL, 4000.0).max_in_flight
    cost = DEFAULT_CURVE.cost(256 * KIB) / 16
    needed = 2 * 4000 / cost * (0.001 + 3 * (cost - 1) / 100_000)
    assert bound is not None
    assert needed <= bound <= 1.25 * needed


def test_a_bound_is_that_of_the_limits_in_force_and_no_reason_to_follow_a_share() -> None:
    """Limits of an idle drive don't follow small moves of its share."""
    disk = Disk()
    for _ in range(3):
        disk.look(reads=10)
    known = disk.known
    for rate in (3300.0, 4000.0, 4700.0):
        now_ns = 3 * NS_PER_S
        assert is_off(known, StorageState(SSD), DEFAULT_MODEL, rate, now_ns) == (rate > 4000)


@pytest.mark.parametrize("reads", [0, 10])
def test_a_bound_grows_with_the_limit(reads: int) -> None:
    disk = Disk()
    for limit in (1000, 8000):
        disk.policy = DrivePolicy(limit=limit)
        (order,) = disk.look(reads=reads)
        assert order.reason is Reason.POLICY
        assert (order.limits.max_in_flight or 0) >= limit * EIGHT / 4000


def test_a_drive_without_a_guest_or_a_limit_is_timed_for_its_target() -> None:
    """Nobody else can time a storage daemon's drive, or tell that it suffers."""
    disk = Disk(StoragePolicy(), DrivePolicy(latency_target_ms=1.0))
    assert disk.look() == []
    disk.of_guest = False
    disk.in_force = ThrottleLimits(iops_total=9)
    (order,) = disk.look()
    assert order.limits == ThrottleLimits(iops_total=9, latency=True)
    assert [disk.look(reads=5) for _ in range(3)] == [[]] * 3
    assert not disk.known.is_held


@pytest.mark.parametrize("gone", ["target", "policy", "limit"])
def test_such_a_drive_is_timed_until_nothing_needs_it(gone: str) -> None:
    own = ThrottleLimits(iops_total=9)
    disk = Disk(StoragePolicy(), DrivePolicy(latency_target_ms=1.0))
    disk.of_guest, disk.in_force = False, own
    disk.look()
    if gone == "limit":  # for a while it has one of ours
        disk.policy = DrivePolicy(limit=100, latency_target_ms=1.0)
        (order,) = disk.look()
        assert order.limits.latency
        assert order.limits.iops_total == 100
        disk.policy = DrivePolicy(latency_target_ms=1.0)
        (order,) = disk.look()
        assert order.limits == own._replace(latency=True)
    disk.look()
    disk.policy = None if gone == "policy" else DrivePolicy()
    (order,) = disk.look()
    assert order == SetLimits(DRIVE, own, Reason.RELEASED)
    assert disk.look() == []
    assert disk.known.sent.limits is None


@pytest.mark.parametrize("target_ms", [None, 1.0])
def test_an_order_to_time_a_drive_that_failed_is_sent_again(target_ms: float | None) -> None:
    disk = Disk(StoragePolicy(), DrivePolicy(latency_target_ms=1.0))
    disk.of_guest = False
    disk.look()
    disk.policy = DrivePolicy(latency_target_ms=target_ms)
    before = disk.in_force = UNLIMITED._replace(latency=target_ms is None)
    disk.look()
    disk.in_force = before
    (order,) = disk.look(failed=True, counters=None)
    assert order.limits.latency == (target_ms is not None)


def test_a_timed_drive_whose_limits_somebody_changes_keeps_those() -> None:
    disk = Disk(StoragePolicy(), DrivePolicy(latency_target_ms=1.0))
    disk.of_guest = False
    disk.look()
    theirs = disk.in_force = ThrottleLimits(iops_total=5)
    disk.look()
    disk.look()
    assert disk.in_force == theirs._replace(latency=True)
    disk.policy = None
    disk.look()
    assert disk.in_force == theirs


def test_a_restarted_agent_still_gives_back_what_it_has_timed() -> None:
    own = ThrottleLimits(iops_total=9)
    disk = Disk(StoragePolicy(), DrivePolicy(latency_target_ms=1.0))
    disk.of_guest, disk.in_force = False, own
    disk.look()
    disk.state = State(drives={DRIVE: state_of(drive_text(kept_of(disk.known)))})
    for _ in range(3):
        disk.look()
        assert disk.in_force == own._replace(latency=True)
    disk.policy = None
    disk.look()
    assert disk.in_force == own
