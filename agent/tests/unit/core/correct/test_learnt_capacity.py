"""What a storage's latency has taught the law outlives the agent, and what can't be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from iokeel.core.correct.headroom import LEAST_ROOM
from iokeel.core.decide import decide
from iokeel.core.values.counters import NS_PER_S, Counters, DriveId
from iokeel.core.values.limits import STOCK, UNLIMITED, ThrottleLimits
from iokeel.core.values.observation import DriveSeen, Observation, SetLimits, StorageSeen
from iokeel.core.values.policy import DrivePolicy
from iokeel.core.values.state import State
from iokeel.core.values.storage import StorageCounters, StoragePolicy
from iokeel.store.rows import drive_text, kept_of, state_of, storage_of, storage_text

PROTECTED, OTHER = DriveId("db1", "vda"), DriveId("db2", "vda")
POLICIES = {PROTECTED: DrivePolicy(latency_target_ms=1.0), OTHER: DrivePolicy(weight=10)}
UNKNOWN_CAPACITY = StoragePolicy()


@dataclass
class Host:
    """Two drives on a disk: one with a latency target, and one that makes its reads slow."""

    state: State = field(default_factory=State)
    in_force: dict[DriveId, ThrottleLimits] = field(default_factory=dict)
    second: int = 0
    policy: StoragePolicy = UNKNOWN_CAPACITY

    def look(
        self,
        *,
        latency_ms: float = 5.0,
        reads: int = 3000,
        there: tuple[DriveId, ...] = (PROTECTED, OTHER),
        storage: str | None = "sda",
        complete: bool = True,
        policies: Mapping[DriveId, DrivePolicy] = POLICIES,
    ) -> list[SetLimits]:
        self.second += 1
        now_ns = self.second * NS_PER_S
        rates = {PROTECTED: (500, latency_ms), OTHER: (reads, 5.0)}
        seen = {}
        done_all = took_ns = 0
        for drive in there:
            rate, ms = rates[drive]
            done = rate * self.second
            counters = Counters(now_ns, done, 4096 * done, 0, 0, round(done * ms * 1e6), 0)
            done_all, took_ns = done_all + done, took_ns + round(done * ms * 1e6)
            in_force = self.in_force.get(drive, UNLIMITED)
            seen[drive] = DriveSeen(
                policies[drive], counters, in_force, abilities=STOCK, storage=storage
            )
        disk = StorageCounters(now_ns, done_all, took_ns, 0, 0, 0, now_ns, 4096 * done_all, 0)
        storages = {} if storage is None else {storage: StorageSeen(self.policy, disk)}
        observation = Observation(seen, storages=storages, complete=complete)
        self.state, orders = decide(self.state, observation, now_ns)
        self.in_force |= {order.drive: order.limits for order in orders}
        return orders

    def restarted(self) -> Host:
        """Return the host as an agent finds it that knows what the state file has."""
        drives = {
            drive: state_of(drive_text(kept_of(known)))
            for drive, known in self.state.drives.items()
            if known.sent.limits is not None
        }
        texts = {name: storage_text(known) for name, known in self.state.storages.items()}
        storages = {name: storage_of(text) for name, text in texts.items() if text is not None}
        state = State(drives=drives, storages=storages)
        return Host(state, dict(self.in_force), self.second, self.policy)

    @property
    def is_cut(self) -> bool:
        limits = self.in_force.get(OTHER, UNLIMITED)
        return (limits.iops_total or limits.bps_total) is not None


@pytest.fixture
def host() -> Host:
    """A host on which one drive has been cut for the other, and none has a limit of its own."""
    host = Host()
    for _ in range(20):
        host.look()
    assert host.is_cut
    return host


def test_a_restart_lifts_no_limit_that_latency_has_taught(host: Host) -> None:
    """As seen on a host: the first look after a restart released the drive."""
    after = host.restarted()
    for _ in range(4):
        after.look(latency_ms=0.5, reads=500)
        assert after.is_cut
    usable, before = (h.state.storages["sda"].division.usable for h in (after, host))
    assert usable == pytest.approx(before, rel=0.05)


def test_a_guest_that_can_not_be_read_keeps_the_room_that_others_made(host: Host) -> None:
    after = host.restarted()
    for _ in range(4):
        after.look(reads=500, there=(OTHER,), complete=False)
        assert after.is_cut
    after.look(reads=500, there=(OTHER,))  # it has gone
    after.look(reads=500, there=(OTHER,))
    assert not after.is_cut


def test_a_storage_that_can_not_be_told_is_the_last_one_known(host: Host) -> None:
    for each in (host, host.restarted()):
        for _ in range(4):
            each.look(reads=500, storage=None)
            assert each.is_cut


def test_another_target_for_a_storage_forgets_nothing(host: Host) -> None:
    host.policy = replace(UNKNOWN_CAPACITY, latency_target_ms=3.0)
    for _ in range(4):
        host.look(latency_ms=0.5, reads=500)
        assert host.is_cut


def test_without_a_latency_target_nothing_is_held_back(host: Host) -> None:
    none = dict.fromkeys(POLICIES, DrivePolicy())
    for _ in range(2):
        host.look(policies=none)
    assert not host.is_cut


def test_an_agent_that_lost_what_a_storage_taught_opens_nothing_before_the_storage_tells() -> None:
    """Drives without a limit of their own are held by the division alone."""
    host = Host(policy=StoragePolicy(capacity=3000, latency_target_ms=1.0))
    for _ in range(5):
        host.look()
    assert all(not limits.unlimited for limits in host.in_force.values())
    after = host.restarted()
    after.state = replace(after.state, storages={})
    held = dict(after.in_force)
    assert after.look() == []
    for _ in range(3):
        after.look()
        assert all(not limits.unlimited for limits in after.in_force.values()), held


def test_a_corrected_capacity_stays_corrected_after_a_restart() -> None:
    host = Host(policy=StoragePolicy(capacity=9000, latency_target_ms=1.0))
    for _ in range(20):
        host.look()
    ratio = host.state.storages["sda"].feedback.ratio
    assert ratio < 0.9
    after = host.restarted()
    after.look()
    assert after.state.storages["sda"].feedback.ratio <= ratio + 0.01


def test_a_drive_whose_target_is_taken_away_is_divided_with_the_others() -> None:
    host = Host(policy=StoragePolicy(capacity=9000, latency_target_ms=1.0))
    both = dict.fromkeys(POLICIES, DrivePolicy(latency_target_ms=1.0))
    for _ in range(80):
        host.look(policies=both)
    after = host.restarted()
    for _ in range(4):
        after.look()
        assert not after.state.failures
    assert after.is_cut


def test_a_room_that_an_earlier_version_let_vanish_begins_with_the_least() -> None:
    kept = storage_of('{"capacity":9000,"ratio":0.5,"room":0.0,"peak":0.0,"usable":4500.0}')
    assert kept.feedback.room == LEAST_ROOM


def test_only_a_storage_without_a_configured_capacity_has_a_peak() -> None:
    """Elsewhere nobody uses it, and it would grow as long as the storage is short."""
    for policy in (UNKNOWN_CAPACITY, StoragePolicy(9000, 1.0)):
        host = Host(policy=policy)
        for _ in range(20):
            host.look()
        assert (host.state.storages["sda"].feedback.peak > 0) is (policy.capacity is None)


@pytest.mark.parametrize("peak", ["1.3e15", "1.7e308", "null"])
def test_a_peak_that_an_earlier_version_let_grow_costs_no_ratio_or_room(peak: str) -> None:
    text = f'{{"capacity":9000,"ratio":0.5,"room":0.3,"peak":{peak},"usable":4500.0}}'
    kept = storage_of(text).feedback
    assert (kept.ratio, kept.room) == (0.5, 0.3)
    assert 0 <= kept.peak <= 1e15
