"""A tenant's weight on a storage that hosts share, over all of them together."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.core.fleet.claims import HostClaim, needs_above_floors, with_tenants
from iokeel.core.values.claimant import Claim
from iokeel.core.values.policy import TenantPolicy
from iokeel.core.values.wants import LAYER_RATIO, TenantWants, wants_of
from testing.sim.oracle import by_bisection
from testing.sim.shared_division import Drive
from testing.sim.shared_division import amounts as divided

CAPACITY = 6000
TENANTS = {
    "acme": TenantPolicy(weight=100),
    "beta": TenantPolicy(weight=100),
    "umbra": TenantPolicy(weight=300),
}


def amounts(
    *hosts: Mapping[str, tuple[str | None, float | None]], weight: int = 100
) -> dict[str, float]:
    """Return what drives get, by the tenant and the rate of each; None: all that it can get."""
    fleet = [[Drive(name, *drive, weight) for name, drive in host.items()] for host in hosts]
    return divided(CAPACITY, TENANTS, fleet)


def test_a_tenant_has_its_weight_once_however_many_hosts_it_is_on() -> None:
    got = amounts(
        {"a1": ("acme", None), "u1": ("umbra", None)},
        {"a2": ("acme", None), "a3": ("acme", None)},
        {"a4": ("acme", None)},
    )
    assert got["u1"] == pytest.approx(CAPACITY * 300 / 400, rel=0.02)
    assert [got[f"a{i}"] for i in range(1, 5)] == pytest.approx([CAPACITY / 16] * 4, rel=0.05)


def test_a_tenants_drives_that_do_little_take_none_of_its_weight_from_a_busy_one() -> None:
    little = {f"l{i}": ("acme", 10.0) for i in range(4)}
    got = amounts({"a1": ("acme", None), **little}, {"a2": ("acme", None), "x": (None, None)})
    # A drive of no tenant has its own weight, which is as much as the tenant's.
    assert got["x"] == pytest.approx(CAPACITY / 2, rel=0.02)
    assert got["a1"] == pytest.approx(got["a2"], rel=0.05)


@pytest.mark.parametrize("weight", [1, 100, 10_000])
def test_nor_do_those_on_other_hosts(weight: int) -> None:
    little = [{f"l{i}": ("acme", CAPACITY / 600)} for i in range(9)]
    busy = {"a": ("acme", None), "x": ("beta", None)}
    got = amounts(busy, *little, weight=weight)
    assert got["x"] == pytest.approx(CAPACITY / 2, rel=0.02)
    assert got["a"] == pytest.approx(CAPACITY * (1 / 2 - 9 * 1.15 / 600), rel=0.03)


def test_a_drive_that_does_little_keeps_its_foothold() -> None:
    got = amounts({"a1": ("acme", 5.0), "x": (None, None)}, {"a2": ("acme", None)})
    alone = amounts({"y": (None, 5.0), "x": (None, None)}, {"a2": ("acme", None)})
    assert got["a1"] == pytest.approx(alone["y"], rel=0.1)
    assert got["a1"] > 10 * 5


def test_a_tenant_that_is_idle_on_a_host_leaves_its_weight_to_the_others() -> None:
    got = amounts({"a1": ("acme", 1e-9), "x": (None, None)}, {"a2": ("acme", None)})
    assert got["a2"] == pytest.approx(CAPACITY / 2, rel=0.06)


WEIGHTS = {"acme": 100, "umbra": 300}
DRIVES = st.tuples(
    st.sampled_from([None, *WEIGHTS]),
    st.integers(1, 400),
    st.sampled_from([5, 50, 500, 5000, 50_000]),
)
HOSTS = st.lists(st.lists(DRIVES, min_size=1, max_size=5), min_size=1, max_size=5)


@given(HOSTS, st.integers(1, 20_000))
def test_a_host_gets_what_its_drives_would_get_if_all_were_on_one(
    hosts: list[list[tuple[str | None, int, int]]], capacity: int
) -> None:
    def claim(drives: list[tuple[str | None, int, int]]) -> HostClaim:
        of = {owner: [(0, w, d) for o, w, d in drives if o == owner] for owner, _, _ in drives}
        tenants = {
            name: TenantWants(WEIGHTS[name], wants_of(own).layers)
            for name, own in of.items()
            if name is not None
        }
        return HostClaim("i", wants=wants_of(of.get(None, []))._replace(tenants=tenants))

    claims = {str(i): claim(drives) for i, drives in enumerate(hosts)}
    divided, _ = with_tenants(capacity, claims, dict.fromkeys(claims, 0))
    needs = needs_above_floors(capacity, [*divided.values()], [0] * len(hosts))

    every = [(host, *drive) for host, drives in enumerate(hosts) for drive in drives]
    alone = [[(host, w, d)] for host, owner, w, d in every if owner is None]
    groups = [[(host, w, d) for host, o, w, d in every if o == owner] for owner in WEIGHTS]
    weights = [*(group[0][1] for group in alone), *WEIGHTS.values()]
    demands = [sum(demand for _, _, demand in group) for group in (*alone, *groups)]
    tops = [Claim(0, weight, d) for weight, d in zip(weights, demands, strict=True)]
    due = dict.fromkeys(range(len(hosts)), 0.0)
    for group, amount in zip((*alone, *groups), by_bisection(capacity, tops), strict=True):
        own = [Claim(0, weight, demand) for _, weight, demand in group]
        for (host, _, _), got in zip(group, by_bisection(amount, own) if own else [], strict=True):
            due[host] += got
    rounding, most = 2.0 * len(every), LAYER_RATIO**2
    for host, need in enumerate(needs):
        assert due[host] / most - rounding <= need <= most * due[host] + rounding
