"""The limits of an agent that stops: every promise holds by them alone."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.core.decide import decide
from iokeel.core.enforce.at_a_stop import static_orders
from iokeel.core.values.counters import NS_PER_S, Counters, DriveId, Flow, Rates
from iokeel.core.values.limits import STOCK, UNLIMITED, ThrottleLimits
from iokeel.core.values.observation import DriveSeen, Observation, StorageSeen
from iokeel.core.values.policy import DrivePolicy, TenantPolicy, VmPolicy
from iokeel.core.values.state import (
    NOT_DIVIDED,
    Credit,
    Demand,
    DriveState,
    Measured,
    Part,
    Pricing,
    Sent,
    Share,
    State,
    VmPart,
)
from iokeel.core.values.storage import StorageCounters, StoragePolicy
from testing.hypervisors.abilities import PATCHED
from tests.unit.core.policies import POLICIES
from tests.unit.core.stopping import left_at_stop

VDA, VDB, VDC = (DriveId("db1", target) for target in ("vda", "vdb", "vdc"))
OTHER = DriveId("db2", "vda")
FREE = DrivePolicy()
HELD = ThrottleLimits(iops_total=77)


def drive(
    policy: DrivePolicy = FREE,
    rate: float = 0.0,
    *,
    full: bool = False,
    tenant: str | None = None,
    vm: VmPart | None = None,
    share: Share | Any = None,
) -> DriveState:
    """Return a drive on a patched QEMU that has limits of ours. full: they hold it."""
    did = Rates(1.0, Flow(rate, 4096 * rate), Flow(0, 0), None, None)
    return DriveState(
        policy=policy,
        tenant=tenant,
        abilities=PATCHED,
        measured=Measured(rates=did, rate=rate),
        demand=Demand(rate=rate, backlogged=full),
        share=share,
        sent=Sent(HELD),
        vm=vm,
    )


def rates(state: State) -> dict[DriveId, float]:
    """Return the rate that each drive is left at, over both budgets."""
    return {
        order.drive: sum(
            limit or 0.0
            for limit in (
                order.limits.iops_total, order.limits.iops_read, order.limits.iops_write
            )
        )
        for order in left_at_stop(state)
    }  # fmt: skip


DRIVES = st.lists(
    st.tuples(
        POLICIES,
        st.floats(0, 20_000),
        st.booleans(),
        st.sampled_from(["acme", "other", None]),
        st.integers(1, 2),
        st.none() | st.integers(1, 9000),
    ),
    min_size=1,
    max_size=8,
)


@given(DRIVES, st.none() | st.integers(16, 20_000), st.integers(16, 20_000))
def test_drives_vms_and_tenants_keep_their_limits_whatever_the_drives_did(
    drives: list[Any], vm_limit: int | None, tenant_limit: int
) -> None:
    there = {}
    for number, (policy, rate, full, tenant, vm, part) in enumerate(drives):
        promise = None if vm_limit is None else VmPart(VmPolicy(limit=vm_limit), sustained=part)
        known = drive(policy, rate, full=full, tenant=tenant, vm=promise)
        there[DriveId(f"db{vm}", f"vd{number}")] = known
    tenants = {"acme": TenantPolicy(limit=tenant_limit)}
    left = rates(State(drives=there, tenants=tenants))
    for name, known in there.items():
        assert known.policy is not None
        own = known.policy.limit
        budgets = 2 if known.policy.separate_budgets else 1
        if own is not None:
            assert 1 <= left[name] <= budgets * own
    for vm in ("db1", "db2"):
        if vm_limit is not None:
            assert sum(rate for name, rate in left.items() if name.domain == vm) <= vm_limit
    acme = [left[name] for name, known in there.items() if known.tenant == "acme"]
    assert sum(acme) <= tenant_limit


def test_a_tenants_limit_goes_where_it_is_wanted() -> None:
    tenants = {"acme": TenantPolicy(limit=1000)}
    there = {
        VDA: drive(DrivePolicy(limit=5000), tenant="acme")._replace(part=Part(900, 900)),
        OTHER: drive(tenant="acme")._replace(part=Part(100, 60)),
    }
    assert rates(State(drives=there, tenants=tenants)) == {VDA: 900, OTHER: 60}
    there[OTHER] = there[OTHER]._replace(part=None)
    assert rates(State(drives=there, tenants=tenants)) == {VDA: 500, OTHER: 500}


def test_a_vms_drives_keep_their_parts_of_its_limit_and_not_of_its_burst() -> None:
    promise = VmPolicy(limit=1000, burst=4000)
    there = {
        VDA: drive(vm=VmPart(promise, Credit(30.0, True), 900, Part(3900, 3900))),
        VDB: drive(vm=VmPart(promise, Credit(30.0, True), 100, Part(100, 100))),
    }
    assert rates(State(drives=there)) == {VDA: 900, VDB: 100}


def test_a_vms_new_drive_gets_a_part_of_its_limit_all_the_same() -> None:
    promise = VmPolicy(limit=1000)
    there = {
        VDA: drive(vm=VmPart(promise, Credit(), 1000, Part(1000, 1000))),
        VDB: drive(vm=VmPart(promise)),
    }
    left = rates(State(drives=there))
    assert sum(left.values()) <= 1000
    assert left[VDB] >= 1


def test_a_drive_keeps_to_its_share_of_a_storage() -> None:
    share = Share(300.0, "fast", 0.0, inf)
    there = {VDA: drive(share=share), VDB: drive(DrivePolicy(limit=5000), share=share)}
    assert rates(State(drives=there)) == {VDA: 300, VDB: 300}


def test_a_drive_whose_share_is_not_known_gets_no_more_than_it_has() -> None:
    known = drive(DrivePolicy(limit=5000), share=NOT_DIVIDED)
    lower, higher = (ThrottleLimits(iops_total=iops, iops_size=4096) for iops in (900, 9000))
    earlier = {VDA: known._replace(sent=Sent(lower)), VDB: known._replace(sent=Sent(higher))}
    orders = {order.drive: order.limits for order in left_at_stop(State(drives=earlier))}
    assert orders[VDA] == lower  # again: the last order may not have been carried out
    assert rates(State(drives=earlier))[VDB] == 5000
    priced = known._replace(pricing=Pricing(rate=800.0))
    assert rates(State(drives={VDA: priced})) == {VDA: 800}


def test_what_nothing_limits_or_nobody_has_limited_is_left_alone() -> None:
    there = {VDA: drive(), VDB: drive(DrivePolicy(limit=9))._replace(sent=Sent())}
    assert left_at_stop(State(drives=there)) == []


def test_only_the_drives_that_are_asked_for_are_left() -> None:
    there = {VDA: drive(DrivePolicy(limit=9)), OTHER: drive(DrivePolicy(limit=9))}
    orders, _ = static_orders(State(drives=there), [OTHER])
    assert [order.drive for order in orders] == [OTHER]


def test_a_fault_of_the_law_leaves_that_vm_as_it_is_and_serves_the_others() -> None:
    nonsense: Any = "nonsense"
    there = {
        VDA: drive(DrivePolicy(limit=9)),
        VDB: drive(DrivePolicy(limit=nonsense)),
        OTHER: drive(DrivePolicy(limit=9)),
    }
    orders, failures = static_orders(State(drives=there), there)
    assert [order.drive for order in orders] == [OTHER]
    assert failures.keys() == {"db1"}


def test_a_fault_in_a_tenants_division_leaves_its_vms_as_they_are() -> None:
    nonsense: Any = "nonsense"
    there = {
        VDA: drive(DrivePolicy(limit=9), tenant="acme"),
        OTHER: drive(DrivePolicy(limit=9)),
    }
    state = State(drives=there, tenants={"acme": TenantPolicy(limit=nonsense)})
    orders, failures = static_orders(state, there)
    assert [order.drive for order in orders] == [OTHER]
    assert failures.keys() == {"db1"}


@pytest.mark.parametrize("bound", ["tenant", "storage"])
def test_an_agent_that_stops_lifts_no_limit_that_only_a_division_holds(bound: str) -> None:
    """As seen on a host: a stop gave both drives back what they had before the agent."""
    policies = {VDA: DrivePolicy(limit=5000), VDB: FREE}
    tenants = {"acme": TenantPolicy(limit=1000)} if bound == "tenant" else {}
    capacity = 1000 if bound == "storage" else None
    state, in_force = State(tenants=tenants), dict.fromkeys(policies, UNLIMITED)
    for second in range(1, 12):
        now_ns, done = second * NS_PER_S, 600 * second
        seen = {
            name: DriveSeen(
                policy,
                Counters(now_ns, done, 4096 * done, 0, 0, 0, 0),
                in_force[name],
                abilities=STOCK,
                storage="fast",
                tenant="acme",
            )
            for name, policy in policies.items()
        }
        full = StorageCounters(now_ns, 2 * done, 2 * done * 10_000_000, 0, 0, 12, now_ns)
        storages = {"fast": StorageSeen(StoragePolicy(capacity=capacity), full)}
        state, orders = decide(state, Observation(seen, storages=storages), now_ns)
        in_force |= {order.drive: order.limits for order in orders}
    in_force |= {order.drive: order.limits for order in left_at_stop(state)}
    assert None not in {limits.iops_total for limits in in_force.values()}
    assert sum(limits.iops_total or inf for limits in in_force.values()) <= 1001
