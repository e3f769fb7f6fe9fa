"""Drives that share throttle groups: a group has its own limits again when nothing holds it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.core.decide import decide
from iokeel.core.values.counters import NS_PER_S, Counters, DriveId
from iokeel.core.values.limits import STOCK, UNLIMITED, ThrottleLimits
from iokeel.core.values.observation import DriveSeen, Observation, Reason, SetLimits
from iokeel.core.values.policy import DrivePolicy
from iokeel.core.values.state import State
from iokeel.store.rows import drive_text, kept_of, state_of

TARGETS = ("vda", "vdb", "vdc", "vdd")
GROUPS = ("from", "to", "new")
AT_START = {"vda": "from", "vdb": "from", "vdc": "to", "vdd": "to"}


def iops(total: int) -> ThrottleLimits:
    return UNLIMITED._replace(iops_total=total)


class Guest:
    """A guest on a stock QEMU, and the agent's law.

    limits: of its throttle groups, as QEMU has them. own: those that the operator has given them.
    """

    def __init__(self) -> None:
        self.group_of = dict(AT_START)
        self.limits = {"from": iops(5000), "to": iops(700)}
        self.own = dict(self.limits)
        self.policies: dict[str, int] = {}
        self.state, self.second = State(), 0

    def look(self) -> list[SetLimits]:
        """Let the law look once; carry out its orders, and return them."""
        self.second += 1
        now_ns = self.second * NS_PER_S
        counters = Counters(now_ns, 0, 0, 0, 0, 0, 0)
        seen = {
            DriveId("db1", target): DriveSeen(
                DrivePolicy(limit=self.policies[target]) if target in self.policies else None,
                counters,
                self.in_force(target),
                abilities=STOCK,
                group=group,
            )
            for target, group in self.group_of.items()
        }
        self.state, orders = decide(self.state, Observation(seen), now_ns)
        for order in orders:
            target = order.drive.target
            is_released = order.reason is Reason.RELEASED
            assert not (is_released and self.is_held(self.group_of[target])), order
            if order.limits.unlimited:
                self.leave(target)
            else:
                self.limits[self.group_of[target]] = order.limits
        return orders

    def in_force(self, target: str) -> ThrottleLimits:
        """Return a drive's limits as libvirt's source tells them.

        If the last that were set are those of another drive with a policy, they are the drive's.
        """
        now = self.limits.get(self.group_of[target], UNLIMITED)
        sent = {t: self.sent(t) for t in self.members(self.group_of[target]) if t in self.policies}
        last = sent.pop(target, None)
        return last if last is not None and now in sent.values() else now

    def sent(self, target: str) -> ThrottleLimits | None:
        known = self.state.drives.get(DriveId("db1", target))
        return None if known is None else known.sent.limits

    def members(self, group: str) -> list[str]:
        return [target for target, its in self.group_of.items() if its == group]

    def is_held(self, group: str) -> bool:
        return any(target in self.policies for target in self.members(group))

    def settle(self) -> list[SetLimits]:
        """Look until nothing more is ordered; return all that was."""
        done: list[SetLimits] = []
        for _ in range(6):
            orders = self.look()
            done += orders
            if not orders:
                return done
        raise AssertionError(f"no end of orders: {orders}")

    def restart(self) -> None:
        """Start the agent again, which knows what the state file has."""
        kept = {d: kept_of(s) for d, s in self.state.drives.items() if s.sent.limits is not None}
        drives = {drive: state_of(drive_text(row)) for drive, row in kept.items()}
        self.state = State(drives=drives)

    # What an operator does

    def leave(self, target: str) -> None:
        """Take a drive out of its group, as limits of 0 do."""
        group, self.group_of[target] = self.group_of[target], ""
        self._ended(group)

    def unplug(self, target: str) -> None:
        self._ended(self.group_of.pop(target))

    def move(self, target: str, group: str, limits: ThrottleLimits | None = None) -> None:
        """Move a drive as libvirt does. limits: given with it; None for none.

        By its name only, a group that is there keeps its limits; a new one gets the drive's.
        """
        old, held = self.group_of[target], self.is_held(group)
        if group == old:
            return
        if limits is not None:
            self.limits[group] = limits
            if not held:  # else they count as set by hand, and are overwritten
                self.own[group] = limits
        elif group not in self.limits:
            self.limits[group], self.own[group] = self.limits[old], self.own[old]
        self.group_of[target] = group
        self._ended(old)

    def _ended(self, group: str) -> None:
        if group and not self.members(group):
            del self.limits[group], self.own[group]

    def check(self) -> None:
        """See that groups with policies are held, and that the others have limits of their own."""
        for group, limits in self.limits.items():
            ours = [self.sent(t) for t in self.members(group) if t in self.policies]
            assert limits in (ours or [self.own[group]])


POLICY = st.tuples(st.just("policy"), st.sampled_from(TARGETS), st.sampled_from([None, 300, 2000]))
MOVE = st.tuples(
    st.just("move"),
    st.sampled_from(TARGETS),
    st.sampled_from(GROUPS),
    st.sampled_from([None, 55, 900]),
)
STEPS = st.lists(POLICY | MOVE | st.just(("restart",)), max_size=12)


@given(STEPS)
def test_whatever_moves_a_group_is_held_as_long_as_one_of_its_drives_is_and_no_longer(
    steps: list[tuple[str | int | None, ...]],
) -> None:
    guest = Guest()
    guest.settle()
    for step in steps:
        match step:
            case ("policy", str(target), int(limit)):
                guest.policies[target] = limit
            case ("policy", str(target), None):
                guest.policies.pop(target, None)
            case ("move", str(target), str(group), int(limit)):
                guest.move(target, group, iops(limit))
            case ("move", str(target), str(group), None):
                # A drive that isn't ours takes limits of ours along to a new group, unseen.
                is_ours = target in guest.policies or not guest.is_held(guest.group_of[target])
                if group in guest.limits or is_ours:
                    guest.move(target, group)
            case _:
                guest.restart()
        guest.settle()
        guest.check()
    guest.policies.clear()
    guest.settle()
    guest.check()


def test_the_release_of_one_drive_is_not_sent_while_another_holds_its_group() -> None:
    guest = Guest()
    guest.policies = {"vda": 300, "vdb": 2000}
    guest.settle()
    del guest.policies["vda"]
    assert [order.reason for order in guest.settle()] in ([], [Reason.OVERWRITTEN])
    assert guest.limits["from"] == guest.sent("vdb")
    del guest.policies["vdb"]
    (order,) = guest.settle()
    assert (order.reason, order.limits) == (Reason.RELEASED, iops(5000))


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    "leaves",
    [lambda guest, last: guest.unplug(last), lambda guest, last: guest.move(last, "to")],
    ids=["unplugged", "to another group"],
)
def test_a_group_with_the_limits_of_a_drive_that_left_is_given_back_with_the_policy_of_the_other(
    leaves: Callable[[Guest, str], None], restarts: bool
) -> None:
    """The other's own limits were never in force since."""
    guest = Guest()
    guest.policies = {"vda": 300, "vdb": 2000}
    guest.settle()
    (last,) = [t for t in guest.policies if guest.sent(t) == guest.limits["from"]]
    leaves(guest, last)
    guest.policies.clear()
    if restarts:
        guest.restart()
    guest.settle()
    assert guest.limits == {"from": iops(5000), "to": iops(700)}


@pytest.mark.parametrize("limit", [300, 2000])
def test_a_drive_that_comes_into_a_held_group_does_not_take_its_limits_for_the_former(
    limit: int,
) -> None:
    guest = Guest()
    guest.policies = {"vda": 300}
    guest.settle()
    guest.policies["vdb"] = limit
    guest.settle()
    del guest.policies["vda"]
    guest.settle()
    guest.policies.clear()
    guest.settle()
    assert guest.limits["from"] == iops(5000)


@pytest.mark.parametrize(
    "leaves",
    [
        lambda guest: guest.unplug("vda"),
        lambda guest: guest.leave("vda"),
        lambda guest: guest.move("vda", "to"),
        lambda guest: guest.move("vda", "new", iops(55)),
    ],
    ids=["unplugged", "without limits", "to another group", "to a new group"],
)
@pytest.mark.parametrize("restarts", [False, True])
def test_a_group_that_a_held_drive_leaves_gets_back_its_limits(
    leaves: Callable[[Guest], None], restarts: bool
) -> None:
    guest = Guest()
    guest.policies = {"vda": 300}
    guest.settle()
    guest.settle()
    leaves(guest)
    if restarts:
        guest.restart()
    guest.settle()
    assert guest.limits["from"] == iops(5000)


def test_a_drive_that_somebody_lifts_all_limits_of_gets_back_those_of_its_former_group() -> None:
    guest = Guest()
    guest.policies = {"vda": 300}
    guest.settle()
    guest.settle()
    guest.leave("vda")
    guest.settle()
    assert guest.limits[""] == guest.sent("vda")
    guest.policies.clear()
    guest.settle()
    assert guest.limits[""] == iops(5000)


def test_a_record_of_an_older_version_learns_its_group_and_keeps_what_it_found() -> None:
    guest = Guest()
    guest.policies = {"vda": 300}
    guest.settle()
    vda = DriveId("db1", "vda")
    known = guest.state.drives[vda]
    row = drive_text(kept_of(known)).replace(',"group":"from"', "")
    assert "group" not in row
    assert state_of(row).sent.group is None
    guest.state = State(drives={vda: state_of(row)})
    guest.look()
    sent = guest.state.drives[vda].sent
    assert (sent.group, sent.found) == ("from", iops(5000))
    guest.move("vda", "to")
    guest.settle()
    assert guest.limits["from"] == iops(5000)


def test_nothing_is_concluded_from_a_group_while_the_limits_in_force_are_unknown() -> None:
    guest = Guest()
    guest.policies = {"vda": 300}
    guest.settle()
    guest.settle()
    vda, before = DriveId("db1", "vda"), guest.state.drives[DriveId("db1", "vda")].sent
    seen = DriveSeen(DrivePolicy(limit=300), None, None, abilities=STOCK, group="to")
    state, orders = decide(guest.state, Observation({vda: seen}), (guest.second + 1) * NS_PER_S)
    assert (state.drives[vda].sent, orders) == (before, [])
