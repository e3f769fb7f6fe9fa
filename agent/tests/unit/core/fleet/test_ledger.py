"""Ledgers' histories: which one descends from which, and what becomes of two lines."""

from __future__ import annotations

from iokeel.core.fleet.ledger import (
    MOST_SPANS,
    Entry,
    Ledger,
    Span,
    Stamp,
    first_ledger,
    recovered,
    successor,
)


def entry(floor: int, amount: int, charged: int) -> Entry:
    return Entry("i", floor, amount, charged, floor, Stamp("e", 1))


def test_a_ledger_descends_from_all_before_it_and_from_no_other() -> None:
    one = first_ledger(10, "e")
    two = successor(one, "e")
    three = successor(two, "f")
    for earlier in (one, two, three):
        assert three.descends_from(earlier.stamp)
    assert not one.descends_from(two.stamp)
    assert not successor(one, "g").descends_from(two.stamp)
    assert not three.descends_from(Stamp("e", 3))


def test_two_lines_from_one_ledger_do_not_descend_from_each_other() -> None:
    base = first_ledger(10, "e")
    one, other = successor(base, "f"), successor(successor(base, "g"), "g")
    assert not one.descends_from(other.stamp)
    assert not other.descends_from(one.stamp)
    merged = recovered(one, other, "h")
    assert merged.descends_from(one.stamp)
    assert merged.descends_from(other.stamp)


def test_an_older_copy_is_followed_by_what_is_remembered_with_all_at_their_floors() -> None:
    base = Ledger(10, (Span("e", 1, 1),), {"a": entry(1, 9, 9)})
    newer = successor(Ledger(10, base.spans, {"a": entry(1, 2, 9), "b": entry(1, 7, 7)}), "e")
    after = recovered(base, newer, "r")
    assert after.descends_from(newer.stamp)
    assert {name: e.amount for name, e in after.entries.items()} == {"a": 1, "b": 1}
    assert {name: e.charged for name, e in after.entries.items()} == {"a": 9, "b": 7}
    assert recovered(None, newer, "r") == after


def test_of_two_lines_each_host_has_the_lower_floor_and_the_higher_charge() -> None:
    base = first_ledger(10, "e")
    one = successor(Ledger(10, base.spans, {"a": entry(2, 5, 5), "b": entry(1, 3, 3)}), "f")
    other = successor(Ledger(10, base.spans, {"a": entry(1, 7, 8)}), "g")
    after = recovered(one, other, "h").entries
    assert (after["a"].floor, after["a"].amount, after["a"].charged, after["a"].lasting) == (
        1,
        1,
        8,
        2,
    )
    assert (after["b"].floor, after["b"].amount, after["b"].charged) == (0, 0, 3)


def test_a_history_that_is_too_long_forgets_its_oldest_epochs_but_not_their_ledgers() -> None:
    ledger = first_ledger(10, "e0")
    oldest = ledger.stamp
    for number in range(1, 2 * MOST_SPANS):
        ledger = successor(ledger, f"e{number}")
    assert len(ledger.spans) == MOST_SPANS
    assert ledger.descends_from(oldest)
    assert not ledger.descends_from(Stamp("another", ledger.stamp.sequence - 1))
