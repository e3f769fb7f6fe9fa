"""The fleet's data in etcd, in the core's words.

No method repeats a write. If it raises OutcomeUnknown, the caller reads what is there, and a
coordinator gives up its tenure (iokeel.core.fleet.coordinate).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from iokeel.core.fleet.claims import Budget, HostClaim
from iokeel.core.fleet.host import Me
from iokeel.core.fleet.ledger import Ledger
from iokeel.errors import FleetRefused, NewerSchema, OutcomeUnknown
from iokeel.fleet.etcd import TOO_MUCH_MEND, Denied, Etcd, TooMuch
from iokeel.fleet.keys import EVERY_TENANT, BudgetId, Keys, Kind, budget_in
from iokeel.fleet.messages import Delete, Is, Put
from iokeel.fleet.presence import Presence
from iokeel.fleet.records import (
    Format,
    HostRecord,
    LeaderRecord,
    RulesRecord,
    budget_of,
    claim_value,
    decoded,
    encoded,
    ledger_of,
    ledger_value,
    levels_value,
    stamp_value,
    wants_value,
    with_levels,
)
from iokeel.words.quoting import shown_path

# How long a host that says nothing still counts as there. Its claims end with it.
LEASE_S = 15


class NameTaken(FleetRefused):
    """Another host of this name is in the fleet."""


class NoFleet(FleetRefused):
    """The prefix is empty."""


@dataclass(frozen=True)
class View:
    """A budget at one moment. asked_ns: before it was asked for, as `iokeel.fleet.etcd.now_ns`.

    claims: as they were at claims_ns, without those that can't be used. budget: None if no operator
    has set it, nor EVERY_TENANT's for a tenant. leader: its coordinator's name; None if it has none
    that is there. raw: the values that this depends on, by key. `FleetStore.replace` compares some
    of them. crowded: the error, if there were too many claims to read; those of before stay.
    """

    asked_ns: int
    claims_ns: int
    budget: Budget | None
    ledger: Ledger | None
    claims: Mapping[str, HostClaim]
    leader: str | None
    raw: Mapping[str, bytes | None]
    crowded: FleetRefused | None = None


class LedgerUnreadable(FleetRefused):
    """A budget's ledger isn't iokeel's any more. view: the rest of the budget."""

    def __init__(self, error: FleetRefused, view: View) -> None:
        super().__init__(error.where, error.what, error.mend)
        self.view = view


class FleetStore:
    """The fleet's data in etcd, as one host reads and writes it.

    lease: the host's; None until it has signed in, and once its lease has ended.
    """

    def __init__(self, etcd: Etcd, me: Me) -> None:
        self.etcd = etcd
        self.keys = Keys(etcd.access.prefix)
        self.me = me
        self.lease: int | None = None
        self._value = encoded(HostRecord(instance=me.instance))
        self._presence = Presence(etcd, self.keys, me.name)

    async def open(self, *, create: bool = True) -> None:
        """See that the prefix holds a fleet, or nothing on any member, and then make it one.

        create: if it is False, nothing is written. Raises ConnectionLost, NewerSchema, NoFleet, or
        FleetRefused if the prefix holds something else.
        """
        key, prefix = self.keys.format, self.keys.prefix
        for _ in self.etcd.access.urls:
            found = await self.etcd.peek([key], prefix)
            if found.values:
                break
            self.etcd.leave_cluster()  # it may not be the fleet's
        if key not in found.values:
            if found.values:
                raise FleetRefused(
                    f"etcd {prefix}",
                    f"holds something else, such as {shown_path(min(found.values))}",
                    "give [fleet] a prefix of its own",
                )
            if not create:
                raise _no_fleet(prefix)
            try:
                await self.etcd.write([Is(key, None)], [Put(key, encoded(Format()))])
            except Denied:  # a host's user: only an operator's begins a fleet
                raise _no_fleet(prefix) from None
            found = await self.etcd.read([key])
        if decoded(Format, key, found.values[key]) != Format():
            raise FleetRefused(f"etcd {key}", "isn't a fleet's", "give [fleet] another prefix")

    async def sign_in(self) -> None:
        """Tell that this host is there, under a new lease.

        Raises ConnectionLost, NameTaken, or FleetRefused if nothing can be written.
        """
        key = self.keys.host(self.me.name)
        found = (await self.etcd.read([key])).values.get(key)
        if found is not None and decoded(HostRecord, key, found) != HostRecord(
            instance=self.me.instance
        ):
            raise NameTaken(
                f"host {self.me.name}",
                "is in the fleet already, as another host",
                "give each host a name of its own, or wait until the other one is gone",
            )
        lease = await self.etcd.grant_lease(LEASE_S)
        if not await self.etcd.write([Is(key, found)], [Put(key, self._value, lease)]):
            await self.etcd.revoke_lease(lease)
            raise NameTaken(
                f"host {self.me.name}", "was taken by another host at this moment", "try again"
            )
        self.lease = lease

    async def tell_rules(self, digest: str) -> None:
        """Tell which rules this host has. Raises Denied if etcd's user may not."""
        key = self.keys.rules_of(self.me.name)
        await self._as_host([Put(key, encoded(RulesRecord(digest=digest)), self.lease or 0)])

    async def stay(self) -> bool:
        """Prolong the lease, and return whether there still is one; if not, sign in again."""
        if self.lease is not None and not await self.etcd.keep_lease(self.lease):
            self.lease = None
        return self.lease is not None

    async def leave(self) -> None:
        """End the lease, with all claims and offices. The ledger keeps this host's entry."""
        if self.lease is not None:
            lease, self.lease = self.lease, None
            await self.etcd.revoke_lease(lease)

    async def claim(self, claims: Mapping[BudgetId, HostClaim | None]) -> bool:
        """Make claims, or take them back (None). Return False if this host has to sign in first.

        Its key may be gone though its lease lives, so `lease` is None then.
        """
        if self.lease is None:
            return False
        changes: list[Put | Delete] = []
        name = self.me.name
        for budget, claim in claims.items():
            key, by_level = self.keys.claim(budget, name), self.keys.wants(budget, name)
            value = wants_value(claim) if claim is not None else None
            changes += [
                Delete(key) if claim is None else Put(key, claim_value(claim), self.lease),
                Delete(by_level) if value is None else Put(by_level, value, self.lease),
            ]
        if not await self._as_host(changes):
            self.lease = None
        return self.lease is not None

    async def campaign(self, budget: BudgetId, vacant: View | None = None) -> bool:
        """Become a budget's coordinator if it has none, and return whether this succeeded.

        vacant: a view without a coordinator; None: there is no record of one.
        """
        if self.lease is None:
            return False
        key = self.keys.leader(budget)
        put = Put(key, encoded(LeaderRecord(host=self.me.name)), self.lease)
        return await self._as_host([put], Is(key, vacant.raw.get(key) if vacant else None))

    async def resign(self, budget: BudgetId) -> None:
        """Give a budget's office up, if this host has it."""
        key = self.keys.leader(budget)
        mine = Is(key, encoded(LeaderRecord(host=self.me.name)))
        await self._as_host([Delete(key)], mine)

    async def may_set_budgets(self) -> bool:
        """Return whether etcd lets this user set budgets. Writes nothing."""
        key = self.keys.format
        never = [Is(key, None), Is(key, b"")]
        try:
            await self.etcd.write(never, [Put(f"{self.keys.budgets}-", b"")])
        except Denied:
            return False
        return True

    async def _as_host(self, changes: list[Put | Delete], *demands: Is) -> bool:
        """Make changes if this host is still signed in."""
        here = Is(self.keys.host(self.me.name), self._value)
        return await self.etcd.write([here, *demands], changes)

    async def view(
        self, budget: BudgetId, last: View | None = None, *, with_claims: bool = True
    ) -> View:
        """Return a budget at one moment.

        Raises ConnectionLost, NewerSchema, LedgerUnreadable, or FleetRefused if another of its
        values can't be used.

        last: the last view of it; unchanged values aren't sent again. with_claims: read the claims
        too; else they stay as they were in the last view.
        """
        keys, prefixes = self.keys, [self.keys.claims(budget), self.keys.wants(budget)]
        seen = [keys.budget(budget), keys.leader(budget), keys.stamp(budget)]
        names = [*seen, keys.ledger(budget), keys.levels(budget)]  # the stamp speaks for these
        if budget.kind is Kind.TENANT:
            seen.append(keys.budget(EVERY_TENANT))
        known = last.raw if last is not None else {}
        same = [Is(*pair) for pair in known.items()]
        asked = [*names, *({*known, *seen} - {*names})]  # the coordinator's own key, too
        try:
            found = await self.etcd.read(asked, prefixes if with_claims else [], same)
            there, claims_ns = await self._presence.claims_in(found, *prefixes), found.asked_ns
        except (TooMuch, OutcomeUnknown) as error:  # etcd takes longer than it has for 50 MiB
            if not with_claims:
                raise
            view = await self.view(budget, last, with_claims=False)
            what = f"has claims that can't be read: {error.where} {error.what}"
            crowded = FleetRefused(f"etcd {prefixes[0]}", what, TOO_MUCH_MEND)
            return replace(view, claims_ns=view.asked_ns, crowded=crowded)
        if last is not None and not with_claims:
            there, claims_ns = last.claims, last.claims_ns
        if last is not None and found.unless:
            asked_ns, same_too = found.asked_ns, None if with_claims else last.crowded
            return replace(
                last, asked_ns=asked_ns, claims_ns=claims_ns, claims=there, crowded=same_too
            )
        set_to, _, _, raw, levels = (found.values.get(name) for name in names)
        leader, of_leader = await self._presence.leader_in(found, names[1], asked)
        figures = budget_of(names[0], set_to) if set_to is not None else None
        every = found.values.get(seen[-1])
        if figures is None and every is not None and budget.kind is Kind.TENANT:
            figures = budget_of(seen[-1], every)
        view = View(
            found.asked_ns,
            claims_ns,
            figures,
            None,
            there,
            leader,
            {**{name: found.values.get(name) for name in seen}, **of_leader},
            last.crowded if last is not None and not with_claims else None,
        )
        if raw is None:
            return view
        try:
            ledger = ledger_of(names[3], raw)
            if levels is not None:
                ledger = with_levels(ledger, names[4], levels)
        except NewerSchema:
            raise
        except FleetRefused as error:
            raise LedgerUnreadable(error, view) from None
        return replace(view, ledger=ledger)

    async def replace(
        self, budget: BudgetId, found: View, ledger: Ledger, *, as_leader: bool
    ) -> bool:
        """Write a ledger in place of the one that was found, and return whether it was still there.

        as_leader: only if this host coordinates the budget, and the budget is as it was found.
        """
        keys = self.keys
        same = [keys.stamp(budget)]
        if as_leader:
            same += found.raw.keys() & {keys.budget(budget), keys.budget(EVERY_TENANT)}
        demands = [Is(key, found.raw[key]) for key in same]
        if as_leader:
            mine = encoded(LeaderRecord(host=self.me.name))
            demands.append(Is(keys.leader(budget), mine))
        key, levels = keys.levels(budget), levels_value(ledger)
        return await self.etcd.write(
            demands,
            [
                Put(keys.ledger(budget), ledger_value(ledger)),
                Put(key, levels) if levels is not None else Delete(key),
                Put(keys.stamp(budget), stamp_value(ledger)),
            ],
        )

    async def budgets(
        self, some: Collection[BudgetId] | None = None
    ) -> dict[BudgetId, Budget | FleetRefused | None]:
        """Return some budgets, or all: None for one that was removed on purpose.

        For one that can't be used, return the error.
        """
        if some is None:
            found = await self.etcd.read([], [self.keys.budgets])
        else:
            found = await self.etcd.read([self.keys.budget(budget) for budget in some])
        budgets: dict[BudgetId, Budget | FleetRefused | None] = {}
        for key, raw in found.values.items():
            budget = budget_in(key, self.keys.budgets)
            if budget is None:
                continue
            try:
                budgets[budget] = budget_of(key, raw)
            except FleetRefused as error:
                budgets[budget] = error
        return budgets

    async def offices(self, some: Collection[BudgetId] | None = None) -> set[BudgetId]:
        """Return which of some budgets, or of all, this host has to coordinate."""
        if some is None:
            found = await self.etcd.read([], [self.keys.leaders])
        else:
            found = await self.etcd.read([self.keys.leader(budget) for budget in some])
        mine = encoded(LeaderRecord(host=self.me.name))
        held = {
            budget_in(key, self.keys.leaders) for key, raw in found.values.items() if raw == mine
        }
        return {budget for budget in held if budget is not None}

    async def charges(self, some: Collection[BudgetId]) -> set[BudgetId]:
        """Return which of some budgets charge this host a part."""
        keys = {self.keys.ledger(budget): budget for budget in some}
        charged = set()
        for key, raw in (await self.etcd.read([*keys])).values.items():
            with contextlib.suppress(FleetRefused):  # the budget's own steps tell it
                entry = ledger_of(key, raw).entries.get(self.me.name)
                if entry is not None and entry.instance == self.me.instance:
                    charged.add(keys[key])
        return charged


def _no_fleet(prefix: str) -> NoFleet:
    return NoFleet(
        f"etcd {prefix}",
        "holds no fleet yet",
        "see [fleet] etcd and prefix, or begin with `iokeel fleet tenant set`",
    )
