"""What the fleet lets a tenant do on a host, among its drives there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from iokeel.core.decide import decide
from iokeel.core.divide.held import with_outcomes
from iokeel.core.divide.tenant_sums import by_tenant, tenant_sums
from iokeel.core.enforce.in_force import rate_in_force
from iokeel.core.values.counters import NS_PER_S, DriveId
from iokeel.core.values.curve import DEFAULT_MODEL
from iokeel.core.values.limits import STOCK, UNLIMITED, Abilities, ThrottleLimits
from iokeel.core.values.observation import DriveSeen, Observation, SetLimits
from iokeel.core.values.policy import ENDLESS, DrivePolicy, TenantPolicy
from iokeel.core.values.state import State
from tests.unit.core.stopping import left_at_stop

EXACT = Abilities(cost_curve=True, keeps_levels=True)
DRIVES = [DriveId("a", "vda"), DriveId("b", "vda"), DriveId("c", "vda")]


def rate(limits: ThrottleLimits) -> float:
    """Return the rate of exact limits, reads and writes together."""
    both = (limits.iops_total, limits.iops_read, limits.iops_write)
    return sum(iops for iops in both if iops) if any(both) else inf


class Host(RuleBasedStateMachine):
    """A host whose QEMUs take limits late, or refuse them; and a fleet that grants and takes.

    What it grants is for a tenant, or for a storage.
    """

    place: Mapping[str, Any] = {"tenant": "acme"}

    def granted(self, *, partial: bool) -> dict[str, Any]:
        """Return what an observation has of the grant."""
        return {"granted": {"acme": TenantPolicy(limit=self.grant)}}

    def held(self) -> int:
        """Return what the fleet is told."""
        return tenant_sums(by_tenant(self.state.drives).get("acme", ())).held

    @initialize(grant=st.sampled_from([1000, 50]), separate=st.booleans())
    def begin(self, grant: int, separate: bool) -> None:
        policy = DrivePolicy(limit=700, burst=900, separate_budgets=separate)
        self.policies = dict.fromkeys(DRIVES, DrivePolicy()) | {DRIVES[0]: policy}
        self.state = State()
        self.now_ns = 0
        self.grant: int | None = grant
        self.charged = float(grant)
        self.in_force = dict.fromkeys(DRIVES, UNLIMITED)
        self.sent: dict[DriveId, list[SetLimits]] = {drive: [] for drive in DRIVES}
        self.hidden: set[DriveId] = set()
        self.look(None)
        self.deliver_all()

    def seen(self, drive: DriveId) -> DriveSeen:
        pending = bool(self.sent[drive])
        in_force = None if pending else self.in_force[drive]
        return DriveSeen(self.policies[drive], None, in_force, False, EXACT, **self.place)

    def look(self, only: DriveId | None) -> None:
        self.now_ns += NS_PER_S
        there = [drive for drive in DRIVES if drive not in self.hidden and only in (None, drive)]
        observation = Observation(
            {drive: self.seen(drive) for drive in there},
            partial=only is not None,
            unread=self.hidden,
        )
        observation = replace(observation, **self.granted(partial=only is not None))
        self.state, orders = decide(self.state, observation, self.now_ns)
        for order in orders:
            self.sent[order.drive].append(order)

    def deliver(self, drive: DriveId, refused: bool = False) -> None:
        order = self.sent[drive].pop(0)
        if refused:
            return
        self.in_force[drive] = order.limits
        if not self.sent[drive]:
            self.state = with_outcomes(self.state, [order])

    def deliver_all(self) -> None:
        for drive in DRIVES:
            while self.sent[drive]:
                self.deliver(drive)

    @rule(only=st.sampled_from([None, None, *DRIVES]))
    def look_at(self, only: DriveId | None) -> None:
        if only not in self.hidden:
            self.look(only)

    @rule(drive=st.sampled_from(DRIVES), refused=st.booleans())
    def take_one(self, drive: DriveId, refused: bool) -> None:
        if self.sent[drive]:
            self.deliver(drive, refused)

    @rule(times=st.sampled_from([1, 3]))
    def all_is_well(self, times: int) -> None:
        for _ in range(times):
            self.look(None)
            self.deliver_all()

    @rule(drive=st.sampled_from(DRIVES), weight=st.sampled_from([1, 100, 5000]))
    def set_weight(self, drive: DriveId, weight: int) -> None:
        policy = self.policies[drive]
        self.policies[drive] = DrivePolicy(
            limit=policy.limit,
            burst=policy.burst,
            weight=weight,
            separate_budgets=policy.separate_budgets,
        )

    @rule(drive=st.sampled_from(DRIVES), separate=st.booleans())
    def set_budgets(self, drive: DriveId, separate: bool) -> None:
        self.policies[drive] = replace(self.policies[drive], separate_budgets=separate)

    @rule(drive=st.sampled_from(DRIVES))
    def hide_or_show(self, drive: DriveId) -> None:
        self.hidden ^= {drive}

    @rule(grant=st.sampled_from([None, 20, 400, 1000]))
    def grant_other(self, grant: int | None) -> None:
        """The fleet raises what it charged before, and lowers a charge once it is told."""
        self.grant = grant
        if grant is not None:
            self.charged = max(self.charged, grant)

    @rule()
    def tell(self) -> None:
        held = self.held()
        if self.grant is not None and held <= self.grant:
            self.charged = self.grant

    @invariant()
    def never_above_the_charge(self) -> None:
        # Each budget of a drive has at least 1.
        assert sum(map(rate, self.in_force.values())) <= self.charged + 2 * len(DRIVES)

    @invariant()
    def what_is_told_is_not_less_than_what_is_held(self) -> None:
        held = self.held()
        assert held >= min(ENDLESS, sum(map(rate, self.in_force.values()))) - 1e-6

    def teardown(self) -> None:
        """No limit of an agent that stops is higher than what was told."""
        for order in left_at_stop(self.state):
            held = self.state.drives[order.drive].held
            assert held is not None
            assert rate(order.limits) <= max(2, held)


SETTINGS = settings(
    max_examples=150, stateful_step_count=30, suppress_health_check=list(HealthCheck)
)
TestHost = Host.TestCase
TestHost.settings = SETTINGS


def settle(
    policies: dict[DriveId, DrivePolicy], granted: TenantPolicy, state: State | None = None
) -> State:
    """Return the state once all drives have their parts, on QEMUs that take limits at once."""
    state, in_force = state or State(), dict.fromkeys(policies, UNLIMITED)
    for tick in range(6):
        seen = {
            drive: DriveSeen(policy, None, in_force[drive], False, STOCK, tenant="acme")
            for drive, policy in policies.items()
        }
        observation = Observation(seen, granted={"acme": granted})
        state, orders = decide(state, observation, tick * NS_PER_S)
        in_force |= {order.drive: order.limits for order in orders}
    return state


def test_a_grant_is_divided_by_weight_and_own_limits() -> None:
    policies = {DRIVES[0]: DrivePolicy(limit=100), DRIVES[1]: DrivePolicy(weight=300)}
    state = settle({**policies, DRIVES[2]: DrivePolicy()}, TenantPolicy(limit=1300))
    assert [state.drives[drive].pricing.rate for drive in DRIVES] == [100, 900, 300]


def test_a_new_drive_has_next_to_nothing_until_the_grant_is_known() -> None:
    state = settle({DRIVES[0]: DrivePolicy(limit=500)}, TenantPolicy())
    assert state.drives[DRIVES[0]].pricing.rate == 1


def test_a_configured_limit_holds_below_the_grant() -> None:
    state = State(tenants={"acme": TenantPolicy(limit=200)})
    state = settle({DRIVES[0]: DrivePolicy()}, TenantPolicy(limit=1000), state)
    assert state.drives[DRIVES[0]].pricing.rate == 200


def test_a_tenant_that_leaves_the_fleet_goes_by_its_own_policies() -> None:
    state = settle({DRIVES[0]: DrivePolicy(limit=500)}, TenantPolicy(limit=100))
    limits = state.drives[DRIVES[0]].sent.limits
    seen = {DRIVES[0]: DriveSeen(DrivePolicy(limit=500), None, limits, False, STOCK, tenant="acme")}
    state, _ = decide(state, Observation(seen), 100 * NS_PER_S)
    assert state.drives[DRIVES[0]].allowed == 500


@pytest.mark.parametrize("limit", [50, 1000, 40_000])
@pytest.mark.parametrize("separate", [False, True])
def test_limits_of_ours_are_known_again_by_their_figures(limit: int, separate: bool) -> None:
    policy = DrivePolicy(limit=limit, separate_budgets=separate)
    limits = settle({DRIVES[0]: policy}, TenantPolicy(limit=10**6)).drives[DRIVES[0]].sent.limits
    assert limits is not None
    assert rate_in_force(limits, DEFAULT_MODEL) == pytest.approx(limit * (1 + separate), rel=0.02)


def test_no_limits_have_no_end() -> None:
    assert rate_in_force(UNLIMITED, DEFAULT_MODEL) == inf
    assert rate_in_force(UNLIMITED._replace(iops_read=5), DEFAULT_MODEL) == inf
    assert rate_in_force(UNLIMITED._replace(bps_total=4096 * 100), DEFAULT_MODEL) < 200
