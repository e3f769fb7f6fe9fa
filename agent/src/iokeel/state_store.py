"""Keeps the agent's orders over its restarts, so that it knows its own limits again."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from iokeel.config.last_good import TableId, tables_to_save, with_last_good
from iokeel.config.settings import Config
from iokeel.core.counters import DriveId
from iokeel.core.curve import CostCurve
from iokeel.core.drive.mix import Mix
from iokeel.core.limits import UNLIMITED, ThrottleLimits
from iokeel.core.policy import MOST_BURST_SECONDS, DrivePolicy, checked
from iokeel.core.state import Credit, DriveState, Pricing, Sent, VmPart
from iokeel.errors import ConfigError, CurveError, IokeelError, PolicyError
from iokeel.words.quoting import shown_path

log = logging.getLogger(__name__)

_CURVES = {"cost_read", "cost_write"}
_LEAST = {"idle_credit_ms": 0}  # of any other number it is 1


def _select(table: str, *columns: str) -> str:
    """Return a query of a table's columns as texts.

    SQLite keeps any type in any column, so in a damaged file one row may differ from the others.
    """
    texts = ", ".join(f"COALESCE(CAST({column} AS TEXT), '')" for column in columns)
    return f"SELECT {texts} FROM {table}"


_DRIVES = _select("drives", "domain", "target", "state")
_CGROUPS = _select("cgroups", "path", "state")
_TABLES = _select("tables", "kind", "name", "text")
# Raised by text that the agent didn't write.
_NOT_OURS = (msgspec.DecodeError, ValueError, TypeError, CurveError, PolicyError)


class StateStore:
    """The agent's state folder: `state.db`, and `lock` that one agent holds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "state.db"
        self._database: sqlite3.Connection | None = None
        self._saved: dict[DriveId, _Kept | None] = {}  # None: as it was found
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for one agent. Raises ConfigError if another has it."""
        path = self._folder / "lock"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = path.open("w")
        except OSError as error:
            raise ConfigError(
                str(path), error.strerror or str(error), "give the agent a state_dir of its own"
            ) from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    str(path), "another agent runs with this state_dir", "stop it first"
                ) from None
            try:
                yield
            finally:
                self._close()

    def load(self) -> dict[DriveId, DriveState]:
        """Return the saved states; none, and a line in the log, if they can't be used."""
        rows = self._read(_DRIVES)
        known = {}
        for domain, target, text in rows:
            drive = DriveId(domain, target)
            self._saved[drive] = None
            try:
                known[drive] = _state(text)
            except _NOT_OURS as error:
                self._cant_use(f"{drive}: {type(error).__name__}: {error}")
        return known

    def _read(self, query: str) -> list[tuple[str, str, str]]:
        """Return the rows of a query; none, and a line in the log, if they can't be read."""
        try:
            with self._using() as database:
                return database.execute(query).fetchall()
        except sqlite3.Error as error:
            self._cant_use(str(error))
            if not isinstance(error, sqlite3.OperationalError):  # it is damaged, not out of reach
                self._set_aside()
            return []

    def _cant_use(self, why: str) -> None:
        log.warning(
            "%s: can't be used (%s); limits now in force count as set by hand",
            self._file,
            shown_path(why),
        )

    def _set_aside(self) -> None:
        """Rename a damaged database, so that a new one can be written."""
        self._close()
        with contextlib.suppress(OSError):
            self._file.rename(self._file.with_suffix(".damaged"))
            for part in ("wal", "shm"):
                self._file.with_name(f"{self._file.name}-{part}").unlink(missing_ok=True)

    def save(self, drives: Mapping[DriveId, DriveState], *, whole: bool = False) -> None:
        """Write the changes of some drives in one step. whole: they are all the drives there are.

        Raises IokeelError; the states saved before are then still there.
        """
        new = {
            drive: _kept(known) for drive, known in drives.items() if known.sent.limits is not None
        }
        changed = {drive: kept for drive, kept in new.items() if self._saved.get(drive) != kept}
        gone = self._saved.keys() - new.keys() if whole else set()
        if not changed and not gone:
            return
        try:
            with self._using() as database:
                database.executemany(
                    "INSERT OR REPLACE INTO drives VALUES (?, ?, ?)",
                    [(*drive, _text(kept)) for drive, kept in changed.items()],
                )
                database.executemany("DELETE FROM drives WHERE domain = ? AND target = ?", [*gone])
        except sqlite3.Error as error:
            raise IokeelError(
                str(self._file),
                f"can't be written: {error}",
                "free some space; until then a restart forgets credit and what was set",
            ) from None
        self._saved |= changed
        for drive in gone:
            del self._saved[drive]

    def keep_tables(self, config: Config) -> Config:
        """Save a configuration's tables, and return it with the last good ones that it lacks.

        Nothing that fails here stops the agent; the log says so.
        """
        rows = self._read(_TABLES)
        kept, unusable = with_last_good(
            config, {TableId(kind, name): text for kind, name, text in rows}
        )
        for why in unusable:
            self._cant_use(why)
        changed = tables_to_save(config)
        try:
            with self._using() as database:
                database.executemany(
                    "DELETE FROM tables WHERE kind = ? AND name = ?", [*changed.keys()]
                )
                database.executemany(
                    "INSERT INTO tables VALUES (?, ?, ?)",
                    [(*table, text) for table, text in changed.items() if text is not None],
                )
        except sqlite3.Error as error:
            log.error(
                "%s: can't be written: %s; free some space; until then a restart forgets tenants"
                " and storages that go from the configuration",
                self._file,
                error,
            )
        return kept

    def load_cgroups(self) -> dict[str, str]:
        """Return the saved texts of cgroups, by path; none if they can't be read."""
        try:
            with self._using() as database:
                return dict(database.execute(_CGROUPS).fetchall())
        except sqlite3.Error as error:
            log.warning("%s: can't be read (%s); cgroups stay as they are", self._file, error)
            return {}

    def save_cgroups(self, changed: Mapping[str, str | None]) -> None:
        """Write changed texts of cgroups, by path, in one step; None forgets one.

        Raises IokeelError; the texts saved before are then still there.
        """
        kept = [(path, text) for path, text in changed.items() if text is not None]
        gone = [(path,) for path, text in changed.items() if text is None]
        try:
            with self._using() as database:
                database.executemany("INSERT OR REPLACE INTO cgroups VALUES (?, ?)", kept)
                database.executemany("DELETE FROM cgroups WHERE path = ?", gone)
        except sqlite3.Error as error:
            raise IokeelError(
                str(self._file),
                f"can't be written: {error}",
                "free some space; until then a restart can't put cgroups back as they were",
            ) from None

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    @contextlib.contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction. Raises sqlite3.Error."""
        try:
            with self._lock, self._open() as database:
                yield database
        except (MemoryError, UnicodeDecodeError):
            # A damaged length is too large, or SQLite's message names an object that isn't UTF-8.
            raise sqlite3.DatabaseError("its schema is damaged") from None

    def _open(self) -> sqlite3.Connection:
        if self._database is None:
            # Calls come one at a time, but not all from one thread.
            database = sqlite3.connect(self._file, check_same_thread=False)
            database.text_factory = _text_of
            try:
                # Limits end with the host, so the file only has to outlive the agent. That needs no
                # flush to disk, which would cost more than all the rest.
                database.execute("PRAGMA journal_mode = WAL")
                database.execute("PRAGMA synchronous = NORMAL")
                database.execute(
                    "CREATE TABLE IF NOT EXISTS drives"
                    " (domain TEXT, target TEXT, state TEXT, PRIMARY KEY (domain, target))"
                )
                database.execute(
                    "CREATE TABLE IF NOT EXISTS cgroups (path TEXT PRIMARY KEY, state TEXT)"
                )
                database.execute(
                    "CREATE TABLE IF NOT EXISTS tables"
                    " (kind TEXT, name TEXT, text TEXT, PRIMARY KEY (kind, name))"
                )
            except BaseException:
                database.close()
                raise
            self._database = database
        return self._database


def _text_of(raw: bytes) -> str:
    """Return a text of the database. If it isn't UTF-8, only its own row is damaged."""
    return raw.decode(errors="replace")


class _Kept(NamedTuple):
    """The part of a drive's state that is saved."""

    policy: DrivePolicy | None
    tenant: str | None
    storage: str | None
    sent: ThrottleLimits | None
    replaced: ThrottleLimits | None
    found: ThrottleLimits | None
    credit_seconds: int
    credit_open: bool
    granted_seconds: float
    priced_for: Mix | None
    vm: VmPart | None


def _kept(known: DriveState) -> _Kept:
    return _Kept(
        known.policy,
        known.tenant,
        known.storage,
        known.sent.limits,
        known.sent.replaced,
        known.sent.found,
        round(known.credit.seconds),
        known.credit.open,
        known.sent.credit_s,
        known.pricing.mix,
        None if known.vm is None else known.vm._replace(credit=_whole(known.vm.credit)),
    )


def _whole(credit: Credit) -> Credit:
    """Return a credit in whole seconds, because each change is written."""
    return credit._replace(seconds=float(round(credit.seconds)))


#: A curve's points, or a number.
_Value = int | list[tuple[int, float]]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=MOST_BURST_SECONDS)]


class _Row(msgspec.Struct):
    """The same as JSON: limits by field, without those that are None."""

    sent: dict[str, _Value]
    replaced: dict[str, _Value] | None
    found: dict[str, _Value] | None
    credit_seconds: _Seconds
    credit_open: bool
    granted_seconds: _Seconds
    priced_for: Mix | None
    policy: DrivePolicy | None = None  # a row of an older version has none
    tenant: str | None = None
    storage: str | None = None
    vm: VmPart | None = None


_ROWS = msgspec.json.Decoder(_Row)


def _text(kept: _Kept) -> str:
    row = _Row(
        _values(kept.sent) or {},
        _values(kept.replaced),
        _values(kept.found),
        kept.credit_seconds,
        kept.credit_open,
        kept.granted_seconds,
        kept.priced_for,
        kept.policy,
        kept.tenant,
        kept.storage,
        kept.vm,
    )
    return msgspec.json.encode(row).decode()


def _state(text: str) -> DriveState:
    row = _ROWS.decode(text)
    if row.policy is not None:
        checked(row.policy, "the saved policy")
    if row.vm is not None:
        checked(row.vm.policy, "the saved policy of the VM")
    return DriveState(
        policy=row.policy,
        storage=row.storage,
        tenant=row.tenant,
        credit=Credit(row.credit_seconds, row.credit_open),
        pricing=Pricing(mix=row.priced_for),
        sent=Sent(
            limits=_limits(row.sent),
            replaced=_limits(row.replaced),
            found=_limits(row.found),
            credit_s=row.granted_seconds,
        ),
        vm=row.vm,
    )


def _values(limits: ThrottleLimits | None) -> dict[str, _Value] | None:
    if limits is None:
        return None
    return {
        name: list(value.points) if isinstance(value, CostCurve) else value
        for name, value in zip(limits._fields, limits, strict=True)
        if value is not None
    }


def _limits(values: Mapping[str, _Value] | None) -> ThrottleLimits | None:
    if values is None:
        return None
    numbers = {name: n for name, n in values.items() if isinstance(n, int)}
    curves = {name: CostCurve(tuple(n)) for name, n in values.items() if isinstance(n, list)}
    if any(n < _LEAST.get(name, 1) for name, n in numbers.items()) or curves.keys() - _CURVES:
        raise ValueError(f"limits {values}")
    limits = UNLIMITED.with_fields(numbers)
    return limits._replace(cost_read=curves.get("cost_read"), cost_write=curves.get("cost_write"))
