"""The fleet's values: what is written is read again, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from iokeel.core.fleet.claims import Budget, HostClaim, Shared
from iokeel.core.fleet.coordinate import Tenure, coordinate
from iokeel.core.fleet.ledger import Entry, Learnt, Ledger, Span, Stamp, Word, first_ledger
from iokeel.core.values.counters import NS_PER_S
from iokeel.core.values.storage import Load, StorageActivity
from iokeel.core.values.wants import Layer, TenantLevel, TenantWants, wants_of
from iokeel.errors import FleetRefused
from iokeel.fleet.records import (
    budget_of,
    budget_value,
    claim_of,
    claim_value,
    ledger_of,
    ledger_value,
    levels_value,
    wants_in,
    wants_value,
    with_levels,
)

FIGURES = st.integers(0, 10**9)
STAMPS = st.builds(Stamp, st.text(min_size=1, max_size=8), st.integers(1, 10**9))


def entry(instance: str, figures: list[int], stamp: Stamp, word: Word | None) -> Entry:
    floor, amount, lasting, charged = sorted(figures)
    return Entry(instance, floor, amount, charged, lasting, stamp, word)


ENTRIES = st.builds(
    entry,
    st.text(min_size=1, max_size=8),
    st.lists(FIGURES, min_size=4, max_size=4),
    STAMPS,
    st.none() | st.sampled_from(Word),
)
LEDGERS = st.builds(
    lambda amount, entries, before, learnt, levels: Ledger(
        amount, (Span("d", 1, 3), Span("e", 4, 9)), entries, before, learnt, levels
    ),
    FIGURES,
    st.dictionaries(st.text(max_size=8), ENTRIES, max_size=4),
    FIGURES,
    st.none() | st.builds(Learnt, st.integers(1, 10**8), st.floats(0.01, 100)),
    st.dictionaries(
        st.text(max_size=8),
        st.builds(TenantLevel, st.floats(1e-6, 1e9), st.floats(1e-6, 1e9)),
        max_size=3,
    ),
)
RATES = st.floats(0, 1e9)
MAYBE = st.none() | RATES
LOADS = st.builds(
    Load,
    st.none()
    | st.builds(StorageActivity, RATES, RATES, MAYBE, st.floats(0, 1), RATES, MAYBE, MAYBE),
    RATES,
    RATES,
    st.booleans(),
    RATES,
    st.booleans(),
    st.floats(0.01, 1),
    st.booleans(),
)
WEIGHTS = st.integers(1, 10**6)
TENANTS = st.dictionaries(
    st.text(max_size=8),
    st.builds(
        TenantWants, WEIGHTS, st.lists(st.builds(Layer, WEIGHTS, FIGURES), max_size=3).map(tuple)
    ),
    max_size=3,
)
WANTS = st.builds(
    lambda claims, tenants: wants_of(claims)._replace(tenants=tenants),
    st.lists(st.tuples(FIGURES, WEIGHTS, FIGURES), max_size=4),
    TENANTS,
)
CLAIMS = st.builds(
    HostClaim,
    st.text(min_size=1, max_size=8),
    FIGURES,
    WEIGHTS,
    WANTS,
    FIGURES,
    FIGURES,
    st.none() | STAMPS,
    st.none() | LOADS,
)
GOOD = ledger_value(Ledger(9, (Span("e", 1, 1),), {"a": Entry("i", 1, 2, 3, 1, Stamp("e", 1))}))


@given(
    st.integers(1, 10**6),
    st.lists(st.integers(0, 10**6), min_size=1, max_size=6),
    st.lists(st.integers(1, 400), min_size=6, max_size=6),
)
@example(30424, [8122, 6996, 2078, 13958, 0], [100] * 6)
def test_every_ledger_of_a_coordinator_is_read_as_it_was_written(
    amount: int, reservations: list[int], weights: list[int]
) -> None:
    """Also if more is reserved than there is."""
    claims = {
        f"h{i}": HostClaim("i", each, weight, wants_of([(each, weight, 5000)]), 10**7, 0)
        for i, (each, weight) in enumerate(zip(reservations, weights, strict=False))
    }
    ledger = first_ledger(amount, "e")
    tenure = Tenure("e", 0, 0)
    for second in range(1, 40, 12):
        ledger, tenure = coordinate(ledger, claims, Budget(amount), tenure, second * NS_PER_S)
        assert ledger_of("k", ledger_value(ledger)) == replace(ledger, levels={})
        claims = {name: replace(each, applied=ledger.stamp) for name, each in claims.items()}


BAD = {
    "below zero": Entry("i", -1, 0, 0, 0, Stamp("e", 1)),
    "a contradiction": Entry("i", 5, 4, 9, 0, Stamp("e", 1)),
    "no name": Entry("", 0, 0, 0, 0, Stamp("e", 1)),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_ledger_that_nobody_could_read_is_not_written(bad: Entry) -> None:
    with pytest.raises(FleetRefused, match=r"isn't written.*; please report it"):
        ledger_value(Ledger(9, (Span("e", 1, 1),), {"a": bad}))


def test_a_claim_that_nobody_could_read_is_not_written() -> None:
    with pytest.raises(FleetRefused, match=r"ClaimRecord: isn't written .* no host could read it"):
        claim_value(HostClaim("i", -1, 100, wants_of([]), 0))


@given(LEDGERS)
def test_a_ledger_is_read_as_it_was_written(ledger: Ledger) -> None:
    read = ledger_of("k", ledger_value(ledger))
    assert read == replace(ledger, levels={})
    levels = levels_value(ledger)
    if levels is not None:
        assert with_levels(read, "k", levels) == ledger
        other = replace(read, spans=(*read.spans, Span("older agent", 10, 10)))
        assert with_levels(other, "k", levels) == other
    else:
        assert not ledger.levels


@given(CLAIMS)
def test_a_claim_is_read_as_it_was_written(claim: HostClaim) -> None:
    read = claim_of("k", claim_value(claim))
    by_level = wants_value(claim)
    if by_level is not None:
        assert read.wants.total == claim.wants.total
        read = replace(read, wants=wants_in("k", by_level))
    assert read == claim


@pytest.mark.parametrize("shared", [None, Shared(), Shared(2.5, 0.5, 3.0)])
def test_a_budget_is_read_as_it_was_written(shared: Shared | None) -> None:
    budget = Budget(500, 0.25, shared=shared)
    assert budget_of("k", budget_value(budget)) == budget


def test_a_tenants_values_are_those_that_older_agents_read() -> None:
    claim = HostClaim("i", 1, 2, wants_of([(1, 2, 3)]), 4, 5, Stamp("e", 1))
    assert claim_value(claim) == (
        b'{"v":1,"instance":"i","reservation":1,"weight":2,"wants":3,"most":4,"held":5,'
        b'"applied":["e",1]}'
    )
    assert wants_value(claim) is None
    several = replace(claim, wants=wants_of([(1, 2, 3), (0, 2, 50), (0, 3, 51)]))
    assert claim_value(several) == claim_value(claim).replace(b'"wants":3', b'"wants":104')
    assert wants_value(several) == (b'{"v":1,"owed":1,"layers":[[2,2],[3,51],[2,50]],"tenants":{}}')
    assert budget_value(Budget(500)) == (
        b'{"v":1,"amount":500,"even_ratio":0.1,"reservation":0,"weight":100}'
    )
    assert GOOD == (
        b'{"v":1,"amount":9,"spans":[["e",1,1]],"hosts":{"a":["i",1,2,3,1,["e",1],null]},"before":0}'
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"amount":9', b'"amount":-9'),
        (b'"amount":9', b'"amount":"9"'),
        (b'"amount":9', b'"amount":9,"more":1'),
        (b'"v":1', b'"v":0.5'),
        (b'"v":1,', b""),
        (b'[["e",1,1]]', b"[]"),
        (b'[["e",1,1]]', b'[["e",2,1]]'),
        (b'[["e",1,1]]', b'[["e",1,9007199254740992]]'),
        (b'"i",1,2,3,1', b'"i",3,2,3,1'),
        (b'"i",1,2,3,1', b'"i",1,4,3,1'),
        (b'"i",1,2,3,1', b'"i",1,2,3,4'),
        (b'"i",1,2,3,1', b'"i",1,2,3'),
        (b"}", b""),
        (b"a", b"\xff"),
    ],
)
def test_a_ledger_that_cannot_be_ours_is_refused(old: bytes, new: bytes) -> None:
    assert old in GOOD
    with pytest.raises(FleetRefused, match=r"etcd k: .*; see what else writes"):
        ledger_of("k", GOOD.replace(old, new))


@pytest.mark.parametrize("level", [b"5e-324", b"0", b"-1", b"1e17"])
def test_a_level_that_nothing_can_be_divided_by_is_refused(level: bytes) -> None:
    ledger = ledger_of("k", GOOD)
    raw = b'{"v":1,"stamp":["e",1],"levels":{"acme":[%b,300.0]}}'
    assert with_levels(ledger, "k", raw % b"2.5").levels == {"acme": TenantLevel(2.5, 300.0)}
    with pytest.raises(FleetRefused):
        with_levels(ledger, "k", raw % level)


@given(st.binary(max_size=60))
def test_no_bytes_end_anything(raw: bytes) -> None:
    with pytest.raises(FleetRefused):
        ledger_of("k", raw)
