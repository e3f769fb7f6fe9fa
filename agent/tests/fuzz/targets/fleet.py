"""The fleet's values in etcd, and the file that a host remembers them in."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from iokeel.core.fleet.claims import Budget, HostClaim
from iokeel.errors import FleetRefused, IokeelError
from iokeel.fleet.keys import BudgetId, Kind
from iokeel.fleet.memory import FILE, Memory, Remembered
from iokeel.fleet.records import (
    budget_of,
    budget_value,
    claim_of,
    claim_value,
    ledger_of,
    ledger_value,
    levels_value,
    wants_in,
    wants_value,
    with_levels,
)
from tests.fuzz.budget import only
from tests.fuzz.targets.target import Target

_WORDS = [
    *(b'"v" "amount" "spans" "hosts" "before" "even_ratio" "instance" "reservation"'.split()),
    *(b'"weight" "wants" "most" "held" "applied" "at-floor" "off-for-good" null'.split()),
    *(b'"load" "learnt" "shared" "latency_target_ms" "least_ratio" "most_ratio"'.split()),
    *(b'"owed" "layers" "tenants" "stamp" "levels"'.split()),
]


def ledger(data: bytes) -> None:
    """A ledger charges each host at least its amount, and is written as it was read.

    So are its levels, if the input has some after a NUL.
    """
    raw, _, levels = data.partition(b"\0")
    with only(FleetRefused):
        found = ledger_of("/iokeel/ledgers/tenant/acme", raw)
        assert all(0 <= e.floor <= e.amount <= e.charged for e in found.entries.values())
        assert ledger_of("", ledger_value(found)) == found
        if levels:
            found = with_levels(found, "/iokeel/levels/tenant/acme", levels)
            assert all(min(told) > 0 for told in found.levels.values())
        if (value := levels_value(found)) is not None:
            assert with_levels(replace(found, levels={}), "", value) == found


def claim(data: bytes) -> None:
    """A claim, its demands by level or a budget is written as it was read."""
    with only(FleetRefused):
        found = claim_of("/iokeel/claims/tenant/acme/a", data)
        assert claim_of("", claim_value(found)) == found
    with only(FleetRefused):
        wants = wants_in("/iokeel/wants/tenant/acme/a", data)
        value = wants_value(HostClaim("i", 1, 2, wants, 4, 5))
        assert value is None or wants_in("", value) == wants
    with only(FleetRefused):
        budget = budget_of("/iokeel/budgets/tenant/acme", data)
        assert budget_of("", budget_value(budget)) == budget


def memory(data: bytes) -> None:
    """A file is read, set aside or refused, and one that isn't refused can be written.

    The input is a database, or a budget, a ledger and a host's instance in one, each after a NUL.
    """
    with TemporaryDirectory(dir=_FOLDER.name) as name, only(IokeelError):
        folder = Path(name)
        if data.startswith(b"SQLite"):
            (folder / FILE).write_bytes(data)
        else:
            _write_rows(folder, *[*data.split(b"\0", 2), b"", b""][:3])
        found = Memory(folder)
        assert re.fullmatch("[A-Za-z0-9_-]{1,64}", found.instance)
        found.keep({_ACME: Remembered(_BUDGET, None)})
        found.close()
        again = Memory(folder)
        assert (again.instance, again.known) == (found.instance, found.known)
        again.close()


def _write_rows(folder: Path, budget: bytes, ledger: bytes, instance: bytes) -> None:
    Memory(folder).close()
    with sqlite3.connect(folder / FILE) as database:
        database.execute("UPDATE host SET instance = CAST(? AS TEXT)", [instance])
        for table in ("tenants", "storages"):
            row = f"INSERT INTO {table} VALUES ('umbra', ?, ?)"
            database.execute(row, [budget, ledger or None])
    database.close()


_FOLDER = TemporaryDirectory(prefix="iokeel-fuzz-", dir="/dev/shm")  # no waits for syncs
_ACME, _BUDGET = BudgetId(Kind.TENANT, "acme"), Budget(4000, 0.2, 100, 300)

TARGETS = [
    Target("ledger", ledger, 1 << 14, _WORDS),
    Target("claim", claim, 1 << 12, _WORDS),
    Target("memory", memory, 1 << 16, _WORDS),
]
