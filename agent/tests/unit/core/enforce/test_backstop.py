"""The backstop: never in the way of a share, and no looser than that takes."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import accumulate, chain, repeat

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from iokeel.core.enforce.backstop import (
    PART_BYTES,
    CgroupOrder,
    Io,
    IoMax,
    backstop,
    fits,
    vm_orders,
)
from iokeel.core.values.counters import DriveId
from iokeel.core.values.curve import (
    DEFAULT_CURVE,
    DEFAULT_MODEL,
    LARGEST_REQUEST_BYTES,
    CostCurve,
    CostModel,
)
from iokeel.core.values.limits import ThrottleLimits
from iokeel.core.values.policy import DrivePolicy, TenantPolicy
from iokeel.core.values.state import (
    DriveState,
    Finding,
    Pricing,
    Sent,
    State,
    StorageState,
    Verdict,
)
from iokeel.core.values.storage import StoragePolicy

KIB = 1024


@st.composite
def curves(draw: st.DrawFn) -> CostCurve:
    """A curve of 1 to 8 points, flat parts and steep ones, some of them beyond any request."""
    sizes = draw(st.lists(st.integers(1, 1 << 27), min_size=1, max_size=8, unique=True))
    rises = draw(
        st.lists(st.floats(0, 1e4, allow_subnormal=False), min_size=len(sizes), max_size=len(sizes))
    )
    costs = accumulate([draw(st.floats(1e-3, 1e3)), *rises[1:]])
    return CostCurve(tuple(zip(sorted(sizes), costs, strict=True)))


models = st.builds(CostModel, curves(), curves())
shares = st.floats(1e-3, 1e8)
requests = st.lists(
    st.tuples(st.booleans(), st.integers(1, LARGEST_REQUEST_BYTES), st.floats(1e-3, 1.0)),
    min_size=1,
    max_size=8,
)


def counted(size: int, part: int) -> int:
    """How often the kernel counts a request that a device takes in parts."""
    return math.ceil(size / part)


@given(models, shares, requests, st.integers(PART_BYTES, LARGEST_REQUEST_BYTES), st.floats(1, 10))
@example(DEFAULT_MODEL, 1000.0, [(True, 4 * KIB, 1.0)], PART_BYTES, 1.0)
@example(DEFAULT_MODEL, 1000.0, [(False, LARGEST_REQUEST_BYTES, 1.0)], PART_BYTES, 1.0)
def test_traffic_within_the_share_is_never_cut(
    model: CostModel,
    share: float,
    mix: list[tuple[bool, int, float]],
    part: int,
    margin: float,
) -> None:
    cost = sum(
        parts * (model.read if reads else model.write).cost(size) for reads, size, parts in mix
    )
    scale = share / cost * (1 - 1e-9)  # requests a second of each: what the share pays for
    bound = backstop(model, share, margin)
    for reads, bps, iops in ((True, bound.rbps, bound.riops), (False, bound.wbps, bound.wiops)):
        mine = [(size, scale * parts) for is_read, size, parts in mix if is_read is reads]
        assert bps is not None
        assert iops is not None
        assert sum(size * rate for size, rate in mine) <= bps
        assert sum(counted(size, part) * rate for size, rate in mine) <= iops


@given(curves(), shares)
@example(DEFAULT_CURVE, 1000.0)
@example(CostCurve(((4096, 1.0),)), 1000.0)  # that charges nothing for size
def test_some_traffic_within_the_share_comes_up_to_every_bound(
    curve: CostCurve, share: float
) -> None:
    bound = backstop(CostModel(curve, curve), share)
    sizes = {1, LARGEST_REQUEST_BYTES, *(min(s, LARGEST_REQUEST_BYTES) for s, _ in curve.points)}
    sizes |= {i * PART_BYTES + 1 for i in range(LARGEST_REQUEST_BYTES // PART_BYTES)}
    bytes_ = max(size * share / curve.cost(size) for size in sizes)
    operations = max(counted(size, PART_BYTES) * share / curve.cost(size) for size in sizes)
    for held, reached in (
        (bound.rbps, bytes_),
        (bound.wbps, bytes_),
        (bound.riops, operations),
        (bound.wiops, operations),
    ):
        assert held is not None
        assert held <= reached * (1 + 1e-9) + 1


def test_the_published_curves_bounds_are_what_is_reckoned_by_hand() -> None:
    # 4K costs 1; 1 MiB costs 150 and each 512 KiB more 74, so that 32 MiB cost 4,738.
    bound = backstop(DEFAULT_MODEL, 4738.0, margin=1.0)
    assert bound == IoMax(32 << 20, 32 << 20, 4738, 4738)
    assert backstop(DEFAULT_MODEL, 4738.0, margin=1.5).riops == 7107


def test_reads_and_writes_are_bounded_by_their_own_curves() -> None:
    model = CostModel(CostCurve(((4096, 1.0), (8192, 2.0))), CostCurve(((4096, 4.0), (8192, 8.0))))
    assert backstop(model, 1000) == IoMax(4_096_000, 1_024_000, 1000, 250)


@pytest.mark.parametrize("share", [0.0, -1.0, 1e-9])
def test_a_bound_is_never_none_or_nothing(share: float) -> None:
    # 0 isn't a bound that the kernel takes.
    assert all((value or 0) >= 1 for _, value in backstop(DEFAULT_MODEL, share).items())


def test_a_held_bound_does_while_it_is_not_tighter_and_hardly_looser() -> None:
    held = IoMax(rbps=1000, riops=None)
    assert fits(held, IoMax(rbps=1000))
    assert fits(held, IoMax(rbps=920))
    assert not fits(held, IoMax(rbps=1001))
    assert not fits(held, IoMax(rbps=900))
    assert not fits(held, IoMax())
    assert not fits(held, IoMax(rbps=1000, riops=5))


SDA = ("8:0",)
OWN = CostModel(CostCurve(((4096, 2.0), (8192, 3.0))), CostCurve(((4096, 4.0), (8192, 9.0))))


def held(rate: float | None, storage: str | None = "sda", **policy: float) -> DriveState:
    promise = DrivePolicy(**policy)  # type: ignore[arg-type]
    return DriveState(policy=promise, storage=storage, tenant="acme", pricing=Pricing(rate=rate))


def state(**drives: DriveState) -> State:
    """Return a state with drives called VM_TARGET."""
    return State(drives={DriveId(*name.split("_")): known for name, known in drives.items()})


def orders(known: State, *devices: tuple[str, ...], margin: float = 1.0) -> dict[str, CgroupOrder]:
    """Return the orders where the drives come to these devices, in their order; the last to all."""
    more = repeat(devices[-1])
    on = dict(zip(known.drives, chain(devices, more), strict=False))
    return {vm: order for vm, order in vm_orders(known, on, margin).items() if order is not None}


def test_a_vm_is_bounded_by_what_its_drives_may_do_together() -> None:
    found = orders(state(a_vda=held(100.0), a_vdb=held(200.0)), SDA, margin=1.25)
    assert found["a"].limits == {"8:0": backstop(DEFAULT_MODEL, 300.0, 1.25)}


def test_a_vm_with_a_drive_that_nothing_holds_has_no_bound_there() -> None:
    drives = state(a_vda=held(100.0), a_vdb=held(None), a_vdc=held(7.0))
    assert orders(drives, SDA, SDA, ("8:16",))["a"].limits == {
        "8:0": IoMax(),
        "8:16": backstop(DEFAULT_MODEL, 7.0),
    }


def test_a_drive_over_a_network_is_on_no_device() -> None:
    drives = state(a_vda=held(100.0), a_vdb=held(None))
    assert orders(drives, SDA, ())["a"].limits == {"8:0": backstop(DEFAULT_MODEL, 100.0)}


def test_a_drive_that_may_be_anywhere_leaves_its_vm_without_bounds() -> None:
    drives = state(a_vda=held(100.0), a_vdb=held(200.0), b_vda=held(5.0))
    devices = {DriveId("a", "vda"): SDA, DriveId("b", "vda"): SDA}
    found = vm_orders(drives, devices)
    assert found["a"] is not None
    assert found["b"] is not None
    assert found["a"].limits == {"8:0": IoMax()}
    assert found["b"].limits == {"8:0": backstop(DEFAULT_MODEL, 5.0)}


def test_a_vm_whose_memory_is_written_has_no_bounds() -> None:
    drives = state(a_vda=held(100.0, weight=7), b_vda=held(5.0))
    devices = dict.fromkeys(drives.drives, SDA)
    found = vm_orders(drives, devices, free={"a"})
    assert found["a"] == CgroupOrder({"8:0": IoMax()}, weight=7)
    assert found["b"] is not None
    assert found["b"].limits == {"8:0": backstop(DEFAULT_MODEL, 5.0)}


def test_each_device_on_the_way_is_bounded_by_all_that_comes_there() -> None:
    drives = state(a_vda=held(100.0), a_vdb=held(20.0), a_vdc=held(3.0))
    found = orders(drives, ("253:1", "8:0"), ("253:2", "8:0"), SDA)
    assert found["a"].limits == {
        "253:1": backstop(DEFAULT_MODEL, 100.0),
        "253:2": backstop(DEFAULT_MODEL, 20.0),
        "8:0": backstop(DEFAULT_MODEL, 123.0),
    }


def test_drives_of_storages_with_curves_of_their_own_are_bounded_by_those() -> None:
    drives = state(a_vda=held(100.0), a_vdb=held(20.0, "lv"), a_vdc=held(3.0, "lv"))
    known = replace(drives, storages={"lv": StorageState(StoragePolicy(model=OWN))})
    limits = orders(known, SDA)["a"].limits["8:0"]
    assert limits is not None
    # 100 reads of 4K at 1, and 23 / 2; 23 / 4 writes; 8K cost 3 and 9 there.
    assert limits.riops == 100 + 12
    assert limits.wiops == 100 + 6
    assert limits == backstop(DEFAULT_MODEL, 100.0).plus(backstop(OWN, 23.0))


def test_reads_that_wait_in_parts_count_once_for_each() -> None:
    # A read of 16 KiB and a byte costs hardly more than one of 4 KiB, and comes in two.
    flat = CostCurve(((16 * KIB, 1.0), (64 * KIB, 4.0), (1024 * KIB, 64.0)))
    whole = held(100.0)
    split = whole._replace(sent=Sent(ThrottleLimits(iops_total=100, split_size=16 * KIB)))
    model = CostModel(flat, flat)
    both = orders(replace(state(a_vda=whole, a_vdb=split), model=model), SDA)["a"].limits["8:0"]
    assert both is not None
    assert both == backstop(model, 100.0).plus(backstop(model, 100.0, read_part_bytes=16 * KIB))
    assert both.riops == 100 + 200
    assert both.wiops == 100 + 100


def test_what_is_unbounded_stays_so_with_more() -> None:
    assert IoMax(1, None, 3, None).plus(IoMax(1, 2, None, None)) == IoMax(2, None, None, None)


def test_a_tenants_weight_is_spread_over_its_vms() -> None:
    drives = state(a_vda=held(1.0, weight=300), b_vda=held(1.0, weight=100))
    alone = orders(drives, SDA)
    assert (alone["a"].weight, alone["b"].weight) == (300, 100)
    together = orders(replace(drives, tenants={"acme": TenantPolicy(weight=1000)}), SDA)
    assert (together["a"].weight, together["b"].weight) == (750, 250)


def test_the_tightest_latency_target_of_a_device_counts() -> None:
    drives = state(a_vda=held(1.0, latency_target_ms=5), a_vdb=held(1.0, latency_target_ms=2))
    assert orders(drives, SDA)["a"].latency_targets_s == {"8:0": 0.002}


@pytest.mark.parametrize("verdict", [Verdict.POLICY_UNKNOWN, Verdict.NOT_DIVIDED])
def test_a_group_stays_as_it_is_while_a_drives_share_is_not_known(verdict: Verdict) -> None:
    unsure = held(None)._replace(finding=Finding(verdict))
    devices = dict.fromkeys((DriveId("db1", "vda"), DriveId("db1", "vdb")), ("8:0",))
    known = dict(zip(devices, (held(1000.0), unsure), strict=True))
    assert vm_orders(State(drives=known), devices) == {"db1": None}
    known[DriveId("db1", "vdb")] = held(1000.0)
    assert vm_orders(State(drives=known), devices)["db1"] is not None


def test_only_the_devices_of_a_drive_of_unknown_share_stay_as_they_are() -> None:
    unsure = DriveState(storage="sda", finding=Finding(Verdict.POLICY_UNKNOWN))
    known = state(a_vda=unsure, a_vdb=held(10_000.0, "sdb", latency_target_ms=2))
    found = orders(known, SDA, ("8:16",))["a"]
    assert found.limits == {"8:0": None, "8:16": backstop(DEFAULT_MODEL, 10_000.0)}
    assert found.latency_targets_s == {"8:16": 0.002}
    nowhere = {DriveId("a", "vdb"): ("8:16",)}  # the unsure one may be there too
    assert vm_orders(known, nowhere) == {"a": None}
    both = dict.fromkeys(known.drives, ("8:0",))
    assert vm_orders(known, both) == {"a": None}


def test_a_group_stays_as_it_is_until_limits_of_an_earlier_agent_have_a_rate() -> None:
    limited = held(None)._replace(sent=Sent(limits=ThrottleLimits(iops_total=100)))
    assert vm_orders(state(a_vda=held(100.0), a_vdb=limited), {}) == {"a": None}


def test_a_vm_without_a_policy_is_left_alone() -> None:
    assert orders(state(a_vda=DriveState(storage="sda")), SDA) == {}


def test_what_images_add_comes_on_top_for_each_operation_of_the_share() -> None:
    drives = state(a_vda=held(100.0), a_vdb=held(20.0))
    on = dict.fromkeys(drives.drives, ("8:0", "8:16"))
    more = {("a", "8:0"): Io(65536, 4096, 2, 1)}
    found = vm_orders(drives, on, 1.25, added=more)["a"]
    assert found is not None
    alone = backstop(DEFAULT_MODEL, 120.0, 1.25)
    assert found.limits == {
        "8:0": alone.wider(Io(150 * 65536, 150 * 4096, 300, 150)),
        "8:16": alone,
    }


def test_reads_and_writes_with_a_budget_each_both_add() -> None:
    drives = state(a_vda=held(100.0, separate_budgets=True))
    more = {("a", "8:0"): Io(rbps=1000)}
    found = vm_orders(drives, dict.fromkeys(drives.drives, SDA), added=more)["a"]
    assert found is not None
    bounds = found.limits["8:0"]
    assert bounds == backstop(DEFAULT_MODEL, 100.0).wider(Io(rbps=200_000))


def test_block_jobs_have_room_on_each_device_of_their_vm() -> None:
    drives = state(a_vda=held(100.0), b_vda=held(5.0))
    on = dict.fromkeys(drives.drives, ("253:1", "8:0"))
    room = Io(20_000_000, 20_000_000, 300, 300)
    found = vm_orders(drives, on, jobs={"a": room})
    assert found["a"] is not None
    assert found["b"] is not None
    alone = backstop(DEFAULT_MODEL, 100.0)
    assert found["a"].limits == dict.fromkeys(("253:1", "8:0"), alone.wider(room))
    assert found["b"].limits["8:0"] == backstop(DEFAULT_MODEL, 5.0)


def test_what_is_unbounded_stays_so_with_room() -> None:
    assert IoMax(1, None, 3, None).wider(Io(1.5, 2, 0, 0)) == IoMax(3, None, 3, None)
