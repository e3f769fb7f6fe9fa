"""A host as a member of the fleet: its connection to etcd, and its part in each tenant's budget.

The daemon asks `granted` before each decision, and calls `looked` after it. Neither waits for
anything, so limits are lowered in time if etcd doesn't answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path

from iokeel.config.settings import FleetConfig
from iokeel.core.counters import NS_PER_S
from iokeel.core.fleet.claims import Budget
from iokeel.core.fleet.host import TERM_S, Me, Part, allowance, entry_of
from iokeel.core.fleet.ledger import Ledger
from iokeel.core.policy import TenantPolicy
from iokeel.core.sharing.tenant_sums import ENDLESS, TenantSums
from iokeel.errors import ConfigError, ConnectionLost, FleetRefused, IokeelError
from iokeel.fleet.etcd import Etcd, now_ns
from iokeel.fleet.keys import BudgetId, Kind
from iokeel.fleet.memory import Memory, Remembered
from iokeel.fleet.participant import READ_S, Demand, Holding, Participant
from iokeel.fleet.store import LEASE_S, FleetStore
from iokeel.fleet.watch import Watches
from iokeel.hypervisors.backoff import delays
from iokeel.report.fleet_snapshot import FleetSnapshot, TenantInFleet

log = logging.getLogger(__name__)

# A host that starts waits so long for guests that don't answer before it tells what it holds.
_FIND_S = 6.0
# Since then it keeps what it has for so long, if etcd hasn't answered, and then goes to its floors.
_GRACE_S = 4.0
_STAY_S = LEASE_S / 5
# A change of budgets comes by the watch; this is in case one was lost.
_LIST_S = 30.0
_LEAVE_S = 2.0


class Member:
    """This host as a member of the fleet.

    sums: returns what a tenant's drives here ask for and are held to. problems: what is wrong with
    tenants' budgets, by name. problem: what is wrong with etcd; None if nothing is. listed: whether
    the tenants have been read since the start. errors: how often something went wrong. on_change:
    called with a tenant when what it may do here has changed.
    """

    def __init__(
        self, config: FleetConfig, folder: Path, sums: Callable[[str], TenantSums]
    ) -> None:
        self.host = config.host
        self.problem: IokeelError | None = None
        self.problems: dict[str, IokeelError] = {}
        self.participants: dict[str, Participant] = {}
        self.listed = False
        self.errors = 0
        self.on_change: Callable[[str], None] = lambda _: None
        self.etcd: Etcd | None = None
        self._config = config
        self._sums = sums
        self._memory = Memory(folder)
        self._store: FleetStore | None = None
        self._started = self._begun = 0.0
        self._here: frozenset[str] = frozenset()
        self._wake = asyncio.Event()
        self._due: set[str] = set()
        self._list_due = True
        self._read_at: dict[str, float] = {}

    @property
    def budgets(self) -> Mapping[str, Budget]:
        """The budgets of the tenants that are known to be the fleet's, by name."""
        return {name: known.budget for name, known in self._memory.tenants.items()}

    # What the daemon asks

    def granted(self, here: Collection[str]) -> dict[str, TenantPolicy]:
        """Return what each tenant of the fleet may do on this host now.

        One without a limit there keeps what it has. here: the tenants whose drives are on this
        host. Soon after a start, it isn't known yet which others are the fleet's, so all may be.
        """
        granted = {
            name: _grant(known.budget, self.allowance(name))
            for name, known in self._memory.tenants.items()
        }
        starts = not self._begun or time.monotonic() < self._begun + _GRACE_S
        if starts and not self.listed:
            granted |= {name: TenantPolicy() for name in here if name not in granted}
        return granted

    def allowance(self, tenant: str) -> int | None:
        """Return the most that a tenant's drives here may be held to; None: what they have."""
        participant = self.participants.get(tenant)
        starts = not self._begun or time.monotonic() < self._begun + _GRACE_S
        if participant is not None:
            in_grace = starts and participant.part.end_ns is None
            return None if in_grace else participant.allowance
        if starts or self._store is not None:  # it takes part after this look
            return None
        part = Part(self._memory.tenants[tenant].ledger)
        return allowance(part, Me(self.host, self._memory.instance), now_ns())

    def looked(self, here: Collection[str], *, complete: bool) -> None:
        """Go on after a look at drives. here: the tenants whose drives are on this host.

        complete: all VMs that run here have been read.
        """
        now = time.monotonic()
        self._started = self._started or now
        if not self._begun:
            if not complete and now < self._started + _FIND_S:
                return
            self._begun = now
        self._here = frozenset(here)
        self._take_part()
        for name, participant in self.participants.items():
            if participant.has_news:
                self._due.add(name)
        if self._due:
            self._wake.set()

    def _take_part(self) -> None:
        """Take part in the budgets of the fleet's tenants that are here, or were."""
        if self._store is None or not self._begun:
            return
        for name, known in self._memory.tenants.items():
            if name in self.participants:
                continue
            part = Part(known.ledger, before=0 if known.ledger else self._sums(name).kept)
            if name not in self._here and entry_of(part, self._store.me) is None:
                continue
            self.participants[name] = Participant(
                self._store,
                BudgetId(Kind.TENANT, name),
                partial(self._keep_ledger, name),
                part,
                partial(self._holding, name),
            )

    def _holding(self, tenant: str) -> Holding:
        reservation, weight, wants, most, held, kept = self._sums(tenant)
        return Holding(Demand(reservation, weight, wants, most), held, kept)

    async def _keep_ledger(self, tenant: str, ledger: Ledger) -> None:
        known = self._memory.tenants[tenant]._replace(ledger=ledger)
        await asyncio.to_thread(self._memory.keep, {tenant: known})

    def snapshot(self) -> FleetSnapshot:
        """Return this host's part in the fleet, for a report. Does no I/O."""
        etcd = self.etcd
        return FleetSnapshot(
            self.host,
            self.problem,
            etcd.trips if etcd is not None else 0,
            etcd.failures if etcd is not None else 0,
            {name: self._tenant(name, known) for name, known in sorted(self.participants.items())},
        )

    def _tenant(self, name: str, participant: Participant) -> TenantInFleet:
        part, entry, view = participant.part, participant.entry, participant.view
        held = self._sums(name).held
        asked_ns = None if part.end_ns is None else part.end_ns - TERM_S * NS_PER_S
        entries = part.ledger.entries if part.ledger is not None else {}
        others = {host: other.amount for host, other in entries.items() if host != self.host}
        return TenantInFleet(
            name,
            self._memory.tenants[name].budget.amount,
            self.allowance(name),
            entry.floor if entry is not None else 0,
            entry.charged if entry is not None else 0,
            None if held >= ENDLESS else held,
            None if asked_ns is None else (now_ns() - asked_ns) / NS_PER_S,
            others,
            tuple(host for host in others if view is not None and host not in view.claims),
            {host: other.charged for host, other in entries.items()},
            view.leader if view is not None else None,
            self.problems.get(name),
        )

    # The connection

    async def run(self) -> None:
        """Take part until cancelled. Whatever is wrong is told once, and tried again."""
        waits = delays()
        while True:
            try:
                async with Etcd(self._config.access) as self.etcd:
                    await self._serve(self.etcd)
            except ConfigError as error:  # a file with a certificate
                self._tell(error)
            except Exception:
                self.errors += 1
                log.exception(
                    "fleet: internal error, please report it; the host goes to its floors"
                )
            await asyncio.sleep(next(waits))

    async def _serve(self, etcd: Etcd) -> None:
        """Take part in the fleet. Raises ConfigError."""
        store = self._store = FleetStore(etcd, Me(self.host, self._memory.instance))
        self.participants.clear()
        waits, stay_at = delays(), 0.0
        async with Watches(etcd, self._changed) as watches:
            while True:
                try:
                    if time.monotonic() >= stay_at or store.lease is None:
                        await self._stay(store)
                        stay_at = time.monotonic() + _STAY_S
                    watches.follow(self._prefixes(store))
                    await self._round(store)
                except IokeelError as error:
                    self._tell(error)
                    await asyncio.sleep(next(waits))
                    continue
                self._tell(None)
                waits = delays()
                await self._rest()

    async def _stay(self, store: FleetStore) -> None:
        if not await store.stay():
            await store.open()
            await self._list(store)  # before anything else: also one that is refused has to know
            await store.sign_in()

    async def _round(self, store: FleetStore) -> None:
        """Do what is due."""
        now = time.monotonic()
        if self._list_due or now >= self._read_at.get("", 0.0) + _LIST_S:
            self._list_due = False
            await self._list(store)
            self._read_at[""] = now
        self._take_part()
        for name, participant in [*self.participants.items()]:
            now = time.monotonic()
            if name in self._due or now >= self._read_at.get(name, 0.0) + READ_S:
                self._due.discard(name)
                self._read_at[name] = now
                await self._step(name, participant)

    async def _step(self, name: str, participant: Participant) -> None:
        before = self.allowance(name)
        try:
            await participant.step()
        except ConnectionLost:
            self._due.add(name)
            raise
        except IokeelError as error:
            self._tell_of(name, error)
            return
        if self.allowance(name) != before:
            self.on_change(name)
        view = participant.view
        gone = view is not None and view.raw[self._key(participant)] is None
        self._tell_of(name, _gone(name) if gone else None)
        if participant.entry is None and not participant.coordinates and self._has_left(name):
            await participant.leave()
            if self._has_left(name):
                del self.participants[name]

    def _key(self, participant: Participant) -> str:
        assert self._store is not None
        return self._store.keys.budget(participant.budget)

    def _has_left(self, tenant: str) -> bool:
        """Return whether none of a tenant's drives is here."""
        sums = self._sums(tenant)
        return not sums.most and not sums.held

    async def _list(self, store: FleetStore) -> None:
        """Read which tenants are the fleet's."""
        changed: dict[str, Remembered | None] = {}
        for name, budget in (await store.budgets(Kind.TENANT)).items():
            known = self._memory.tenants.get(name)
            if isinstance(budget, FleetRefused):
                self._tell_of(name, budget)
            elif budget is not None and (known is None or known.budget != budget):
                changed[name] = Remembered(budget, known.ledger if known else None)
            elif budget is None and known is not None:
                changed[name] = None
        if changed:
            await asyncio.to_thread(self._memory.keep, changed)
        for name in changed.keys() - self._memory.tenants.keys():
            if (participant := self.participants.pop(name, None)) is not None:
                await participant.leave()
        self.listed = True

    def _prefixes(self, store: FleetStore) -> set[str]:
        """Return what to watch: budgets, ledgers, and claims on the budgets coordinated here."""
        keys = store.keys
        prefixes = {keys.budgets(Kind.TENANT), keys.stamps}
        for participant in self.participants.values():
            if participant.coordinates:
                prefixes.add(keys.claims(participant.budget))
        return prefixes

    def _changed(self, prefix: str, keys: Collection[str] | None) -> None:
        """Note that keys have changed below a prefix; None: any may have."""
        assert self._store is not None
        if prefix == self._store.keys.budgets(Kind.TENANT):
            self._list_due = True
        for name, participant in self.participants.items():
            mine = {self._key(participant), self._store.keys.stamp(participant.budget)}
            if keys is None or prefix == self._store.keys.claims(participant.budget):
                self._due.add(name)
            elif not mine.isdisjoint(keys):
                self._due.add(name)
        self._wake.set()

    async def _rest(self) -> None:
        """Wait until something is due."""
        try:
            async with asyncio.timeout(READ_S / 3):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def stop(self) -> None:
        """Give the offices up. The claims stay until their lease ends, as limits do."""
        if self._store is None:
            return
        for participant in self.participants.values():
            if participant.coordinates:
                try:
                    async with asyncio.timeout(_LEAVE_S):
                        await self._store.resign(participant.budget)
                except (TimeoutError, IokeelError):
                    break

    # What is wrong

    def _tell(self, error: IokeelError | None) -> None:
        if error is not None and self.problem != error:
            self.errors += 1
            log.error("fleet: %s; until it is mended, this host goes down to its floors", error)
        elif error is None and self.problem is not None:
            log.info("fleet: etcd answers again")
        self.problem = error

    def _tell_of(self, tenant: str, error: IokeelError | None) -> None:
        if error is None:
            self.problems.pop(tenant, None)
        elif self.problems.get(tenant) != error:
            self.errors += 1
            self.problems[tenant] = error
            log.error("fleet, tenant %s: %s", tenant, error)


def _grant(budget: Budget, allowance: int | None) -> TenantPolicy:
    """Return what a tenant may do on a host that may use so much of its budget."""
    if allowance is None:
        return TenantPolicy(weight=budget.weight)
    part = min(1.0, allowance / budget.amount)
    return TenantPolicy(int(part * budget.reservation), allowance, budget.weight)


def _gone(tenant: str) -> IokeelError:
    return IokeelError(
        f"etcd, tenant {tenant}",
        "its budget is gone, though nobody has removed it",
        "set it again by `iokeel fleet tenant set`, or remove it by `iokeel fleet tenant remove`",
    )
