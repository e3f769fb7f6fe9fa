"""The names of the fleet's keys in etcd.

PREFIX/format                          what the prefix holds
PREFIX/hosts/HOST                      a host, under its lease
PREFIX/budgets/KIND/NAME               a budget as an operator has set it; of tenant *, that of each
                                       tenant that has none
PREFIX/ledgers/KIND/NAME               its ledger
PREFIX/levels/KIND/NAME                its levels, if it has any, always written with it
PREFIX/stamps/KIND/NAME                the ledger's stamp, always written with it
PREFIX/leaders/KIND/NAME               the host that coordinates it, under that host's lease
PREFIX/claims/KIND/NAME/HOST           a host's claim on it, under the host's lease
PREFIX/wants/KIND/NAME/HOST            its demands by level, if the claim doesn't tell them
PREFIX/credit/UUID                     burst credit of a guest that has left its host, for a while
PREFIX/rules/HOST                      a digest of a host's rules, under its lease
PREFIX/history/NUMBER                  a change that an operator made, the oldest first
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple
from urllib.parse import quote, unquote

from iokeel.rules.tenants import EVERY


class Kind(Enum):
    """A kind of budget: a TENANT's limit, or the capacity of a shared STORAGE."""

    TENANT = "tenant"
    STORAGE = "storage"


class BudgetId(NamedTuple):
    """A budget's kind and name."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.kind.value} {self.name}"


#: The budget that each tenant without one of its own has, for itself.
EVERY_TENANT = BudgetId(Kind.TENANT, EVERY)


class Keys:
    """The names of keys that begin with a prefix, which ends with a slash."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.format = f"{prefix}format"
        self.hosts = f"{prefix}hosts/"
        self.budgets = f"{prefix}budgets/"
        self.ledgers = f"{prefix}ledgers/"
        self._all_levels = f"{prefix}levels/"
        self.stamps = f"{prefix}stamps/"
        self.leaders = f"{prefix}leaders/"
        self.all_claims = f"{prefix}claims/"
        self._all_wants = f"{prefix}wants/"
        self.rules = f"{prefix}rules/"
        self.history = f"{prefix}history/"

    def credit(self, uuid: str) -> str:
        """Return the key of the burst credit that a guest takes along."""
        return f"{self.prefix}credit/{_quoted(uuid)}"

    def host(self, name: str) -> str:
        return self.hosts + _quoted(name)

    def rules_of(self, name: str) -> str:
        return self.rules + _quoted(name)

    def budget(self, budget: BudgetId) -> str:
        return self.budgets + _path(budget)

    def ledger(self, budget: BudgetId) -> str:
        return self.ledgers + _path(budget)

    def levels(self, budget: BudgetId) -> str:
        return self._all_levels + _path(budget)

    def stamp(self, budget: BudgetId) -> str:
        return self.stamps + _path(budget)

    def leader(self, budget: BudgetId) -> str:
        return self.leaders + _path(budget)

    def claims(self, budget: BudgetId) -> str:
        """Return the prefix of all claims on a budget."""
        return f"{self.all_claims}{_path(budget)}/"

    def claim(self, budget: BudgetId, host: str) -> str:
        return self.claims(budget) + _quoted(host)

    def wants(self, budget: BudgetId, host: str = "") -> str:
        """Return the key of a claim's demands by level; without a host the prefix of all."""
        return f"{self._all_wants}{_path(budget)}/{_quoted(host)}"


def last_part(key: str) -> str:
    """Return the host that a key's last part names."""
    return unquote(key.rpartition("/")[2])


def budget_in(key: str, prefix: str) -> BudgetId | None:
    """Return the budget whose kind and name follow a prefix; None if its kind isn't known."""
    kind, _, rest = key.removeprefix(prefix).partition("/")
    try:
        return BudgetId(Kind(kind), unquote(rest.partition("/")[0]))
    except ValueError:
        return None


def _path(budget: BudgetId) -> str:
    return f"{budget.kind.value}/{_quoted(budget.name)}"


def _quoted(name: str) -> str:
    return quote(name, safe="")
