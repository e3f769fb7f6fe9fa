"""Mutants of the fleet's protocol: each breaks one of its rules."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from iokeel.core.fleet import coordinate as coordinating
from iokeel.core.fleet import host as hosting
from iokeel.core.fleet.claims import Budget, HostClaim
from iokeel.core.fleet.coordinate import Tenure
from iokeel.core.fleet.host import Answer, Me, Part
from iokeel.core.fleet.ledger import Ledger, Stamp
from testing.sim.shared_budget_hosts import Protocol

Claims = Mapping[str, HostClaim]


def raises_before_lowering(
    ledger: Ledger | None, claims: Claims, budget: Budget, tenure: Tenure, now_ns: int
) -> tuple[Ledger, Tenure]:
    """Count a host's new amount, though it may still hold the old one."""
    known = ledger and _at_their_amounts(ledger, ledger.entries.keys() & claims.keys())
    return coordinating.coordinate(known, claims, budget, tenure, now_ns)


def forgets_the_dead(
    ledger: Ledger | None, claims: Claims, budget: Budget, tenure: Tenure, now_ns: int
) -> tuple[Ledger, Tenure]:
    """Count a host at its floor once its lease has ended."""
    known = ledger and _at_their_amounts(ledger, ledger.entries.keys() - claims.keys())
    return coordinating.coordinate(known, claims, budget, tenure, now_ns)


def _at_their_amounts(ledger: Ledger, names: Collection[str]) -> Ledger:
    there = {name: ledger.entries[name] for name in names}
    entries = {name: replace(entry, charged=entry.amount) for name, entry in there.items()}
    return replace(ledger, entries={**ledger.entries, **entries})


def counts_from_the_answer(
    part: Part, me: Me, ledger: Ledger | None, asked_ns: int | None, now_ns: int, held: int
) -> tuple[Part, Answer]:
    """Begin a host's term when it has the answer."""
    return hosting.heard(part, me, ledger, None if asked_ns is None else now_ns, now_ns, held)


def takes_any_ledger(
    part: Part, me: Me, ledger: Ledger | None, asked_ns: int | None, now_ns: int, held: int
) -> tuple[Part, Answer]:
    """Believe a ledger that doesn't descend from the last one."""
    return hosting.heard(part._replace(ledger=None), me, ledger, asked_ns, now_ns, held)


def comes_back_at_once(
    part: Part, me: Me, ledger: Ledger | None, asked_ns: int | None, now_ns: int, held: int
) -> tuple[Part, Answer]:
    """Use the amount that was found after a pause."""
    part, answer = hosting.heard(part, me, ledger, asked_ns, now_ns, held)
    return part._replace(since_ns=now_ns - hosting.WAIT_NS), answer


def never_goes_down(part: Part, me: Me, now_ns: int) -> int:
    """Use the amount after its term."""
    entry = hosting.entry_of(part, me)
    return hosting.allowance(part, me, now_ns) if entry is None else entry.amount


def goes_below_the_floor(part: Part, me: Me, now_ns: int) -> int:
    """Use nothing after the term."""
    ended = part.end_ns is None or now_ns >= part.end_ns - hosting.GUARD_S * 10**9
    return 0 if ended else hosting.allowance(part, me, now_ns)


def raises_at_once(
    ledger: Ledger | None, claims: Claims, budget: Budget, tenure: Tenure, now_ns: int
) -> tuple[Ledger, Tenure]:
    """Don't wait for a term before the first raise of an epoch."""
    after, tenure = coordinating.coordinate(ledger, claims, budget, tenure, now_ns)
    return after, tenure._replace(since_ns=now_ns - hosting.WAIT_NS)


def forgets_old_floors(
    ledger: Ledger | None, claims: Claims, budget: Budget, tenure: Tenure, now_ns: int
) -> tuple[Ledger, Tenure]:
    """Take a host to believe in its newest floor, though it may not have heard of it."""
    if ledger is not None:
        entries = {n: replace(e, lasting=e.floor) for n, e in ledger.entries.items()}
        ledger = replace(ledger, entries=entries)
    return coordinating.coordinate(ledger, claims, budget, tenure, now_ns)


def confirms_at_once(part: Part, me: Me, held: int) -> Stamp | None:
    """Say that limits are lower before QEMU has them."""
    return hosting.applied(part, me, 0)


def ignores_what_is_held(
    ledger: Ledger | None, claims: Claims, budget: Budget, tenure: Tenure, now_ns: int
) -> tuple[Ledger, Tenure]:
    """Go by confirmations alone."""
    claims = {name: replace(claim, held=0) for name, claim in claims.items()}
    return coordinating.coordinate(ledger, claims, budget, tenure, now_ns)


def overlooks_guests_that_come(
    ledger: Ledger | None, claims: Claims, budget: Budget, tenure: Tenure, now_ns: int
) -> tuple[Ledger, Tenure]:
    """Charge no host for more than it was given."""
    entries = ledger.entries if ledger is not None else {}
    claims = {
        name: replace(claim, held=min(claim.held, entries[name].charged))
        if name in entries
        else claim
        for name, claim in claims.items()
    }
    return coordinating.coordinate(ledger, claims, budget, tenure, now_ns)


def uses_anothers_entry(part: Part, me: Me, now_ns: int) -> int:
    """Use the entry of any host with the same name."""
    entry = part.ledger.entries.get(me.name) if part.ledger is not None else None
    instance = me.instance if entry is None else entry.instance
    return hosting.allowance(part, Me(me.name, instance), now_ns)


def grants_what_latency_has_taken(
    ledger: Ledger | None, claims: Claims, budget: Budget, tenure: Tenure, now_ns: int
) -> tuple[Ledger, Tenure]:
    """Write the corrected capacity down, and divide the one that is set."""
    right, tenure = coordinating.coordinate(ledger, claims, budget, tenure, now_ns)
    wrong, _ = coordinating.coordinate(ledger, claims, budget._replace(shared=None), tenure, now_ns)
    return (replace(wrong, amount=right.amount, learnt=right.learnt), tenure)


GRANTS_WHAT_LATENCY_HAS_TAKEN = Protocol(coordinate=grants_what_latency_has_taken)
MUTANTS = {
    "raises before lowering": Protocol(coordinate=raises_before_lowering),
    "forgets the dead": Protocol(coordinate=forgets_the_dead),
    "counts from the answer": Protocol(heard=counts_from_the_answer),
    "takes any ledger": Protocol(heard=takes_any_ledger),
    "comes back at once": Protocol(heard=comes_back_at_once),
    "never goes down": Protocol(allowance=never_goes_down),
    "raises at once": Protocol(coordinate=raises_at_once),
    "confirms at once": Protocol(applied=confirms_at_once, coordinate=ignores_what_is_held),
    "overlooks guests that come": Protocol(coordinate=overlooks_guests_that_come),
    "uses another's entry": Protocol(allowance=uses_anothers_entry),
    "forgets old floors": Protocol(coordinate=forgets_old_floors),
    "goes below the floor": Protocol(allowance=goes_below_the_floor),
}
