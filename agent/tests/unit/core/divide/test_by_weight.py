"""A hard disk that its scheduler shares out by VMs' weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

import pytest

from iokeel.core.correct.capacity import FIRST_ROOM_RATIO
from iokeel.core.divide.everything import allocate
from iokeel.core.divide.storage import WRITING_INTERVALS
from iokeel.core.values.counters import NS_PER_S, DriveId, Flow, Rates
from iokeel.core.values.observation import StorageSeen
from iokeel.core.values.policy import DrivePolicy, TenantPolicy, VmPolicy
from iokeel.core.values.state import (
    Demand,
    DriveState,
    Feedback,
    Measured,
    Share,
    StorageState,
    VmPart,
)
from iokeel.core.values.storage import StorageCounters, StoragePolicy

HAS_BEEN_FULL = Feedback(room=FIRST_ROOM_RATIO, passed=(inf, 1.0))
DISK = "sda"
POLICY = StoragePolicy(capacity=120, latency_target_ms=60.0)


@dataclass
class Host:
    """Drives on a hard disk, and what they did in the last second."""

    weighted: bool | None = True
    counters: StorageCounters | None = None
    before: Mapping[str, StorageState] = field(
        default_factory=lambda: {DISK: StorageState(POLICY, feedback=HAS_BEEN_FULL)}
    )
    known: dict[DriveId, DriveState] = field(default_factory=dict)
    tenants: dict[str, TenantPolicy] = field(default_factory=dict)
    granted: dict[str, int | None] = field(default_factory=dict)

    def drive(
        self,
        name: str,
        reads: float = 0.0,
        writes: float = 0.0,
        *,
        full: bool = False,
        latency_ms: float = 50.0,
        tenant: str | None = None,
        vm: VmPolicy | None = None,
        **promised: Any,
    ) -> None:
        """Add a drive, or replace it. full: whether its limits held it."""
        did = Rates(1.0, Flow(reads, reads * 4096), Flow(writes, writes * 4096), None, None)
        if reads:
            did = did._replace(read_latency_s=latency_ms / 1000)
        self.known[DriveId(name, "vda")] = DriveState(
            policy=DrivePolicy(**promised),
            storage=DISK,
            tenant=tenant,
            measured=Measured(rates=did, rate=reads + writes),
            demand=Demand(rate=reads + writes, backlogged=full),
            vm=VmPart(vm) if vm else None,
        )

    def allot(self, *, complete: bool = True) -> dict[str, Share]:
        """Return the drives' shares by name."""
        storages = {DISK: StorageSeen(POLICY, self.counters, self.weighted)}
        self.before, shares = allocate(
            self.known, storages, self.before, self.tenants, self.granted, complete=complete
        )
        return {drive.domain: share for drive, share in shares.items()}

    @property
    def disk(self) -> StorageState:
        return self.before[DISK]


def readers(**promised: Any) -> Host:
    """Return a host whose drives read in sequence, far above the capacity in random reads."""
    host = Host()
    for name in ("a", "b", "c"):
        host.drive(name, 200, **promised)
    return host


def beside_victim(latency_ms: float) -> Host:
    host = readers()
    host.drive("victim", 20, latency_ms=latency_ms, latency_target_ms=33.0)
    return host


def test_it_is_not_divided() -> None:
    host = readers()
    assert host.allot() == {}
    assert host.disk.by_weight
    assert host.disk.division.usable is None


@pytest.mark.parametrize("weighted", [None, False])
def test_one_that_is_not_known_to_be_is_divided(weighted: bool | None) -> None:
    host = readers()
    host.weighted = weighted
    assert host.allot()["a"].most == pytest.approx(40)
    assert not host.disk.by_weight


def test_what_was_known_last_counts_while_it_cannot_be_told() -> None:
    host = readers()
    host.drive("c", 200, weight=200)
    host.allot()
    host.weighted = None
    assert host.allot() == {}
    host.weighted = False
    shares = host.allot()  # near its target, they did all that it can do
    assert sum(share.most for share in shares.values()) == pytest.approx(3 * 600)
    host.weighted = None
    assert host.allot().keys() == shares.keys()


def test_its_own_latency_is_not_followed() -> None:
    host = readers()
    for second in range(1, 6):  # 600 requests a second of 500 ms
        done, time_ns = 600 * second, 600 * second * 500_000_000
        host.counters = StorageCounters(
            second * NS_PER_S, done, time_ns, 0, 0, 300, second * NS_PER_S
        )
        assert host.allot() == {}
    assert host.disk.activity is not None
    assert host.disk.activity.latency_s == 0.5
    assert host.disk.feedback.ratio == 1.0


@pytest.mark.parametrize(
    "promise",
    [
        {"reservation": 10},
        {"vm": VmPolicy(reservation=10)},
        {"tenant": "acme"},
    ],
)
def test_a_reservation_divides_it(promise: dict[str, Any]) -> None:
    host = readers()
    host.tenants = {"acme": TenantPolicy(reservation=10)}
    assert host.allot() == {}
    host.drive("owed", 5, **promise)
    shares = host.allot()
    assert shares["owed"].most >= 10
    assert host.disk.division.usable is not None
    del host.known[DriveId("owed", "vda")]
    assert host.allot() == {}


def test_a_vm_that_cannot_be_read_may_have_a_reservation() -> None:
    host = readers()
    assert host.allot(complete=False)["a"].most == pytest.approx(40)
    assert host.allot() == {}
    assert host.allot(complete=False) == {}


def test_one_that_the_fleet_shares_is_divided() -> None:
    host = readers()
    host.granted = {DISK: 60}
    assert host.allot()["a"].most <= 60


def test_drives_that_only_read_are_not_cut_and_it_is_said_that_nothing_helps() -> None:
    host = beside_victim(latency_ms=42)
    for _ in range(20):
        assert host.allot() == {}
    assert host.disk.suffering == (DriveId("victim", "vda"),)
    assert host.disk.division.exhausted
    host.drive("victim", 20, latency_ms=20, latency_target_ms=33.0)
    host.allot()
    assert not host.disk.division.exhausted


def test_drives_that_write_are_cut_from_what_they_do() -> None:
    host = beside_victim(latency_ms=200)
    host.drive("writer", 0, 40)
    shares = host.allot()
    usable = host.disk.division.usable
    assert usable == pytest.approx(660)
    for _ in range(20):
        latency_ms = 1000 * host.disk.feedback.room
        host.drive("victim", 20, latency_ms=latency_ms, latency_target_ms=33.0)
        shares = host.allot()
    others = [share.most for name, share in shares.items() if name != "victim"]
    assert sum(others) < 0.3 * 660


def test_few_writes_do_not_count() -> None:
    host = beside_victim(latency_ms=200)
    host.drive("writer", 0, 11)
    assert host.allot() == {}
    host.drive("writer", 0, 12)
    assert host.allot() != {}


def test_a_writer_counts_while_limits_hold_it_and_for_a_while_after() -> None:
    host = beside_victim(latency_ms=200)
    host.drive("writer", 0, 1, full=True)
    assert host.allot() != {}
    host.drive("writer", 0, 0)
    for _ in range(WRITING_INTERVALS - 1):
        assert host.allot() != {}
    assert host.allot() == {}


def test_writers_are_free_while_nobody_suffers() -> None:
    host = beside_victim(latency_ms=20)
    host.drive("writer", 0, 40)
    for _ in range(5):
        assert host.allot() == {}
    assert not host.disk.division.exhausted
