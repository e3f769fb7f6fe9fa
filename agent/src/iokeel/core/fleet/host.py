"""A host's side of a budget: what it may hold its QEMUs to, and what it reports.

A host asks by reading the ledger, and a read of etcd shows all that was written before it began. So
the answer tells the host that what it found was in force *at some moment after it had asked*, and
the amount that it found there is its own for a term from that moment. The host doesn't know that
moment, so it counts from an earlier one: when it asked. GUARD_S before the end it is at its floor
again, because QEMUs take limits only so fast.

So a term after an amount was lowered, each host with a running agent that hasn't heard of that is
at its floor. A host whose agent is dead isn't, and so no charge falls by time alone. Two cases rely
on this: an operator's word that an agent runs, and recovery after etcd has lost data.

A host that comes back to the fleet after LAPSE_S uses no more than it has, for a term. If etcd was
restored, the ledger there may be out of date; within the term, the agents that know better say so.
A host that finds no entry of its own needn't wait. It gets one later in answer to its claim, and
nobody else is given any of that amount until the host says that it holds less.

All times are in ns, of the host's own clock that also counts while it is suspended.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from iokeel.core.fleet.ledger import Entry, HostName, Ledger, Stamp
from iokeel.core.values.counters import NS_PER_S

# How long an amount is a host's own, counted from its question.
TERM_S = 15
# How long before the end a host goes down to its floor: a tick, and the time in which QEMUs take
# new limits.
GUARD_S = 4
# How much faster one host's clock may be than another's. Ten times what a clock under NTP is off.
CLOCK_RATIO = 0.005
#: After this long, an agent relies on all others having read the ledger, in ns.
WAIT_NS = round(TERM_S * (1 + CLOCK_RATIO) * NS_PER_S)
# An agent that hasn't read the ledger for so long begins anew. It is less than a term, so no
# coordinator that began in between can have raised anything.
LAPSE_S = 10


class Me(NamedTuple):
    """A host: its name in the fleet, and what tells it from another one of that name."""

    name: HostName
    instance: str


class Part(NamedTuple):
    """What a host knows of a budget.

    ledger: the newest that it has seen. It has to be on its disk before a claim says that it is in
    force. heard_ns: when the first answer with that ledger came; end_ns: when its right to its
    amount ends; since_ns: when its reads without a long pause began. All are None after a start of
    the agent, until it has read the ledger. kept: its QEMUs' held rate at since_ns; None if it had
    no entry then. before: the same when it first made a claim; 0 once it has been in a ledger.
    """

    ledger: Ledger | None = None
    heard_ns: int | None = None
    end_ns: int | None = None
    since_ns: int | None = None
    kept: int | None = 0
    before: int = 0


class Answer(Enum):
    """What an answer was: GOOD, too LATE to matter, or of a ledger that LOST what was seen."""

    GOOD = "good"
    LATE = "late"
    LOST = "lost"


def heard(
    part: Part, me: Me, ledger: Ledger | None, asked_ns: int | None, now_ns: int, held: int
) -> tuple[Part, Answer]:
    """Return a host's part after an answer, and what that was.

    ledger: the one in etcd; None if there is none. asked_ns: when it was asked; None if it came by
    a watch, which tells of changes but doesn't prolong anything. held: the most that its QEMUs may
    be held to.
    """
    known = part.ledger
    if known is not None and (ledger is None or not ledger.descends_from(known.stamp)):
        older = asked_ns is None or (part.heard_ns is not None and asked_ns < part.heard_ns)
        return part, Answer.LATE if older else Answer.LOST
    if ledger is not None:
        is_new = known is None or ledger.stamp != known.stamp
        part = part._replace(
            ledger=ledger,
            heard_ns=now_ns if is_new or part.heard_ns is None else part.heard_ns,
            before=0 if me.name in ledger.entries else part.before,
        )
    if asked_ns is None:
        return part, Answer.GOOD
    end_ns = asked_ns + TERM_S * NS_PER_S
    if part.end_ns is None or now_ns > part.end_ns - (TERM_S - LAPSE_S) * NS_PER_S:
        kept = None if entry_of(part, me) is None else held
        return part._replace(end_ns=end_ns, since_ns=now_ns, kept=kept), Answer.GOOD
    return part._replace(end_ns=max(part.end_ns, end_ns)), Answer.GOOD


def entry_of(part: Part, me: Me) -> Entry | None:
    """Return a host's own entry in the ledger that it knows, or None if it has none."""
    entry = part.ledger.entries.get(me.name) if part.ledger is not None else None
    return entry if entry is not None and entry.instance == me.instance else None


def allowance(part: Part, me: Me, now_ns: int) -> int:
    """Return the most that a host's QEMUs together may be held to now.

    A host without an entry may keep what was in force when it came, so 0 if that was nothing, while
    it reads the ledger.
    """
    entry = entry_of(part, me)
    has_ended = part.end_ns is not None and now_ns >= part.end_ns - GUARD_S * NS_PER_S
    if entry is None:
        return 0 if has_ended else part.before
    if part.end_ns is None or has_ended:
        return entry.floor
    waits = part.since_ns is None or now_ns < part.since_ns + WAIT_NS
    if waits and part.kept is not None:
        return max(entry.floor, min(entry.amount, part.kept))
    return entry.amount


def applied(part: Part, me: Me, held: int, least: int = 0) -> Stamp | None:
    """Return the stamp of a host's entry if its QEMUs are held to no more than its amount.

    held: the most that they may be held to, with all limits that are on their way. least: the least
    that they can be held to, as QEMU takes no limit of 0. With less than that, the host confirms
    what it holds, and stays charged for it.
    """
    entry = entry_of(part, me)
    return entry.stamp if entry is not None and held <= max(entry.amount, least) else None
