"""Drives that their storage holds up: what they are taken to want, and that they get it."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import pytest

from iokeel.core.correct.held_up import HeldUp, done_by
from iokeel.core.divide.groups import Group, drives_of, promised_together
from iokeel.core.values.claimant import Claimant, claimant_of
from iokeel.core.values.counters import DriveId, Flow, Rates
from iokeel.core.values.policy import DrivePolicy, TenantPolicy, VmPolicy
from iokeel.core.values.state import Demand, DriveState, Measured, Shown
from iokeel.core.values.storage import StorageActivity, StoragePolicy
from testing.sim.fleet import Fleet, Record
from testing.sim.guests import Guest, Kind, Phase
from testing.sim.storage import Disk, steady

DRIVE, OTHER = DriveId("db", "vda"), DriveId("db", "vdb")
NEIGHBOUR = DriveId("backup", "vda")
POLICY = StoragePolicy(10_000, 5.0)
KEPT, LATE = 0.005, 0.010
CAPACITY, RESERVED = 9800, 1960


def drive(
    rate: float | None,
    latency_s: float | None,
    reservation: int = 0,
    *,
    name: DriveId = DRIVE,
    full: bool = False,
) -> Claimant:
    """Return a drive that did some 4 KiB reads in the last second."""
    promise = DrivePolicy(reservation=reservation)
    did = None if rate is None else Rates(1.0, Flow(rate, rate * 4096), Flow(0, 0), latency_s, None)
    known = DriveState(
        policy=promise,
        measured=Measured(None, did, rate),
        demand=Demand(rate=rate or 0.0, backlogged=full),
    )
    return claimant_of(name, known, promise)


def reckoned(
    *members: Claimant | Group,
    shown: Mapping[DriveId, Shown] | None = None,
    activity: StorageActivity | None = None,
    beside: float = 5000,
) -> HeldUp:
    """Return what is found of some drives after a second. beside: the rate of another one."""
    there = [*members, drive(beside, LATE, name=NEIGHBOUR)]
    beyond = sum(max(0.0, done_by(drives_of(m)) - m.claim.reservation) for m in there)
    return HeldUp([*promised_together(there)], beyond, POLICY, activity, shown or {}, 1.0)


@pytest.mark.parametrize(
    ("rate", "latency_s", "reservation", "wants", "strain"),
    [
        (400, LATE, 2000, 800, 2),  # four requests on their way do 800 at 5 ms
        (400, LATE, 600, 600, 1.5),
        (400, LATE, 300, 400, 0.75),  # it does more than is reserved
        (400, KEPT, 2000, 400, 1),
        (40, LATE, 2000, 40, 0),  # its requests seldom wait
        (80, 0.0075, 2000, 100, 1.25),  # one request, which its guest takes 5 ms to send
        (0, None, 2000, 0, 0),
        (400, None, 2000, 400, 0),
        (None, LATE, 2000, 2000, 0),
        (1e-300, LATE, 2000, 1e-300, 0),
    ],
)
def test_demand_is_what_its_requests_allow_at_the_target(
    rate: float | None, latency_s: float | None, reservation: int, wants: float, strain: float
) -> None:
    claimant = drive(rate, latency_s, reservation)
    assert reckoned(claimant).strain == pytest.approx(strain)
    assert claimant.wants == pytest.approx(wants)


def test_a_charge_without_a_request_tells_nothing() -> None:
    claimant = drive(400, LATE, 2000)
    did = Rates(1.0, Flow(0, 0), Flow(0, 0), None, None)
    claimant.known = claimant.known._replace(measured=Measured(None, did, 400))
    assert reckoned(claimant).strain == 0


def test_one_that_its_limits_hold_has_shown_its_demand() -> None:
    claimant = drive(400, LATE, 2000, full=True)
    wanted = claimant.wants
    assert reckoned(claimant, shown={DRIVE: Shown(900, 0)}).shown_now == {}
    assert claimant.wants == wanted


def test_it_wants_no_more_than_it_showed_when_the_target_was_kept() -> None:
    claimant = drive(400, LATE, 2000)
    found = reckoned(claimant, shown={DRIVE: Shown(500, 10)})
    assert claimant.wants == 500
    assert found.strain == 1.25
    assert found.shown_now == {DRIVE: Shown(500, 11)}


@pytest.mark.parametrize(
    ("rate", "latency_s", "shown", "demand"),
    [
        (400, LATE, None, 800),
        (400, LATE, Shown(500, 10), 500),
        (400, LATE, Shown(500, 10, in_vain=True), 800),  # it would do so at the target
        (40, LATE, None, 0),
        (400, None, None, None),
    ],
)
def test_the_demand_that_its_storage_holds_up_is_told(
    rate: float, latency_s: float | None, shown: Shown | None, demand: float | None
) -> None:
    found = reckoned(drive(rate, latency_s, 2000), shown={DRIVE: shown} if shown else {})
    assert found.demands.get(DRIVE) == (None if demand is None else pytest.approx(demand))


@pytest.mark.parametrize(
    ("rate", "latency_s", "before", "after"),
    [
        (400, KEPT, None, Shown(400, 0)),
        (400, KEPT, Shown(420, 9), Shown(400, 0)),
        (400, KEPT, Shown(1000, 9), Shown(900, 0)),
        (310, LATE, Shown(300, 9), Shown(310, 10)),
        (400, LATE, Shown(300, 9), None),  # it shows something new
        (400, LATE, None, None),
        (0, None, Shown(300, 9), Shown(300, 10)),
        (400, LATE, Shown(500, 299.5), None),
    ],
)
def test_what_it_showed_is_remembered_for_a_while(
    rate: float, latency_s: float | None, before: Shown | None, after: Shown | None
) -> None:
    shown = {DRIVE: before} if before else {}
    found = reckoned(drive(rate, latency_s, 2000), shown=shown)
    assert found.shown_now == ({DRIVE: after} if after else {})


def test_if_nothing_is_left_to_cut_it_shows_what_it_can_do() -> None:
    first = reckoned(drive(400, LATE, 2000), beside=500)
    assert first.shown_now == {DRIVE: Shown(400, 0, in_vain=True)}
    claimant = drive(300, LATE, 2000)
    again = reckoned(claimant, shown=first.shown_now)
    assert claimant.wants == pytest.approx(320)  # the last fifth isn't worth the cuts
    assert again.strain == pytest.approx(320 / 300)
    assert reckoned(drive(330, LATE, 2000), shown=first.shown_now).strain == 0
    kept = reckoned(drive(330, KEPT, 2000), shown=first.shown_now)
    assert kept.shown_now == {DRIVE: Shown(360, 0)}


def test_without_times_of_its_own_a_drive_is_as_late_as_its_storage() -> None:
    claimant = drive(400, None, 2000)
    mean_cost = 51.0  # larger ones may take 5 ms more
    activity = StorageActivity(1.0, 500, 0.020, 1.0, 10, mean_cost, mean_cost)
    assert reckoned(claimant, activity=activity).strain == pytest.approx(2)
    assert claimant.wants == pytest.approx(800)


def test_a_reservation_for_two_drives_is_spread_by_what_they_lack() -> None:
    first, second = drive(100, LATE), drive(300, LATE, name=OTHER)
    found = reckoned(Group(600, 100, [first, second]))
    assert (first.wants, second.wants) == pytest.approx((150, 450))
    assert found.strain == pytest.approx(1.5)


# On a simulated host: databases beside a stream of large requests.


def beside_a_backup(
    rate: float,
    *,
    exact: bool,
    owner: str = "drive",
    counted: bool = True,
    base_s: float = 0.001,
    seconds: int = 60,
) -> Record:
    """Return a minute of three databases with four requests on their way each, and a backup."""
    tenant = "acme" if owner == "tenant" else None
    vm = ("db", VmPolicy(reservation=3 * RESERVED)) if owner == "vm" else None
    policy = DrivePolicy(reservation=RESERVED if owner == "drive" else 0)
    load = Phase(inf, rate, Kind.of(16, 0.3), 4)
    guests = [Guest(f"db{i}", policy, iter([load]), 0, tenant, exact, vm) for i in range(3)]
    stream = iter([Phase(inf, inf, Kind.of(1024), 8)])
    guests.append(Guest("backup", DrivePolicy(), stream, exact=exact))
    disk = Disk(StoragePolicy(CAPACITY, 3.5), steady(CAPACITY), base_s, 4.0, counted=counted)
    tenants = {"acme": TenantPolicy(3 * RESERVED)} if owner == "tenant" else {}
    return Fleet(guests, [disk], tenants).run(seconds)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    ("owner", "counted"), [("drive", True), ("drive", False), ("vm", True), ("tenant", True)]
)
def test_a_reservation_holds_although_its_drives_never_wait_for_their_limits(
    owner: str, counted: bool, exact: bool
) -> None:
    served = beside_a_backup(inf, exact=exact, owner=owner, counted=counted).served[20:]
    # Stock QEMU's times contain waits, so without counters the calmest drive's is all that tells.
    least = 0.9 if counted or exact else 0.8
    assert served[:, :3].min() >= least * RESERVED
    assert served.sum(axis=1).min() >= 0.85 * CAPACITY


@pytest.mark.parametrize(("rate", "others"), [(300, 8500), (1000, 5900)])
def test_what_they_dont_want_is_the_backups(rate: float, others: float) -> None:
    served = beside_a_backup(rate, exact=True).served[20:]
    assert served[:, :3].min() >= 0.99 * rate
    assert served[:, 3].min() >= others


@pytest.mark.parametrize("exact", [False, True])
def test_a_disk_that_misses_its_target_even_alone_is_not_left_idle(exact: bool) -> None:
    alone = 4 / 0.008 * Kind.of(16, 0.3).cost()
    served = beside_a_backup(inf, exact=exact, base_s=0.008, seconds=120).served[60:]
    assert served[:, :3].min() >= 0.5 * alone
    assert served[:, 3].min() >= 0.25 * CAPACITY


def test_on_stock_throttles_they_get_most_of_it() -> None:
    served = beside_a_backup(1000, exact=False).served[20:]
    assert served[:, :3].mean() >= 800
    assert served[:, :3].min() >= 500


def readers(*depths: int, exact: bool, weight: int = 100, base_s: float = 0.001) -> Record:
    """Return half a minute of guests that read all they can get, on a disk above its target.

    weight: of the last one.
    """
    loads = [Phase(inf, inf, Kind.of(4), depth) for depth in depths]
    weights = [100] * (len(depths) - 1) + [weight]
    guests = [
        Guest(f"reader{i}", DrivePolicy(weight=own), iter([load]), exact=exact)
        for i, (load, own) in enumerate(zip(loads, weights, strict=True))
    ]
    disk = Disk(StoragePolicy(CAPACITY, 3.0), steady(CAPACITY), base_s, 4.0)
    return Fleet(guests, [disk]).run(30)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("base_s", [0.001, 0.004])  # the idle disk is above its target, too
def test_equal_guests_are_not_held_back_for_the_target_of_their_storage(
    base_s: float, exact: bool
) -> None:
    record = readers(16, 16, 16, 16, exact=exact, base_s=base_s)
    assert record.free[1:].all()  # at first, it isn't known what they will do


@pytest.mark.parametrize("exact", [False, True])
def test_others_are_held_back_for_a_guest_that_has_far_less_than_its_part(exact: bool) -> None:
    record = readers(64, 64, 64, 8, exact=exact)
    assert not record.free[10:].any()
    assert record.served[20:, 3].min() >= 0.75 * CAPACITY / 4


@pytest.mark.parametrize("exact", [False, True])
def test_weights_that_differ_are_kept_although_nobody_has_far_less_than_its_part(
    exact: bool,
) -> None:
    served = readers(16, 16, 16, 16, exact=exact, weight=125).served[20:].mean(axis=0)
    assert served[3] / served[0] == pytest.approx(1.25, rel=0.03)


@pytest.mark.parametrize("exact", [False, True])
def test_a_disk_whose_latency_does_not_fall_with_its_load_is_used(exact: bool) -> None:
    """64 requests of 12 ms each, four times the target, are 5,333 a second."""
    record = readers(16, 16, 16, 16, exact=exact, weight=200, base_s=0.012)
    assert record.served[20:].sum(axis=1).mean() >= 0.75 * 64 / 0.012
