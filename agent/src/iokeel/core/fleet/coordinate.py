"""Divides a budget among hosts: the step that its coordinator takes whenever something changes.

1. *Charges* fall to the amount, if the host says that this is in force. They rise to what a host
   says that it holds, as when a guest has come with limits of its own.
2. *Amounts and floors* that should be lower are lowered. The charge follows in a later step, by 1.
3. *Raises* use the part of the budget that nobody is charged, so nothing that the same step has
   lowered. Floors come first.

A host that doesn't report is lowered to its floor and stays charged, because its QEMUs may hold
what its agent set before it died.

A coordinator first begins an epoch, and raises nothing before a term has passed since it has read
that in etcd. By then each running agent is at its floor, or has read that ledger and objected if it
remembers another (host.py). So an etcd that lost data can't make it raise too much. An operator's
word from an earlier epoch takes effect then, too.

For the same reason a tenure lapses if its agent doesn't read the ledger for LAPSE_S. That is less
than a term, so no other coordinator can have raised anything in between, even if etcd doesn't show
it any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import floor
from typing import NamedTuple

from iokeel.core.divide.divide import divide
from iokeel.core.fleet.capacity import Correction, amount_of, corrected
from iokeel.core.fleet.claims import (
    Budget,
    HostClaim,
    beside_silent,
    floors,
    targets,
    with_tenants,
)
from iokeel.core.fleet.host import LAPSE_S, WAIT_NS
from iokeel.core.fleet.ledger import (
    Entry,
    HostName,
    Ledger,
    Stamp,
    Word,
    first_ledger,
    successor,
)
from iokeel.core.values.claimant import Claim
from iokeel.core.values.counters import NS_PER_S
from iokeel.core.values.policy import ENDLESS
from iokeel.core.values.wants import TenantLevel

# A tenant's level that has moved by no more than this is worth no ledger of its own.
LEVEL_BAND_RATIO = 0.2


class Tenure(NamedTuple):
    """A coordinator's time in office, by its own clock.

    epoch: of the ledgers that it writes. asked_ns: when it last read the ledger. since_ns: when it
    had the first answer of etcd with a ledger of its own; None until then. correction: of a
    storage's capacity.
    """

    epoch: str
    asked_ns: int
    since_ns: int | None = None
    correction: Correction | None = None


def in_office(
    tenure: Tenure | None, ledger: Ledger | None, fresh: str, asked_ns: int, now_ns: int
) -> Tenure:
    """Return the tenure to go on in: a new one if somebody else may have written in between.

    tenure: None if there is none, or if the outcome of its last write isn't known. fresh: an epoch
    that nobody has used. asked_ns, now_ns: before the ledger was asked for, and after that.
    """
    if (
        tenure is None
        or (ledger is not None and ledger.stamp.epoch != tenure.epoch)
        or now_ns - tenure.asked_ns > LAPSE_S * NS_PER_S
    ):
        return Tenure(fresh, asked_ns)
    return tenure._replace(asked_ns=asked_ns)


def coordinate(
    ledger: Ledger | None,
    claims: Mapping[HostName, HostClaim],
    budget: Budget,
    tenure: Tenure,
    now_ns: int,
) -> tuple[Ledger, Tenure]:
    """Return the ledger after a step, and the tenure; the same ledger if nothing has changed.

    ledger, claims: as read from etcd, the ledger first accepted by `heard`; None if there is none.
    tenure: from `in_office`. now_ns: after the answer, by the coordinator's clock that also counts
    while it is suspended.
    """
    learnt = None
    if (storage := budget.storage) is not None:
        now = corrected(tenure.correction, ledger, claims, storage, now_ns)
        tenure = tenure._replace(correction=now)
        amount, learnt = amount_of(now, ledger, budget)
        budget = budget._replace(amount=amount)
    if ledger is None:
        first = replace(first_ledger(budget.amount, tenure.epoch), learnt=learnt)
        return first, tenure._replace(since_ns=None)
    after = successor(ledger, tenure.epoch)
    is_ours = ledger.stamp.epoch == tenure.epoch
    since_ns = now_ns if tenure.since_ns is None else tenure.since_ns
    tenure = tenure._replace(since_ns=since_ns if is_ours else None)
    has_waited = is_ours and now_ns - since_ns >= WAIT_NS
    entries, levels = _divided(ledger, claims, budget, after.stamp, has_waited=has_waited)
    after = replace(after, amount=budget.amount, entries=entries, learnt=learnt, levels=levels)
    same = (ledger.entries, ledger.amount, ledger.learnt) == (entries, budget.amount, learnt)
    is_new = not (same and is_ours and _are_near(ledger.levels, levels))
    return (after if is_new else ledger), tenure


def _are_near(known: Mapping[str, TenantLevel], now: Mapping[str, TenantLevel]) -> bool:
    """Return whether tenants' levels are about those that have been told."""
    return known.keys() == now.keys() and all(
        abs(figure - before) <= LEVEL_BAND_RATIO * before
        for name, levels in now.items()
        for figure, before in zip(levels, known[name], strict=True)
    )


def with_word(ledger: Ledger, name: HostName, word: Word, epoch: str) -> Ledger:
    """Return a ledger with an operator's word on a host, in an epoch of its own.

    The host keeps its floor. The next coordinator acts on the word after a term.
    """
    after = successor(ledger, epoch)
    entry = ledger.entries[name].at_floor(after.stamp, word)
    return replace(after, entries={**ledger.entries, name: entry})


def _divided(
    ledger: Ledger,
    claims: Mapping[HostName, HostClaim],
    budget: Budget,
    stamp: Stamp,
    *,
    has_waited: bool,
) -> tuple[dict[HostName, Entry], dict[str, TenantLevel]]:
    """Return the entries after a step, and tenants' levels.

    stamp: of the ledger after it. has_waited: the coordinator may raise, and act on words.
    """
    present = {
        name: claim
        for name, claim in claims.items()
        if name not in ledger.entries or ledger.entries[name].instance == claim.instance
    }
    entries = _charged(ledger, present, budget, stamp)
    if has_waited:
        entries = _by_word(entries, stamp.epoch)
    present = {name: claim for name, claim in present.items() if name in entries}
    silent = sum(entry.charged for name, entry in entries.items() if name not in present)
    rest = max(0, budget.amount - silent)
    lowest = beside_silent(rest, floors(budget, entries, present), entries)
    present, levels = with_tenants(rest, present, lowest)
    amounts = {name: entry.amount for name, entry in entries.items()}
    wanted = targets(rest, present, lowest, amounts)
    entries = _lowered(entries, lowest, wanted, stamp)
    if has_waited:
        entries = _raised(entries, present, budget, lowest, wanted, stamp)
    return entries, levels


def _charged(
    ledger: Ledger, claims: Mapping[HostName, HostClaim], budget: Budget, stamp: Stamp
) -> dict[HostName, Entry]:
    """Return the entries with the charges that hosts have confirmed, and with the hosts that join.

    A host that joins keeps its held rate, as far as nobody else is charged for it. One that has no
    drive there, and nothing in force, leaves. A held rate without end is an older agent's, of a
    drive that gets limits with its next look.
    """
    entries = dict(ledger.entries)
    free = budget.amount - ledger.charged
    for name, claim in claims.items():
        entry = entries.get(name)
        if entry is None:
            if claim.most or claim.held:
                amount = max(0, min(claim.held, free))
                entries[name] = Entry(claim.instance, 0, amount, claim.held, 0, stamp)
                free -= claim.held
            continue
        entry = replace(entry, word=None)
        if claim.applied == entry.stamp:
            charged = max(entry.amount, claim.held)
            entry = replace(entry, charged=charged, lasting=entry.floor)
        elif entry.charged < claim.held < ENDLESS:
            entry = replace(entry, charged=claim.held)
        entries[name] = entry
        if not claim.most and not entry.charged:
            del entries[name]
    return entries


def _by_word(entries: Mapping[HostName, Entry], epoch: str) -> dict[HostName, Entry]:
    """Return the entries after operators' words from before this epoch have taken effect."""
    left = {}
    for name, entry in entries.items():
        if entry.word is None or entry.stamp.epoch == epoch:
            left[name] = entry
        elif entry.word is Word.AT_FLOOR:
            left[name] = replace(entry, charged=max(entry.amount, entry.lasting))
    return left


def _lowered(
    entries: Mapping[HostName, Entry],
    lowest: Mapping[HostName, int],
    wanted: Mapping[HostName, int],
    stamp: Stamp,
) -> dict[HostName, Entry]:
    """Return the entries with floors and amounts lowered; hosts that don't report: to the floor."""
    after = {}
    for name, entry in entries.items():
        low = min(entry.floor, lowest.get(name, entry.floor))
        amount = max(low, min(entry.amount, wanted.get(name, low)))
        after[name] = _with(entry, low, amount, stamp)
    return after


def _raised(
    entries: Mapping[HostName, Entry],
    claims: Mapping[HostName, HostClaim],
    budget: Budget,
    lowest: Mapping[HostName, int],
    wanted: Mapping[HostName, int],
    stamp: Stamp,
) -> dict[HostName, Entry]:
    """Return the entries with floors and amounts raised out of what nobody is charged.

    Within its own charge a host is raised only if all charges together are within the budget. They
    aren't if a host has come with more than was free.
    """
    free = budget.amount - sum(entry.charged for entry in entries.values())
    if free < 0:
        return dict(entries)
    names = [name for name in claims if wanted[name] > entries[name].charged]
    parts = divide(
        free,
        [
            Claim(
                max(0, lowest[name] - entries[name].charged),
                claims[name].weight,
                wanted[name] - entries[name].charged,
            )
            for name in names
        ],
    ).amounts
    more = {name: floor(part) for name, part in zip(names, parts, strict=True)}
    after = dict(entries)
    for name in claims:
        entry = entries[name]
        amount = max(entry.amount, min(wanted[name], entry.charged + more.get(name, 0)))
        low = max(entry.floor, min(lowest[name], amount))
        after[name] = _with(entry, low, amount, stamp)
    return after


def _with(entry: Entry, low: int, amount: int, stamp: Stamp) -> Entry:
    """Return an entry with a floor and an amount, and charged no less than these."""
    if (low, amount) == (entry.floor, entry.amount):
        return entry
    charged, lasting = max(entry.charged, amount), max(entry.lasting, low)
    return replace(entry, floor=low, amount=amount, charged=charged, lasting=lasting, stamp=stamp)
