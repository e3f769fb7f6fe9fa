"""Demands that are added up, and what they are divided by."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from iokeel.core.fleet.claims import HostClaim, needs_above_floors
from iokeel.core.values.claimant import Claim
from iokeel.core.values.policy import ENDLESS
from iokeel.core.values.wants import (
    LAYER_RATIO,
    NOTHING,
    Layer,
    TenantWants,
    Wants,
    given_at,
    wants_of,
)
from testing.sim.oracle import by_bisection

RATES = st.integers(0, 5000) | st.floats(0, 5000)
DRIVES = st.builds(Claim, st.integers(0, 500), st.integers(1, 400), RATES)
HOSTS = st.lists(st.lists(DRIVES, min_size=1, max_size=6), min_size=1, max_size=5)


def needs_of(capacity: float, hosts: list[list[Claim]]) -> list[float]:
    claims = [HostClaim("i", wants=wants_of(drives)) for drives in hosts]
    return needs_above_floors(capacity, claims, [0] * len(hosts))


@given(st.integers(1, 20_000), HOSTS)
def test_a_host_gets_what_its_drives_would_get_by_themselves(
    capacity: int, hosts: list[list[Claim]]
) -> None:
    amounts = iter(by_bisection(capacity, [drive for drives in hosts for drive in drives]))
    for drives, need in zip(hosts, needs_of(capacity, hosts), strict=True):
        due = sum(next(amounts) for _ in drives)
        rounding = 2.0 * sum(map(len, hosts))
        assert due / LAYER_RATIO - rounding <= need <= LAYER_RATIO * due + rounding


def test_drives_that_do_little_lend_no_weight_to_a_busy_one() -> None:
    busy, little = Claim(0, 100, ENDLESS), Claim(0, 100, 30)
    needs = needs_of(10_000, [[busy, little, little, little, little], [busy]])
    assert [round(need) for need in needs] == [5060, 4940]


def test_a_hosts_drives_count_as_many_as_they_are() -> None:
    busy = Claim(0, 100, ENDLESS)
    assert needs_of(8000, [[busy, busy, busy], [busy]]) == [6000, 2000]


def test_an_idle_drives_reservation_is_not_owed_to_its_neighbour() -> None:
    idle, busy = Claim(1000, 100, 0), Claim(0, 100, ENDLESS)
    assert needs_of(2000, [[idle, busy], [busy]]) == [1000, 1000]


def test_demands_are_added_up_by_the_level_that_meets_them() -> None:
    drives = [Claim(50, 100, 80), Claim(0, 50, 15), Claim(0, 100, ENDLESS), Claim(9, 100, 0)]
    assert wants_of(drives) == Wants(50, (Layer(150, 45), Layer(100, ENDLESS)))
    assert wants_of(drives).total == ENDLESS
    assert wants_of([Claim(5, 100, inf)]) == Wants(5, (Layer(100, ENDLESS - 5),))
    assert wants_of([]) == NOTHING


@given(st.lists(DRIVES, max_size=6))
def test_demands_are_near_themselves_and_not_near_twice_as_much(drives: list[Claim]) -> None:
    wants = wants_of(drives)
    assert wants.is_near(wants, 0.0, 0.0)
    twice = wants_of([drive._replace(reservation=0, wants=2 * drive.wants) for drive in drives])
    if wants.total > 10 * len(drives):
        assert not wants.is_near(twice, 0.05, 0.0)


def test_a_tenants_demands_are_near_by_what_its_drives_get_in_it() -> None:
    wants = Wants(5, (Layer(100, 30),), {"acme": TenantWants(300, (Layer(100, 900),))})
    assert wants.total == 935
    assert wants.is_near(wants, 0.0, 0.0)
    for layers in ((Layer(50, 900),), (Layer(100, 800),), ()):
        other = wants._replace(tenants={"acme": TenantWants(300, layers)})
        assert not wants.is_near(other, 0.05, 0.0)
        assert not other.is_near(wants, 0.05, 0.0)


def test_only_a_move_that_changes_what_drives_get_is_not_near() -> None:
    told = wants_of([Claim(0, 100, 20), Claim(0, 100, ENDLESS)])
    assert told.is_near(wants_of([Claim(0, 100, ENDLESS)]), 0.05, 1000)
    assert not told.is_near(wants_of([Claim(0, 100, ENDLESS)]), 0.05, 100)
    assert not told.is_near(wants_of([Claim(0, 100, ENDLESS), Claim(0, 100, ENDLESS)]), 0.05, 1000)


@given(st.lists(DRIVES, max_size=6), st.lists(DRIVES, max_size=6), st.integers(1, 100))
def test_demands_are_near_if_they_are_at_each_level(
    drives: list[Claim], others: list[Claim], least: int
) -> None:
    told, now = wants_of(drives), wants_of(others)
    levels = [layer.wants / layer.weight for layer in (*told.layers, *now.layers)]
    moves = [(float(told.owed), float(now.owed))]
    moves += [(given_at(at, told.layers), given_at(at, now.layers)) for at in levels]
    most = max(abs(after - before) / max(least, before) for before, after in moves)
    assert told.is_near(now, most + 1e-6, least)
    assert not told.is_near(now, most - 1e-6, least)
