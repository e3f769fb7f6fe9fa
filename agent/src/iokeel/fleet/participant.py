"""A host's part in one budget: it reads the ledger, makes its claim, and coordinates if it has to.

The caller holds its QEMUs to `allowance`, and takes a step often: at least every READ_S, and when
its claim or the ledger has changed. A step that fails changes nothing, so the allowance ends by
itself if steps go on failing.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import NamedTuple

from iokeel.core.fleet.capacity import LOAD_S
from iokeel.core.fleet.claims import HostClaim
from iokeel.core.fleet.coordinate import Tenure, coordinate, in_office, with_word
from iokeel.core.fleet.host import (
    GUARD_S,
    TERM_S,
    Answer,
    Part,
    allowance,
    applied,
    entry_of,
    heard,
)
from iokeel.core.fleet.ledger import Entry, Ledger, Word, recovered
from iokeel.core.values.counters import NS_PER_S
from iokeel.core.values.storage import Load
from iokeel.core.values.wants import NOTHING, Wants
from iokeel.errors import ConnectionLost, FleetRefused, HostReports, IokeelError, NewerSchema
from iokeel.fleet.etcd import now_ns
from iokeel.fleet.keys import BudgetId
from iokeel.fleet.store import FleetStore, LedgerUnreadable, View

log = logging.getLogger(__name__)

# How often a host reads a ledger that doesn't change: a few times in a term.
READ_S = TERM_S / 5
# A load is told again after this part of LOAD_S, because looks at drives are a second apart.
_LOAD_DUE_RATIO = 0.75
# A demand is reported again once it has moved by more than this part of the last report.
TELL_RATIO = 0.05
# Below this part of what the host is held to, small moves of demand count as if it were that much.
# So drives that do next to nothing aren't worth a report.
_SMALL_RATIO = 0.1
# How often a host that doesn't coordinate reads the claims, to see who doesn't report. If there are
# more claims than this, it reads one a second on average.
CLAIMS_S = 30.0
# A coordinator reads so many claims a second at most. If it read them all whenever one has changed,
# a storage on 200 hosts, each of which reports its load every 2 s, would cost it a quarter of a
# processor.
_MOST_CLAIMS = 500
# And it rests for so many times as long as a division takes.
_PAUSES = 10
# How long a vacant office is kept for the host whose turn it is.
_LEADERLESS_S = 5.0


@dataclass(frozen=True, slots=True)
class Demand:
    """The sums over a host's drives: see HostClaim."""

    reservation: int = 0
    weight: int = 100
    wants: Wants = NOTHING
    most: int = 0


class Holding(NamedTuple):
    """A host at one moment.

    held: the most that its QEMUs may be held to, with all limits that are on their way. kept: the
    same without those that have no limits yet. load: of its drives, on a storage. least: the least
    that they can be held to.
    """

    demand: Demand
    held: int
    kept: int
    load: Load | None = None
    least: int = 0


class Participant:
    """A host's part in one budget.

    keep: writes a ledger to the disk, so that a later process of the agent has it after any crash.
    part: as an earlier process left it: with the ledger that was kept, or with `before` if there is
    none. look: returns the host's demand and held rate at that moment. Limits decided later go by a
    ledger heard earlier. clock: as now_ns. view: the last one; None until the first step has
    succeeded.
    """

    def __init__(
        self,
        store: FleetStore,
        budget: BudgetId,
        keep: Callable[[Ledger], Awaitable[None]],
        part: Part,
        look: Callable[[], Holding],
        clock: Callable[[], int] = now_ns,
    ) -> None:
        self.budget = budget
        self.part = part
        self.view: View | None = None
        self._store = store
        self._keep = keep
        self._look = look
        self._clock = clock
        self._tenure: Tenure | None = None
        self._told: tuple[int, HostClaim] | None = None
        self._told_ns = 0
        self._begun_ns = clock()
        self._is_out = False
        self._leaderless_ns: int | None = None
        self._divide_s = 0.0

    @property
    def allowance(self) -> int:
        """The most that this host's QEMUs together may be held to now.

        Without any answer it keeps what was in force when it came for a term at most.
        """
        now_ns, part = self._clock(), self.part
        if part.end_ns is None and now_ns >= self._begun_ns + (TERM_S - GUARD_S) * NS_PER_S:
            part = part._replace(before=0)
        return allowance(part, self._store.me, now_ns)

    @property
    def entry(self) -> Entry | None:
        """This host's entry in the ledger that it knows; None if it has none."""
        return entry_of(self.part, self._store.me)

    @property
    def has_news(self) -> bool:
        """Whether a step would tell something new."""
        if self._is_out:
            return False
        if self._told is None or self._told[0] != self._store.lease:
            return True
        told, now = self._told[1], self._new_claim()
        load_is_due = self._clock() - self._told_ns >= _LOAD_DUE_RATIO * LOAD_S * NS_PER_S
        return not is_old(told, now) or (load_is_due and told.load != now.load)

    @property
    def coordinates(self) -> bool:
        """Whether this host coordinated the budget at the last step."""
        return self.view is not None and self.view.leader == self._store.me.name

    @property
    def pause_s(self) -> float:
        """How long after a step the next one should begin at the earliest, unless READ_S passes."""
        if self.view is None or not self.coordinates:
            return 0.0
        if self.view.crowded is not None:
            return READ_S
        return min(READ_S, max(len(self.view.claims) / _MOST_CLAIMS, _PAUSES * self._divide_s))

    async def step(self) -> None:
        """Take in what is in etcd, and do this host's part.

        Raises ConnectionLost, NewerSchema, FleetRefused, or what `keep` raises; another step may be
        taken at any time. After an error that only this host may have, it leaves until a step
        succeeds. Another one can then coordinate, and this one isn't given what it couldn't use.
        """
        try:
            await self._step()
        except ConnectionLost:
            raise
        except IokeelError as error:
            is_own = isinstance(error, NewerSchema) or not isinstance(error, FleetRefused)
            if is_own and not self._is_out:
                with contextlib.suppress(FleetRefused):
                    await self.leave()
                self.view, self._is_out = None, True
            raise
        self._is_out = False

    async def _step(self) -> None:
        try:
            view = await self._read()
        except LedgerUnreadable as error:
            if not await self._restore(error.view):
                raise
            log.error("%s; it is replaced by what this host remembers", error)
            return
        if not await self._hear(view.ledger, view.asked_ns):
            await self._recover(view)
            if view.budget is None:  # etcd has lost everything: the caller tells it
                self.view = view
            return
        self.view = view
        await self._claim(view)
        if view.crowded is not None:  # the amounts stay, but nobody can divide
            self._tenure = None
            raise view.crowded
        if view.budget is None:
            return
        if view.leader == self._store.me.name and self._store.lease is not None:
            await self._coordinate(view)
        else:
            self._tenure = None
            await self._campaign(view)

    async def _read(self) -> View:
        """Read the budget, and the claims if they matter here."""
        last = self.view
        wanted = last is None or self._wants_claims(last, self._clock())
        if wanted and last is not None and last.crowded:  # they may take long again
            last = await self._store.view(self.budget, last, with_claims=False)
            await self._hear(last.ledger, last.asked_ns)
        view = await self._store.view(self.budget, last, with_claims=wanted)
        if not wanted and self._wants_claims(view, view.asked_ns):  # the leader has changed
            view = await self._store.view(self.budget, view)
        return view

    def _wants_claims(self, view: View, now: int) -> bool:
        """Return whether this host divides the budget or may soon, or its claims are old."""
        old_s = max(CLAIMS_S, len(view.claims))
        is_old = now >= view.claims_ns + old_s * NS_PER_S
        return is_old or (not view.crowded and view.leader in (None, self._store.me.name))

    async def _hear(self, ledger: Ledger | None, asked_ns: int | None) -> bool:
        """Go by a ledger once it is on disk. Return False if etcd has lost one."""
        kept = self._look().kept
        part, answer = heard(self.part, self._store.me, ledger, asked_ns, self._clock(), kept)
        if part.ledger is not None and part.ledger is not self.part.ledger:
            if self.part.ledger is None or part.ledger.stamp != self.part.ledger.stamp:
                await self._keep(part.ledger)
        self.part = part
        return answer is not Answer.LOST

    async def _recover(self, view: View) -> None:
        """Merge this host's ledger into etcd, which has lost it, if the budget is set."""
        self._tenure = None
        if view.budget is not None and self.part.ledger is not None:
            merged = recovered(view.ledger, self.part.ledger, fresh_epoch())
            await self._store.replace(self.budget, view, merged, as_leader=False)

    async def _restore(self, view: View) -> bool:
        """Replace a ledger that nobody can read by this host's. Return False if it has none.

        Nobody was given anything by it, because nobody could read it.
        """
        self._tenure = None
        if view.budget is None or self.part.ledger is None:
            return False
        mine = recovered(None, self.part.ledger, fresh_epoch())
        await self._store.replace(self.budget, view, mine, as_leader=False)
        return True

    async def leave(self) -> None:
        """Take the claim back, and give the office up."""
        if self.view is None or self.coordinates:
            await self._store.resign(self.budget)
        await self._store.claim({self.budget: None})
        self._tenure = self._told = None

    async def _claim(self, view: View) -> None:
        """Make this host's claim, if there is something new in it or it isn't what etcd has."""
        lease = self._store.lease
        if self._told is not None and view.claims_ns == view.asked_ns:
            if view.claims.get(self._store.me.name) != self._told[1]:
                self._told = None  # a write that was late, or data that was lost
        if lease is not None and self.has_news:
            claim, self._told = self._new_claim(), None  # unless it is known what became of it
            if await self._store.claim({self.budget: claim}):
                self._told, self._told_ns = (lease, claim), self._clock()

    def _new_claim(self) -> HostClaim:
        me, (demand, held, kept, load, least) = self._store.me, self._look()
        return HostClaim(
            me.instance,
            demand.reservation,
            demand.weight,
            demand.wants,
            demand.most,
            kept,  # a drive without limits gets some with the next look
            applied(self.part, me, held, least),
            load,
        )

    async def _coordinate(self, view: View) -> None:
        assert view.budget is not None
        now = self._clock()
        tenure = in_office(self._tenure, view.ledger, fresh_epoch(), view.asked_ns, now)
        begun_s = time.thread_time()
        ledger, tenure = coordinate(view.ledger, view.claims, view.budget, tenure, now)
        self._divide_s = time.thread_time() - begun_s
        if ledger is not view.ledger:
            self._tenure = None  # unless it is known what became of the write
            if await self._store.replace(self.budget, view, ledger, as_leader=True):
                await self._hear(ledger, None)
        self._tenure = tenure

    async def _campaign(self, view: View) -> None:
        """Take the office if nobody has it: first the host whose turn it is, later any."""
        if view.leader is not None or self._store.lease is None:
            self._leaderless_ns = None
            return
        since_ns = self._leaderless_ns = self._leaderless_ns or self._clock()
        is_late = self._clock() - since_ns > _LEADERLESS_S * NS_PER_S
        if is_late or self._store.me.name == first_in_turn(self.budget, view.claims):
            await self._store.campaign(self.budget, view)


async def say(store: FleetStore, budget: BudgetId, host: str, word: Word) -> bool:
    """Write an operator's word on a host into a budget's ledger. Return False if it has no part.

    Raises HostReports if the host reports, because then nobody has to answer for it.
    """
    while True:
        view = await store.view(budget)
        if view.ledger is None or (entry := view.ledger.entries.get(host)) is None:
            return False
        claim = view.claims.get(host)
        if claim is not None and claim.instance == entry.instance:
            raise HostReports(host, str(budget), "stop its agent first, or wait 15 s")
        after = with_word(view.ledger, host, word, fresh_epoch())
        try:
            if await store.replace(budget, view, after, as_leader=False):
                return True
        except ConnectionLost:
            found = (await store.view(budget)).ledger
            if found is not None and found.descends_from(after.stamp):
                return True
            raise


def fresh_epoch() -> str:
    """Return an epoch that nobody has used."""
    return secrets.token_urlsafe(8)


def first_in_turn(budget: BudgetId, hosts: Collection[str]) -> str | None:
    """Return the host that should coordinate a budget, so that budgets spread over hosts."""

    def turn(host: str) -> bytes:
        return blake2b(f"{budget} {host}".encode(), digest_size=8).digest()

    return min(hosts, key=turn, default=None)


def is_old(told: HostClaim, now: HostClaim) -> bool:
    """Return whether a claim says nothing new but small moves of demand.

    Loads are reported at times of their own. A host that holds more than its amount is charged for
    that, so then a higher rate is new.
    """
    least = _SMALL_RATIO * min(told.held, told.wants.total)
    is_near = told.wants.is_near(now.wants, TELL_RATIO, least)
    rises = now.applied is None and now.held > told.held
    return is_near and not rises and _without_moves(told) == _without_moves(now)


def _without_moves(claim: HostClaim) -> HostClaim:
    return replace(claim, weight=1, wants=NOTHING, held=0, load=None)
