"""A host's allowance: who is new uses it at once, who comes back waits for a term."""

from __future__ import annotations

from dataclasses import replace

from iokeel.core.fleet.host import (
    GUARD_S,
    TERM_S,
    WAIT_NS,
    Answer,
    Me,
    Part,
    allowance,
    heard,
)
from iokeel.core.fleet.ledger import Entry, Ledger, first_ledger, successor
from iokeel.core.values.counters import NS_PER_S

ME = Me("a", "i")
AT_NS = 1000 * NS_PER_S


def with_entry(before: Ledger, amount: int) -> Ledger:
    """Return a later ledger in which the host has a floor of 10 and an amount."""
    after = successor(before, "e")
    entry = Entry(ME.instance, 10, amount, amount, 10, after.stamp)
    return replace(after, entries={ME.name: entry})


def read(part: Part, ledger: Ledger | None, after_s: float, held: int = 0) -> Part:
    """Return the part after the ledger was read."""
    asked_ns = AT_NS + round(after_s * NS_PER_S)
    part, answer = heard(part, ME, ledger, asked_ns, asked_ns, held)
    assert answer is Answer.GOOD
    return part


def allowed(part: Part, after_s: float) -> int:
    return allowance(part, ME, AT_NS + round(after_s * NS_PER_S))


def test_a_host_that_joins_uses_its_amount_at_once() -> None:
    first = first_ledger(1000, "e")
    part = read(Part(), first, 0)
    assert allowed(part, 0) == 0
    assert allowed(read(part, with_entry(first, 500), 1), 1) == 500


def test_a_host_that_found_no_ledger_uses_its_amount_at_once() -> None:
    part = read(Part(), None, 0)
    assert allowed(read(part, with_entry(first_ledger(1000, "e"), 500), 1), 1) == 500


def test_a_host_that_finds_an_entry_of_its_own_waits_for_a_term() -> None:
    ledger = with_entry(first_ledger(1000, "e"), 500)
    part = read(Part(ledger), ledger, 0, held=30)
    assert allowed(part, 0) == 30
    for after_s in range(1, 20):
        part = read(part, ledger, after_s)
        assert allowed(part, after_s) == (30 if after_s * NS_PER_S < WAIT_NS else 500)


def test_a_host_that_joined_and_was_cut_off_waits_too() -> None:
    first = first_ledger(1000, "e")
    ledger = with_entry(first, 500)
    part = read(read(Part(), first, 0), ledger, 1)
    part = read(part, with_entry(ledger, 600), 13, held=40)
    assert allowed(part, 13) == 40


def test_a_host_without_an_entry_keeps_what_it_has_no_longer_than_it_reads() -> None:
    part = read(Part(before=300), first_ledger(1000, "e"), 0)
    assert allowed(part, 1) == 300
    assert allowed(part, TERM_S - GUARD_S - 1) == 300
    assert allowed(part, TERM_S - GUARD_S) == 0


def test_a_second_host_of_a_name_keeps_what_it_has_until_it_reads_of_the_first() -> None:
    ledger = with_entry(first_ledger(1000, "e"), 500)
    part = Part(before=300)
    assert allowance(part, Me("a", "second"), AT_NS) == 300
    part, _ = heard(part, Me("a", "second"), ledger, AT_NS, AT_NS, 300)
    assert allowance(part, Me("a", "second"), AT_NS) == 0
