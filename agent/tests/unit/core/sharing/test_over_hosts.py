"""A tenant's weight on a storage that hosts share, over all of them together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from iokeel.core.counters import DriveId
from iokeel.core.fleet.claims import HostClaim, needs_above_floors, with_tenants
from iokeel.core.observation import StorageSeen
from iokeel.core.policy import DrivePolicy, TenantPolicy
from iokeel.core.sharing.allocate import allocate
from iokeel.core.state import Demand, DriveState, Measured, StorageState
from iokeel.core.storage import StoragePolicy
from iokeel.core.wants import TenantLevel

DISK = "rbd:vms"
CAPACITY = 6000
TENANTS = {
    "acme": TenantPolicy(weight=100),
    "beta": TenantPolicy(weight=100),
    "umbra": TenantPolicy(weight=300),
}


@dataclass
class Host:
    """A host of the fleet. Its drives want all they can get, or a rate. weight: each drive's."""

    drives: Mapping[str, tuple[str | None, float | None]]
    weight: int = 100
    before: Mapping[str, StorageState] = field(default_factory=dict)

    def divide(self, granted: int | None, levels: Mapping[str, TenantLevel]) -> StorageState:
        known = {
            DriveId(name, "vda"): DriveState(
                policy=DrivePolicy(weight=self.weight),
                storage=DISK,
                tenant=tenant,
                measured=Measured(rate=rate or 1000.0),
                demand=Demand(rate=rate or 1000.0, backlogged=rate is None),
            )
            for name, (tenant, rate) in self.drives.items()
        }
        self.before, _ = allocate(
            known,
            {DISK: StorageSeen(StoragePolicy(CAPACITY))},
            self.before,
            TENANTS,
            {DISK: granted},
            fleet_tenants=TENANTS,
            levels={DISK: levels},
        )
        return self.before[DISK]


def amounts(*hosts: Host) -> dict[str, float]:
    """Divide the storage among hosts as a coordinator does, until amounts stay."""
    grants: list[int | None] = [None] * len(hosts)
    levels: Mapping[str, TenantLevel] = {}
    for _ in range(4):
        states = [host.divide(grant, levels) for host, grant in zip(hosts, grants, strict=True)]
        claims = {str(i): HostClaim("i", wants=state.wants) for i, state in enumerate(states)}
        claims, levels = with_tenants(CAPACITY, claims, dict.fromkeys(claims, 0))
        needs = needs_above_floors(CAPACITY, [*claims.values()], [0] * len(hosts))
        grants = [round(need) for need in needs]
    return {drive.domain: amount for state in states for drive, amount in state.amounts.items()}


def test_a_tenant_has_its_weight_once_however_many_hosts_it_is_on() -> None:
    got = amounts(
        Host({"a1": ("acme", None), "u1": ("umbra", None)}),
        Host({"a2": ("acme", None), "a3": ("acme", None)}),
        Host({"a4": ("acme", None)}),
    )
    assert got["u1"] == pytest.approx(CAPACITY * 300 / 400, rel=0.02)
    assert [got[f"a{i}"] for i in range(1, 5)] == pytest.approx([CAPACITY / 16] * 4, rel=0.05)


def test_a_tenants_drives_that_do_little_take_none_of_its_weight_from_a_busy_one() -> None:
    little = {f"l{i}": ("acme", 10.0) for i in range(4)}
    got = amounts(
        Host({"a1": ("acme", None), **little}), Host({"a2": ("acme", None), "x": (None, None)})
    )
    # A drive of no tenant has its own weight, which is as much as the tenant's.
    assert got["x"] == pytest.approx(CAPACITY / 2, rel=0.02)
    assert got["a1"] == pytest.approx(got["a2"], rel=0.05)


@pytest.mark.parametrize("weight", [1, 100, 10_000])
def test_nor_do_those_on_other_hosts(weight: int) -> None:
    little = [Host({f"l{i}": ("acme", CAPACITY / 600)}, weight) for i in range(9)]
    busy = Host({"a": ("acme", None), "x": ("beta", None)}, weight)
    got = amounts(busy, *little)
    assert got["x"] == pytest.approx(CAPACITY / 2, rel=0.02)
    assert got["a"] == pytest.approx(CAPACITY * (1 / 2 - 9 * 1.15 / 600), rel=0.03)


def test_a_drive_that_does_little_keeps_its_foothold() -> None:
    got = amounts(Host({"a1": ("acme", 5.0), "x": (None, None)}), Host({"a2": ("acme", None)}))
    alone = amounts(Host({"y": (None, 5.0), "x": (None, None)}), Host({"a2": ("acme", None)}))
    assert got["a1"] == pytest.approx(alone["y"], rel=0.1)
    assert got["a1"] > 10 * 5


def test_a_tenant_that_is_idle_on_a_host_leaves_its_weight_to_the_others() -> None:
    got = amounts(Host({"a1": ("acme", 1e-9), "x": (None, None)}), Host({"a2": ("acme", None)}))
    assert got["a2"] == pytest.approx(CAPACITY / 2, rel=0.06)
