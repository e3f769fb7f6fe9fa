"""What the fleet lets a host do on a storage that others use too, among the drives there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from iokeel.core.decide import decide
from iokeel.core.divide.tenant_sums import by_storage, storage_sums, tenant_sums
from iokeel.core.values.counters import NS_PER_S, DriveId
from iokeel.core.values.limits import UNLIMITED, ThrottleLimits
from iokeel.core.values.observation import DriveSeen, Observation, StorageSeen
from iokeel.core.values.policy import DrivePolicy, TenantPolicy
from iokeel.core.values.state import DriveState, State, StorageState
from iokeel.core.values.storage import Load, StoragePolicy
from tests.unit.core.divide import test_tenant_parts as of_tenant
from tests.unit.core.divide.test_tenant_parts import DRIVES, EXACT, SETTINGS
from tests.unit.core.stopping import left_at_stop

DISK = "nbd:10.0.0.1:10809"


class Host(of_tenant.Host):
    """A host whose QEMUs take limits late, or refuse them; and a storage that others use too."""

    place: Mapping[str, Any] = {"storage": DISK}

    def granted(self, *, partial: bool) -> dict[str, Any]:
        storages = {DISK: StorageSeen(StoragePolicy())}
        return {"granted_storages": {DISK: self.grant}, "storages": {} if partial else storages}

    def held(self) -> int:
        drives = by_storage(self.state.drives).get(DISK, ())
        return storage_sums(drives, self.state.storages.get(DISK)).held


TestHost = Host.TestCase
TestHost.settings = SETTINGS


def settle(
    policies: Mapping[DriveId, DrivePolicy],
    granted: int | None,
    tenants: Mapping[str, TenantPolicy] | None = None,
    tenant_of: Mapping[DriveId, str] | None = None,
    granted_tenants: Mapping[str, TenantPolicy] | None = None,
) -> State:
    """Return the state once all drives have their parts, on QEMUs that take limits at once."""
    state = State(tenants=tenants or {})
    in_force: dict[DriveId, ThrottleLimits] = dict.fromkeys(policies, UNLIMITED)
    for tick in range(8):
        seen = {
            drive: DriveSeen(
                policy, None, in_force[drive], False, EXACT, DISK, (tenant_of or {}).get(drive)
            )
            for drive, policy in policies.items()
        }
        observation = Observation(
            seen,
            storages={DISK: StorageSeen(StoragePolicy(capacity=50))},
            granted=granted_tenants or {},
            granted_storages={DISK: granted},
        )
        state, orders = decide(state, observation, tick * NS_PER_S)
        in_force |= {order.drive: order.limits for order in orders}
    return state


def rates(state: State) -> list[float | None]:
    return [state.drives[drive].pricing.rate for drive in DRIVES]


def test_what_is_granted_is_divided_whatever_the_host_believes_the_storage_to_be() -> None:
    policies = {DRIVES[0]: DrivePolicy(limit=100), DRIVES[1]: DrivePolicy(weight=300)}
    state = settle({**policies, DRIVES[2]: DrivePolicy()}, 1300)
    assert rates(state) == [100, 900, 300]
    assert state.storages[DISK].division.usable == 1300


def test_a_drive_gets_its_reservation_of_what_is_granted() -> None:
    policies = dict.fromkeys(DRIVES, DrivePolicy()) | {DRIVES[0]: DrivePolicy(reservation=600)}
    state = settle(policies, 900)
    first = rates(state)[0]
    assert first is not None
    assert first >= 600
    assert sum(rate or 0 for rate in rates(state)) <= 900


def test_a_tenants_grant_and_a_storages_hold_together() -> None:
    state = settle(
        dict.fromkeys(DRIVES, DrivePolicy()),
        1200,
        tenant_of={DRIVES[0]: "acme"},
        granted_tenants={"acme": TenantPolicy(limit=150)},
    )
    assert rates(state)[0] == 150
    assert 1000 <= sum(rate or 0 for rate in rates(state)) <= 1200


def test_a_storage_that_leaves_the_fleet_is_the_hosts_own_again() -> None:
    state = settle({DRIVES[0]: DrivePolicy(limit=500)}, 100)
    limits = state.drives[DRIVES[0]].sent.limits
    seen = {DRIVES[0]: DriveSeen(DrivePolicy(limit=500), None, limits, False, EXACT, DISK)}
    observation = Observation(seen, storages={DISK: StorageSeen(StoragePolicy(), None)})
    state, _ = decide(state, observation, 100 * NS_PER_S)
    assert state.drives[DRIVES[0]].allowed == 500
    assert state.drives[DRIVES[0]].storage_part is None


def test_an_agent_that_stops_leaves_no_more_than_the_part() -> None:
    state = settle(dict.fromkeys(DRIVES, DrivePolicy(limit=1000)), 300)
    left = sum(order.limits.iops_total or 0 for order in left_at_stop(state))
    assert left == pytest.approx(300, abs=3)


def test_without_a_fleet_a_storage_has_no_parts() -> None:
    seen = {d: DriveSeen(DrivePolicy(), None, UNLIMITED, False, EXACT, DISK) for d in DRIVES}
    storages = {DISK: StorageSeen(StoragePolicy(capacity=900))}
    state, _ = decide(State(), Observation(seen, storages=storages), 0)
    assert all(known.storage_part is None for known in state.drives.values())


@pytest.mark.parametrize("granted", [{}, {DISK: 100}, {DISK: None}])
def test_a_storage_of_the_fleet_is_not_oversold_by_one_host(
    granted: dict[str, int | None],
) -> None:
    policy = DrivePolicy(reservation=600)
    seen = {d: DriveSeen(policy, None, UNLIMITED, False, EXACT, DISK) for d in DRIVES}
    storages = {DISK: StorageSeen(StoragePolicy(capacity=600 * len(DRIVES) - 1))}
    observation = Observation(seen, storages=storages, granted_storages=granted)
    state, _ = decide(State(), observation, 0)
    assert state.storages[DISK].promised == 600 * len(DRIVES)
    assert state.storages[DISK].oversold == (not granted)


def test_a_host_with_no_policy_there_tells_the_load_of_its_drives() -> None:
    drives = by_storage({DRIVES[0]: DriveState(storage=DISK)})
    load = Load(strangers=300.0)
    sums = storage_sums(drives[DISK], StorageState(StoragePolicy(), load=load))
    assert (sums.most, sums.held, sums.load) == (0, 0, load)


def test_the_least_that_drives_can_be_held_to_is_1_for_each_of_their_budgets() -> None:
    policies = DrivePolicy(limit=9), DrivePolicy(limit=9, separate_budgets=True), None
    known = [(drive, DriveState(policy)) for drive, policy in zip(DRIVES, policies, strict=False)]
    assert tenant_sums(known).least == 3
