"""Shares of storages and tenants, on cases whose figures are worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import pytest

from iokeel.core.correct.capacity import FIRST_ROOM_RATIO, POWER, STEP
from iokeel.core.correct.lessons import SLACK
from iokeel.core.divide.everything import allocate, owed_to_unread
from iokeel.core.divide.groups import Group, owed_to_unprotected
from iokeel.core.divide.parts import limits_of, with_tenant_parts, with_vm_parts
from iokeel.core.divide.pool import SPARE_RATIO
from iokeel.core.values.claimant import FOOTHOLD_RATIO, TRIED_REQUESTS, Claimant
from iokeel.core.values.counters import NS_PER_S, Counters, DriveId, Flow, Rates
from iokeel.core.values.curve import DEFAULT_MODEL, CostModel
from iokeel.core.values.limits import ThrottleLimits
from iokeel.core.values.observation import StorageSeen
from iokeel.core.values.policy import DrivePolicy, TenantPolicy, VmPolicy
from iokeel.core.values.state import (
    NEW,
    Demand,
    DriveState,
    Feedback,
    Measured,
    Pricing,
    Sent,
    Share,
    StorageState,
    VmPart,
)
from iokeel.core.values.storage import StorageCounters, StoragePolicy

DISK = "sda"
CAPACITY = StoragePolicy(capacity=10_000)
HAS_BEEN_FULL = Feedback(room=FIRST_ROOM_RATIO, passed=(inf, 1.0))
FEW_REQUESTS = Counters(1, 60, 60 << 12, TRIED_REQUESTS - 61, 0, None, None)


@dataclass
class Host:
    """Drives and what they did in the last second, on storages with a state each."""

    storages: dict[str, StorageSeen] = field(default_factory=lambda: {DISK: StorageSeen(CAPACITY)})
    tenants: dict[str, TenantPolicy] = field(default_factory=dict)
    before: Mapping[str, StorageState] = field(default_factory=dict)
    known: dict[DriveId, DriveState] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Let the storages have been full, or nothing would be divided."""
        self.before = {
            name: StorageState(seen.policy, feedback=HAS_BEEN_FULL)
            for name, seen in self.storages.items()
        }

    def drive(
        self,
        name: str,
        rate: float | None = 0.0,
        *,
        full: bool = False,
        storage: str = DISK,
        tenant: str | None = None,
        policy: bool = True,
        untried: bool = False,
        latency_ms: float = 1.0,
        vm: tuple[str, VmPolicy] | None = None,
        **promised: Any,
    ) -> None:
        """Add a drive.

        full: whether its limits were what held it. untried: its guest has hardly begun.
        vm: its VM, if that matters.
        """
        drive = DriveId(vm[0], name) if vm else DriveId(name, "vda")
        promise = DrivePolicy(**promised) if policy else None
        did = None
        if rate is not None:
            seconds = latency_ms / 1000 if rate else None
            did = Rates(1.0, Flow(rate, rate * 4096), Flow(0, 0), seconds, None)
        self.known[drive] = DriveState(
            policy=promise,
            storage=storage,
            tenant=tenant,
            measured=Measured(FEW_REQUESTS if untried else None, did, rate),
            demand=Demand(rate=rate or 0.0, backlogged=full),
            vm=VmPart(vm[1]) if vm else None,
            held=inf,
        )

    def allot(self) -> dict[str, Share]:
        """Return the drives' shares by their names, and keep the storages' states."""
        limits = limits_of(self.tenants, {})
        parts = with_vm_parts(self.known, self.known, ())
        self.known = {**with_tenant_parts(parts, limits, (), ())}
        self.before, shares = allocate(self.known, self.storages, self.before, self.tenants, {})
        return {_name(drive): share for drive, share in shares.items()}

    def most(self) -> dict[str, float]:
        """Return what limits over several drives and shares leave to each drive, by its name."""
        shares = self.allot()
        parts = {_name(drive): known.parts_most for drive, known in self.known.items()}
        found = {name: inf if most is None else most for name, most in parts.items()}
        found |= {name: min(share.most, found[name]) for name, share in shares.items()}
        return {name: most for name, most in found.items() if most < inf}

    @property
    def disk(self) -> StorageState:
        return self.before[DISK]


def _name(drive: DriveId) -> str:
    return drive.domain if drive.target == "vda" else drive.target


def test_backlogged_drives_divide_a_storage_by_weight() -> None:
    host = Host()
    for name, weight in {"a": 400, "b": 300, "c": 200, "d": 100}.items():
        host.drive(name, 1000, full=True, weight=weight)
    assert host.most() == pytest.approx({"a": 4000, "b": 3000, "c": 2000, "d": 1000})
    assert host.disk.division.level == 10
    assert host.disk.division.given == pytest.approx(10_000)


def test_reservations_come_before_weights_and_limits_before_both() -> None:
    host = Host()
    host.drive("a", 1000, full=True, reservation=3000)
    host.drive("b", 1000, full=True)
    host.drive("c", 1000, full=True, limit=1000)
    shares = host.allot()
    assert shares["a"].most == pytest.approx(6000)
    assert shares["a"].owed == 3000
    assert shares["a"].by_weight == pytest.approx(3000)
    assert shares["b"].most == pytest.approx(3000)
    assert shares["c"].most >= 1000


def test_a_drive_below_its_limits_wants_what_it_does_and_leaves_the_rest() -> None:
    host = Host()
    host.drive("a", 500)
    host.drive("b", 1000, full=True)
    host.drive("c", 1000, full=True)
    most = host.most()
    assert most["b"] == most["c"] == pytest.approx(4750)
    assert host.disk.division.given == pytest.approx(10_000)


def test_an_idle_drive_is_entitled_to_what_it_would_get_if_it_woke() -> None:
    host = Host()
    host.drive("idle", 0, reservation=2000, weight=200)
    host.drive("a", 1000, full=True)
    host.drive("b", 1000, full=True)
    most = host.most()
    assert most["a"] == most["b"] == 5000
    assert most["idle"] == 10_000  # 2,000 + 200 x 50, bound by what there is
    host.drive("c", 1000, full=True, weight=800)
    assert host.most()["idle"] == pytest.approx(2000 + 200 * 10)


def test_where_all_wants_fit_every_drive_may_do_what_the_storage_can() -> None:
    host = Host()
    host.drive("a", 3000)
    host.drive("b", 4000)
    host.drive("c", 0)
    assert set(host.most().values()) == {10_000}
    assert host.disk.division.level == inf
    assert not host.disk.division.short


def device(second: int, raw_iops: int, latency_ms: float) -> StorageCounters:
    """Return the counters of a device that has done so many reads a second since second 0."""
    reads = second * raw_iops
    busy_ns = round(second * min(1.0, raw_iops * latency_ms / 1000) * NS_PER_S)
    took_ns = round(reads * latency_ms * 1e6)
    now_ns = second * NS_PER_S
    return StorageCounters(now_ns, reads, took_ns, 0, 0, 0, busy_ns, reads * 4096, 0)


def count(host: Host, raw_iops: int, latency_ms: float, policy: StoragePolicy) -> dict[str, float]:
    """Return the shares after a second in which the device did so many reads of 4 KiB."""
    for second in range(2):
        counters = device(second, raw_iops, latency_ms)
        host.storages[DISK] = StorageSeen(policy, counters)
        most = host.most()
    return most


@pytest.mark.parametrize(("raw_iops", "most"), [(2000, 5000), (6000, 3000), (42_000, 1000)])
def test_what_a_device_did_beyond_known_drives_is_not_there_to_divide(
    raw_iops: int, most: float
) -> None:
    host = Host()
    host.drive("a", 1000, full=True)
    host.drive("b", 1000, full=True)
    found = count(host, raw_iops, 20.0, StoragePolicy(capacity=10_000))
    assert found == pytest.approx({"a": most, "b": most})
    # They may do again what they did, because nothing says that this is too much.
    assert host.disk.division.usable == pytest.approx(max(2000, 10_000 - (raw_iops - 2000)))


@pytest.mark.parametrize("latency_ms", [0.02, 0.2])
def test_what_a_drive_without_a_policy_reads_from_a_cache_costs_nobody_anything(
    latency_ms: float,
) -> None:
    """Its guest is told of 40,000 reads a second, of which the device does none."""
    host = Host()
    host.drive("stranger", 40_000, policy=False)
    host.drive("db", 1000, full=True, reservation=500, limit=1000)
    host.drive("other", 0)
    assert count(host, 1000, latency_ms, StoragePolicy(2000, 2.0)) == {}


def test_what_a_drive_reads_from_a_cache_costs_nobody_anything() -> None:
    host = Host()
    host.drive("cached", 40_000)
    host.drive("db", 1000, full=True, limit=1000)
    assert count(host, 1000, 0.2, StoragePolicy(2000, 2.0)) == {}


def test_a_storage_without_counters_or_target_holds_nobody_for_strangers() -> None:
    host = Host()
    host.drive("stranger", 40_000, policy=False)
    host.drive("a", 1000, full=True)
    host.drive("b", 1000, full=True)
    assert host.most() == {"a": 5000, "b": 5000}


def test_strangers_take_nothing_of_what_is_owed() -> None:
    host = Host()
    host.drive("db", 400, full=True, reservation=500)
    host.drive("other", 400, full=True)
    most = count(host, 20_000, 20.0, StoragePolicy(2000, 2.0, least_ratio=1))
    assert most["db"] == 500
    foothold = 0.05 * 2000 * host.disk.feedback.ratio / 2
    assert most["other"] == pytest.approx(foothold)


def test_a_drive_alone_is_held_back_for_nobody() -> None:
    host = Host({DISK: StorageSeen(StoragePolicy(1000, 2.0))})
    for _ in range(5):
        host.drive("a", 3000, latency_ms=50.0)
        assert host.allot() == {}
    assert host.disk.feedback.ratio == 1.0


def test_reservations_that_do_not_fit_are_scaled_down_together_and_it_is_said() -> None:
    host = Host()
    host.drive("a", 1000, full=True, reservation=15_000)
    host.drive("b", 1000, full=True, reservation=5_000)
    host.drive("c", 1000, full=True)
    foothold = 0.05 * 10_000 / 3  # nobody is divided down to nothing
    assert host.most() == pytest.approx({"a": 7500, "b": 2500, "c": foothold})
    assert host.disk.division.kept == 0.5
    assert host.disk.promised == 20_000
    assert host.disk.oversold


def test_reservations_of_idle_drives_are_oversold_too_but_nobody_is_cut() -> None:
    host = Host()
    host.drive("a", 0, reservation=15_000)
    host.drive("b", 1000, full=True, reservation=5_000)
    most = host.most()
    assert most["b"] == 10_000
    assert host.disk.division.kept == 1
    assert host.disk.oversold


def test_a_drive_that_was_not_seen_yet_wants_what_it_is_promised() -> None:
    host = Host()
    host.drive("new", None, reservation=4000)
    host.drive("a", 1000, full=True)
    assert host.most() == {"a": 6000, "new": 10_000}


def test_drives_that_begin_together_may_do_no_more_than_there_is() -> None:
    host = Host()
    host.drive("promised", 0, untried=True, reservation=3000)
    host.drive("heavy", 0, untried=True, weight=300)
    for name in "ab":
        host.drive(name, 0, untried=True)
    host.drive("idle", 0, reservation=1000)
    most = host.most()
    assert most == pytest.approx(
        {"promised": 4000, "heavy": 3000, "a": 1000, "b": 1000, "idle": 10_000}
    )


def test_a_drive_that_begins_beside_busy_ones_has_its_share_and_no_more() -> None:
    host = Host()
    host.drive("new", 0, untried=True)
    for name in "abc":
        host.drive(name, 3000, full=True)
    assert host.most()["new"] == pytest.approx(3333, abs=1)
    assert host.disk.division.given == pytest.approx(10_000)


@pytest.mark.parametrize("owner", ["drive", "VM", "tenant"])
def test_drives_that_begin_divide_what_any_reservation_leaves(owner: str) -> None:
    host = Host(tenants={"acme": TenantPolicy(reservation=8000)} if owner == "tenant" else {})
    for name in ("vdb", "vdc", "vdd", "vde"):
        host.drive(
            name,
            2000,
            tenant="acme",
            reservation=2000 if owner == "drive" else 0,
            vm=("db1", VmPolicy(reservation=8000 if owner == "VM" else 0)),
        )
    new = [f"new{i}" for i in range(20)]
    for name in new:
        host.drive(name, 0, untried=True)
    shares = host.most()
    assert sum(shares[name] for name in new) == pytest.approx(2000)


@pytest.mark.parametrize(
    ("reserved", "limit", "left"), [(3000, 9600, 7000), (3000, 2000, 8000), (9500, 9600, 2000)]
)
def test_what_an_unread_drive_is_owed_is_left_to_it_by_its_storage(
    reserved: int, limit: int, left: int
) -> None:
    """It did 6000 while it was read. The other one has 2000 reserved."""
    host = Host()
    host.drive("unread", 6000, reservation=reserved)
    host.drive("other", 9000, full=True, reservation=2000)
    held = {"db1": host.known.pop(DriveId("unread", "vda"))}
    held["db1"] = held["db1"]._replace(
        pricing=Pricing(rate=float(limit)), sent=Sent(ThrottleLimits(iops_total=limit))
    )
    models: dict[str | None, CostModel] = {DISK: DEFAULT_MODEL}
    owed = owed_to_unread(held.values(), models)
    _, shares = allocate(host.known, host.storages, host.before, {}, {}, unread=owed)
    assert shares[DriveId("other", "vda")].most == left


@pytest.mark.parametrize("demand", [1e9, inf])
def test_what_a_tenant_is_owed_is_owed_whatever_it_demands(demand: float) -> None:
    claimants = [
        Claimant(DriveId(name, "vda"), NEW, DrivePolicy(), "acme", inf, wants)
        for name, wants in (("a", demand), ("b", 100.0))
    ]
    assert owed_to_unprotected([Group(4000, 100, claimants)]) == pytest.approx(4000)


def test_a_drive_that_begins_has_what_an_idle_one_with_a_reservation_leaves() -> None:
    host = Host()
    host.drive("idle", 0, reservation=10_000)
    host.drive("busy", 3000, full=True)
    host.drive("new", 0, untried=True)
    assert host.most()["new"] == pytest.approx(FOOTHOLD_RATIO * 10_000 / 3)
    host.drive("new", 1, full=True, untried=True)
    assert host.most()["new"] == pytest.approx(5000)


def test_a_drive_that_begins_keeps_to_its_tenants_limit() -> None:
    host = Host(tenants={"acme": TenantPolicy(limit=500)})
    host.drive("new", 0, untried=True, tenant="acme")
    assert host.most()["new"] == 500


def test_drives_on_a_storage_of_unknown_capacity_are_bound_by_nothing_there() -> None:
    host = Host({DISK: StorageSeen(StoragePolicy())})
    host.drive("a", 1000, full=True, limit=1000)
    assert host.allot() == {}
    assert host.disk.division.usable is None


def test_drives_of_unknown_storage_keep_their_tenants_limit() -> None:
    host = Host(tenants={"acme": TenantPolicy(limit=1000)})
    host.drive("a", 100, full=True, tenant="acme", storage="nowhere")
    host.drive("b", 100, full=True, tenant="acme")
    assert host.most() == {"a": 500, "b": 500}


def test_a_tenants_limit_holds_over_its_drives_on_two_storages() -> None:
    host = Host({DISK: StorageSeen(CAPACITY), "sdb": StorageSeen(CAPACITY)})
    host.tenants["acme"] = TenantPolicy(limit=3000)
    host.drive("a", 100, full=True, tenant="acme", weight=200)
    host.drive("b", 100, full=True, tenant="acme", weight=100, storage="sdb")
    host.drive("x", 100, full=True)
    host.drive("y", 100, full=True, storage="sdb")
    assert host.most() == {"a": 2000, "b": 1000, "x": 8000, "y": 9000}, (
        "what acme leaves isn't lost"
    )


@pytest.mark.parametrize("busy", [0, 1, 2])
def test_parts_of_a_tenants_limit_add_up_to_it(busy: int) -> None:
    host = Host(tenants={"acme": TenantPolicy(limit=3000)})
    for number in range(5):
        host.drive(f"d{number}", 100 * number, full=number < busy, tenant="acme")
    most = host.most()
    assert 3000 - 5 <= sum(most.values()) <= 3000
    for number in range(busy, 5):  # above what it does
        assert most[f"d{number}"] >= SPARE_RATIO * 100 * number


def test_a_busy_drive_has_all_that_the_tenants_others_leave_but_their_footholds() -> None:
    host = Host(tenants={"acme": TenantPolicy(limit=3000)})
    host.drive("busy", 100, full=True, tenant="acme")
    host.drive("other", 500, tenant="acme")
    host.drive("idle", 0, tenant="acme")
    foothold = FOOTHOLD_RATIO * 3000 / 3
    others = {"other": SPARE_RATIO * 500 + foothold, "idle": foothold}
    assert host.most() == pytest.approx(others | {"busy": 3000 - sum(others.values())}, abs=1)


def test_a_tenants_drives_share_its_weight_and_not_each_has_its_own() -> None:
    host = Host(tenants={"acme": TenantPolicy(weight=100)})
    for name in "abc":
        host.drive(name, 100, full=True, tenant="acme")
    host.drive("x", 100, full=True)
    most = host.most()
    assert most["x"] == 5000
    assert most["a"] == most["b"] == most["c"] == pytest.approx(5000 / 3)


def test_a_tenants_reservation_goes_to_whichever_of_its_drives_asks() -> None:
    host = Host(tenants={"acme": TenantPolicy(reservation=6000)})
    host.drive("a", 100, full=True, tenant="acme")
    host.drive("b", 0, tenant="acme")
    host.drive("x", 100, full=True)
    assert host.most() == {"a": 8000, "b": 8000, "x": 2000}


def test_a_tenants_reservation_is_spread_over_storages_by_demand() -> None:
    host = Host({DISK: StorageSeen(CAPACITY), "sdb": StorageSeen(CAPACITY)})
    host.tenants["acme"] = TenantPolicy(reservation=4000)
    host.drive("a", 2999, full=True, tenant="acme")
    host.drive("b", 999, full=True, tenant="acme", storage="sdb")
    host.drive("x", 100, full=True)
    host.drive("y", 100, full=True, storage="sdb")
    assert host.most() == {"a": 6500, "x": 3500, "b": 5500, "y": 4500}


def test_what_a_tenants_idle_drive_is_owed_is_not_given_to_another_of_its_drives_on_top() -> None:
    host = Host(tenants={"acme": TenantPolicy()})
    host.drive("a", 0, tenant="acme", reservation=4000)
    host.drive("b", 1000, full=True, tenant="acme")
    host.drive("x", 1000, full=True)
    most = host.most()
    assert (most["b"], most["x"]) == (5000, 5000)
    assert host.disk.division.given == pytest.approx(10_000)
    assert most["a"] >= 4000


@pytest.mark.parametrize("full", [True, False])
def test_never_more_than_there_is_is_given_to_those_that_want_it(full: bool) -> None:
    tenants = {"acme": TenantPolicy(3000, 7000, 200), "umbra": TenantPolicy(weight=50)}
    host = Host(tenants=tenants)
    for i in range(12):
        tenant = ("acme", "umbra", None)[i % 3]
        rate = 900.0 * (i % 4)
        host.drive(f"d{i}", rate, full=full and i % 4 > 1, tenant=tenant, reservation=100 * i)
    host.allot()
    assert host.disk.division.given <= 10_000 * (1 + 1e-9)
    assert host.disk.division.given == pytest.approx(min(10_000, host.disk.wanted))


# VMs


def test_a_vms_reservation_goes_to_whichever_of_its_drives_asks() -> None:
    host = Host()
    vm = ("db1", VmPolicy(reservation=6000))
    host.drive("a", 100, full=True, vm=vm)
    host.drive("b", 0, vm=vm)
    host.drive("x", 100, full=True)
    host.drive("y", 100, full=True)
    # what it leaves, 4,000, by weight: the VM has that of its two drives
    assert host.most() == {"a": 8000, "b": 8000, "x": 1000, "y": 1000}
    assert host.disk.promised == 6000


def test_a_vms_reservation_is_spread_over_storages_by_demand() -> None:
    host = Host({DISK: StorageSeen(CAPACITY), "sdb": StorageSeen(CAPACITY)})
    vm = ("db1", VmPolicy(reservation=4000))
    host.drive("a", 2999, full=True, vm=vm)
    host.drive("b", 999, full=True, vm=vm, storage="sdb")
    host.drive("x", 100, full=True)
    host.drive("y", 100, full=True, storage="sdb")
    assert host.most() == {"a": 6500, "x": 3500, "b": 5500, "y": 4500}


def test_vm_tenant_and_storage_all_hold() -> None:
    host = Host(tenants={"acme": TenantPolicy(reservation=5000, limit=6000)})
    vm = ("db1", VmPolicy(reservation=3000, limit=3600))
    host.drive("a", 100, full=True, tenant="acme", vm=vm)
    host.drive("b", 100, full=True, tenant="acme", vm=vm)
    host.drive("c", 100, full=True, tenant="acme")
    for name in "wxyz":
        host.drive(name, 100, full=True, weight=300)
    most = host.most()
    # of 5,000 that reservations leave, acme has 1 of 13 parts; its VM's limit is less than that
    assert (most["a"], most["b"]) == (1800, 1800)
    assert most["c"] == pytest.approx(5000 + 5000 / 13 - 3600)
    assert host.disk.division.given == pytest.approx(10_000)


def test_what_a_vms_limit_leaves_of_its_reservation_is_for_others() -> None:
    host = Host()
    vm = ("db1", VmPolicy(reservation=2000, limit=2000))
    host.drive("a", 100, full=True, vm=vm)
    host.drive("b", 100, full=True, vm=vm)
    host.drive("x", 100, full=True)
    assert host.most() == {"a": 1000, "b": 1000, "x": 8000}


# Latency targets

VICTIM: dict[str, Any] = {"latency_target_ms": 2.0}


def test_others_leave_room_for_a_drive_with_a_target_that_is_idle() -> None:
    host = Host()
    host.drive("victim", 0, **VICTIM)
    host.drive("a", 4000, full=True)
    host.drive("b", 4000, full=True)
    most = host.most()
    assert most["a"] == most["b"] == pytest.approx(FIRST_ROOM_RATIO * 5000)
    assert most["victim"] >= 3333
    assert host.disk.suffering == ()
    host.drive("victim", (1 - FIRST_ROOM_RATIO) * 10_000, **VICTIM)
    assert host.most() == pytest.approx(most)  # nobody's limits change when it wakes up


def test_no_throttle_of_its_own_slows_a_drive_with_a_target_while_there_is_room() -> None:
    host = Host()
    host.drive("victim", 1000, weight=1, latency_ms=1.5, **VICTIM)
    host.drive("a", 4000, full=True, weight=1000)
    assert host.most() == pytest.approx({"victim": 1500, "a": 8500})
    host.drive("victim", 1000, full=True, weight=1, limit=1200, **VICTIM)
    assert host.most()["victim"] >= 1200


def test_what_others_leave_lifts_no_tenants_limit() -> None:
    host = Host(tenants={"acme": TenantPolicy(limit=2000)})
    for name in ("a", "b"):
        host.drive(name, 900, full=True, weight=1, tenant="acme", **VICTIM)
    host.drive("x", 4000, full=True, weight=1000)
    assert host.most() == pytest.approx({"a": 1000, "b": 1000, "x": 8500})


def suffering(**lower: Any) -> Host:
    host = Host()
    host.drive("victim", 500, latency_ms=20.0, **VICTIM)
    host.drive("low", 4000, full=True, weight=50, **lower)
    host.drive("high", 4000, full=True, weight=200)
    return host


def allot_for_all(host: Host, seconds: int, **lower: Any) -> list[float]:
    """Let the others do what they may, each second. Return the rooms."""
    rooms = []
    for _ in range(seconds):
        shares = host.allot()
        rooms.append(host.disk.feedback.room)
        host.drive("low", shares["low"].most, full=True, weight=50, **lower)
        host.drive("high", shares["high"].most, full=True, weight=200)
    return rooms


def test_the_lowest_weight_is_cut_first_for_a_drive_that_suffers() -> None:
    host = suffering()
    for _ in range(6):
        shares = host.allot()
    assert host.disk.suffering == (DriveId("victim", "vda"),)
    assert host.disk.feedback.room == pytest.approx(FIRST_ROOM_RATIO * STEP**6)
    # by weight the victim has 20,000 / 7, low half of that and high twice that; but for the two
    # there is room for 4,517 only
    assert shares["low"].most == pytest.approx(0.05 * 10_000 / 7)
    assert shares["low"].cut == pytest.approx(10_000 / 7)
    assert shares["high"].most == pytest.approx(FIRST_ROOM_RATIO * STEP**6 * 10_000)
    assert host.disk.division.cut == pytest.approx(50_000 / 7 - shares["high"].most)
    assert not host.disk.division.exhausted


def test_the_parts_of_a_share_that_is_cut_though_demands_fit_add_up() -> None:
    host = Host()
    host.drive("victim", 400, latency_ms=20.0, limit=500, **VICTIM)
    host.drive("low", 3000, full=True, limit=3000, reservation=1000)
    for _ in range(10):
        shares = host.allot()
    low = shares["low"]
    assert low.most == pytest.approx(host.disk.feedback.room * 10_000)
    assert 1000 < low.most < 3000
    assert low.owed == 1000
    assert low.cut > 0
    assert low.owed + low.by_weight - low.cut == pytest.approx(low.most)


def test_nobody_is_cut_below_what_it_is_owed_and_it_is_said_when_that_is_all_that_is_left() -> None:
    host = suffering(reservation=1500)
    for _ in range(40):
        allot_for_all(host, 1, reservation=1500)
        host.drive("victim", 500, latency_ms=1000 * host.disk.feedback.room, **VICTIM)
    shares = host.allot()
    assert shares["low"].most == pytest.approx(1500)
    assert shares["high"].most == pytest.approx(0.05 * 10_000 * 4 / 7)
    assert host.disk.division.exhausted
    before = host.disk.feedback.room
    host.drive("victim", 500, latency_ms=0.2, **VICTIM)
    host.drive("high", 1, full=True, weight=200)
    host.allot()
    assert host.disk.feedback.room > before  # and comes back from there at once
    assert not host.disk.division.exhausted


@pytest.mark.parametrize("policy", [CAPACITY, StoragePolicy()])
def test_cuts_to_what_is_owed_may_be_in_vain_too(policy: StoragePolicy) -> None:
    host, most = Host(storages={DISK: StorageSeen(policy)}), 3000.0
    for _ in range(60):
        host.drive("victim", 300, latency_ms=20.0, **VICTIM)
        host.drive("low", min(3000.0, most), full=True, reservation=2000)
        most = host.allot()["low"].most
    assert most > 2100


@pytest.mark.parametrize("policy", [CAPACITY, StoragePolicy()])
def test_the_others_get_back_what_was_cut_in_vain_and_it_is_said(policy: StoragePolicy) -> None:
    host = suffering()
    host.storages[DISK] = StorageSeen(policy)
    rooms = allot_for_all(host, 40)
    assert min(rooms) == pytest.approx(0.05)
    assert 0.79 * rooms[0] <= rooms[-1] <= FIRST_ROOM_RATIO
    assert host.disk.division.exhausted


@pytest.mark.parametrize(
    ("rate", "others", "begins"),
    [(5, 0, False), (5, 100, False), (1000, 10, False), (1000, 100, True), (5, 3000, True)],
)
def test_an_unknown_capacity_is_divided_once_load_may_be_why_a_drive_suffers(
    rate: float, others: float, begins: bool
) -> None:
    host = Host(storages={DISK: StorageSeen(StoragePolicy())})
    host.drive("victim", rate, latency_ms=8.0, **VICTIM)
    host.drive("low", others)
    assert ("low" in host.allot()) is begins
    assert host.disk.suffering
    assert host.disk.division.exhausted is not begins


@pytest.mark.parametrize(("owed", "enough"), [(0, 2000), (0, 900), (2500, 200)])
def test_a_learnt_capacity_that_is_far_too_high_shrinks_until_cuts_help(
    owed: int, enough: int
) -> None:
    """As after a second in which a cache served the others. What is owed isn't taken."""
    host = Host(storages={DISK: StorageSeen(StoragePolicy())})
    done, rates = 200_000.0, []
    for _ in range(2500):
        is_slow = enough < done <= 3000
        host.drive("victim", 300, latency_ms=20.0 if is_slow else 0.2, **VICTIM)
        host.drive("low", done, full=done < 3000, reservation=owed)
        share = host.allot().get("low")
        done = min(3000.0, share.most) if share else 3000.0
        rates.append(done)
    if owed:
        assert min(rates) >= owed
    else:
        assert sum(rate <= enough for rate in rates[-500:]) >= 200


def test_a_learnt_capacity_shrinks_no_longer_once_that_is_in_vain() -> None:
    """As on a slow network storage, with a cache at first."""
    host = Host(storages={DISK: StorageSeen(StoragePolicy())})
    done, rates = 20_000.0, []
    for _ in range(2000):
        host.drive("victim", 300, latency_ms=20.0, **VICTIM)
        host.drive("low", done, full=done < 1000)
        share = host.allot().get("low")
        done = min(1000.0, share.most) if share else 1000.0
        rates.append(done)
    assert sum(rates) >= 0.75 * 1000 * len(rates)


@pytest.mark.parametrize("rate", [0, 500])
def test_cuts_that_take_nothing_are_not_made_and_it_is_said(rate: float) -> None:
    host = Host()
    host.drive("victim", 0, **VICTIM)
    host.drive("low", rate)
    host.allot()
    host.drive("victim", 1000, latency_ms=20.0, **VICTIM)
    for _ in range(20):
        shares = host.allot()
        assert shares["low"].most >= FIRST_ROOM_RATIO * 10_000
        assert host.disk.division.exhausted
    host.drive("low", 8000, full=True)
    host.allot()
    assert host.disk.feedback.room < FIRST_ROOM_RATIO
    assert not host.disk.division.exhausted


def test_it_is_said_that_a_drive_alone_misses_its_target() -> None:
    host = Host()
    host.drive("victim", 500, latency_ms=20.0, **VICTIM)
    assert host.allot() == {}
    assert host.disk.division.exhausted


@pytest.mark.parametrize("latency_ms", [0.1, 20.0])
def test_a_drive_that_was_alone_has_taught_nothing_about_others(latency_ms: float) -> None:
    host = Host()
    for _ in range(600):
        host.drive("victim", 500, full=True, latency_ms=latency_ms, **VICTIM)
        host.allot()
    assert host.disk.feedback.room == FIRST_ROOM_RATIO


def test_the_room_stays_while_the_drives_that_have_it_cant_be_read() -> None:
    host = suffering()
    allot_for_all(host, 10)
    room = host.disk.feedback.room
    assert room < FIRST_ROOM_RATIO
    for name in ("low", "high"):
        del host.known[DriveId(name, "vda")]
    host.before, _ = allocate(
        host.known, host.storages, host.before, host.tenants, {}, complete=False
    )
    assert host.disk.feedback.room == room


@pytest.mark.parametrize("owner", ["drive", "vm", "tenant"])
def test_no_target_takes_what_is_reserved_for_a_drive_a_vm_or_a_tenant(owner: str) -> None:
    tenants = {"acme": TenantPolicy(reservation=5000)} if owner == "tenant" else {}
    host = Host(tenants=tenants)
    promises: dict[str, dict[str, Any]] = {
        "drive": {"reservation": 5000},
        "vm": {"vm": ("vm", VmPolicy(reservation=5000))},
        "tenant": {"tenant": "acme"},
    }
    most, lowest = {"low": 4000.0, "high": 4000.0}, inf
    for _ in range(60):
        host.drive("victim", 500, latency_ms=20.0, **VICTIM)
        host.drive("low", most["low"], full=True, weight=50, **promises[owner])
        host.drive("high", most["high"], full=True, weight=200)
        most = host.most()
        assert most["low"] >= 5000 - 1e-6
        lowest = min(lowest, most["high"])
    # Until it is seen that this is in vain. Of 5 %, it has its part by weight.
    assert lowest == pytest.approx(0.05 * 10_000 * 200 / 350)


def test_what_helps_one_drive_with_a_target_is_not_in_vain_for_another() -> None:
    host, rooms = suffering(), [FIRST_ROOM_RATIO]
    for _ in range(60):
        host.drive("other", 500, latency_ms=4.0 * rooms[-1], **VICTIM)
        rooms = allot_for_all(host, 1)
    assert rooms[-1] == pytest.approx(0.05)


def test_a_drive_whose_own_limit_makes_it_wait_does_not_suffer() -> None:
    host = Host()
    host.drive("victim", 500, full=True, latency_ms=50.0, limit=500, **VICTIM)
    host.drive("a", 4000, full=True)
    host.allot()
    assert host.disk.suffering == ()
    assert host.disk.feedback.room == FIRST_ROOM_RATIO


# Capacity by latency

FOLLOWED = StoragePolicy(capacity=10_000, latency_target_ms=2.0, least_ratio=0.5, most_ratio=1.2)


def counted(second: int, requests: int, latency_ms: float) -> StorageCounters:
    """Return counters that show requests a second of a latency since second 0."""
    busy = requests * latency_ms / 1000
    done = second * requests
    return StorageCounters(
        second * NS_PER_S,
        done,
        round(done * latency_ms * 1e6),
        0,
        0,
        0,
        round(second * min(1.0, busy) * NS_PER_S),
    )


def followed(host: Host, latency_ms: float, seconds: int, requests: int = 5000) -> list[float]:
    ratios = []
    host.drive("idle", 0)  # a drive alone isn't held back for anybody
    for second in range(seconds):
        seen = counted(second, requests, latency_ms)
        host.storages[DISK] = StorageSeen(FOLLOWED, seen)
        host.allot()
        ratios.append(host.disk.feedback.ratio)
    return ratios


def test_capacity_falls_fast_while_latency_is_above_target_down_to_its_bound() -> None:
    host = Host()
    host.drive("a", 5000, full=True)
    ratios = followed(host, 8.0, 10)
    # A first reading shows nothing; after the next it is a step below what was done and no more.
    assert ratios[:2] == pytest.approx([1, 0.5])
    assert ratios[-1] == 0.5
    assert host.disk.division.usable == 5000


def test_what_was_done_counts_for_the_time_in_which_there_was_something_to_do() -> None:
    host = Host()
    host.drive("idle", 0)
    host.drive("a", 4500, full=True)
    ratios = []
    for second in range(2):
        seen = counted(second, 5000, 8.0)
        host.storages[DISK] = StorageSeen(FOLLOWED, replace(seen, busy_ns=seen.busy_ns // 2))
        host.allot()
        ratios.append(host.disk.feedback.ratio)
    # 9,000 a second, for half a second
    assert ratios[1] == pytest.approx(STEP**0.5 * SLACK * 0.9)


@pytest.mark.parametrize(
    ("did", "in_flight", "cut"), [(8800, 0, False), (8800, 40, True), (8000, 0, True)]
)
def test_what_is_served_right_after_a_cut_was_asked_for_before_it(
    did: float, in_flight: int, cut: bool
) -> None:
    """Unless the queue is still there, or the storage can't do what it is let."""
    host = Host()
    host.drive("idle", 0)
    ratios = []
    for second, rate in enumerate((9500, 9500, did)):
        host.drive("a", rate, full=True)
        seen = replace(counted(second, 5000, 8.0), in_flight=in_flight)
        host.storages[DISK] = StorageSeen(FOLLOWED, seen)
        host.allot()
        ratios.append(host.disk.feedback.ratio)
    assert ratios[1] == pytest.approx(STEP * SLACK * 0.95)
    assert (ratios[2] < ratios[1]) is cut


def test_capacity_rises_slowly_while_somebody_wants_more_up_to_its_bound() -> None:
    host = Host()
    host.drive("a", 5000, full=True)
    ratios = followed(host, 0.5, 20)
    assert 1 < ratios[1] < 1.15
    assert ratios[-1] == 1.2
    idle = Host()
    idle.drive("a", 100)
    assert set(followed(idle, 0.5, 20)) == {1.0}


@pytest.mark.parametrize(("latency_ms", "grows"), [(0.5, True), (1.6, False)])
def test_a_capacity_grows_beyond_what_is_configured_only_while_its_headroom_isnt_needed(
    latency_ms: float, grows: bool
) -> None:
    host = Host()
    host.drive("victim", 500, latency_ms=latency_ms, latency_target_ms=2.0)
    host.drive("a", 5000, full=True)
    ratios = followed(host, 0.5, 20)
    assert (ratios[-1] > 1) is grows
    low = followed(host, 8.0, 3)[-1]
    assert low < 1
    assert followed(host, 0.5, 60)[-1] >= 1  # what was there before comes back


def test_a_slow_request_on_a_disk_that_does_nothing_else_is_not_its_load() -> None:
    host = Host()
    host.drive("a", 10)
    assert set(followed(host, 50.0, 10, requests=10)) == {1.0}


def test_one_calm_second_may_be_noise() -> None:
    host = Host()
    host.drive("idle", 0)
    host.drive("a", 5000, full=True)
    done = took = 0
    for second, latency_ms in enumerate((2.0, 2.0, 0.5, 2.0, 0.5, 0.5)):
        seen = counted(second, 5000, 1.0)
        took += round(5000 * latency_ms * 1e6)
        host.storages[DISK] = StorageSeen(FOLLOWED, replace(seen, read_time_ns=took))
        host.allot()
        done += host.disk.feedback.ratio > 1
    assert done == 1


@pytest.mark.parametrize(("did", "doubted"), [(10_400, 2), (8000, 0)])
def test_latency_while_limits_change_counts_when_it_stays_or_no_gift_explains_it(
    did: float, doubted: int
) -> None:
    host = Host()
    host.drive("idle", 0)
    host.drive("a", did, full=True)
    a = DriveId("a", "vda")
    ratios = []
    for second in range(5):
        host.storages[DISK] = StorageSeen(FOLLOWED, counted(second, 5000, 8.0 * (second > 0)))
        read = Counters(second * NS_PER_S, 0, 0, 0, 0, 0, 0)
        at_ns = (second - 1) * NS_PER_S
        host.known[a] = host.known[a]._replace(
            measured=host.known[a].measured._replace(counters=read),
            pricing=Pricing(rate=10_000.0),
            sent=Sent(at_ns=at_ns),
        )
        host.allot()
        ratios.append(host.disk.feedback.ratio)
    assert ratios[: 1 + doubted] == [1] * (1 + doubted)  # a first reading shows nothing
    assert ratios[1 + doubted] < 1


@pytest.mark.parametrize(("did", "doubted"), [(10_600, 2), (10_400, 0)])
def test_latency_counts_when_it_stays_where_more_is_done_than_a_storage_can(
    did: float, doubted: int
) -> None:
    host = Host()
    host.drive("a", did, full=True)
    ratios = followed(host, 8.0, 5)
    assert ratios[: 1 + doubted] == [1] * (1 + doubted)  # a first reading shows nothing
    assert ratios[1 + doubted] < 1


def test_storage_without_counters_is_tried_out_where_all_its_drives_wait_for_their_limits() -> None:
    host = Host({DISK: StorageSeen(FOLLOWED)})
    host.drive("idle", 0)
    host.drive("a", 6000, latency_ms=8.0)
    host.allot()
    ratio = host.disk.feedback.ratio
    host.drive("a", 3000, full=True, latency_ms=8.0)
    for _ in range(3):
        host.allot()
    assert 1.15 * ratio < host.disk.feedback.ratio < 1.6 * ratio


# Unknown capacity


def test_a_storage_of_unknown_capacity_is_divided_only_once_somebody_suffers() -> None:
    host = Host({DISK: StorageSeen(StoragePolicy())})
    host.drive("victim", 500, latency_ms=1.0, **VICTIM)
    host.drive("a", 4000)
    host.drive("b", 3500)
    assert host.allot() == {}
    host.drive("victim", 500, latency_ms=4.0, **VICTIM)
    most = host.most()
    assert host.disk.division.usable == 8000
    assert most["a"] + most["b"] == pytest.approx(FIRST_ROOM_RATIO * 2**-POWER * 8000)
    host.drive("victim", 0, **VICTIM)
    host.drive("a", 3000, full=True)
    before = host.disk.feedback.peak
    for _ in range(100):
        host.allot()
    assert (
        before < host.disk.feedback.peak < 1.5 * before
    )  # it is tried out, slowly, and never forgotten


def test_slow_requests_on_a_quiet_disk_take_no_room_from_later() -> None:
    """Nothing is divided meanwhile, so the room would fall and fall, and never come back."""
    host = Host({DISK: StorageSeen(StoragePolicy())})
    host.drive("low", 100)
    for _ in range(60):
        host.drive("victim", 5, latency_ms=20.0, **VICTIM)
        assert host.allot() == {}
    host.drive("low", 2000)
    host.drive("victim", 500, latency_ms=4.0, **VICTIM)
    assert host.most()["low"] == pytest.approx(FIRST_ROOM_RATIO * 2**-POWER * 2500)


def test_an_unknown_capacity_stays_while_the_room_follows_latency() -> None:
    """Else they wind up against each other: the room at its floor, of many times the disk."""
    host = Host({DISK: StorageSeen(StoragePolicy())})
    host.drive("a", 7500, full=True)
    rooms = []
    for latency_ms in (4.0, 1.8, 4.0):  # it suffers, is just content, and suffers again
        host.drive("victim", 500, latency_ms=latency_ms, **VICTIM)
        for _ in range(5):
            host.allot()
            assert host.disk.feedback.peak == 8000
        rooms.append(host.disk.feedback.room)
    assert FIRST_ROOM_RATIO > rooms[0] == rooms[1] > rooms[2]


def test_counters_that_stop_or_go_backwards_change_nothing() -> None:
    host = Host()
    host.drive("a", 5000, full=True)
    followed(host, 8.0, 2)
    before = host.disk.feedback.ratio
    frozen = counted(1, 5000, 8.0)
    for counters in (frozen, counted(0, 5000, 8.0), None):
        host.storages[DISK] = StorageSeen(FOLLOWED, counters)
        host.known[DriveId("a", "vda")] = DriveState(
            policy=DrivePolicy(), storage=DISK, demand=Demand(rate=5000, backlogged=True)
        )
        host.allot()
        assert host.disk.feedback.ratio == before
        assert host.disk.activity is None


def test_network_storage_is_known_by_its_guests_latency() -> None:
    host = Host({DISK: StorageSeen(FOLLOWED)})
    host.drive("a", 2500, latency_ms=8.0)
    host.drive("b", 1000, latency_ms=4.0)
    host.drive("c", 1500, latency_ms=7.0)
    host.allot()
    assert host.disk.activity is not None
    assert host.disk.activity.latency_s == pytest.approx(0.007)
    assert host.disk.activity.queue == pytest.approx(2500 * 0.008 + 1000 * 0.004 + 1500 * 0.007)
    assert host.disk.feedback.ratio == 0.5


def test_another_capacity_by_the_operator_begins_anew() -> None:
    host = Host()
    host.drive("a", 5000, full=True)
    followed(host, 8.0, 10)
    host.storages[DISK] = StorageSeen(StoragePolicy(capacity=8000))
    host.allot()
    assert host.disk.feedback.ratio == 1
    assert host.disk.division.usable is None  # until it shows that it is full again
