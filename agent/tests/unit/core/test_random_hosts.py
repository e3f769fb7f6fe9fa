"""The law on random hosts: real decisions, simulated guests, throttles and disks, and faults.

Bounds are in seconds, which are ticks. `make bench-sim` runs many more of these hosts, and says how
far each bound is from what happens.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iokeel.core.values.policy import DrivePolicy, TenantPolicy, VmPolicy
from iokeel.core.values.state import State
from iokeel.core.values.storage import StoragePolicy
from testing.sim.cases import CAPACITY, Case, case, tenant_case, vm_case
from testing.sim.checks import (
    capacities,
    changes,
    longest_idle,
    longest_miss,
    longest_tenant_idle,
    longest_vm_idle,
    wanted,
    worst_second,
    worst_sum,
    worst_tenant_second,
    worst_tenant_sum,
    worst_vm_limits,
    worst_vm_second,
    worst_vm_sum,
)
from testing.sim.fleet import Faults, Fleet, Record
from testing.sim.guests import Guest, Kind, Phase, idle
from testing.sim.oracle import fair_shares
from testing.sim.storage import Disk, steady

SECONDS = 60
HOLDS = st.sampled_from((5, 10, 20))
CHANCES = st.randoms(use_true_random=False)

# A drive that wakes up is seen at the next tick, others make way, and limits for a mix that is not
# known have to be made anew: two seconds each at worst. With a target, what the disk really does
# has to be found too.
MISS_S = 5
MISS_WITH_TARGET_S = 10
# A drive's demand is remembered for two ticks after it is gone, and grows again step by step.
IDLE_S = 12
SETTLED_S = 9
# Limits for a mix, a shift of it, and a bucket's tenth of a second.
STOCK_RATIO = 1.25
EXACT_RATIO = 1.02

hosts = settings(max_examples=50, deadline=None, derandomize=True)


def held(host: Case, record: Record, miss_s: int) -> None:
    assert longest_miss(host, record) <= miss_s
    assert longest_idle(host, record) <= IDLE_S
    assert worst_second(host, record) <= (EXACT_RATIO if host.exact else STOCK_RATIO)
    assert worst_sum(host, record) <= (1.0 if host.exact else 1.05)


@hosts
@given(CHANCES, HOLDS)
def test_promises_are_kept_whatever_guests_do(chance: Random, hold_s: int) -> None:
    host = case(chance, SECONDS, hold_s)
    held(host, host.fleet().run(SECONDS), MISS_S)


@hosts
@given(CHANCES, HOLDS)
def test_promises_are_kept_while_a_disks_capacity_is_found(chance: Random, hold_s: int) -> None:
    host = case(chance, SECONDS, hold_s, target=True)
    held(host, host.fleet().run(SECONDS), MISS_WITH_TARGET_S)


def test_a_capacity_that_is_never_found_counts_as_idle_and_its_reservations_as_missed() -> None:
    """The checks go by what the disk can do, not by the agent's estimate of that."""
    blind = Disk(StoragePolicy(CAPACITY, 1.0, most_ratio=0.25), steady(CAPACITY), 0.0001, 4.0)
    guests = greedy(4, True, (Kind.of(4),))
    guests[0].policy = DrivePolicy(reservation=CAPACITY // 2)
    host = Case(guests, [blind], {}, [], Faults(), True, 0)
    record = host.fleet().run(SECONDS)
    assert longest_idle(host, record) >= SECONDS - MISS_WITH_TARGET_S
    assert longest_miss(host, record) >= SECONDS - MISS_WITH_TARGET_S


@hosts
@given(CHANCES, HOLDS, st.booleans())
def test_promises_are_kept_through_faults(chance: Random, hold_s: int, target: bool) -> None:
    host = case(chance, SECONDS, hold_s, target=target, faults=True)
    held(host, host.fleet().run(SECONDS), MISS_WITH_TARGET_S)


@hosts
@given(CHANCES)
def test_everybody_has_his_fair_share_soon_after_a_step(chance: Random) -> None:
    host = case(chance, SECONDS, 20)
    for guest in host.guests:  # credit would move shares on its own
        assert guest.policy is not None
        guest.policy = replace(guest.policy, burst=None)
    record = host.fleet().run(SECONDS)
    wants, usable = wanted(host, record), capacities(host, record)
    for begin, phases in host.steps:
        for tick in range(ceil(begin) + SETTLED_S, min(SECONDS, int(begin + phases[0].seconds))):
            fair = fair_shares(host, usable[tick], wants[tick], record.served[tick])
            # A retune of stock limits lets a tenth too much through in its second, to others' cost.
            assert record.served[tick] == pytest.approx(fair, rel=0.12, abs=100), tick


@hosts
@given(CHANCES, st.booleans())
def test_where_demand_is_steady_limits_are_left_alone(chance: Random, target: bool) -> None:
    # Behind a soft knee the capacity creeps to its end in a minute or more.
    seconds, settled_s = 160, 115
    host = case(chance, seconds, 1000, target=target)
    assert changes(host.fleet().run(seconds), since=settled_s) <= 120


@settings(hosts, max_examples=10)
@given(CHANCES)
def test_the_same_host_does_the_same_again(chance: Random) -> None:
    seed = chance.randrange(10**6)
    one, other = (case(Random(seed), 30, 5, faults=True).fleet().run(30) for _ in range(2))
    assert np.array_equal(one.served, other.served)
    assert one.orders == other.orders


# VMs with a limit of their own

# A drive's demand is remembered for two ticks after it is gone, and what it leaves is then found
# step by step. A drive that its limits don't hold keeps headroom.
VM_IDLE_S = 6
VM_USED_RATIO = 0.8


@hosts
@given(CHANCES, HOLDS, st.booleans())
def test_a_vms_limit_holds_and_is_used_whatever_its_drives_do(
    chance: Random, hold_s: int, faults: bool
) -> None:
    host = vm_case(chance, SECONDS, hold_s, faults=faults)
    record = host.fleet().run(SECONDS, keep_states=True)
    assert worst_vm_limits(host, record) <= 1
    assert worst_vm_second(host, record) <= (EXACT_RATIO if host.exact else STOCK_RATIO)
    assert worst_vm_sum(host, record) <= (1.0 if host.exact else 1.05)
    assert worst_second(host, record) <= (EXACT_RATIO if host.exact else STOCK_RATIO)
    if not faults:
        assert longest_vm_idle(host, record, VM_USED_RATIO) <= VM_IDLE_S


# Tenants with a limit

# docs/policy.md: 1.25 times the limit until the next tick, and 1.27 measured on stock QEMU, which
# lets a tenth of a second through whenever limits change.
TENANT_RATIO = 1.3
TENANT_EXACT_RATIO = 1.25 * EXACT_RATIO


@hosts
@given(CHANCES, HOLDS, st.booleans())
def test_a_tenants_limit_holds_and_is_used_whatever_its_drives_do(
    chance: Random, hold_s: int, faults: bool
) -> None:
    host = tenant_case(chance, SECONDS, hold_s, faults=faults)
    record = host.fleet().run(SECONDS)
    most = TENANT_EXACT_RATIO if host.exact else TENANT_RATIO
    assert worst_tenant_second(host, record) <= most
    assert worst_tenant_sum(host, record) <= (1.0 if host.exact else 1.05)
    assert worst_second(host, record) <= (EXACT_RATIO if host.exact else STOCK_RATIO)
    if not faults:
        assert longest_tenant_idle(host, record, VM_USED_RATIO) <= VM_IDLE_S


def test_a_tenants_drives_make_way_although_their_limits_have_just_changed() -> None:
    """Two drives shift to other sizes just before a third begins."""
    limit, shift_s = 4000, 19.5
    busy = [
        [Phase(shift_s, inf, Kind.of(before), 32), Phase(inf, inf, Kind.of(after), 32)]
        for before, after in ((64, 256), (8, 64))
    ]
    wakes = [idle(shift_s + 0.5), Phase(inf, inf, Kind.of(8), 16)]
    guests = [
        Guest(f"g{i}", DrivePolicy(), iter(phases), tenant="acme")
        for i, phases in enumerate([*busy, [idle(inf)], wakes])
    ]
    disk = Disk(StoragePolicy(), steady(CAPACITY))
    record = Fleet(guests, [disk], {"acme": TenantPolicy(limit=limit)}).run(40)
    assert record.served[5:].sum(axis=1).max() <= STOCK_RATIO * limit
    assert record.served[30:].sum(axis=1).min() >= 0.97 * limit


def in_vm(limit: VmPolicy, drives: list[list[Phase]], exact: bool) -> list[Guest]:
    return [
        Guest(f"vd{i}", DrivePolicy(), iter(phases), 0, None, exact, ("db1", limit))
        for i, phases in enumerate(drives)
    ]


def in_force(state: State) -> tuple[int, int]:
    """Return the sums of a VM's limits in force: without bursts, and with them."""
    limits = [known.sent.limits for known in state.drives.values()]
    base = [held.iops_total or 0 for held in limits if held is not None]
    most = [held.iops_total_max or held.iops_total or 0 for held in limits if held is not None]
    return sum(base), sum(most)


def test_what_a_drive_leaves_goes_to_the_others_and_comes_back_when_it_wakes() -> None:
    busy = Phase(inf, inf, Kind.of(4), 32)
    phases = [[busy], [idle(20), Phase(20, inf, Kind.of(4), 32)], [busy]]
    for exact in (False, True):
        guests = in_vm(VmPolicy(limit=6000), [[*each] for each in phases], exact)
        served = Fleet(guests, [Disk(StoragePolicy(), steady(CAPACITY))]).run(60).served
        for seconds, fair in ((slice(5, 20), (3000, 0, 3000)), (slice(23, 40), (2000,) * 3)):
            assert served[seconds].mean(axis=0) == pytest.approx(fair, rel=0.03)
        assert served[45:].mean(axis=0) == pytest.approx((3000, 0, 3000), rel=0.03)


def test_a_vms_burst_ends_in_qemu_too_if_the_agent_has_gone() -> None:
    """Limits carry the VM's credit, and together no more than its limit beside it."""
    busy = Phase(inf, inf, Kind.of(4), 32)
    vm = VmPolicy(limit=2000, burst=6000, burst_seconds=20)
    guests = in_vm(vm, [[idle(30), busy], [idle(30), busy]], exact=True)
    gone = Faults(down=frozenset(range(35, 100)))
    record = Fleet(guests, [Disk(StoragePolicy(), steady(CAPACITY))], faults=gone).run(
        100, keep_states=True
    )
    base, most = in_force(record.states[34])
    assert base <= 2000
    assert 5900 <= most <= 6000
    total = record.served.sum(axis=1)
    assert total[31:40].min() >= 0.97 * 6000
    assert total[30:].sum() <= 70 * 2000 + 20 * (6000 - 2000) + 6000 / 10
    assert total[60:].max() <= 2000


def test_an_agent_that_starts_again_finds_a_vms_parts_and_leaves_them() -> None:
    busy = Phase(inf, inf, Kind.of(4), 32)
    for exact in (False, True):
        guests = in_vm(VmPolicy(limit=4000), [[busy], [idle(inf)]], exact)
        faults = Faults(down=frozenset(range(30, 40)))
        disk = Disk(StoragePolicy(), steady(CAPACITY))
        record = Fleet(guests, [disk], faults=faults).run(60)
        assert record.served[10:, 0].min() >= 0.97 * 4000
        assert not [tick for tick, _, _ in record.orders if tick >= 30]


def test_others_of_a_vm_make_way_within_a_tick_for_one_that_cant_be_lowered() -> None:
    """Down to their footholds, which are a twentieth of the limit."""
    busy = Phase(inf, inf, Kind.of(4), 32)
    failing = Faults(failing=frozenset((tick, 0) for tick in range(20, 28)))
    guests = in_vm(VmPolicy(limit=4000), [[busy], [idle(20), busy], [idle(20), busy]], exact=True)
    disk = Disk(StoragePolicy(), steady(CAPACITY))
    served = Fleet(guests, [disk], faults=failing).run(60).served
    assert served[20:28, 0].min() > 0.95 * 4000
    assert served[22:].sum(axis=1).max() <= (1.05 + 0.02) * 4000
    assert served[50:].mean(axis=0) == pytest.approx((4000 / 3,) * 3, rel=0.03)


# Single stories


def test_a_drive_that_is_gone_is_forgotten_and_one_whose_guest_starts_again_is_new() -> None:
    guests = greedy(3, True, limit=1000)
    gone = frozenset((tick, 1) for tick in range(10, 13))
    disk = Disk(StoragePolicy(), steady(CAPACITY))
    faults = Faults(gone=gone, again=frozenset({(10, 2)}))
    record = Fleet(guests, [disk], faults=faults).run(20, keep_states=True)
    for tick, state in enumerate(record.states):
        assert (guests[1].drive in state.drives) is (tick not in range(10, 13))
    first = [(tick, i) for tick, i, reason in record.orders if reason == "POLICY"]
    assert first == [(0, 0), (0, 1), (0, 2), (10, 2), (13, 1)]


MIXED = (Kind.of(4), Kind.of(16), Kind.of(64))


def greedy(
    count: int, exact: bool, kinds: tuple[Kind, ...] = MIXED, limit: int | None = None
) -> list[Guest]:
    return [
        Guest(
            f"g{i}",
            DrivePolicy(limit=limit),
            iter([Phase(inf, inf, kinds[i % len(kinds)], 32)]),
            exact=exact,
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("offset_s", [0.0, 0.25, 0.75])
def test_a_reservation_is_there_from_the_third_second_after_waking(
    exact: bool, offset_s: float
) -> None:
    phases = iter([idle(20 + offset_s), Phase(20, inf, Kind.of(8), 32)])
    victim = Guest("victim", DrivePolicy(6000), phases, exact=exact)
    disk = Disk(StoragePolicy(CAPACITY), steady(1.15 * CAPACITY), 0.0001, 4.0)
    record = Fleet([victim, *greedy(15, exact)], [disk]).run(40)
    assert record.served[23:40, 0].min() >= 0.97 * 6000
    assert record.served[23:40].sum(axis=1).min() >= 0.95 * CAPACITY


@pytest.mark.parametrize("exact", [False, True])
def test_weights_hold_soon_whatever_the_sizes_although_nobody_seems_to_want_more(
    exact: bool,
) -> None:
    weights = (1000, 800, 600, 400)
    guests = [
        Guest(f"g{i}", DrivePolicy(weight=w), iter([Phase(inf, inf, Kind.of(4**i), 64)]), 0)
        for i, w in enumerate(weights, start=1)
    ]
    for guest in guests:
        guest.exact = exact
    disk = Disk(StoragePolicy(CAPACITY, 1.0), steady(CAPACITY), 0.0001, 4.0)
    record = Fleet(guests, [disk]).run(60)
    fair = np.array(weights) / sum(weights)
    for seconds, within in ((slice(4, 10), 0.05), (slice(10, 60), 0.01)):
        did = record.served[seconds].mean(axis=0)
        assert did / did.sum() == pytest.approx(fair, rel=within)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("wrong", [0.7, 1.3])
def test_a_wrong_capacity_is_found_and_one_that_changes_is_followed(
    exact: bool, wrong: float
) -> None:
    def real(at_s: float) -> float:
        return CAPACITY * (0.5 if 60 <= at_s < 120 else 1.0)

    disk = Disk(StoragePolicy(round(wrong * CAPACITY), 1.0), real, 0.0001, 4.0)
    guests = greedy(8, exact, (Kind.of(4),))
    guests[0].policy = DrivePolicy(weight=150)  # if all were equal, nobody would gain by the target
    record = Fleet(guests, [disk]).run(180)
    served = record.served.sum(axis=1)
    for start, part in ((0, 1.0), (60, 0.5), (120, 1.0)):
        settled = slice(start + 25, start + 60)
        assert served[settled].min() >= 0.8 * part * CAPACITY
        # The target is for 4 KiB, so no larger ones. Limits follow moves of 1 % and more.
        assert np.median(record.wait_s[settled]) <= 0.00101


def test_an_idle_disk_is_no_reason_to_believe_nonsense() -> None:
    """Counters of garbage move a ratio within its bounds, and it comes back from there."""
    faults = Faults(counters={(tick, 0): "garbage" for tick in range(10, 20)})
    disk = Disk(StoragePolicy(CAPACITY, 1.0), steady(CAPACITY), 0.0001, 4.0)
    record = Fleet(greedy(4, False), [disk], faults=faults).run(80, keep_states=True)
    ratios = [ratio(state) for state in record.states]
    assert 0.25 <= min(ratios) <= max(ratios) <= 100
    assert record.served[60:].sum(axis=1).min() >= 0.8 * CAPACITY


def test_an_agent_that_starts_again_finds_its_limits_and_leaves_them() -> None:
    faults = Faults(down=frozenset(range(30, 40)))
    disk = Disk(StoragePolicy(CAPACITY), steady(1.15 * CAPACITY), 0.0001, 4.0)
    record = Fleet(greedy(4, False, limit=3000), [disk], faults=faults).run(60)
    assert record.served[30:].max() <= 1.01 * 3000
    assert record.served[30:].min() >= 0.97 * 3000
    assert not [tick for tick, _, _ in record.orders if tick >= 30]


def ratio(state: State) -> float:
    (storage,) = state.storages.values()
    return storage.feedback.ratio
