"""The floors and amounts that hosts should have, and the steps that lead there."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from iokeel.core.fleet.claims import (
    Budget,
    HostClaim,
    floors,
    needs_above_floors,
    targets,
    with_tenants,
)
from iokeel.core.fleet.coordinate import Tenure, coordinate, in_office, with_word
from iokeel.core.fleet.host import LAPSE_S, WAIT_NS, Me, Part, applied
from iokeel.core.fleet.ledger import Entry, Ledger, Span, Stamp, Word, first_ledger, successor
from iokeel.core.values.claimant import Claim
from iokeel.core.values.counters import NS_PER_S
from iokeel.core.values.policy import ENDLESS
from iokeel.core.values.wants import Layer, TenantLevel, TenantWants, Wants, wants_of
from testing.sim.oracle import by_bisection

STAMP = Stamp("e", 1)
AMOUNTS = st.integers(0, 5000)


def claim(
    reservation: int = 0, weight: int = 100, wants: int = 9999, most: int = 9999
) -> HostClaim:
    return HostClaim("i", reservation, weight, wants_of([(reservation, weight, wants)]), most)


def entry(floor: int, amount: int, charged: int | None = None) -> Entry:
    charged = amount if charged is None else charged
    return Entry("i", floor, amount, charged, floor, STAMP)


def ledger_of(budget: int, entries: dict[str, Entry]) -> Ledger:
    return Ledger(budget, (Span("e", 1, 1),), entries)


@given(
    st.integers(0, 20_000),
    st.lists(st.tuples(AMOUNTS, st.integers(1, 400), AMOUNTS), min_size=1, max_size=8),
)
def test_without_floors_needs_are_what_bisection_finds(
    capacity: int, claims: list[tuple[int, int, int]]
) -> None:
    hosts = [claim(*figures) for figures in claims]
    needs = needs_above_floors(capacity, hosts, [0] * len(hosts))
    expected = by_bisection(capacity, [Claim(*figures) for figures in claims])
    for need, wanted in zip(needs, expected, strict=True):
        assert abs(need - wanted) < 1e-6 * (1 + capacity)


def test_weights_are_exact_over_floors_that_are_lower() -> None:
    claims = {"a": claim(), "b": claim(), "c": claim(weight=200), "d": claim(weight=200)}
    least = dict.fromkeys(claims, 50)
    assert targets(600, claims, least, {}) == {"a": 100, "b": 100, "c": 200, "d": 200}


def test_an_idle_host_keeps_its_floor_and_lends_the_rest() -> None:
    claims = {"a": claim(wants=0, most=1000), "b": claim(), "c": claim()}
    assert targets(1000, claims, dict.fromkeys(claims, 100), {}) == {"a": 100, "b": 450, "c": 450}


def test_nobody_demands_it_so_all_may_have_more() -> None:
    claims = {"a": claim(wants=100, most=1000), "b": claim(wants=300, most=1000)}
    assert targets(1000, claims, dict.fromkeys(claims, 0), {}) == {"a": 400, "b": 600}


def test_amounts_that_are_about_right_stay() -> None:
    claims = {"a": claim(wants=505), "b": claim(wants=300)}
    now = {"a": 500, "b": 500}
    assert targets(1000, claims, dict.fromkeys(claims, 0), now) == now
    assert targets(1000, claims | {"a": claim(wants=600)}, dict.fromkeys(claims, 0), now) != now


def test_floors_are_reservations_and_an_even_part() -> None:
    claims = {"a": claim(reservation=300), "b": claim(), "c": claim(most=0)}
    assert floors(Budget(1000), {}, claims) == {"a": 335, "b": 35, "c": 0}


@given(st.integers(1, 10**8), st.lists(st.integers(0, 10**8), min_size=1, max_size=12), st.data())
def test_floors_are_never_below_zero_nor_above_the_budget(
    amount: int, reservations: list[int], data: st.DataObject
) -> None:
    claims = {f"h{i}": claim(each, most=10**9) for i, each in enumerate(reservations)}
    entries = {
        name: entry(data.draw(st.integers(0, amount)), amount)
        for name in data.draw(st.sets(st.sampled_from([*claims, "silent"])))
    }
    silent = entries["silent"].floor if "silent" in entries else 0
    found = floors(Budget(amount), entries, claims)
    assert all(floor >= 0 for floor in found.values())
    assert sum(found.values()) <= max(0, amount - silent)


def test_floors_that_do_not_fit_are_scaled_down_together() -> None:
    claims = {"a": claim(reservation=900), "b": claim(reservation=300)}
    assert floors(Budget(600), {}, claims) == {"a": 450, "b": 150}


def test_floors_leave_those_of_silent_hosts_alone() -> None:
    claims = {"a": claim(reservation=900), "b": claim(reservation=900)}
    silent = {"dead": entry(200, 200)}
    assert floors(Budget(1000), silent, claims) == {"a": 400, "b": 400}


def after_a_term(ledger: Ledger, claims: dict[str, HostClaim], budget: int) -> Ledger:
    tenure = Tenure(ledger.stamp.epoch, 0, since_ns=0)
    return coordinate(ledger, claims, Budget(budget), tenure, WAIT_NS)[0]


def test_nothing_is_raised_before_what_it_takes_is_confirmed() -> None:
    before = ledger_of(1000, {"a": entry(50, 950), "b": entry(50, 50)})
    claims = {"a": claim(wants=0, most=1000), "b": claim()}
    lowered = after_a_term(before, claims, 1000)
    assert (lowered.entries["a"].amount, lowered.entries["b"].amount) == (50, 50)
    assert lowered.entries["a"].charged == 950
    part = Part(lowered)
    assert applied(part, Me("a", "i"), held=950) is None
    stamp = applied(part, Me("a", "i"), held=50)
    confirmed = HostClaim("i", most=1000, held=50, applied=stamp)
    raised = after_a_term(lowered, {**claims, "a": confirmed}, 1000)
    assert (raised.entries["a"].charged, raised.entries["b"].amount) == (50, 950)


def test_a_dead_host_stays_charged_until_an_operator_speaks_and_a_term_passes() -> None:
    before = ledger_of(1000, {"dead": entry(100, 900), "b": entry(100, 100)})
    there = {"b": claim()}
    lowered = after_a_term(before, there, 1000)
    assert (lowered.entries["dead"].amount, lowered.entries["dead"].charged) == (100, 900)
    said = with_word(lowered, "dead", Word.AT_FLOOR, "operator")
    begun, tenure = coordinate(said, there, Budget(1000), Tenure("next", 0), 0)
    assert begun.stamp.epoch == "next"
    same, tenure = coordinate(begun, there, Budget(1000), tenure, 5)
    assert (same, tenure.since_ns) == (begun, 5)
    early, tenure = coordinate(begun, there, Budget(1000), tenure, 4 + WAIT_NS)
    assert early.entries["b"].amount == 100
    after, tenure = coordinate(begun, there, Budget(1000), tenure, 5 + WAIT_NS)
    assert (after.entries["dead"].charged, after.entries["b"].amount) == (100, 900)


def confirmed(ledger: Ledger, name: str, reservation: int) -> HostClaim:
    """Return the claim of a host that holds no more than its amount."""
    now = ledger.entries[name]
    return replace(claim(reservation), held=now.amount, applied=now.stamp)


def test_floors_make_room_for_a_dead_host_if_the_budget_was_lowered() -> None:
    before = ledger_of(1000, {"dead": entry(100, 600), "b": entry(200, 200), "c": entry(100, 200)})
    there = {"b": claim(reservation=200), "c": claim(reservation=100)}
    lowered = after_a_term(before, there, 750)
    assert [lowered.entries[name].floor for name in "bc"] == [100, 50]
    there = {"b": confirmed(lowered, "b", 200), "c": confirmed(lowered, "c", 100)}
    after = after_a_term(lowered, there, 750)
    assert after.charged == 750
    assert after_a_term(after, there, 750).entries == after.entries
    back = {**there, "dead": confirmed(after, "dead", 100)}
    freed = after_a_term(after, back, 750)
    assert [freed.entries[name].floor for name in ("dead", "b", "c")] == [111, 211, 111]


def test_floors_stay_if_a_dead_host_alone_holds_more_than_the_budget() -> None:
    before = ledger_of(1000, {"dead": entry(100, 800), "b": entry(200, 200)})
    after = after_a_term(before, {"b": claim(reservation=200)}, 750)
    assert (after.entries["b"].floor, after.entries["b"].amount) == (200, 200)


def test_a_host_that_joins_keeps_what_it_has_and_one_without_drives_leaves() -> None:
    empty = first_ledger(1000, "e")
    held = replace(claim(wants=500, most=500), held=400)
    joined = coordinate(empty, {"a": held}, Budget(1000), Tenure("e", 0), 0)[0]
    assert joined.entries["a"].amount == joined.entries["a"].charged == 400
    gone = HostClaim("i", held=0)
    lowered = after_a_term(joined, {"a": gone}, 1000)
    assert lowered.entries["a"].amount == 0
    stamp = lowered.entries["a"].stamp
    left = after_a_term(lowered, {"a": HostClaim("i", applied=stamp)}, 1000)
    assert left.entries == {}


def test_a_host_confirms_an_amount_below_what_its_drives_hold_at_least() -> None:
    """QEMU takes no limit of 0."""
    ledger = ledger_of(1000, {"a": entry(100, 1000)})
    for _ in range(4):
        now = ledger.entries["a"]
        held = max(2, now.amount)
        stamp = applied(Part(ledger), Me("a", "i"), held, least=2)
        idle = replace(claim(wants=0, most=1000), held=held, applied=stamp)
        full = claim(reservation=500)
        joined = {
            name: confirmed(ledger, name, 500) if name in ledger.entries else full for name in "bc"
        }
        ledger = after_a_term(ledger, {"a": idle, **joined}, 1000)
    assert ledger.entries["a"].charged == 2
    assert [ledger.entries[name].amount for name in "bc"] == [499, 499]
    assert ledger.charged <= 1000


def test_a_host_that_joins_with_too_much_is_raised_only_once_others_hold_less() -> None:
    before = ledger_of(1000, {"a": entry(50, 600), "b": entry(50, 400)})
    others = {"a": claim(), "b": claim()}
    joins = replace(claim(), held=500)
    after = after_a_term(before, {**others, "c": joins}, 1000)
    assert (after.entries["c"].amount, after.charged) == (0, 1500)
    same = after_a_term(after, {**others, "c": joins}, 1000)
    assert same.entries["c"].amount == 0
    low = {name: confirmed(after, name, 0) for name in "abc"}
    raised = after_a_term(after, low, 1000)
    assert raised.charged <= 1000
    assert raised.entries["c"].amount > 300


def test_a_host_is_charged_for_a_guest_that_comes_with_limits_until_it_has_lowered_them() -> None:
    before = ledger_of(6000, {"a": entry(0, 3000), "b": entry(0, 1000), "c": entry(0, 2000)})
    there = {"a": HostClaim("i"), "b": replace(claim(), held=4000), "c": confirmed(before, "c", 0)}
    lowered = after_a_term(before, there, 6000)
    assert lowered.entries["b"].charged == 4000
    left = {**there, "a": HostClaim("i", applied=lowered.entries["a"].stamp)}
    after = after_a_term(lowered, left, 6000)
    assert "a" not in after.entries
    assert [after.entries[name].charged for name in "bc"] == [4000, 2000]
    assert after_a_term(after, left, 6000).entries == after.entries
    own = {name: confirmed(after, name, 0) for name in "bc"}
    raised = after_a_term(after, own, 6000)
    assert [raised.entries[name].amount for name in "bc"] == [3000, 3000]


def test_a_drive_without_limits_is_no_endless_charge() -> None:
    before = ledger_of(1000, {"a": entry(100, 500)})
    older = replace(claim(), held=ENDLESS)
    assert after_a_term(before, {"a": older}, 1000).entries["a"].charged <= 1000


def test_a_tenure_ends_with_anothers_ledger_and_with_a_pause() -> None:
    mine = ledger_of(1000, {})
    tenure = Tenure("e", 0, since_ns=0)
    soon, late = LAPSE_S * NS_PER_S, LAPSE_S * NS_PER_S + 1
    assert in_office(tenure, mine, "f", 5, soon) == Tenure("e", 5, since_ns=0)
    assert in_office(tenure, mine, "f", 5, late) == Tenure("f", 5)
    assert in_office(tenure, successor(mine, "g"), "f", 5, soon) == Tenure("f", 5)
    assert in_office(None, mine, "f", 5, soon) == Tenure("f", 5)


def test_the_ledger_tells_the_level_of_a_tenant_on_a_storage() -> None:
    def wants(weight: int, demand: int = 5000, instance: str = "i") -> HostClaim:
        own = {"acme": TenantWants(300, (Layer(weight, demand),))} if weight else {}
        return replace(claim(), instance=instance, wants=Wants(0, (Layer(100, 5000),), own))

    hosts = {"a": wants(100), "b": wants(200), "c": wants(0)}
    told = after_a_term(ledger_of(1200, {}), hosts, 1200)
    # The tenant has 300 of all 600, and b has two thirds of that.
    assert told.levels == {"acme": TenantLevel(2.0, 600.0)}
    assert [told.entries[name].amount for name in "abc"] == [400, 600, 200]
    assert after_a_term(told, {"a": wants(100, 90), "b": wants(200, 90)}, 1200).levels == {}
    # A small move is worth no ledger.
    assert after_a_term(told, {**hosts, "b": wants(210)}, 1200).levels == told.levels
    assert after_a_term(told, {**hosts, "b": wants(400)}, 1200).levels["acme"].level < 1.6
    # A second host of a name counts for nothing. What the first one is charged is left out.
    assert after_a_term(told, {**hosts, "b": wants(200, 5000, "another")}, 1200).levels == {
        "acme": TenantLevel(3.6, 360.0)
    }


def test_floors_of_idle_hosts_are_left_out_of_tenants_levels() -> None:
    own = {"acme": TenantWants(100, (Layer(100, 1000),))}
    busy = replace(claim(), wants=Wants(0, (Layer(100, 5000),), own))
    claims = {"a": busy, "idle": claim(3000, wants=0)}
    _, levels = with_tenants(4000, claims, {"a": 100, "idle": 3000})
    assert levels == {"acme": TenantLevel(5.0, 500.0)}
    _, levels = with_tenants(4000, claims, {"a": 100, "idle": 0})
    assert levels == {}


def test_a_second_host_of_a_name_gets_nothing() -> None:
    before = ledger_of(1000, {"a": entry(100, 100)})
    other = replace(claim(wants=900, most=900), instance="another", applied=STAMP)
    after = after_a_term(before, {"a": other}, 1000)
    assert after.entries["a"] == before.entries["a"]
