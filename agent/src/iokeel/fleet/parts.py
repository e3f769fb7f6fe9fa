"""This host's parts in all budgets of the fleet: its drives' allowances, demands and held rates.

It does no I/O but on its own disk. `Member` asks etcd, and takes the steps of the participants.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from math import inf

from iokeel.core.divide.tenant_sums import Sums
from iokeel.core.fleet.claims import Budget
from iokeel.core.fleet.host import TERM_S, Me, Part, allowance, entry_of
from iokeel.core.fleet.ledger import Ledger
from iokeel.core.values.counters import NS_PER_S
from iokeel.core.values.policy import ENDLESS, TenantPolicy
from iokeel.core.values.wants import TenantLevel
from iokeel.errors import FleetRefused, IokeelError
from iokeel.fleet.etcd import now_ns
from iokeel.fleet.keys import EVERY_TENANT, BudgetId, Kind
from iokeel.fleet.memory import Memory, Remembered
from iokeel.fleet.participant import Demand, Holding, Participant
from iokeel.fleet.store import FleetStore
from iokeel.report.records import BudgetInFleet, ErrorReport, FleetBudgetReport

# How long a host that starts waits for guests that don't answer, before its first report.
_FIND_S = 6.0
# How long it then keeps what it has if etcd doesn't answer, before it goes to its floors.
_GRACE_S = 4.0

#: By kind, a function that returns the sums over the drives here of a tenant, or of a storage.
SumsOf = Mapping[Kind, Callable[[str], Sums]]


class Parts:
    """This host's parts in the fleet's budgets: tenants' limits, and shared storages' capacities.

    store: the fleet's data, once there is a connection to etcd. listed: whether the budgets have
    been read since the start. answered_at: when etcd last answered. called: budgets without a drive
    here in which this host takes part, because it was appointed their coordinator or is still
    charged from when they were set before.
    """

    def __init__(self, host: str, memory: Memory, sums_of: SumsOf) -> None:
        self.me = Me(host, memory.instance)
        self.memory = memory
        self.store: FleetStore | None = None
        self.participants: dict[BudgetId, Participant] = {}
        self.listed = False
        self.answered_at = -inf
        self.called: set[BudgetId] = set()
        self._sums_of = sums_of
        self._started = self._begun = 0.0
        self._here: frozenset[BudgetId] = frozenset()
        self._told: set[BudgetId] = set()
        # When a ledger was read by an earlier connection, or else since when this host takes part.
        self._since_ns: dict[BudgetId, int] = {}

    def connect(self, store: FleetStore) -> None:
        """Begin anew by a new connection to etcd."""
        self._since_ns |= {budget: self._read_ns(budget) for budget in self.participants}
        self.participants.clear()
        self.store = store

    def tenants(self, here: Collection[str]) -> dict[str, TenantPolicy]:
        """Return the policies now of those tenants with drives on this host that are the fleet's.

        If one has no limit, its drives keep what they have. here: the tenants with drives on this
        host. Soon after a start any of them may be the fleet's, so all keep what they have.
        """
        granted = {}
        for name in here:
            budget = BudgetId(Kind.TENANT, name)
            if (known := self._known(budget)) is not None:
                self._told.add(budget)
                granted[name] = _grant(known.budget, self.allowance(budget))
            elif self._starts and not self.listed:
                granted[name] = TenantPolicy()
        return granted

    def storages(self) -> dict[str, int | None]:
        """Return this host's allowance on each of the fleet's storages now.

        None: its drives there keep what they have.
        """
        there = [budget for budget in self.memory.known if budget.kind is Kind.STORAGE]
        self._told.update(there)
        return {budget.name: self.allowance(budget) for budget in there}

    def levels(self) -> dict[str, Mapping[str, TenantLevel]]:
        """Return what tenants' drives get on shared storages, on all hosts; see Ledger.levels."""
        return {
            budget.name: participant.part.ledger.levels
            for budget, participant in self.participants.items()
            if budget.kind is Kind.STORAGE and participant.part.ledger is not None
        }

    def allowance(self, budget: BudgetId) -> int | None:
        """Return the most that a budget's drives here may be held to; None: what they have.

        Only operators write a budget, and any host may write its ledger. So a host goes by no
        amount beyond the budget.
        """
        participant, known = self.participants.get(budget), self._known(budget)
        most = known.budget.most if known is not None else ENDLESS
        if participant is not None:
            in_grace = self._starts and participant.part.end_ns is None
            return None if in_grace else min(most, participant.allowance)
        if self._starts or self.store is not None:  # it takes part after this look
            return None
        part = Part(known.ledger if known is not None else None)
        return min(most, allowance(part, self.me, now_ns()))

    def _known(self, budget: BudgetId) -> Remembered | None:
        """Return what is known of a budget; a tenant without one of its own has everyone's."""
        known = self.memory.known.get(budget)
        if known is None and budget.kind is Kind.TENANT:
            every = self.memory.known.get(EVERY_TENANT)
            return None if every is None else Remembered(every.budget, None)
        return known

    def unlisted(self) -> set[BudgetId]:
        """Return the tenants with drives here that have a budget, but only everyone's so far."""
        if EVERY_TENANT not in self.memory.known:
            return set()
        return {b for b in self._here if b.kind is Kind.TENANT} - self.memory.known.keys()

    def with_everyones(
        self,
        found: Mapping[BudgetId, Budget | FleetRefused | None],
        some: Collection[BudgetId] | None,
    ) -> dict[BudgetId, Budget | FleetRefused | None]:
        """Return budgets with those of tenants that have none of their own.

        found: as in etcd, of some budgets, or all (None). A tenant that has left this host is
        forgotten, or there would be thousands in time.
        """
        known = self.memory.known
        was = known.get(EVERY_TENANT)
        now = found.get(EVERY_TENANT, None if was is None else was.budget)
        if isinstance(now, FleetRefused):
            now = None if was is None else was.budget
        there = dict(found)
        for budget in {*known, *self.unlisted()} if some is None else some:
            if budget.kind is not Kind.TENANT or budget == EVERY_TENANT or found.get(budget):
                continue
            if now is not None:
                is_here = budget in self._here or budget in self.participants or some is not None
                there[budget] = now if is_here else None
            elif was is not None and budget in known and known[budget].budget == was.budget:
                there[budget] = None
        return there

    @property
    def _starts(self) -> bool:
        """Whether the agent has just started, so that etcd may not have answered yet."""
        return not self._begun or time.monotonic() < self._begun + _GRACE_S

    def looked(self, here: Iterable[BudgetId], *, complete: bool) -> bool:
        """Go on after a look at drives; return False as long as some of them may not be found.

        here: the budgets that drives on this host draw on, if they are the fleet's. complete: all
        VMs that run here have been read.
        """
        now = time.monotonic()
        self._started = self._started or now
        if not self._begun:
            if not complete and now < self._started + _FIND_S:
                return False
            self._begun = now
        self._here = frozenset(here)
        self.take_part()
        return True

    def news(self) -> Iterator[BudgetId]:
        """Yield the budgets on which this host has to tell something new."""
        for budget, participant in self.participants.items():
            if participant.has_news:
                yield budget

    def take_part(self) -> None:
        """Take part in the fleet's budgets whose drives are here, or were.

        With drives here, only after a look that knew of the budget: until then it isn't known what
        they are held to. What is kept of that is 0 for one whose guest has come while etcd didn't
        answer, because the host that it came from may be charged for nothing any more.
        """
        if self.store is None or not self._begun:
            return
        self._told &= self.memory.known.keys()
        for gone in self._since_ns.keys() - self.memory.known.keys() - self.participants.keys():
            del self._since_ns[gone]
        answers = time.monotonic() < self.answered_at + TERM_S
        for budget, known in self.memory.known.items():
            if budget in self.participants or (budget in self._here and budget not in self._told):
                continue
            keeps = known.ledger is None and answers
            part = Part(known.ledger, before=self.sums(budget).kept if keeps else 0)
            is_ours = budget in self._here or budget in self.called
            is_nobodys = known.ledger is not None and not known.ledger.entries
            if not is_ours and not is_nobodys and entry_of(part, self.store.me) is None:
                continue
            self._since_ns.setdefault(budget, now_ns())
            self.participants[budget] = Participant(
                self.store,
                budget,
                partial(self._keep_ledger, budget),
                part,
                partial(self._holding, budget),
            )

    def sums(self, budget: BudgetId) -> Sums:
        """Return the sums over a budget's drives here."""
        return self._sums_of[budget.kind](budget.name)

    def _holding(self, budget: BudgetId) -> Holding:
        reservation, weight, wants, most, held, kept, least, load = self.sums(budget)
        return Holding(Demand(reservation, weight, wants, most), held, kept, load, least)

    async def _keep_ledger(self, budget: BudgetId, ledger: Ledger) -> None:
        known = self.memory.known[budget]._replace(ledger=ledger)
        await asyncio.to_thread(self.memory.keep, {budget: known})

    def may_leave(self, budget: BudgetId) -> bool:
        """Return whether none of a budget's drives is here, and another host coordinates it.

        The last host stays, so that the next guest finds a coordinator that needn't wait. So does
        one whose drives without a policy do something on the storage: it has to be subtracted.
        """
        sums, participant = self.sums(budget), self.participants[budget]
        leader = participant.view.leader if participant.view is not None else None
        others = leader not in (None, self.me.name)
        strangers = sums.load is not None and sums.load.strangers > 0
        uses_it = sums.most or sums.held or strangers
        return participant.entry is None and others and not uses_it

    def leave(self, budget: BudgetId) -> None:
        """Take no more part in a budget."""
        self.called.discard(budget)
        del self.participants[budget], self._since_ns[budget]

    def shown(
        self, kind: Kind, problems: Mapping[BudgetId, IokeelError]
    ) -> dict[str, BudgetInFleet]:
        """Return this host's parts in budgets of a kind, for a report, by name."""
        known = self.memory.known  # a thread may drop one at any time
        here = sorted(b for b in self.participants if b.kind is kind and b in known)
        return {b.name: self._shown(b, known[b].budget, problems.get(b)) for b in here}

    def _read_ns(self, budget: BudgetId) -> int:
        """Return when a budget's ledger was read, or else since when this host takes part."""
        end_ns = self.participants[budget].part.end_ns
        return self._since_ns[budget] if end_ns is None else end_ns - TERM_S * NS_PER_S

    def _shown(self, budget: BudgetId, set_to: Budget, error: IokeelError | None) -> BudgetInFleet:
        participant = self.participants[budget]
        part, entry, view = participant.part, participant.entry, participant.view
        held = self.sums(budget).held
        ledger = part.ledger
        entries = ledger.entries if ledger is not None else {}
        others = {host: other.amount for host, other in entries.items() if host != self.me.name}
        limit = set_to.amount
        if ledger is not None and set_to.shared is not None:
            limit = ledger.amount
        report = FleetBudgetReport(
            name=budget.name,
            set_iops=set_to.amount,
            limit_iops=limit,
            allowed_iops=self.allowance(budget),
            floor_iops=entry.floor if entry is not None else 0,
            held_iops=None if held >= ENDLESS else held,
            stale_s=(now_ns() - self._read_ns(budget)) / NS_PER_S,
            charges={host: other.charged for host, other in entries.items()},
            silent=[host for host in others if view is not None and host not in view.claims],
            coordinator=view.leader if view is not None else None,
            error=ErrorReport.of(error) if error else None,
        )
        return BudgetInFleet(report, entry.charged if entry is not None else 0, others)


def _grant(budget: Budget, allowance: int | None) -> TenantPolicy:
    """Return a tenant's policy on a host with an allowance of its budget."""
    if allowance is None:
        return TenantPolicy(weight=budget.weight)
    part = min(1.0, allowance / budget.amount)
    return TenantPolicy(int(part * budget.reservation), allowance, budget.weight)
