"""A division that fails on one VM or storage: all the others are divided as without it."""

from __future__ import annotations

from typing import Any

import pytest

from iokeel.core.decide import decide
from iokeel.core.values.claimant import FOOTHOLD_RATIO
from iokeel.core.values.counters import NS_PER_S, Counters, DriveId
from iokeel.core.values.limits import STOCK, UNLIMITED, ThrottleLimits
from iokeel.core.values.observation import DriveSeen, Observation, StorageSeen
from iokeel.core.values.policy import DrivePolicy, TenantPolicy, VmPolicy
from iokeel.core.values.state import State
from iokeel.core.values.storage import StoragePolicy

NONSENSE: Any = object()
ACME1, ACME2, EVIL, BESIDE = (DriveId(vm, "vda") for vm in ("acme1", "acme2", "evil", "beside"))


class Host:
    """Two VMs whose tenant may do 3,000 together, and two on a storage of their own."""

    def __init__(self) -> None:
        self.state = State(tenants={"acme": TenantPolicy(0, 3000)})
        self.limits = dict.fromkeys((ACME1, ACME2, EVIL, BESIDE), UNLIMITED)
        self.done = dict.fromkeys(self.limits, 0)
        self.second = 0
        self.vm: VmPolicy | None = None
        self.odd = StoragePolicy(capacity=10_000)

    def look(self, seconds: int, **wanted: int) -> None:
        """Let seconds pass in which VMs want so much each."""
        for _ in range(seconds):
            self.second += 1
            for drive, limits in self.limits.items():
                want = wanted.get(drive.domain, 0)
                self.done[drive] += min(want, limits.iops_total or want)
            now_ns = (100 + self.second) * NS_PER_S
            seen = {
                drive: DriveSeen(
                    DrivePolicy(limit=4000),
                    Counters(now_ns, done, 4096 * done, 0, 0, 0, 0),
                    self.limits[drive],
                    abilities=STOCK,
                    storage="odd" if drive in (EVIL, BESIDE) else "ssd",
                    tenant=None if drive in (EVIL, BESIDE) else "acme",
                    vm=self.vm if drive == EVIL else None,
                )
                for drive, done in self.done.items()
            }
            storages = {"ssd": StorageSeen(StoragePolicy(10_000)), "odd": StorageSeen(self.odd)}
            self.state, orders = decide(self.state, Observation(seen, storages=storages), now_ns)
            self.limits.update((order.drive, order.limits) for order in orders)

    def held(self, drive: DriveId) -> ThrottleLimits:
        return self.limits[drive]

    def may(self, drive: DriveId) -> float:
        return self.state.drives[drive].pricing.rate or 0.0


@pytest.mark.parametrize("bad", ["VM", "storage"])
def test_load_that_moves_between_a_tenants_vms_takes_its_limit_along(bad: str) -> None:
    host = Host()
    host.look(20, acme1=9000, evil=100)
    most = (1 - FOOTHOLD_RATIO / 2) * 3000
    assert host.may(ACME1) == most
    held = host.held(EVIL)
    assert held != UNLIMITED
    if bad == "VM":
        host.vm = VmPolicy(limit=NONSENSE)
    else:
        host.odd = StoragePolicy(capacity=NONSENSE)
    host.look(20, acme2=9000, evil=100)
    failed: set[DriveId | str | None] = {EVIL} if bad == "VM" else {EVIL, BESIDE, "odd"}
    assert host.state.failures.keys() == failed
    assert host.may(ACME2) == most
    assert host.may(ACME1) < 1000
    assert host.held(EVIL) == held
    host.vm, host.odd = None, StoragePolicy(10_000)
    host.look(2, evil=100)
    assert host.state.failures == {}


def test_a_storage_that_the_law_fails_on_is_there_again_as_it_was() -> None:
    host = Host()
    host.look(3, evil=100)
    known = host.state.storages["odd"]
    host.odd = StoragePolicy(capacity=NONSENSE)
    host.look(3, evil=100)
    assert host.state.storages["odd"] == known
