"""Orders that aren't carried out: what may still be in force, and what it leaves to others."""

from __future__ import annotations

from iokeel.core.abilities import STOCK
from iokeel.core.counters import NS_PER_S, Counters, DriveId
from iokeel.core.curve import DEFAULT_MODEL
from iokeel.core.decide import decide
from iokeel.core.drive.in_force import rate_in_force
from iokeel.core.limits import UNLIMITED, ThrottleLimits
from iokeel.core.observation import DriveSeen, Observation
from iokeel.core.orders import Reason, SetLimits
from iokeel.core.policy import DrivePolicy
from iokeel.core.sharing.tenant_part import held_by
from iokeel.core.state import DriveState, State
from iokeel.core.static import static_orders
from iokeel.state_rows import drive_text, kept_of, state_of

VDA = DriveId("db1", "vda")


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
