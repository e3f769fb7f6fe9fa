"""A VM's limit in decisions: new drives, changes, stops, and policies that can't be read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from iokeel.core.decide import decide
from iokeel.core.values.counters import NS_PER_S, Counters, DriveId
from iokeel.core.values.limits import STOCK, UNLIMITED, ThrottleLimits
from iokeel.core.values.observation import DriveSeen, Observation, Reason
from iokeel.core.values.policy import UNKNOWN, DrivePolicy, UnknownPolicy, VmPolicy
from iokeel.core.values.state import Credit, Part, State, VmPart
from iokeel.running.notices import Notices
from testing.hypervisors.abilities import PATCHED
from tests.unit.core.stopping import left_at_stop

VDA, VDB, VDC = (DriveId("db1", target) for target in ("vda", "vdb", "vdc"))
PLAIN = DrivePolicy()
VM = VmPolicy(limit=3000)
NONSENSE: Any = object()


class Incomparable:
    """Limits in force as no edge tells them: the law fails when it compares them."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise TypeError("these are no limits")


INCOMPARABLE: Any = Incomparable()


@dataclass
class Guest:
    """A guest whose drives do 4 KiB reads, as many as their limits and `rates` allow.

    overshoot: how far limits are off, as a ratio. levels: what each drive has done beyond its
    limits without their burst, since these were set. broken: the drives on which the law fails;
    broken_late: only once all is divided.
    """

    exact: bool = True
    rates: dict[DriveId, float] = field(default_factory=lambda: {VDA: 1e6, VDB: 1e6})
    policy: DrivePolicy | UnknownPolicy | None = PLAIN
    vm: VmPolicy | None = VM
    state: State = field(default_factory=State)
    in_force: dict[DriveId, ThrottleLimits] = field(default_factory=dict)
    done: dict[DriveId, int] = field(default_factory=dict)
    overshoot: float = 1.0
    levels: dict[DriveId, float] = field(default_factory=dict)
    second: int = 0
    sums: list[int] = field(default_factory=list)
    broken: set[DriveId] = field(default_factory=set)
    broken_late: set[DriveId] = field(default_factory=set)

    def look(self, *, partial: bool = False) -> list[Reason]:
        """Let a second pass, or none if the look is partial, and carry out the orders.

        sums: of all limits in force, after each order.
        """
        if not partial:
            self.second += 1
        seen = {}
        for drive, rate in self.rates.items():
            held = self.in_force.setdefault(drive, UNLIMITED)
            if not partial:
                did = self._served(drive, rate, held)
                did = round(did * (self.overshoot if did < rate else 1.0))
                self.done[drive] = self.done.get(drive, 0) + did
            count = self.done.get(drive, 0)
            counters = Counters(self.second * NS_PER_S, count, 4096 * count, 0, 0, 0, 0)
            if drive in self.broken:
                counters = counters._replace(read_bytes=NONSENSE)
            seen[drive] = DriveSeen(
                self.policy,
                counters,
                INCOMPARABLE if drive in self.broken_late else held,
                abilities=PATCHED if self.exact else STOCK,
                vm=self.vm,
            )
        now_ns = self.second * NS_PER_S
        self.state, orders = decide(self.state, Observation(seen, partial=partial), now_ns)
        assert self.state.failures.keys() == self.broken | self.broken_late
        self.sums = []
        for order in orders:
            self.in_force[order.drive] = order.limits
            self.levels[order.drive] = 0.0
            self.sums.append(sum(held.iops_total or 0 for held in self.in_force.values()))
        return [order.reason for order in orders]

    def _served(self, drive: DriveId, rate: float, held: ThrottleLimits) -> float:
        """Return the rate of a second. As in QEMU, a burst ends when its bucket is full."""
        base = min(
            held.iops_total or rate, rate if held.bps_total is None else held.bps_total / 4096
        )
        burst, level = held.iops_total_max or 0, self.levels.get(drive, 0.0)
        bursts = burst and level < burst * (held.iops_total_max_length or 0)
        did = min(rate, burst if bursts else base)
        self.levels[drive] = max(0.0, level + did - base)
        return did

    def looks(self, seconds: int) -> None:
        for _ in range(seconds):
            self.look()

    @property
    def rates_held(self) -> dict[DriveId, float | None]:
        return {drive: known.pricing.rate for drive, known in self.state.drives.items()}

    @property
    def bases(self) -> dict[DriveId, float]:
        """What is left to each drive once no burst is."""
        return {d: known.pricing.base_rate or 0.0 for d, known in self.state.drives.items()}

    @property
    def total(self) -> float:
        return sum(rate or 0.0 for rate in self.rates_held.values())


@pytest.mark.parametrize("exact", [False, True])
def test_the_first_look_already_holds_all_drives_together(exact: bool) -> None:
    guest = Guest(exact)
    assert guest.look() == [Reason.POLICY] * 2
    assert guest.rates_held == {VDA: 1500, VDB: 1500}


@pytest.mark.parametrize("exact", [False, True])
def test_a_drive_that_is_plugged_in_gets_its_part_and_the_others_less_at_once(exact: bool) -> None:
    guest = Guest(exact)
    guest.looks(5)
    guest.rates[VDC] = 1e6
    guest.look(partial=True)
    assert guest.rates_held[VDC] is not None
    assert guest.total <= 3000
    guest.looks(8)
    assert guest.rates_held == {VDA: 1000, VDB: 1000, VDC: 1000}


@pytest.mark.parametrize("busy", [VDA, VDB])
def test_limits_are_lowered_before_others_are_raised(busy: DriveId) -> None:
    guest = Guest()
    guest.looks(5)
    guest.rates = dict.fromkeys(guest.rates, 0.0) | {busy: 1e6}
    sums = []
    for _ in range(5):
        guest.look()
        sums += guest.sums
    assert len(sums) >= 2
    assert max(sums) <= 3000
    assert guest.rates_held[busy] == 2925


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("new", [False, True])
def test_a_drive_on_which_the_law_fails_keeps_its_part(exact: bool, new: bool) -> None:
    guest = Guest(exact)
    guest.rates[VDB] = 0.0
    guest.looks(5)
    kept = guest.in_force[VDA]
    guest.broken, guest.rates = {VDA}, dict.fromkeys((VDA, VDC if new else VDB), 1e6)
    for _ in range(5):
        guest.look()
        assert guest.total <= 3000
        assert guest.in_force[VDA] == kept
    guest.broken = set()
    guest.looks(5)
    assert guest.rates_held == dict.fromkeys(guest.rates, 1500)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("wakes", [VDA, VDB])
def test_a_drive_at_which_the_law_cant_look_keeps_its_part(exact: bool, wakes: DriveId) -> None:
    guest = Guest(exact, {VDA: 0.0, VDB: 0.0})
    sleeps = VDB if wakes == VDA else VDA
    guest.rates[sleeps] = 1e6
    guest.looks(5)
    kept = guest.in_force[VDA]
    guest.broken_late, guest.rates = {VDA}, {sleeps: 0.0, wakes: 1e6}
    for _ in range(5):
        guest.look()
        assert guest.total <= 3000
        assert guest.in_force[VDA] == kept
    guest.broken_late = set()
    for _ in range(5):
        guest.look()
        assert guest.total <= 3000
    assert guest.rates_held[wakes] == 2925


def test_a_look_at_another_vm_changes_nothing_for_a_drive_that_is_set_aside() -> None:
    guest = Guest(rates={VDA: 1e6, VDB: 0.0})
    guest.looks(5)
    guest.broken_late, guest.rates = {VDA}, {VDA: 0.0, VDB: 1e6}
    notices = Notices({})
    new = []
    for _ in range(3):
        guest.look()
        new.append(notices.tell(guest.state))
        other = DriveSeen(PLAIN, None, UNLIMITED, abilities=PATCHED, vm=VM)
        seen = Observation({DriveId("db2", "vda"): other}, partial=True)
        guest.state, _ = decide(guest.state, seen, guest.second * NS_PER_S)
        new.append(notices.tell(guest.state))
        assert sum(guest.rates_held[drive] or 0.0 for drive in guest.rates) <= 3000
    assert new == [1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("burst", [None, 6000])
def test_beside_a_drive_on_which_the_law_fails_a_lower_limit_holds_the_others(
    burst: int | None,
) -> None:
    guest = Guest(vm=VmPolicy(limit=3000, burst=burst, burst_seconds=30))
    guest.rates = {VDA: 1000.0, VDB: 0.0}
    guest.looks(10)
    guest.rates[VDB] = 1e6
    guest.looks(3)
    held = guest.rates_held[VDA]
    assert held is not None
    guest.broken, guest.vm = {VDA}, VmPolicy(limit=2500, burst=burst, burst_seconds=30)
    guest.looks(3)
    assert guest.rates_held[VDA] == held
    assert guest.total == max(burst or 0, 2500)
    assert guest.bases[VDB] <= 2500 - 2500 / (burst or 2500) * held


@pytest.mark.parametrize("exact", [False, True])
def test_beside_a_drive_on_which_the_law_fails_a_vms_burst_ends(exact: bool) -> None:
    vm = VmPolicy(limit=1000, burst=5000, burst_seconds=60)
    guest = Guest(exact, {VDA: 0.0, VDB: 0.0}, vm=vm)
    guest.looks(70)
    guest.broken, guest.rates = {VDA}, {VDA: 0.0, VDB: 3000.0}
    guest.looks(70)
    part = guest.state.drives[VDB].vm
    assert part is not None
    assert part.credit.seconds < 2
    assert guest.in_force[VDB].iops_total_max is None
    guest.rates[VDB] = 10.0
    guest.looks(10)
    part = guest.state.drives[VDB].vm
    assert part is not None
    assert part.credit.seconds < 2, "what vda does is not known"


def test_a_drive_that_is_unplugged_leaves_its_part_to_the_others() -> None:
    guest = Guest()
    guest.looks(3)
    del guest.rates[VDB]
    guest.look()
    assert guest.rates_held == {VDA: 3000}


def test_another_limit_is_divided_at_once() -> None:
    guest = Guest()
    guest.looks(3)
    guest.vm = VmPolicy(limit=1000)
    assert guest.look() == [Reason.POLICY] * 2
    assert guest.rates_held == {VDA: 500, VDB: 500}


@pytest.mark.parametrize("exact", [False, True])
def test_a_policy_that_goes_gives_back_what_was_there_before(exact: bool) -> None:
    guest = Guest(exact)
    before = ThrottleLimits(iops_total=77)
    guest.in_force = dict.fromkeys(guest.rates, before)
    guest.looks(3)
    guest.vm = guest.policy = None
    assert guest.look() == [Reason.RELEASED] * 2
    assert guest.in_force == {VDA: before, VDB: before}


def test_a_drives_own_limit_is_left_when_the_vms_goes() -> None:
    guest = Guest(policy=DrivePolicy(limit=2500))
    guest.looks(3)
    guest.vm = None
    assert guest.look() == [Reason.POLICY] * 2
    assert guest.rates_held == {VDA: 2500, VDB: 2500}


def test_a_policy_that_cant_be_read_keeps_the_vms_limit() -> None:
    guest = Guest()
    guest.looks(3)
    guest.policy, guest.vm = UNKNOWN, None
    guest.looks(3)
    assert guest.rates_held == {VDA: 1500, VDB: 1500}
    known = guest.state.drives[VDA].vm
    assert known is not None
    assert known.policy == VM


@pytest.mark.parametrize("exact", [False, True])
def test_an_agent_that_stops_leaves_the_vm_at_its_limit(exact: bool) -> None:
    burst = VmPolicy(limit=3000, burst=9000)
    guest = Guest(exact, {VDA: 1e6, VDB: 0.0}, vm=burst)
    guest.looks(30)
    orders = {order.drive: order.limits for order in left_at_stop(guest.state)}
    assert orders.keys() == {VDA, VDB}
    assert all(limits.iops_total_max is None for limits in orders.values())
    if exact:
        assert [orders[drive].iops_total for drive in (VDA, VDB)] == [2925, 75], "as it was"


def test_a_vm_opens_and_closes_its_burst_for_all_drives_at_once() -> None:
    guest = Guest(rates={VDA: 0.0, VDB: 0.0}, vm=VmPolicy(limit=3000, burst=6000, burst_seconds=10))
    reasons = [guest.look() for _ in range(10)]
    assert [Reason.BURST_OPENS] * 2 in reasons
    assert guest.total == 6000
    guest.rates = {VDA: 1e6, VDB: 1e6}
    reasons = [guest.look() for _ in range(15)]
    assert [Reason.BURST_CLOSES] * 2 in reasons
    assert guest.total == 3000
    assert all(held.iops_total_max is None for held in guest.in_force.values())


def test_the_last_credit_of_a_vm_is_no_reason_for_the_same_limits_again() -> None:
    vm = VmPolicy(limit=1000, burst=2000, burst_seconds=60)
    guest = Guest(exact=False, rates={VDA: 0.0}, vm=vm, overshoot=0.96)
    guest.looks(10)
    guest.rates = {VDA: 1e6}
    guest.looks(30)
    part = guest.state.drives[VDA].vm
    assert part is not None
    assert part.credit.open
    assert [guest.look() for _ in range(30)] == [[]] * 30


def test_a_vms_open_burst_is_nothing_to_a_drive_at_its_own_limit() -> None:
    vm = VmPolicy(limit=9000, burst=12_000, burst_seconds=60)
    guest = Guest(policy=DrivePolicy(limit=1000), vm=vm, overshoot=1.02)
    guest.looks(10)
    assert guest.state.drives[VDA].vm == VmPart(vm, Credit(9.0, True), 1000, Part(1000, 1000))
    assert [guest.look() for _ in range(10)] == [[]] * 10


@pytest.mark.parametrize("exact", [False, True])
def test_what_is_left_of_a_burst_follows_the_vms_limit_too(exact: bool) -> None:
    vm = VmPolicy(limit=3000, burst=6000, burst_seconds=60)
    guest = Guest(exact, {VDA: 0.0, VDB: 0.0}, DrivePolicy(limit=2500), vm)
    guest.looks(10)
    assert guest.bases == {VDA: 1500, VDB: 1500}
    guest.rates[VDA] = 1e6
    guest.looks(5)
    assert guest.bases[VDA] == 2500
    assert sum(guest.bases.values()) <= 3000


def test_a_vms_long_burst_is_carried_on_when_its_parts_move() -> None:
    """However little a drive may save on its own: a bucket that keeps its level is half full."""
    vm = VmPolicy(limit=3000, burst=9000, burst_seconds=600)
    guest = Guest(True, {VDA: 900.0, VDB: 30.0}, DrivePolicy(), vm)
    guest.looks(620)
    guest.rates[VDA] = 1e6
    guest.looks(300)
    carried = guest.state.drives[VDA].sent.credit_s
    guest.rates[VDB] = 3000.0
    guest.looks(3)
    known = guest.state.drives[VDA]
    assert known.vm is not None
    assert known.vm.credit.seconds < 310
    assert known.sent.credit_s == carried > 590


def test_a_policy_that_cant_be_read_keeps_the_vms_reservation() -> None:
    guest = Guest(vm=VmPolicy(reservation=500))
    guest.looks(3)
    guest.policy, guest.vm = UNKNOWN, None
    guest.looks(3)
    known = guest.state.drives[VDA].vm
    assert known is not None
    assert known.policy.reservation == 500
