"""What the law doesn't know never lifts a limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from iokeel.core.abilities import PATCHED
from iokeel.core.counters import NS_PER_S, Counters, DriveId
from iokeel.core.curve import DEFAULT_MODEL
from iokeel.core.decide import decide
from iokeel.core.drive.envelope import limits_for
from iokeel.core.limits import UNLIMITED, ThrottleLimits
from iokeel.core.observation import DriveSeen, Observation, StorageSeen
from iokeel.core.orders import SetLimits
from iokeel.core.policy import UNKNOWN, DrivePolicy, TenantPolicy, UnknownPolicy
from iokeel.core.sharing.storage import StoragePolicy
from iokeel.core.state import Credit, DriveState, Sent, State, Verdict

VDA, VDB = DriveId("db1", "vda"), DriveId("db2", "vda")
LIMITED, FREE = DrivePolicy(limit=1000), DrivePolicy()
BURSTING = DrivePolicy(limit=1000, burst=3000)
HELD = limits_for(DEFAULT_MODEL, 1000)
FAST = {"fast": StorageSeen(StoragePolicy(capacity=1000))}


@dataclass
class Host:
    """Drives whose limits are in force as soon as they are ordered."""

    state: State = field(default_factory=State)
    in_force: dict[DriveId, ThrottleLimits] = field(default_factory=dict)
    now_s: int = 100

    def look(
        self,
        policies: Mapping[DriveId, DrivePolicy | UnknownPolicy | None],
        *,
        storage: str | None = None,
        partial: bool = False,
        counted: bool = True,
        tenant: str | None = None,
        storages: Mapping[str, StorageSeen] = FAST,
    ) -> list[SetLimits]:
        self.now_s += 1
        counters = Counters(self.now_s * NS_PER_S, 0, 0, 0, 0, 0, 0) if counted else None
        seen = {
            drive: DriveSeen(
                policy,
                counters,
                self.in_force.get(drive, UNLIMITED),
                storage=storage,
                tenant=tenant,
            )
            for drive, policy in policies.items()
        }
        observation = Observation(seen, partial, {} if partial else storages)
        self.state, orders = decide(self.state, observation, self.now_s * NS_PER_S)
        for order in orders:
            self.in_force[order.drive] = order.limits
        return orders

    def restarted(self) -> Host:
        """Return the same host as a new agent finds it, which knows what the store saves."""
        kept = {
            drive: DriveState(
                policy=known.policy,
                storage=known.storage,
                tenant=known.tenant,
                credit=known.credit,
                sent=Sent(known.sent.limits, known.sent.replaced, known.sent.found),
            )
            for drive, known in self.state.drives.items()
        }
        return Host(State(drives=kept, tenants=self.state.tenants), self.in_force, self.now_s)


def test_a_burst_that_goes_from_a_policy_before_counters_are_read_leaves_the_limit() -> None:
    known = DriveState(policy=BURSTING, credit=Credit(30, True), sent=Sent(HELD))
    host = Host(State(drives={VDA: known}), {VDA: HELD})
    host.look({VDA: LIMITED}, counted=False)
    assert host.in_force[VDA].iops_total == HELD.iops_total
    assert host.state.drives[VDA].ceiling == 1000


@pytest.mark.parametrize("policy", [FREE, DrivePolicy(limit=900)])
def test_a_share_is_not_lifted_before_the_first_division_after_a_restart(
    policy: DrivePolicy,
) -> None:
    host = Host()
    both = {VDA: policy, VDB: policy}
    for _ in range(3):
        host.look(both, storage="fast")
    held = dict(host.in_force)
    assert all(limits.iops_total for limits in held.values())
    after = host.restarted()
    assert after.look({VDA: policy}, storage="fast", partial=True) == []
    assert after.state.drives[VDA].finding.verdict is Verdict.NOT_DIVIDED
    for _ in range(3):
        after.look(both, storage="fast")
    assert after.in_force == held


def test_a_new_drive_has_its_limit_before_any_division() -> None:
    host = Host()
    host.look({VDA: LIMITED}, storage="fast", partial=True)
    assert host.in_force == {VDA: HELD}


@pytest.mark.parametrize("restart", [False, True])
def test_a_drive_whose_storage_is_not_found_keeps_its_share_of_the_last_one(restart: bool) -> None:
    host = Host()
    for _ in range(3):
        host.look({VDA: FREE}, storage="fast")
    held = dict(host.in_force)
    assert held[VDA].iops_total
    host = host.restarted() if restart else host
    for _ in range(3):
        host.look({VDA: FREE}, storage=None)
    assert host.in_force == held
    host.look({VDA: FREE}, storage="elsewhere", storages={})
    assert host.in_force == {VDA: UNLIMITED}


def test_a_saved_policy_counts_only_with_the_limits_that_were_saved_with_it() -> None:
    """Others in force are those of a later policy, which couldn't be saved."""
    saved = DriveState(policy=DrivePolicy(limit=5000), sent=Sent(limits_for(DEFAULT_MODEL, 5000)))
    host = Host(State(drives={VDA: saved}), {VDA: HELD})
    for _ in range(3):
        assert host.look({VDA: UNKNOWN}) == []
    host.in_force[VDA] = UNLIMITED  # its guest starts again
    for _ in range(2):
        host.look({VDA: UNKNOWN})
    assert host.in_force == {VDA: limits_for(DEFAULT_MODEL, 5000)}
    host.in_force[VDA] = HELD  # from now on it is the agent's own
    host.look({VDA: UNKNOWN})
    assert host.in_force == {VDA: limits_for(DEFAULT_MODEL, 5000)}


def test_drives_that_can_not_be_read_are_kept_and_others_are_forgotten() -> None:
    known = {drive: DriveState(policy=LIMITED, sent=Sent(HELD)) for drive in (VDA, VDB)}
    seen = Observation({}, unread=[VDA])
    state, orders = decide(State(drives=known), seen, NS_PER_S)
    assert state.drives == {VDA: known[VDA]}
    assert orders == []


def test_a_tenants_limit_holds_from_the_first_look_at_all_drives() -> None:
    host = Host(State(tenants={"acme": TenantPolicy(limit=600)}))
    host.look({VDA: FREE, VDB: FREE}, tenant="acme")
    held = dict(host.in_force)
    after = host.restarted()
    assert after.look({VDA: UNKNOWN, VDB: UNKNOWN}, partial=True) == []
    after.look({VDA: UNKNOWN, VDB: UNKNOWN})
    assert after.in_force == held
    assert all(limits.iops_total for limits in held.values())


def test_a_qemu_that_refuses_a_curve_has_stock_limits_in_the_next_look() -> None:
    host = Host()
    exact = DriveSeen(LIMITED, None, UNLIMITED, abilities=PATCHED)
    host.state, (order,) = decide(State(), Observation({VDA: exact}), NS_PER_S)
    assert order.limits.cost_read is not None
    refused = exact._replace(abilities=exact.abilities._replace(cost_curve=False))
    host.state, (order,) = decide(host.state, Observation({VDA: refused}), 2 * NS_PER_S)
    assert order.limits == HELD
