"""Orders that aren't carried out: what may still be in force, and what it leaves to others."""

from __future__ import annotations

import pytest

from iokeel.core.decide import decide
from iokeel.core.divide.held import held_by, with_outcomes
from iokeel.core.enforce.at_a_stop import static_orders
from iokeel.core.enforce.in_force import rate_in_force
from iokeel.core.values.counters import NS_PER_S, Counters, DriveId
from iokeel.core.values.curve import DEFAULT_MODEL
from iokeel.core.values.limits import STOCK, UNLIMITED, ThrottleLimits
from iokeel.core.values.observation import DriveSeen, Observation, Reason, SetLimits
from iokeel.core.values.policy import DrivePolicy, TenantPolicy, VmPolicy
from iokeel.core.values.state import DriveState, State
from iokeel.store.rows import drive_text, kept_of, state_of
from testing.hypervisors.abilities import PATCHED

VDA, VDB = DriveId("db1", "vda"), DriveId("db1", "vdb")


class Hung:
    """An idle drive of 5000, whose QEMU carries out no later order."""

    def __init__(self) -> None:
        self.state, self.second = State(), 0
        (first,) = self.look(5000, UNLIMITED)
        self.in_force = first.limits
        assert self.look(5000, self.in_force) == []

    def look(self, limit: int | None, in_force: ThrottleLimits | None) -> list[SetLimits]:
        """Return the orders of a second. in_force: None if it isn't known."""
        self.second += 1
        now_ns = self.second * NS_PER_S
        policy = None if limit is None else DrivePolicy(limit=limit)
        seen = DriveSeen(policy, Counters(now_ns, 0, 0, 0, 0, 0, 0), in_force, abilities=STOCK)
        self.state, orders = decide(self.state, Observation({VDA: seen}), now_ns)
        return orders

    def restart(self) -> DriveState:
        """Stop the agent, whose order for static limits fails too, and start another one."""
        (order,) = static_orders(self.state, [VDA])[0]
        left = self.state.drives[VDA].with_sent(order.limits)
        known = state_of(drive_text(kept_of(left)))
        self.state = State(drives={VDA: known})
        return known


def test_limits_in_force_are_known_as_ours_after_any_number_of_orders_that_failed() -> None:
    hung = Hung()
    for limit in (1000, 900, 800):
        assert hung.look(limit, None)
    known = hung.restart()
    assert held_by(known, None, DEFAULT_MODEL) == rate_in_force(hung.in_force, DEFAULT_MODEL)
    (order,) = hung.look(None, hung.in_force)
    assert (order.limits, order.reason) == (UNLIMITED, Reason.RELEASED)


def test_an_order_that_is_carried_out_late_is_known_as_ours() -> None:
    hung = Hung()
    (late,) = hung.look(1000, None)
    hung.look(900, None)
    (order,) = hung.look(None, late.limits)
    assert order.reason is Reason.RELEASED


def test_a_row_of_an_older_version_says_what_may_be_in_force() -> None:
    hung = Hung()
    hung.look(1000, None)
    text = drive_text(kept_of(hung.state.drives[VDA]))
    old = text.replace(',"carried_out":null', "")
    assert old != text
    assert state_of(old) == state_of(text)
    assert hung.in_force in state_of(old).sent.ours


class Two:
    """Two drives that share a limit of 1000; from second 8 on, the first can't be set."""

    def __init__(self, owner: str, reservation: int = 0) -> None:
        tenants = {"acme": TenantPolicy(limit=1000)} if owner == "tenant" else {}
        self.state = State(tenants=tenants)
        self.vm = VmPolicy(limit=1000) if owner == "VM" else None
        self.policies = {VDA: DrivePolicy(), VDB: DrivePolicy(reservation, weight=900)}
        self.in_force = dict.fromkeys(self.policies, UNLIMITED)
        self.done = dict.fromkeys(self.policies, 0)
        self.stuck: set[DriveId] = set()
        self.second = 0

    def looks(self, seconds: int, wants: int, *, lock: bool = False) -> list[float]:
        """Return the rates that both are held to. wants: of the second; the first wants all."""
        for _ in range(seconds):
            self.second += 1
            now_ns, seen = self.second * NS_PER_S, {}
            for drive, policy in self.policies.items():
                want = wants if drive == VDB else 5000
                self.done[drive] += int(min(want, self.held(drive)))
                count = self.done[drive]
                counters = Counters(now_ns, count, 4096 * count, 0, 0, 0, 0)
                in_force = None if drive in self.stuck else self.in_force[drive]
                seen[drive] = DriveSeen(
                    policy, counters, in_force, abilities=PATCHED, tenant="acme", vm=self.vm
                )
            self.state, orders = decide(self.state, Observation(seen), now_ns)
            for order in orders:
                if lock and order.drive == VDA:
                    self.stuck = {VDA}
                else:
                    self.in_force[order.drive] = order.limits
                    self.stuck -= {order.drive}
                    self.state = with_outcomes(self.state, [order])
        return [self.held(drive) for drive in self.policies]

    def held(self, drive: DriveId) -> float:
        return min(rate_in_force(self.in_force[drive], DEFAULT_MODEL), 10**6)


@pytest.mark.parametrize("owner", ["tenant", "VM"])
def test_others_divide_what_a_drive_leaves_that_cant_be_set(owner: str) -> None:
    two = Two(owner)
    before, _ = two.looks(8, 20)
    two.looks(2, 5000, lock=True)
    assert two.stuck
    for _ in range(10):
        held, other = two.looks(1, 5000, lock=True)
        assert held == before
        assert held + other <= 1000
    two.stuck = set()
    assert two.looks(5, 5000)[1] >= 650


@pytest.mark.parametrize("owner", ["tenant", "VM"])
def test_a_drive_that_cant_be_set_takes_nothing_that_others_are_owed(owner: str) -> None:
    two = Two(owner, reservation=500)
    before, _ = two.looks(8, 20)
    assert before > 600
    assert two.looks(10, 5000, lock=True)[1] >= 500
    assert two.stuck


@pytest.mark.parametrize("owner", ["tenant", "VM"])
def test_a_raise_that_may_still_come_counts_as_if_it_had(owner: str) -> None:
    two = Two(owner)
    two.looks(10, 5000)
    two.looks(6, 20, lock=True)
    assert two.stuck
    late = two.state.drives[VDA].held
    assert late is not None
    assert late > 500
    assert two.looks(3, 5000, lock=True)[1] <= 1000 - late
    two.stuck = set()
    assert two.looks(5, 5000)[1] >= 650
