"""What the law doesn't know never lifts a limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.core.decide import decide
from iokeel.core.enforce.envelope import limits_for, limits_for_any_size
from iokeel.core.enforce.pricing import exact_limits
from iokeel.core.values.claimant import FOOTHOLD_RATIO
from iokeel.core.values.counters import NS_PER_S, Counters, DriveId
from iokeel.core.values.curve import DEFAULT_MODEL
from iokeel.core.values.limits import STOCK, UNLIMITED, Abilities, ThrottleLimits
from iokeel.core.values.observation import DriveSeen, Observation, SetLimits, StorageSeen
from iokeel.core.values.policy import (
    UNKNOWN,
    DomainPolicy,
    DrivePolicy,
    PolicyInPart,
    TenantPolicy,
    UnknownPolicy,
    VmPolicy,
)
from iokeel.core.values.state import NEW, Credit, Demand, DriveState, Pricing, Sent, State, Verdict
from iokeel.core.values.storage import StoragePolicy
from testing.hypervisors.abilities import PATCHED
from testing.hypervisors.iotune import highest_rate
from tests.unit.core.policies import POLICIES
from tests.unit.core.stopping import left_at_stop

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
        abilities: Abilities | None = STOCK,
        default: DrivePolicy | None = None,
    ) -> list[SetLimits]:
        self.now_s += 1
        counters = Counters(self.now_s * NS_PER_S, 0, 0, 0, 0, 0, 0) if counted else None
        seen = {
            drive: DriveSeen(
                policy,
                counters,
                self.in_force.get(drive, UNLIMITED),
                abilities=abilities,
                storage=storage,
                tenant=tenant,
                default=default,
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
        host.look({VDA: FREE, VDB: FREE}, storage="fast")
    held = dict(host.in_force)
    assert held[VDA].iops_total
    host = host.restarted() if restart else host
    for _ in range(3):
        host.look({VDA: FREE, VDB: FREE}, storage=None)
    assert host.in_force == held
    host.look({VDA: FREE, VDB: FREE}, storage="elsewhere", storages={})
    assert host.in_force == {VDA: UNLIMITED, VDB: UNLIMITED}


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


@pytest.mark.parametrize("defined", [UNLIMITED, limits_for(DEFAULT_MODEL, 9000)])
def test_a_saved_policy_counts_for_a_guest_that_starts_with_the_limits_from_before_it(
    defined: ThrottleLimits,
) -> None:
    """As those of its definition, after the host was restarted."""
    host = Host(in_force={VDA: defined})
    host.look({VDA: LIMITED})
    assert host.in_force == {VDA: HELD}
    host = host.restarted()
    host.in_force = {VDA: defined}
    for _ in range(2):
        host.look({VDA: UNKNOWN})
    assert host.in_force == {VDA: HELD}
    assert host.state.drives[VDA].sent.found == defined


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


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize(
    ("held", "limit", "left"),
    [(500, None, 500), (800, 500, 200), (1000, None, 1)],
)
@pytest.mark.parametrize("restart", [False, True])
def test_drives_that_can_not_be_read_keep_their_part_of_their_tenants_limit(
    restart: bool, held: int, limit: int | None, left: float, busy: bool
) -> None:
    """The others have no more than the rest."""
    unread = DriveState(
        DrivePolicy(limit=limit),
        tenant="acme",
        pricing=Pricing() if restart else Pricing(rate=held),
        sent=Sent(exact_limits(DEFAULT_MODEL, held)),
    )
    known = DriveState(FREE, tenant="acme", demand=Demand(rate=5000, backlogged=busy))
    state = State(drives={VDA: unread, VDB: known}, tenants={"acme": TenantPolicy(limit=1000)})
    seen = DriveSeen(FREE, None, UNLIMITED, abilities=PATCHED, tenant="acme")
    state, _ = decide(state, Observation({VDB: seen}, unread=[VDA]), NS_PER_S)
    allowed = state.drives[VDB].allowed
    assert allowed is not None
    assert allowed <= left
    assert allowed >= (left - 1 if busy else min(left, FOOTHOLD_RATIO * 1000 / 2))
    state, _ = decide(state, Observation({VDB: seen}), 2 * NS_PER_S)
    assert state.drives[VDB].allowed == 1000, "the other has gone"


def test_a_drive_on_which_the_law_failed_keeps_its_part_of_its_tenants_limit() -> None:
    failed = DriveState(
        FREE, tenant="acme", pricing=Pricing(rate=700), sent=Sent(exact_limits(DEFAULT_MODEL, 700))
    )
    known = DriveState(FREE, tenant="acme", demand=Demand(rate=5000, backlogged=True))
    state = State(
        drives={VDA: failed, VDB: known},
        tenants={"acme": TenantPolicy(limit=1000)},
        failures={VDA: TypeError("these are no limits")},
    )
    seen = DriveSeen(FREE, None, UNLIMITED, abilities=PATCHED, tenant="acme")
    state, _ = decide(state, Observation({VDA: seen, VDB: seen}), NS_PER_S)
    allowed = state.drives[VDB].allowed
    assert allowed == 300


def test_new_drives_divide_their_tenants_limit_before_a_look_at_all_drives() -> None:
    host = Host(State(tenants={"acme": TenantPolicy(limit=600)}))
    host.look({VDA: FREE, VDB: FREE}, tenant="acme", partial=True)
    for drive in (VDA, VDB):
        assert host.in_force[drive] != UNLIMITED
        assert host.state.drives[drive].allowed == 300


@pytest.mark.parametrize("promise", ["vm", "tenant"])
def test_a_drive_that_a_policy_may_not_name_has_what_all_together_have(promise: str) -> None:
    """The policy names vdz, which isn't there, so that vdb's own promise isn't known."""
    domain = DomainPolicy({"vda": LIMITED, "vdz": LIMITED}, None, "acme", None)
    if promise == "vm":
        domain = replace(domain, tenant=None, vm=VmPolicy(limit=1000))
    told = PolicyInPart(domain)
    state = State(tenants={"acme": TenantPolicy(limit=1000)})
    in_force = {VDA: UNLIMITED, DriveId("db1", "vdb"): UNLIMITED}
    for second in range(1, 4):
        seen = {
            drive: DriveSeen(
                told.for_drive(drive.target),
                Counters(second * NS_PER_S, 0, 0, 0, 0, 0, 0),
                limits,
                abilities=STOCK,
                tenant=told.tenant,
                vm=told.vm,
            )
            for drive, limits in in_force.items()
        }
        state, orders = decide(state, Observation(seen), second * NS_PER_S)
        in_force |= {order.drive: order.limits for order in orders}
    assert all(limits.iops_total for limits in in_force.values())


GOLD = DrivePolicy(limit=10_000, burst=20_000)
ROOT, DATA, NEW_ONE = (DriveId("db1", target) for target in ("vda", "vdb", "vdc"))


def tell(
    host: Host, told: DomainPolicy | PolicyInPart, *drives: DriveId, partial: bool = False
) -> list[SetLimits]:
    """Let a host look at db1's drives by what is told of its policy."""
    policies = {drive: told.for_drive(drive.target) for drive in drives}
    default = told.for_new("") if isinstance(told, PolicyInPart) else None
    return host.look(policies, default=default, partial=partial)


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("restart", [False, True])
def test_a_misspelt_target_lifts_no_limit_to_that_of_the_policys_class(
    restart: bool, partial: bool
) -> None:
    host, own = Host(), DrivePolicy(limit=500, burst=500)
    tell(host, DomainPolicy({"vdb": own}, GOLD), ROOT, DATA)
    held = dict(host.in_force)
    misspelt = PolicyInPart(DomainPolicy({"vbd": own}, GOLD))
    for again in range(3):
        assert tell(host, misspelt, ROOT, DATA, partial=partial) == []
        host = host.restarted() if restart and not again else host
    (plugged,) = tell(host, misspelt, ROOT, DATA, NEW_ONE, partial=partial)
    assert (plugged.drive, plugged.limits) == (NEW_ONE, held[ROOT])
    assert host.in_force == {**held, NEW_ONE: held[ROOT]}
    tell(host, DomainPolicy({"vdb": replace(own, limit=400)}, GOLD), ROOT, DATA)
    assert host.state.drives[DATA].policy == replace(own, limit=400)


@given(
    named=st.dictionaries(st.sampled_from(["vda", "vdb", "vdc"]), POLICIES, min_size=1),
    misspelt=st.sets(st.sampled_from(["vda", "vdb", "vdc"])),
    classes=st.tuples(st.none() | POLICIES, st.none() | POLICIES),
)
def test_misspelling_any_targets_leaves_all_drives_their_policies(
    named: dict[str, DrivePolicy],
    misspelt: set[str],
    classes: tuple[DrivePolicy | None, DrivePolicy | None],
) -> None:
    """Also if another class is written with it: that is for drives that had no policy."""
    host, drives = Host(), (ROOT, DATA, NEW_ONE)
    tell(host, DomainPolicy(named, classes[0]), *drives)
    last = {drive: host.state.drives[drive].policy for drive in drives}
    wrong = {f"{target}x" if target in misspelt else target: p for target, p in named.items()}
    told = PolicyInPart(DomainPolicy({"vdz": FREE, **wrong}, classes[1]))
    for _ in range(2):
        tell(host, told, *drives)
    now = {drive: host.state.drives[drive].policy for drive in drives}
    assert now == {drive: policy or classes[1] for drive, policy in last.items()}


def test_without_a_saved_state_a_misspelt_target_leaves_limits_that_are_in_force() -> None:
    host = Host(in_force={DATA: HELD})
    told = PolicyInPart(DomainPolicy({"vbd": LIMITED}, GOLD))
    assert tell(host, told, DATA) == tell(host, told, DATA) == []
    assert host.state.drives[DATA].finding.verdict is Verdict.POLICY_UNKNOWN
    host.in_force[DATA] = UNLIMITED
    assert [order.drive for order in tell(host, told, DATA)] == [DATA]


def test_with_a_drive_unplugged_the_named_ones_follow_and_the_others_keep_their_policies() -> None:
    """The class's value has changed, and vdb is gone for now."""
    host, silver = Host(), DrivePolicy(limit=4000)
    tell(host, DomainPolicy({"vda": GOLD, "vdb": LIMITED}, GOLD), ROOT, DATA, NEW_ONE)
    in_part = PolicyInPart(DomainPolicy({"vda": silver, "vdb": LIMITED}, silver))
    tell(host, in_part, ROOT, NEW_ONE)
    assert host.state.drives[ROOT].policy == silver
    assert host.state.drives[NEW_ONE].policy == GOLD
    tell(host, in_part.policy, ROOT, DATA, NEW_ONE)  # it is back
    assert host.state.drives[NEW_ONE].policy == silver


def test_a_new_drive_under_a_policy_in_part_has_the_class_within_the_vms_limit() -> None:
    told = PolicyInPart(DomainPolicy({"vdz": FREE}, LIMITED, None, VmPolicy(limit=1500)))
    state = look_at_vm(State(), told, 1)
    assert {known.policy for known in state.drives.values()} == {LIMITED}
    assert sum(known.allowed or 0 for known in state.drives.values()) <= 1500


def look_at_vm(state: State, told: DomainPolicy | PolicyInPart, second: int) -> State:
    """Return the state after a look at a VM with two idle drives, whose limits are in force."""
    seen = {
        drive: DriveSeen(
            told.for_drive(drive.target),
            Counters(second * NS_PER_S, 0, 0, 0, 0, 0, 0),
            state.drives.get(drive, NEW).sent.limits or UNLIMITED,
            abilities=STOCK,
            tenant=told.tenant,
            vm=told.vm,
            default=told.for_new(drive.target) if isinstance(told, PolicyInPart) else None,
        )
        for drive in (VDA, DriveId("db1", "vdb"))
    }
    return decide(state, Observation(seen), second * NS_PER_S)[0]


@pytest.mark.parametrize("begins", ["known", "in part"])
def test_a_drive_that_a_policy_may_not_name_follows_the_vms_limit_and_tenant(begins: str) -> None:
    """It is vda: the policy names vdb, and vdz, which isn't there, or not any more."""
    before = DomainPolicy({"vdb": FREE, "vdz": FREE}, None, None, VmPolicy(limit=1000))
    state = State(tenants={"acme": TenantPolicy(limit=200)})
    state = look_at_vm(state, before if begins == "known" else PolicyInPart(before), 1)
    assert sum(known.allowed or 0 for known in state.drives.values()) == 1000
    lower = replace(before, vm=VmPolicy(limit=500))
    state = look_at_vm(state, PolicyInPart(lower), 2)
    assert sum(known.allowed or 0 for known in state.drives.values()) == 500
    state = look_at_vm(state, PolicyInPart(replace(lower, tenant="acme")), 3)
    allowed = sum(known.allowed or 0 for known in state.drives.values())
    assert allowed <= 200


def test_a_drive_whose_tenant_alone_is_known_and_has_no_limit_is_left_alone() -> None:
    seen = {VDA: DriveSeen(UNKNOWN, None, UNLIMITED, tenant="acme")}
    state, orders = decide(State(), Observation(seen), NS_PER_S)
    assert orders == []
    assert state.drives[VDA].finding.verdict is Verdict.POLICY_UNKNOWN


def test_a_qemu_that_refuses_a_curve_has_stock_limits_in_the_next_look() -> None:
    host = Host()
    exact = DriveSeen(LIMITED, None, UNLIMITED, abilities=PATCHED)
    host.state, (order,) = decide(State(), Observation({VDA: exact}), NS_PER_S)
    assert order.limits.cost_read is not None
    refused = exact._replace(abilities=PATCHED._replace(cost_curve=False))
    host.state, (order,) = decide(host.state, Observation({VDA: refused}), 2 * NS_PER_S)
    assert order.limits == HELD


# A QEMU that hasn't told its abilities

EXACT = exact_limits(DEFAULT_MODEL, 1000)
# As libvirt tells: its own, while QEMU has a curve that libvirt doesn't know.
FALLBACK = limits_for_any_size(DEFAULT_MODEL, 1000)


def is_held(limits: ThrottleLimits, rate: float) -> bool:
    """Return whether no request size gets more than a rate, by the published costs."""
    named = {"total_iops_sec": limits.iops_total or 0, "size_iops_sec": limits.iops_size or 0}
    return limits.cost_read is None and highest_rate(named) <= 1.03 * rate


@pytest.mark.parametrize("in_force", [UNLIMITED, None, ThrottleLimits(iops_total=10**6)])
def test_a_new_guest_has_limits_that_hold_with_any_qemu(in_force: ThrottleLimits | None) -> None:
    seen = DriveSeen(LIMITED, None, in_force)
    state, (order,) = decide(State(), Observation({VDA: seen}), NS_PER_S)
    assert is_held(order.limits, 1000)
    assert not is_held(HELD, 1000), "stock limits are looser"
    assert state.drives[VDA].finding.verdict is Verdict.ANY_QEMU
    host = Host(state, {VDA: order.limits})
    assert host.look({VDA: LIMITED}, abilities=None) == []
    host.look({VDA: DrivePolicy(limit=500)}, abilities=None)
    assert is_held(host.in_force[VDA], 500)
    (order,) = host.look({VDA: DrivePolicy(limit=500)}, abilities=PATCHED)
    assert order.limits == exact_limits(DEFAULT_MODEL, 500)


def restarted(in_force: ThrottleLimits | None) -> Host:
    """Return a host as a new agent finds it: the one before had set a curve."""
    host = Host()
    host.look({VDA: LIMITED}, abilities=PATCHED)
    assert host.in_force == {VDA: EXACT}
    after = host.restarted()
    if in_force is None:
        return after
    after.in_force = {VDA: in_force}
    return after


@pytest.mark.parametrize("in_force", [FALLBACK, EXACT])
def test_a_restarted_agent_leaves_a_curve_in_force(in_force: ThrottleLimits) -> None:
    host = restarted(in_force)
    for _ in range(3):
        assert host.look({VDA: LIMITED}, abilities=None) == []
        assert host.look({VDA: LIMITED}, abilities=None, partial=True) == []
        assert host.state.drives[VDA].finding.verdict is Verdict.QEMU_UNKNOWN
        assert host.state.drives[VDA].is_unsure, "its VM's cgroup keeps its bounds"
    host.in_force[VDA] = EXACT  # as QEMU tells
    assert host.look({VDA: LIMITED}, abilities=PATCHED) == []
    assert host.state.drives[VDA].finding.verdict is Verdict.EXACT


@pytest.mark.parametrize(
    ("in_force", "limit"), [(UNLIMITED, 1000), (FALLBACK, 500), (None, 500), (UNLIMITED, 5000)]
)
def test_a_restarted_agent_sets_limits_that_hold_with_any_qemu_if_others_are_too_loose(
    in_force: ThrottleLimits | None, limit: int
) -> None:
    """As of a guest that has started again meanwhile, or whose policy was lowered."""
    host = restarted(in_force)
    host.look({VDA: DrivePolicy(limit=limit)}, abilities=None)
    host.look({VDA: DrivePolicy(limit=limit)}, abilities=None)
    assert is_held(host.in_force[VDA], limit)


def test_a_policy_that_can_not_be_told_holds_for_limits_whose_curve_libvirt_does_not_tell() -> None:
    host = restarted(EXACT.stock)
    for _ in range(2):
        host.look({VDA: UNKNOWN}, abilities=PATCHED)
    assert host.in_force == {VDA: EXACT}
    host = restarted(EXACT.stock._replace(iops_total=900))  # of a later policy
    for _ in range(2):
        assert host.look({VDA: UNKNOWN}, abilities=PATCHED) == []


def test_a_new_limit_of_a_tenant_holds_before_a_restarted_agent_knows_the_qemu() -> None:
    both = {VDA: LIMITED, VDB: FREE}
    host = Host()
    host.look(both, tenant="acme", abilities=PATCHED)
    before = host.in_force[VDA]
    assert before == EXACT
    after = host.restarted()
    after.state = replace(after.state, tenants={"acme": TenantPolicy(limit=600)})
    after.look(both, tenant="acme", abilities=None)
    after.look(both, tenant="acme", abilities=None)
    assert is_held(after.in_force[VDA], 600)
    assert is_held(after.in_force[VDB], 600)


def test_a_tenants_part_leaves_a_curve_in_force_after_a_restart() -> None:
    both, tenants = {VDA: FREE, VDB: FREE}, {"acme": TenantPolicy(limit=600)}
    host = Host(State(tenants=tenants))
    for _ in range(30):
        host.look(both, tenant="acme", abilities=PATCHED)
    held = dict(host.in_force)
    after = host.restarted()
    for _ in range(3):
        assert after.look(both, tenant="acme", abilities=None) == []
    assert after.state.drives[VDA].finding.verdict is Verdict.QEMU_UNKNOWN
    assert after.in_force == held
    assert all(limits.cost_read is not None for limits in held.values())


def test_a_qemu_is_still_what_it_was_while_our_limits_are_in_force() -> None:
    host = Host()
    host.look({VDA: LIMITED}, abilities=PATCHED)
    for _ in range(2):
        assert host.look({VDA: LIMITED}, abilities=None) == []
    (order,) = host.look({VDA: DrivePolicy(limit=700)}, abilities=None)
    assert order.limits == exact_limits(DEFAULT_MODEL, 700)


@pytest.mark.parametrize("in_force", [UNLIMITED, FALLBACK, ThrottleLimits(iops_total=10**6)])
def test_limits_that_are_not_ours_are_another_qemus(in_force: ThrottleLimits) -> None:
    host = Host()
    host.look({VDA: LIMITED}, abilities=PATCHED)
    host.in_force[VDA] = in_force
    host.look({VDA: LIMITED}, abilities=None)
    assert is_held(host.in_force[VDA], 1000)


def test_a_share_holds_a_new_guest_whose_qemu_has_not_told() -> None:
    host = Host()
    host.look({VDA: FREE, VDB: FREE}, storage="fast", abilities=None)
    assert is_held(host.in_force[VDA], 1000)


def test_an_agent_that_stops_before_a_qemu_has_told_leaves_limits_that_hold_with_any() -> None:
    host = restarted(FALLBACK)
    host.look({VDA: LIMITED}, abilities=None)
    (order,) = left_at_stop(host.state)
    assert is_held(order.limits, 1000)


def test_limits_that_libvirt_shows_are_set_where_a_curve_may_hide_behind_them() -> None:
    """libvirt shows what it was told last, and a QEMU that doesn't answer may have more."""
    policy, shown = DrivePolicy(limit=600), limits_for_any_size(DEFAULT_MODEL, 600, separate=False)
    known = DriveState(policy, sent=Sent(exact_limits(DEFAULT_MODEL, 1000)))
    seen = DriveSeen(policy, None, shown)
    state, orders = decide(State(drives={VDA: known}), Observation({VDA: seen}), NS_PER_S)
    assert [order.limits for order in orders] == [shown]
    _, orders = decide(state, Observation({VDA: seen}), 2 * NS_PER_S)
    assert orders == []
