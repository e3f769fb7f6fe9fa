"""The fleet's values: what is written is read again, and nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.core.fleet.claims import Budget, HostClaim
from iokeel.core.fleet.ledger import Entry, Ledger, Span, Stamp, Word
from iokeel.errors import FleetRefused
from iokeel.fleet.records import (
    budget_of,
    budget_value,
    claim_of,
    claim_value,
    ledger_of,
    ledger_value,
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
    lambda amount, entries, before: Ledger(
        amount, (Span("d", 1, 3), Span("e", 4, 9)), entries, before
    ),
    FIGURES,
    st.dictionaries(st.text(max_size=8), ENTRIES, max_size=4),
    FIGURES,
)
CLAIMS = st.builds(
    HostClaim,
    st.text(min_size=1, max_size=8),
    FIGURES,
    st.integers(1, 10**6),
    FIGURES,
    FIGURES,
    FIGURES,
    st.none() | STAMPS,
)
GOOD = ledger_value(Ledger(9, (Span("e", 1, 1),), {"a": Entry("i", 1, 2, 3, 1, Stamp("e", 1))}))


@given(LEDGERS)
def test_a_ledger_is_read_as_it_was_written(ledger: Ledger) -> None:
    assert ledger_of("k", ledger_value(ledger)) == ledger


@given(CLAIMS)
def test_a_claim_is_read_as_it_was_written(claim: HostClaim) -> None:
    assert claim_of("k", claim_value(claim)) == claim


def test_a_budget_is_read_as_it_was_written() -> None:
    assert budget_of("k", budget_value(Budget(500, 0.25))) == Budget(500, 0.25)


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


@given(st.binary(max_size=60))
def test_no_bytes_end_anything(raw: bytes) -> None:
    with pytest.raises(FleetRefused):
        ledger_of("k", raw)
