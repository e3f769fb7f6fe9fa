"""This host's parts in all budgets of the fleet: what its drives may do, ask for and are held to.

It does no I/O but on its own disk. `Member` asks etcd, and takes the steps of the participants.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial

from iokeel.core.counters import NS_PER_S
from iokeel.core.fleet.claims import Budget
from iokeel.core.fleet.host import TERM_S, Me, Part, allowance, entry_of
from iokeel.core.fleet.ledger import Ledger
from iokeel.core.policy import TenantPolicy
from iokeel.core.sharing.tenant_sums import ENDLESS, TenantSums
from iokeel.errors import IokeelError
from iokeel.fleet.etcd import now_ns
from iokeel.fleet.keys import BudgetId, Kind
from iokeel.fleet.memory import Memory
from iokeel.fleet.participant import Demand, Holding, Participant
from iokeel.fleet.store import FleetStore
from iokeel.report.fleet_snapshot import TenantInFleet

# A host that starts waits so long for guests that don't answer before it tells what it holds.
_FIND_S = 6.0
# Since then it keeps what it has for so long, if etcd hasn't answered, and then goes to its floors.
_GRACE_S = 4.0


class Parts:
    """This host's parts in the budgets of the fleet's tenants.

    sums: returns what a tenant's drives here ask for and are held to. store: the fleet's data, once
    there is a connection to etcd. listed: whether the tenants have been read since the start.
    appointed: the tenants that this host was told to coordinate.
    """

    def __init__(self, host: str, memory: Memory, sums: Callable[[str], TenantSums]) -> None:
        self.me = Me(host, memory.instance)
        self.memory = memory
        self.sums = sums
        self.store: FleetStore | None = None
        self.participants: dict[str, Participant] = {}
        self.listed = False
        self.appointed: set[str] = set()
        self._started = self._begun = 0.0
        self._here: frozenset[str] = frozenset()

    def granted(self, here: Collection[str]) -> dict[str, TenantPolicy]:
        """Return what each tenant of the fleet may do on this host now.

        One without a limit there keeps what it has. here: the tenants whose drives are on this
        host. Soon after a start, it isn't known yet which others are the fleet's, so all may be.
        """
        granted = {
            name: _grant(known.budget, self.allowance(name))
            for name, known in self.memory.tenants.items()
        }
        if self._starts and not self.listed:
            granted |= {name: TenantPolicy() for name in here if name not in granted}
        return granted

    def allowance(self, tenant: str) -> int | None:
        """Return the most that a tenant's drives here may be held to; None: what they have."""
        participant = self.participants.get(tenant)
        if participant is not None:
            in_grace = self._starts and participant.part.end_ns is None
            return None if in_grace else participant.allowance
        if self._starts or self.store is not None:  # it takes part after this look
            return None
        part = Part(self.memory.tenants[tenant].ledger)
        return allowance(part, self.me, now_ns())

    @property
    def _starts(self) -> bool:
        """Whether the agent has just started, so that etcd may not have answered yet."""
        return not self._begun or time.monotonic() < self._begun + _GRACE_S

    def looked(self, here: Collection[str], *, complete: bool) -> bool:
        """Go on after a look at drives; return False as long as some of them may not be found.

        here: the tenants whose drives are on this host. complete: all VMs that run here have been
        read.
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

    def news(self) -> Iterator[str]:
        """Yield the tenants on which this host has to tell something new."""
        for name, participant in self.participants.items():
            if participant.has_news:
                yield name

    def take_part(self) -> None:
        """Take part in the budgets of the fleet's tenants that are here, or were."""
        if self.store is None or not self._begun:
            return
        for name, known in self.memory.tenants.items():
            if name in self.participants:
                continue
            part = Part(known.ledger, before=0 if known.ledger else self.sums(name).kept)
            is_ours = name in self._here or name in self.appointed
            is_nobodys = known.ledger is not None and not known.ledger.entries
            if not is_ours and not is_nobodys and entry_of(part, self.store.me) is None:
                continue
            self.participants[name] = Participant(
                self.store,
                BudgetId(Kind.TENANT, name),
                partial(self._keep_ledger, name),
                part,
                partial(self._holding, name),
            )

    def _holding(self, tenant: str) -> Holding:
        reservation, weight, wants, most, held, kept = self.sums(tenant)
        return Holding(Demand(reservation, weight, wants, most), held, kept)

    async def _keep_ledger(self, tenant: str, ledger: Ledger) -> None:
        known = self.memory.tenants[tenant]._replace(ledger=ledger)
        await asyncio.to_thread(self.memory.keep, {tenant: known})

    def may_leave(self, tenant: str) -> bool:
        """Return whether none of a tenant's drives is here, and another host coordinates it.

        The last host stays, so that the next guest finds a coordinator that needn't wait.
        """
        sums, participant = self.sums(tenant), self.participants[tenant]
        leader = participant.view.leader if participant.view is not None else None
        others = leader not in (None, self.me.name)
        return participant.entry is None and others and not sums.most and not sums.held

    def leave(self, tenant: str) -> None:
        """Take no more part in a tenant's budget."""
        self.appointed.discard(tenant)
        del self.participants[tenant]

    def tenant(self, name: str, error: IokeelError | None) -> TenantInFleet:
        """Return this host's part in a tenant's budget, for a report. error: what is wrong."""
        participant = self.participants[name]
        part, entry, view = participant.part, participant.entry, participant.view
        held = self.sums(name).held
        asked_ns = None if part.end_ns is None else part.end_ns - TERM_S * NS_PER_S
        entries = part.ledger.entries if part.ledger is not None else {}
        others = {host: other.amount for host, other in entries.items() if host != self.me.name}
        return TenantInFleet(
            name,
            self.memory.tenants[name].budget.amount,
            self.allowance(name),
            entry.floor if entry is not None else 0,
            entry.charged if entry is not None else 0,
            None if held >= ENDLESS else held,
            None if asked_ns is None else (now_ns() - asked_ns) / NS_PER_S,
            others,
            tuple(host for host in others if view is not None and host not in view.claims),
            view.leader if view is not None else None,
            error,
        )


def _grant(budget: Budget, allowance: int | None) -> TenantPolicy:
    """Return what a tenant may do on a host that may use so much of its budget."""
    if allowance is None:
        return TenantPolicy(weight=budget.weight)
    part = min(1.0, allowance / budget.amount)
    return TenantPolicy(int(part * budget.reservation), allowance, budget.weight)
