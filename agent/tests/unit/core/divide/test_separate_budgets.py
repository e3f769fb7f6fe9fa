"""A drive with separate budgets keeps to its share with both together."""

from __future__ import annotations

from math import inf

import pytest

from iokeel.core.enforce.at_a_stop import static_orders
from iokeel.core.enforce.in_force import rate_in_force
from iokeel.core.values.curve import DEFAULT_MODEL
from iokeel.core.values.policy import DrivePolicy, TenantPolicy
from iokeel.core.values.storage import StoragePolicy
from testing.sim.fleet import Faults, Fleet
from testing.sim.guests import Guest, Kind, Phase
from testing.sim.storage import Disk, steady

SHARED = DrivePolicy(limit=5000)
SEPARATE = DrivePolicy(limit=5000, separate_budgets=True)
SETTLED_S, SECONDS = 10, 40
# Throttles of stock QEMU let a burst of 100 ms pass whenever limits change.
TOLERANCE = 0.03


def host(
    policy: DrivePolicy,
    write_ratio: float,
    *,
    exact: bool,
    tenant: int | None,
    capacity: int | None,
) -> Fleet:
    """Return a host with a drive of this policy beside one with a shared budget."""
    kind = Kind.of(4, write_ratio)
    name = None if tenant is None else "acme"
    guests = [
        Guest("one", policy, iter([Phase(inf, kind=kind)]), 0, name, exact),
        Guest("other", SHARED, iter([Phase(inf)]), 0, name, exact),
    ]
    disk = Disk(StoragePolicy(capacity), steady(9000), 0.001, 1.0)
    return Fleet(guests, [disk], {} if tenant is None else {"acme": TenantPolicy(limit=tenant)})


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("write_ratio", [0.0, 0.1, 0.3, 0.5, 1.0])
def test_both_budgets_together_keep_a_tenants_limit(write_ratio: float, exact: bool) -> None:
    fleet = host(SEPARATE, write_ratio, exact=exact, tenant=1000, capacity=None)
    served = fleet.run(SECONDS).served[SETTLED_S:].sum(axis=1)
    assert 900 <= served.mean() <= 1000 * (1 + TOLERANCE)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("write_ratio", [0.0, 0.1, 0.3, 0.5, 0.8, 1.0])
def test_both_budgets_together_have_a_storages_share(write_ratio: float, exact: bool) -> None:
    fleet = host(SEPARATE, write_ratio, exact=exact, tenant=None, capacity=2000)
    did, other = fleet.run(SECONDS).served[SETTLED_S:].mean(axis=0)
    assert did == pytest.approx(1000, rel=0.1)  # a direction's part is counted in sixteenths
    assert other == pytest.approx(1000, rel=TOLERANCE)
    orders, _ = static_orders(fleet.state, fleet.state.drives)
    left = [rate_in_force(order.limits, DEFAULT_MODEL) for order in orders]
    assert sum(left) <= (2000 if write_ratio == 0.5 else 3000) * (1 + TOLERANCE)


@pytest.mark.parametrize(("tenant", "capacity"), [(None, 2000), (2000, None)])
@pytest.mark.parametrize("write_ratio", [0.0, 0.2, 0.5])
def test_what_is_reserved_is_kept_for_any_mix(
    write_ratio: float, tenant: int | None, capacity: int | None
) -> None:
    policy = DrivePolicy(limit=5000, reservation=1500, separate_budgets=True)
    fleet = host(policy, write_ratio, exact=True, tenant=tenant, capacity=capacity)
    did, _ = fleet.run(SECONDS).served[SETTLED_S:].mean(axis=0)
    assert did >= 0.92 * 1500


def test_what_is_reserved_is_kept_while_counters_cannot_be_read() -> None:
    policy = DrivePolicy(limit=5000, reservation=1500, separate_budgets=True)
    fleet = host(policy, 0.0, exact=True, tenant=None, capacity=2000)
    fleet.faults = Faults(lost=frozenset((tick, 0) for tick in range(20, 30)))
    assert fleet.run(SECONDS).served[SETTLED_S:, 0].min() >= 0.92 * 1500
