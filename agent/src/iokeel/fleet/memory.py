"""A host's memory of the fleet over restarts of its agent, on its disk.

A ledger is on the disk when the call that writes it returns, because a claim may then say that it
is in force (iokeel.core.fleet.host). The agent's state file needs no such promise
(iokeel.store.store).
"""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from iokeel.core.fleet.claims import Budget
from iokeel.core.fleet.ledger import Ledger
from iokeel.errors import FleetRefused, IokeelError, NewerSchema, StateNotWritten
from iokeel.fleet.keys import BudgetId, Kind
from iokeel.fleet.records import budget_of, budget_value, ledger_of, ledger_value
from iokeel.store.file import readable, set_aside, told_as_damage
from iokeel.words.quoting import shown_path

log = logging.getLogger(__name__)

FILE = "fleet.db"
_INSTANCE = r"[A-Za-z0-9_-]{1,64}"  # as secrets.token_urlsafe makes it
_TABLES = {Kind.TENANT: "tenants", Kind.STORAGE: "storages"}


class Remembered(NamedTuple):
    """A budget of the fleet as last read, and the last ledger seen, or None."""

    budget: Budget
    ledger: Ledger | None


class Memory:
    """The file `fleet.db` in the agent's state folder.

    instance: tells this host from another one of its name; made with the file. known: the fleet's
    budgets as they are in the file.

    A damaged file is set aside. To the fleet, this host is then a new one, which gets next to
    nothing until an operator answers for the old one. Raises IokeelError if the file can't be made,
    or if a newer iokeel has written it.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE
        self._lock = threading.Lock()
        try:
            self._read()
        except NewerSchema as error:
            raise _newer(self._file, error) from None
        except (sqlite3.DatabaseError, FleetRefused, ValueError) as error:
            if isinstance(error, sqlite3.OperationalError):
                raise self._unusable(error) from None
            log.error(
                "%s: is damaged: %s; to the fleet, this host is a new one, and its guests get next"
                " to nothing until you answer for the old one by `iokeel fleet forget"
                " --off-for-good`",
                self._file,
                shown_path(error),
            )
            self._set_aside()
            try:
                self._read()
            except sqlite3.Error as again:
                raise self._unusable(again) from None

    def _read(self) -> None:
        with told_as_damage():
            self._database = self._open()
            # Damage to an index would show only after a write.
            [[found]] = self._database.execute("PRAGMA integrity_check(1)")
            if found != "ok":
                raise sqlite3.DatabaseError(found.splitlines()[-1])
            self.instance = self._instance()
            self.known: Mapping[BudgetId, Remembered] = _budgets(self._database)

    def _unusable(self, error: Exception) -> IokeelError:
        return IokeelError(
            str(self._file), f"can't be used: {error}", "see that [agent] state_dir can be written"
        )

    def _set_aside(self) -> None:
        with contextlib.suppress(AttributeError):
            self._database.close()
        set_aside(self._file)

    def _open(self) -> sqlite3.Connection:
        # Calls come one at a time, but not all from one thread.
        database = sqlite3.connect(self._file, check_same_thread=False)
        database.text_factory = readable
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")  # each commit is flushed to the disk
        with database:
            database.execute("CREATE TABLE IF NOT EXISTS host (instance TEXT)")
            for table in _TABLES.values():
                database.execute(
                    f"CREATE TABLE IF NOT EXISTS {table}"
                    " (name TEXT PRIMARY KEY, budget BLOB NOT NULL, ledger BLOB)"
                )
        return database

    def _instance(self) -> str:
        with self._database as database:
            row = database.execute("SELECT instance FROM host").fetchone()
            if row is not None:
                if not isinstance(row[0], str) or not re.fullmatch(_INSTANCE, row[0]):
                    raise ValueError("its host has no name that makes sense")
                return row[0]
            instance = secrets.token_urlsafe(12)
            database.execute("INSERT INTO host VALUES (?)", (instance,))
        return instance

    def keep(self, changed: Mapping[BudgetId, Remembered | None]) -> None:
        """Write some budgets, or forget them (None). Raises StateNotWritten."""
        with self._lock:
            try:
                self._write(changed)
            except sqlite3.Error as error:
                raise StateNotWritten(str(self._file), str(error)) from None
            # Another one, because the event loop may go through the old one at this moment.
            after = {**self.known, **changed}
            self.known = {budget: known for budget, known in after.items() if known is not None}

    def _write(self, changed: Mapping[BudgetId, Remembered | None]) -> None:
        with self._database as database:
            for (kind, name), known in changed.items():
                table = _TABLES[kind]
                if known is None:
                    database.execute(f"DELETE FROM {table} WHERE name = ?", (name,))
                    continue
                ledger = None if known.ledger is None else ledger_value(known.ledger)
                database.execute(
                    f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?)",
                    (name, budget_value(known.budget), ledger),
                )

    def close(self) -> None:
        """Close the file."""
        self._database.close()


def check(folder: Path) -> None:
    """Raise IokeelError if a newer iokeel has written the file. An agent may have it open."""
    file = (folder / FILE).resolve()
    # What can't be read is for the agent to judge.
    with (
        contextlib.suppress(sqlite3.Error, FleetRefused, ValueError),
        told_as_damage(),
        contextlib.closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as database,
    ):
        database.text_factory = readable
        try:
            _budgets(database)
        except NewerSchema as error:
            raise _newer(file, error) from None


def _newer(file: Path, error: NewerSchema) -> IokeelError:
    return IokeelError(str(file), error.what, error.mend)


def _budgets(database: sqlite3.Connection) -> dict[BudgetId, Remembered]:
    found = {}
    for kind, table in _TABLES.items():
        # SQLite keeps any type in any column, so in a damaged file they may be others.
        rows = database.execute(
            "SELECT COALESCE(CAST(name AS TEXT), ''), COALESCE(CAST(budget AS BLOB), x''),"
            f" CAST(ledger AS BLOB) FROM {table}"
        ).fetchall()
        for name, budget, ledger in rows:
            budget_id = BudgetId(kind, name)
            known = budget_of(str(budget_id), budget)
            if known is not None:
                seen = None if ledger is None else ledger_of(str(budget_id), ledger)
                found[budget_id] = Remembered(known, seen)
    return found
