"""The ledger of a budget: how much of it each host may use, and how much each may still hold.

Here's how it works. A budget is a tenant's limit, or the capacity of a storage that many hosts use.
It has one ledger, which all hosts read and which any of them may replace as a whole, if it is still
the one that they have read. In it, each host has these figures, in the budget's unit:

- the *floor* is its own, without asking and without end;
- the *amount* is at least the floor. The host may use it while it keeps reading the ledger
  (host.py);
- what it is *charged* is the most that its QEMUs may be held to now. QEMU keeps the limits of an
  agent that is dead. So a charge falls only when the host says that its limits are lower, or when
  an operator answers for that (`Word`);
- the *lasting* part of the charge is the highest floor that it may still believe in.

The sum of all charges is at most the budget, and so the sum of all limits is. coordinate.py divides
the budget: it lowers amounts first, and raises only what no charge counts.

Each ledger has a *stamp*: the *epoch* of its writer, and a sequence number. Only one agent writes
in an epoch, and it begins another one when it isn't sure that the last ledger is its own. The
epochs passed through are in the ledger. So whoever has seen a ledger can tell whether another one
descends from it. If etcd has lost its data, or was restored from an older copy, it doesn't, and the
agents' own copies are merged into it (`recovered`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from iokeel.core.values.wants import TenantLevel

#: A host's name in the fleet.
HostName = str

# Epochs that a ledger remembers. One ends with each change of the coordinator.
MOST_SPANS = 256


class Stamp(NamedTuple):
    """A ledger's place in its history. sequence: grows by one with each ledger."""

    epoch: str
    sequence: int


class Span(NamedTuple):
    """The ledgers of one epoch that came before a ledger, by their first and last sequence."""

    epoch: str
    first: int
    last: int


class Word(Enum):
    """What an operator has said of a host that doesn't report.

    AT_FLOOR: its agent runs and can't reach etcd, or the host is off. OFF_FOR_GOOD: no guest runs
    there, and its agent won't come back with the state that it had.
    """

    AT_FLOOR = "at-floor"
    OFF_FOR_GOOD = "off-for-good"


@dataclass(frozen=True, slots=True)
class Entry:
    """A host's part of a budget; the module's text has the figures.

    instance: tells the host from another one of its name. stamp: of the ledger in which floor,
    amount or word last changed. word: an operator's, until the host reports again.
    """

    instance: str
    floor: int
    amount: int
    charged: int
    lasting: int
    stamp: Stamp
    word: Word | None = None

    def at_floor(self, stamp: Stamp, word: Word | None = None) -> Entry:
        """Return the entry with nothing but its floor, and charged as before."""
        return replace(self, amount=self.floor, stamp=stamp, word=word)


class Learnt(NamedTuple):
    """The ratio by which a shared storage's latency has corrected its set capacity."""

    capacity: int
    ratio: float


@dataclass(frozen=True, slots=True)
class Ledger:
    """A budget's ledger.

    amount: the budget when it was last divided. learnt: a storage's correction at that amount.
    levels: what tenants' drives get on it on all hosts together, if they don't get all that they
    demand. spans: its history, oldest first; the last one is of its own epoch and ends with it.
    before: ledgers up to this sequence aren't in the history.
    """

    amount: int
    spans: tuple[Span, ...]
    entries: Mapping[HostName, Entry] = field(default_factory=dict)
    before: int = 0
    learnt: Learnt | None = None
    levels: Mapping[str, TenantLevel] = field(default_factory=dict)

    @property
    def stamp(self) -> Stamp:
        """The place of this ledger in its history."""
        return Stamp(self.spans[-1].epoch, self.spans[-1].last)

    @property
    def charged(self) -> int:
        """The most that all hosts' QEMUs together may be held to now."""
        return sum(entry.charged for entry in self.entries.values())

    def descends_from(self, stamp: Stamp) -> bool:
        """Return whether this ledger is the one with that stamp, or came after it."""
        if any(s.epoch == stamp.epoch and s.first <= stamp.sequence <= s.last for s in self.spans):
            return True
        return stamp.sequence <= self.before and all(s.epoch != stamp.epoch for s in self.spans)


def first_ledger(amount: int, epoch: str) -> Ledger:
    """Return the ledger of a budget that had none."""
    return Ledger(amount, (Span(epoch, 1, 1),))


def successor(ledger: Ledger, epoch: str) -> Ledger:
    """Return the same ledger as its own successor, in its epoch or in a new one."""
    last = ledger.spans[-1]
    if last.epoch == epoch:
        return replace(ledger, spans=(*ledger.spans[:-1], last._replace(last=last.last + 1)))
    return _with_spans(ledger, (*ledger.spans, Span(epoch, last.last + 1, last.last + 1)))


def recovered(found: Ledger | None, remembered: Ledger, epoch: str) -> Ledger:
    """Return the ledger to write over one that doesn't descend from one that an agent remembers.

    found: the ledger in etcd; None if there is none. epoch: a new one.

    Grants made since either was written are unknown, so each host goes to its floor. If the
    remembered ledger descends from the one found, it replaces that. Else either may lack entries of
    the other. A host's floor is then the lower of its two, and its charge the higher. A host that
    one of them lacks may have left there, so it counts as 0 in that one.
    """
    if found is None or remembered.descends_from(found.stamp):
        after = successor(remembered, epoch)
        entries = {
            name: entry if entry.amount == entry.floor else entry.at_floor(after.stamp)
            for name, entry in remembered.entries.items()
        }
        return replace(after, entries=entries)
    sequence = 1 + max(found.stamp.sequence, remembered.stamp.sequence)
    stamp = Stamp(epoch, sequence)
    entries = {}
    for name in {**remembered.entries, **found.entries}:
        one, other = found.entries.get(name), remembered.entries.get(name)
        known = other if other is not None else one
        assert known is not None
        gone = Entry(known.instance, 0, 0, 0, 0, stamp)
        entries[name] = _either(one or gone, other or gone, stamp)
    spans = {span.epoch: span for span in found.spans}
    for span in remembered.spans:
        other_span = spans.get(span.epoch, span)
        spans[span.epoch] = Span(
            span.epoch, min(span.first, other_span.first), max(span.last, other_span.last)
        )
    history = sorted(spans.values(), key=lambda span: span.last)
    merged = replace(found, entries=entries, before=max(found.before, remembered.before))
    return _with_spans(merged, (*history, Span(epoch, sequence, sequence)))


def _either(one: Entry, other: Entry, stamp: Stamp) -> Entry:
    """Return a host's entry from two of which either may be the newer one."""
    floor = min(one.floor, other.floor)
    return Entry(
        other.instance,
        floor,
        floor,
        max(one.charged, other.charged),
        max(one.lasting, other.lasting),
        stamp,
    )


def _with_spans(ledger: Ledger, spans: tuple[Span, ...]) -> Ledger:
    """Return a ledger with a history, without its oldest epochs if there are too many."""
    dropped, kept = spans[:-MOST_SPANS], spans[-MOST_SPANS:]
    before = max([ledger.before, *(span.last for span in dropped)])
    return replace(ledger, spans=kept, before=before)
