"""A VM's limit among its drives: properties, and cases whose figures are worked out by hand."""

from __future__ import annotations

from math import ceil, floor, inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.core.divide.parts import with_vm_parts
from iokeel.core.divide.pool import SPARE_RATIO
from iokeel.core.measure.burst import NO_CREDIT
from iokeel.core.values.claimant import FOOTHOLD_RATIO, STEP_RATIO
from iokeel.core.values.counters import NS_PER_S, Counters, DriveId, Flow, Rates
from iokeel.core.values.policy import DrivePolicy, VmPolicy
from iokeel.core.values.state import Credit, Demand, DriveState, Measured, Part, Share, VmPart
from tests.unit.core.policies import POLICIES

VM = VmPolicy(limit=4000, burst=8000, burst_seconds=60)
PLAIN = DrivePolicy()


def drive(
    rate: float | None,
    policy: DrivePolicy = PLAIN,
    *,
    full: bool = False,
    vm: VmPolicy = VM,
    most: int | None = None,
    credit: Credit = NO_CREDIT,
) -> DriveState:
    """Return a drive that did a rate in the last second.

    full: its limits were what held it. most: its part before.
    """
    did = None if rate is None else Rates(1.0, Flow(rate, 4096 * rate), Flow(0, 0), None, None)
    return DriveState(
        policy=policy,
        measured=Measured(rates=did, rate=rate),
        demand=Demand(() if rate is None else (rate,), rate or 0.0, backlogged=full),
        vm=VmPart(vm, credit, most, None if most is None else Part(most, most)),
        held=inf,
    )


def divided(*drives: DriveState) -> list[DriveState]:
    """Return a VM's drives after a tick."""
    there = {DriveId("db1", f"vd{i}"): known for i, known in enumerate(drives)}
    return [*with_vm_parts(there, there, ()).values()]


def most(*drives: DriveState) -> list[int]:
    return [free(known) for known in divided(*drives)]


def part(known: DriveState) -> VmPart:
    assert known.vm is not None
    return known.vm


def free(known: DriveState) -> int:
    """Return the part that a drive has at once."""
    its = part(known).part
    return 0 if its is None else its.most


VMS = st.builds(
    lambda limit, more: VmPolicy(limit=limit, burst=limit + more),
    st.integers(16, 20_000),  # 1 for each budget of 8 drives
    st.integers(0, 20_000),
)
STATES = st.lists(
    st.tuples(
        POLICIES, st.none() | st.floats(0, 20_000), st.booleans(), st.none() | st.integers(1, 9000)
    ),
    min_size=1,
    max_size=8,
)
CREDITS = st.builds(Credit, st.floats(0, 60), st.booleans())


def drives_of(vm: VmPolicy, states: list[Any], credit: Credit) -> list[DriveState]:
    return [
        drive(rate, policy, full=full, vm=vm, most=held, credit=credit)
        for policy, rate, full, held in states
    ]


@given(VMS, STATES, CREDITS)
def test_parts_never_add_up_to_more_than_the_limit_or_the_open_burst(
    vm: VmPolicy, states: list[Any], credit: Credit
) -> None:
    after = divided(*drives_of(vm, states, credit))
    parts = [part(known) for known in after]
    ceiling = vm.burst if parts[0].credit.open else vm.limit
    assert ceiling is not None
    assert min(map(free, after)) >= 1
    assert sum(map(free, after)) <= ceiling
    # With separate budgets, reads and writes may each do what is allowed.
    allowed = [
        (2 if policy.separate_budgets else 1) * (known.allowed or inf)
        for known, (policy, *_) in zip(after, states, strict=True)
    ]
    assert sum(allowed) <= ceiling
    assert sum(p.sustained or 0 for p in parts) <= (vm.limit or 0)
    for known, (policy, *_) in zip(after, states, strict=True):
        assert known.allowed is not None
        assert known.allowed <= (policy.limit or inf)


@given(VMS, STATES, CREDITS)
def test_all_of_the_limit_is_given_out_unless_the_drives_own_limits_are_lower(
    vm: VmPolicy, states: list[Any], credit: Credit
) -> None:
    after = divided(*drives_of(vm, states, credit))
    parts = [part(known) for known in after]
    own = sum((p.limit or inf) * (2 if p.separate_budgets else 1) for p, *_ in states)
    ceiling = (vm.burst if parts[0].credit.open else vm.limit) or 0
    # Parts are whole numbers. Those that stay may be another such remainder off.
    assert sum(map(free, after)) >= min(ceiling, own) - 2 * len(parts)


@given(VMS, STATES, CREDITS)
def test_another_tick_of_the_same_changes_no_part(
    vm: VmPolicy, states: list[Any], credit: Credit
) -> None:
    once = divided(*drives_of(vm, states, credit._replace(open=False, seconds=0.0)))
    again = divided(*(known._replace(vm=part(known)._replace(credit=Credit())) for known in once))
    assert [part(known)[2:] for known in again] == [part(known)[2:] for known in once]


def test_drives_that_want_all_divide_the_limit_by_weight() -> None:
    assert most(drive(2000, full=True), drive(2000, full=True)) == [2000, 2000]
    heavy = DrivePolicy(weight=300)
    assert most(drive(900, heavy, full=True), drive(900, full=True)) == [3000, 1000]


def test_a_drive_gets_what_another_leaves_but_its_foothold() -> None:
    foothold = FOOTHOLD_RATIO * 4000 / 2
    assert most(drive(2000, full=True), drive(0)) == [4000 - foothold, foothold]


def test_a_drive_below_its_part_keeps_some_headroom_to_show_that_it_wants_more() -> None:
    mine = SPARE_RATIO * 1000 + FOOTHOLD_RATIO * 4000 / 2
    assert most(drive(2000, full=True), drive(1000)) == [floor(4000 - mine), floor(mine)]


def test_a_drive_that_its_limits_hold_leaves_a_busy_one_all_but_its_next_step() -> None:
    step = SPARE_RATIO * STEP_RATIO * 40 + FOOTHOLD_RATIO * 4000 / 2
    assert most(drive(3900, full=True), drive(40, full=True)) == [floor(4000 - step), floor(step)]


def test_a_drive_that_was_held_lately_wants_what_it_does() -> None:
    counters = Counters(3 * NS_PER_S, 0, 0, 0, 0, 0, 0)
    lately = drive(1000)._replace(
        measured=drive(1000).measured._replace(counters=counters),
        demand=Demand((1000.0, 40.0), 1000.0, backlogged_ns=2 * NS_PER_S),
    )
    assert most(drive(2000, full=True), lately) == most(drive(2000, full=True), drive(1000))


def test_a_drive_that_pays_for_a_large_request_keeps_its_part_until_then() -> None:
    """Nothing passes meanwhile, and the request behind it waits."""
    part, unpaid, seconds = 2000, 9600, 0
    while unpaid > 0:
        paying = drive(0 if seconds else 9600, full=True, most=part)
        _, part = most(drive(2000, full=True, most=4000 - part), paying)
        unpaid -= part
        seconds += 1
    assert seconds == ceil(9600 / 2000)


def test_a_drive_that_its_limits_hold_wants_its_reservation_at_once() -> None:
    promised = drive(40, DrivePolicy(reservation=1500), full=True)
    assert most(drive(3900, full=True), promised)[1] >= 1500


def test_what_nobody_wants_is_added_by_weight() -> None:
    assert most(drive(0), drive(0)) == [2000, 2000]
    assert most(drive(0, DrivePolicy(weight=300)), drive(0)) == [3000, 1000]


def test_a_drives_own_limit_leaves_the_rest_to_others() -> None:
    small = DrivePolicy(limit=500)
    assert most(drive(500, small, full=True), drive(2000, full=True)) == [500, 3500]


def test_a_storage_that_serves_less_leaves_the_rest_to_others() -> None:
    slow = drive(500, full=True)._replace(share=Share(500.0, "hdd", 0.0, 500.0))
    mine = SPARE_RATIO * 500 + FOOTHOLD_RATIO * 4000 / 2
    assert most(slow, drive(2000, full=True)) == [floor(mine), floor(4000 - mine)]


def test_reservations_come_first() -> None:
    promised = DrivePolicy(reservation=3000)
    assert most(drive(900, promised, full=True), drive(900, full=True)) == [3500, 500]


def test_parts_stay_while_they_are_enough() -> None:
    before = [drive(500, most=3000), drive(700, most=1000)]
    assert most(*before) == [3000, 1000]
    assert most(before[0], drive(1000, most=1000, full=True))[1] > 1000


@pytest.mark.parametrize("held", [[3000, 1001], [3000, 2000], [1000, 1000], [4000, None]])
def test_parts_that_are_not_all_of_the_limit_are_made_anew(held: list[int | None]) -> None:
    assert most(*(drive(0, most=part) for part in held)) == [2000, 2000]


def test_the_vm_earns_and_spends_its_credit_as_a_whole() -> None:
    def after(*rates: float) -> float:
        credit = Credit(10.0, open=True)
        drives = (drive(rate, most=4000, credit=credit) for rate in rates)
        return part(divided(*drives)[0]).credit.seconds

    assert after(1500, 1500) == 11
    assert after(2000, 2000) == 10
    assert after(2500, 2500) == 9
    assert after(7000, 0) == 9


def test_a_new_drive_learns_the_vms_credit_and_an_unknown_rate_changes_nothing() -> None:
    credit = Credit(20.0, open=True)
    old, new = divided(drive(7000, most=8000, credit=credit), drive(None))
    assert part(old).credit == part(new).credit == credit
    assert free(old) + free(new) == 8000


@pytest.mark.parametrize("limits", [(4000, 1000), (1000, 4000)])
def test_of_different_limits_that_its_drives_know_the_tightest_holds(
    limits: tuple[int, int],
) -> None:
    assert most(*(drive(0, vm=VmPolicy(limit=limit)) for limit in limits)) == [500, 500]


def test_vms_without_a_limit_are_left_alone() -> None:
    there = {
        DriveId("db1", "vda"): drive(9, vm=VmPolicy(reservation=100)),
        DriveId("db2", "vda"): DriveState(policy=PLAIN),
    }
    assert with_vm_parts(there, there, ()) is there


def test_each_vm_has_its_own() -> None:
    there = {
        DriveId(vm, target): drive(900, full=True, vm=VmPolicy(limit=limit))
        for vm, limit in {"db1": 1000, "db2": 3000}.items()
        for target in ("vda", "vdb")
    }
    assert [*map(free, with_vm_parts(there, there, ()).values())] == [500, 500, 1500, 1500]


def test_a_drive_whose_part_is_not_known_has_the_vms_limit() -> None:
    """As if the division itself had failed: unknown is never unlimited."""
    assert drive(9, vm=VmPolicy(limit=1000)).allowed == 1000


def test_nobody_is_left_without_a_part_and_the_sum_still_holds() -> None:
    tiny = [drive(900, DrivePolicy(weight=1), full=True) for _ in range(7)]
    parts = most(drive(900, DrivePolicy(weight=10_000), full=True), *tiny)
    assert parts == [3993, *[1] * 7]
