"""A host as a member of the fleet: its connection to etcd, and the steps that it takes there.

The daemon asks `granted` before each decision, and calls `looked` after it. Neither waits for
anything, so limits are lowered in time if etcd doesn't answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from iokeel.config.settings import FleetConfig
from iokeel.core.fleet.host import Me
from iokeel.core.values.policy import TenantPolicy
from iokeel.core.values.wants import TenantLevel
from iokeel.errors import ConfigError, ConnectionLost, FleetRefused, IokeelError
from iokeel.fleet.etcd import BadMember, Denied, Etcd
from iokeel.fleet.handover import Handovers
from iokeel.fleet.keys import EVERY_TENANT, BudgetId, Keys, Kind, budget_in
from iokeel.fleet.memory import Memory, Remembered
from iokeel.fleet.participant import READ_S, Participant
from iokeel.fleet.parts import Parts, SumsOf
from iokeel.fleet.presence import MOST_NAMES
from iokeel.fleet.store import LEASE_S, FleetStore, NameTaken
from iokeel.fleet.watch import Watches
from iokeel.hypervisors.pace import delays
from iokeel.report.records import FleetSnapshot

log = logging.getLogger(__name__)

# So that several tries may fail before the lease ends.
_STAY_S = LEASE_S / 5
# A change of budgets comes by the watch; this is in case one was lost.
_LIST_S = 300.0
# Each watch is a connection. Beyond so many, one follows the ledgers of all tenants.
_MOST_WATCHES = 32
# To give up an office at a stop. If etcd fails, the office is vacant once the lease has ended.
_LEAVE_S = 2.0
# So many steps are on their way to etcd at once.
_AT_ONCE = 16
_UNHEARD = IokeelError("etcd", "hasn't answered yet", "wait a moment")
_FAULT = IokeelError(
    "etcd", "isn't used: the agent has a fault", "report what `journalctl -u iokeel` says"
)


class Member:
    """This host as a member of the fleet.

    rules: the digest of its rules.
    parts: this host's in all budgets. problems: budgets' errors. problem: etcd's; None if it
    answers and has none. errors: their count since the start, by kind. on_change: called with a
    tenant whose allowance here has changed. handovers: the credit of guests that come and leave.
    """

    def __init__(self, config: FleetConfig, folder: Path, sums_of: SumsOf) -> None:
        self.host = config.host
        self.rules = ""
        self.problem: IokeelError | None = _UNHEARD
        self.problems: dict[BudgetId, IokeelError] = {}
        self.errors: Counter[str] = Counter()
        self.on_change: Callable[[str], None] = lambda _: None
        self.etcd: Etcd | None = None
        self.handovers = Handovers(Keys(config.access.prefix), lambda: self.etcd)
        self._config = config
        self._memory = Memory(folder)
        self.parts = Parts(config.host, self._memory, sums_of)
        self._wake = asyncio.Event()
        self._due: set[BudgetId] = set()
        self._unlisted: set[BudgetId] | None = None
        self._read_at: dict[BudgetId, float] = {}
        self._listed_at = 0.0
        self._leaving: list[Participant] = []
        self._has_doubted = False
        self._told_rules: tuple[int, str] | None = None  # under which lease

    # For the daemon

    def granted(self, here: Collection[str]) -> dict[str, TenantPolicy]:
        """Return the policy of each tenant of the fleet on this host now; see Parts.tenants."""
        return self.parts.tenants(here)

    def granted_storages(self) -> dict[str, int | None]:
        """Return this host's allowance on each of the fleet's storages now; see Parts.storages."""
        return self.parts.storages()

    def levels(self) -> dict[str, Mapping[str, TenantLevel]]:
        """Return what tenants' drives get on shared storages, on all hosts; see Parts.levels."""
        return self.parts.levels()

    def looked(self, tenants: Iterable[str], storages: Iterable[str], *, complete: bool) -> None:
        """Go on after a look at drives of these tenants, on these storages; see Parts.looked."""
        here = [BudgetId(Kind.TENANT, name) for name in tenants]
        here += [BudgetId(Kind.STORAGE, name) for name in storages]
        if self.parts.looked(here, complete=complete):
            self._note(self.parts.news())
            if self.parts.unlisted():
                self._wake.set()

    def snapshot(self) -> FleetSnapshot:
        """Return this host's part in the fleet, for a report. Does no I/O."""
        etcd = self.etcd
        return FleetSnapshot(
            self.host,
            self.problem,
            etcd.trips if etcd is not None else 0,
            etcd.failures if etcd is not None else 0,
            self.parts.shown(Kind.TENANT, self.problems),
            self.parts.shown(Kind.STORAGE, self.problems),
            self.rules,
        )

    # The connection

    async def run(self) -> None:
        """Take part until cancelled. Each error is logged once, and its step tried again."""
        waits = delays()
        for doubt in self._config.access.doubts():
            log.warning("fleet: %s", doubt)
        while True:
            try:
                async with Etcd(self._config.access) as self.etcd:
                    await self._serve(self.etcd)
            except ConfigError as error:  # a file with a certificate
                self._tell(error)
            except Exception:
                self.errors["internal"] += 1
                self.problem = _FAULT
                log.exception(
                    "fleet: internal error, please report it; the host goes to its floors"
                )
            await asyncio.sleep(next(waits))

    async def _serve(self, etcd: Etcd) -> None:
        """Take part in the fleet. Raises ConfigError."""
        store = FleetStore(etcd, self.parts.me)
        self.parts.connect(store)
        self._leaving.clear()  # what is left of these ends with the lease of before
        waits, stay_at, refused = delays(), 0.0, None
        async with Watches(etcd, self._changed) as watches:
            while True:
                try:
                    if time.monotonic() >= stay_at or store.lease is None:
                        refused = await self._stay(store)
                        stay_at = time.monotonic() + _STAY_S
                    await self._tell_rules(store)
                    watches.follow(self._prefixes(store))
                    await self._round(store)
                    if refused is not None:
                        raise refused
                except IokeelError as error:
                    self._unlisted = None
                    self._tell(error)
                    await asyncio.sleep(next(waits))
                    continue
                self._tell(None)
                self.parts.answered_at = time.monotonic()
                waits = delays()
                await self._rest()

    async def _stay(self, store: FleetStore) -> FleetRefused | None:
        """Stay signed in, or return why nothing can be written, as if etcd is full.

        Then this host makes no claims, but what it reads still prolongs its amounts.
        """
        if not await store.stay():
            await store.open(create=not self._memory.known)
            await self._list(store)  # before anything else: also one that is refused has to know
            try:
                await store.sign_in()
            except (BadMember, NameTaken):
                raise
            except FleetRefused as error:
                return error
            await self._doubt_user(store)
        return None

    async def _doubt_user(self, store: FleetStore) -> None:
        """Say once if any host may set budgets."""
        if self._has_doubted:
            return
        with contextlib.suppress(FleetRefused):
            if await store.may_set_budgets():
                log.warning(
                    "fleet: etcd lets this host set budgets, so any host of the fleet may lift all"
                    " limits; give hosts a user that can't (docs/fleet.md, etcd)"
                )
            self._has_doubted = True

    async def _tell_rules(self, store: FleetStore) -> None:
        """Tell the fleet's operators which rules this host has, if they don't know."""
        if store.lease is None or self._told_rules == (store.lease, self.rules):
            return
        self._told_rules = (store.lease, self.rules)
        try:
            await store.tell_rules(self.rules)
        except Denied:
            log.warning(
                "fleet: etcd's user may not tell which rules this host has, so nobody sees whether"
                " they differ from other hosts'; let it write below rules/ (docs/fleet.md, etcd)"
            )
        except IokeelError:
            self._told_rules = None
            raise

    async def _round(self, store: FleetStore) -> None:
        """Do what is due. A budget that can't be listed doesn't hold up the steps of others."""
        budgets, self._unlisted = self._unlisted, set()
        if budgets is not None:
            budgets |= self.parts.unlisted()
        is_due = time.monotonic() >= self._listed_at + _LIST_S
        problem = None
        try:
            if is_due or budgets is None or len(budgets) > MOST_NAMES or EVERY_TENANT in budgets:
                await self._list(store)
            elif budgets:
                await self._list(store, budgets)
        except (ConnectionLost, BadMember):
            raise
        except IokeelError as error:
            problem = error
        self.parts.take_part()
        await self._steps()
        if problem is not None:
            raise problem

    async def _steps(self) -> None:
        """Take the steps that are due, some at once, so that a slow etcd doesn't end terms."""
        now = time.monotonic()
        self._due &= self.parts.participants.keys()
        due = [
            (budget, participant)
            for budget, participant in self.parts.participants.items()
            if now >= self._read_at.get(budget, 0.0) + READ_S
            or (budget in self._due and now >= self._due_at(budget))
        ]

        async def work() -> None:
            try:
                while due:
                    budget, participant = due.pop(0)
                    self._due.discard(budget)
                    self._read_at[budget] = time.monotonic()
                    await self._step(budget, participant)
            except BaseException:
                due.clear()  # etcd fails, so the others needn't find that out
                raise

        workers = [work() for _ in range(min(_AT_ONCE, len(due)))]
        for error in await asyncio.gather(*workers, return_exceptions=True):
            if error is not None:
                raise error

    async def _step(self, budget: BudgetId, participant: Participant) -> None:
        before = self.parts.allowance(budget)
        try:
            await participant.step()
        except (ConnectionLost, BadMember):
            self._due.add(budget)
            raise
        except IokeelError as error:
            self._tell_of(budget, error)
            return
        if budget.kind is Kind.TENANT and self.parts.allowance(budget) != before:
            self.on_change(budget.name)
        view, keys = participant.view, self._keys(participant)
        gone = view is not None and view.budget is None and not any(map(view.raw.get, keys))
        self._tell_of(budget, _gone(budget) if gone else _renamed(participant, self.parts.me))
        if self.parts.may_leave(budget):
            await participant.leave()
            if self.parts.may_leave(budget):
                self.parts.leave(budget)

    def _keys(self, participant: Participant) -> list[str]:
        """Return the keys that have a budget: its own, and that of all tenants without one."""
        assert self.parts.store is not None
        return [self.parts.store.keys.budget(b) for b in (participant.budget, EVERY_TENANT)]

    async def _list(self, store: FleetStore, some: Collection[BudgetId] | None = None) -> None:
        """Read which tenants and storages are the fleet's: some that have changed, or all.

        This host coordinates none that it can't keep or doesn't understand, so another one may. An
        office of one that isn't there stays: it is given before the budget is set.
        """
        if some is None:
            self._listed_at = time.monotonic()
        changed: dict[BudgetId, Remembered | None] = {}
        own = await store.budgets(some)
        found = self.parts.with_everyones(own, some)
        for budget_id, budget in found.items():
            known = self._memory.known.get(budget_id)
            if isinstance(budget, FleetRefused):
                self._tell_of(budget_id, budget)
            elif budget is not None and (known is None or known.budget != budget):
                changed[budget_id] = Remembered(budget, known.ledger if known else None)
            elif budget is None and known is not None:
                if budget_id in own or budget_id in self.parts.participants:
                    log.warning(
                        "fleet, %s: an operator has removed it, so its drives go by this host's"
                        " configuration", budget_id,
                    )  # fmt: skip
                changed[budget_id] = None
        new = [b for b, known in changed.items() if known and b not in self._memory.known]
        for first in range(0, len(new), MOST_NAMES):
            self.parts.called |= await store.charges(new[first : first + MOST_NAMES])
        offices = await store.offices(some)
        try:
            if changed:
                await asyncio.to_thread(self._memory.keep, changed)
        finally:
            there = {budget_id for budget_id, budget in found.items() if budget is not None}
            for budget_id in (offices & there) - self._memory.known.keys():
                await store.resign(budget_id)
                offices.remove(budget_id)
        gone = self.parts.participants.keys() - self._memory.known.keys()
        self._leaving += [self.parts.participants.pop(budget_id) for budget_id in gone]
        self.parts.called |= offices
        while self._leaving:  # also those that couldn't be told to etcd before
            await self._leaving[-1].leave()
            self._leaving.pop()
        self.parts.listed = True
        self.parts.answered_at = time.monotonic()

    def _prefixes(self, store: FleetStore) -> set[str]:
        """Return what to watch: budgets, ledgers, and claims on the budgets coordinated here."""
        keys, there = store.keys, self.parts.participants.values()
        stamps = {keys.stamp(participant.budget) for participant in there}
        prefixes = {keys.budgets}
        prefixes |= stamps if len(stamps) <= _MOST_WATCHES else {keys.stamps}
        for participant in there:
            if participant.coordinates:
                prefixes.add(keys.claims(participant.budget))
        return prefixes

    def _due_at(self, budget: BudgetId) -> float:
        """Return when a step may be taken, if there is something new."""
        return self._read_at.get(budget, 0.0) + self.parts.participants[budget].pause_s

    def _note(self, budgets: Iterable[BudgetId]) -> None:
        """Note that there is something new for steps."""
        if new := {*budgets} - self._due:
            self._due |= new
            self._wake.set()

    def _changed(self, prefix: str, keys: Collection[str] | None) -> None:
        """Note that keys have changed below a prefix; None: any may have."""
        assert self.parts.store is not None
        names, there = self.parts.store.keys, self.parts.participants.keys()
        if keys is None:
            self._note(there)
        else:
            above = (names.budgets, names.stamps, names.all_claims)
            kind = next(each for each in above if prefix.startswith(each))
            found = {budget for key in keys if (budget := budget_in(key, kind)) is not None}
            self._note(found & there)
        if prefix == names.budgets:
            if keys is None or self._unlisted is None:
                self._unlisted = None
            else:
                self._unlisted |= found
            self._wake.set()

    async def _rest(self) -> None:
        """Wait until something is due."""
        now = time.monotonic()
        due = self._due & self.parts.participants.keys()
        wait_s = min([READ_S / 3, *(self._due_at(budget) - now for budget in due)])
        try:
            async with asyncio.timeout(wait_s):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def stop(self) -> None:
        """Give the offices up. The claims stay until their lease ends, as limits do."""
        if self.parts.store is None:
            return
        for participant in self.parts.participants.values():
            if participant.coordinates:
                try:
                    async with asyncio.timeout(_LEAVE_S):
                        await self.parts.store.resign(participant.budget)
                except (TimeoutError, IokeelError):
                    break

    # Errors

    def _tell(self, error: IokeelError | None) -> None:
        if error is not None and self.problem != error:
            self.errors["fleet"] += 1
            log.error(
                "fleet: %s; until it is mended, this host goes down to its floors, unless it can"
                " still read the ledgers",
                error,
            )
        elif error is None and self.problem not in (None, _UNHEARD):
            log.info("fleet: etcd answers again")
        self.problem = error

    def _tell_of(self, budget: BudgetId, error: IokeelError | None) -> None:
        if error is None:
            self.problems.pop(budget, None)
        elif self.problems.get(budget) != error:
            self.errors["fleet"] += 1
            self.problems[budget] = error
            log.error("fleet, %s: %s", budget, error)


def _gone(budget: BudgetId) -> IokeelError:
    command = f"iokeel fleet {budget.kind.value}"
    return IokeelError(
        f"etcd, {budget}",
        "its budget is gone, though nobody has removed it",
        f"set it again by `{command} set`; if it should go, remove it then by `{command} remove`",
    )


def _renamed(participant: Participant, me: Me) -> IokeelError | None:
    """Return an error if a budget charges this host by a name that it had before."""
    view, ledger = participant.view, participant.part.ledger
    if view is None or ledger is None:
        return None
    for name, entry in sorted(ledger.entries.items()):
        # One that reports has a copy of this host's state folder.
        if entry.instance == me.instance and name not in {me.name, *view.claims}:
            return IokeelError(
                f"host {me.name}",
                f"was {name}, which still has its part",
                f"give it that name again ([fleet] host), or give up the part: `iokeel fleet forget"
                f" {name} --off-for-good`",
            )
    return None
