"""The credit that a guest takes along: nothing of it is counted twice."""

from __future__ import annotations

import pytest

from iokeel.core.decide import decide
from iokeel.core.fleet.handover import GuestCredit, credit_left, with_credit
from iokeel.core.values.counters import NS_PER_S, Counters, DriveId
from iokeel.core.values.limits import STOCK, UNLIMITED
from iokeel.core.values.observation import DriveSeen, Observation
from iokeel.core.values.policy import DrivePolicy, VmPolicy
from iokeel.core.values.state import Credit, DriveState, Measured, State, VmPart

POLICY = DrivePolicy(limit=100, burst=200)
AT_NS = 1000 * NS_PER_S


def drive(seconds: float, vm_s: float | None = None, read_ns: int | None = AT_NS) -> DriveState:
    """Return a drive with credit, which was read at some moment."""
    last = None if read_ns is None else Counters(read_ns, 0, 0, 0, 0, None, None)
    vm = None if vm_s is None else VmPart(VmPolicy(limit=300, burst=400), Credit(vm_s))
    return DriveState(policy=POLICY, measured=Measured(last), credit=Credit(seconds), vm=vm)


def test_what_the_guest_may_have_done_unseen_counts_as_spent() -> None:
    left = credit_left({"vda": drive(30), "vdb": drive(3)}, AT_NS + 4 * NS_PER_S)
    assert left == GuestCredit({"vda": 30 - 4 - 2, "vdb": 0})


def test_a_vms_credit_goes_along() -> None:
    left = credit_left({"vda": drive(0, vm_s=20)}, AT_NS)
    assert left == GuestCredit({"vda": 0}, 18)


def test_a_guest_that_this_agent_has_not_read_leaves_nothing() -> None:
    assert credit_left({"vda": drive(30, vm_s=30, read_ns=None)}, AT_NS) is None


@pytest.mark.parametrize("arrives", [True, False])
def test_a_guest_in_post_copy_spends_credit_unless_its_migration_fails(arrives: bool) -> None:
    """It isn't read then; see hypervisors/libvirt/readings.py."""
    limits = UNLIMITED.with_fields({"iops_total": 100})
    state, here = State(), DriveId("db1", "vda")
    # Idle, in post-copy, and here again
    for second in range(71):
        at_ns = AT_NS + second * NS_PER_S
        counters = None if 20 < second < 70 else Counters(at_ns, 0, 0, 0, 0, None, None)
        seen = DriveSeen(POLICY, counters, limits, abilities=STOCK)
        if second < 70 or not arrives:
            state, _ = decide(state, Observation({here: seen}), at_ns)
        if second in (20, 69):
            assert state.drives[here].credit.seconds == 20
    if arrives:
        known = state.drives[here]
        assert credit_left({"vda": known}, AT_NS + 30 * NS_PER_S) == GuestCredit({"vda": 20 - 12})
        assert credit_left({"vda": known}, AT_NS + 70 * NS_PER_S) is None
    else:
        assert state.drives[here].credit.seconds == POLICY.burst_seconds


def test_next_to_nothing_is_not_handed_over() -> None:
    assert credit_left({"vda": drive(2.9)}, AT_NS) is None


def test_credit_that_comes_is_not_added_to_what_was_saved_meanwhile() -> None:
    here, other = DriveId("db1", "vda"), DriveId("db2", "vda")
    drives = {here: drive(5, vm_s=1), DriveId("db1", "vdb"): drive(9), other: drive(7)}
    after = with_credit(drives, "db1", GuestCredit({"vda": 20, "vdb": 4}, 30))
    assert after[here].credit.seconds == 20
    vm = after[here].vm
    assert vm is not None
    assert vm.credit.seconds == 30
    assert after[DriveId("db1", "vdb")].credit.seconds == 9
    assert after[other] == drives[other]
