"""Keeps the agent's orders and VMs' policies over its restarts, so that it knows them again."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Generic, TypeVar

from pydantic import TypeAdapter

from iokeel.config.last import TableId, tables_to_save, with_last_good
from iokeel.config.settings import Config, VmConfig
from iokeel.config.tables import Socket
from iokeel.core.values.counters import DriveId
from iokeel.core.values.policy import LastGood
from iokeel.core.values.state import DriveState, StorageState
from iokeel.core.values.storage import StorageId
from iokeel.errors import ConfigError, StateNotWritten
from iokeel.host.process import ENDED, Process, boot_id
from iokeel.store.file import damaged, keep_for_later, later, readable, set_aside, told_as_damage
from iokeel.store.rows import (
    NOT_OURS,
    About,
    Kept,
    Qemu,
    about_of,
    drive_text,
    kept_of,
    policy_of,
    policy_text,
    state_of,
    storage_of,
    storage_text,
    version_of,
)
from iokeel.words.quoting import shown_path

log = logging.getLogger(__name__)

_Statement = tuple[str, Sequence[tuple[str, ...]]]
T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

#: The version of the tables and rows, as PRAGMA user_version; files from before it have 0. It only
#: grows if an older agent can't go on with the file. It can if tables, columns with a default and
#: fields (rows.py) are added, and if what changes its meaning gets a new name, because it
#: ignores what it doesn't know. Rows that it would misread stand in tables of a version of their
#: own (drives_2). Of a file with a later version, it takes the rows that it can read
#: into a new one. A later version has to be in the file itself (a checkpoint), not only in its log,
#: for `check` to see it.
VERSION = 1
_LATER = f"a later iokeel wrote it: it has version {{}}, and this one knows {VERSION}"
_VERSION_AT = slice(60, 64)  # https://www.sqlite.org/fileformat.html#the_database_header

# The file for shared memory can't be made, or the log can't grow.
_NO_SPACE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
_RESERVE_BYTES = 256 << 10  # for the changes of a thousand drives, at some 200 bytes each
# In memory, so that it can be written whatever happens to disks.
_COPIES = "/dev/shm"
_SOCKET = TypeAdapter(Socket)


# What is lost until drives' states can be written.
_WITHOUT = "a restart forgets credit and what was set"


def _select(table: str, *columns: str) -> str:
    """Return a query of a table's columns as texts.

    SQLite keeps any type in any column, so in a damaged file one row may differ from the others.
    """
    texts = ", ".join(f"COALESCE(CAST({column} AS TEXT), '')" for column in columns)
    return f"SELECT {texts} FROM {table}"


_DRIVES = _select("drives", "domain", "target", "state")
_CGROUPS = _select("cgroups", "path", "state")
_POLICIES = _select("policies", "domain", "text")
_STORAGES = _select("storages", "name", "text")
_DRIVES_2 = _select("drives_2", "domain", "target", "state")
_POLICIES_2 = _select("policies_2", "domain", "text")
_LEAVING = _select("leaving", "name", "socket")
_TABLES = f"{_select('tables', 'kind', 'name', 'text')} ORDER BY rowid"  # the latest last
_SCHEMA = (
    "drives (domain TEXT, target TEXT, state TEXT, PRIMARY KEY (domain, target))",
    "drives_2 (domain TEXT, target TEXT, state TEXT, PRIMARY KEY (domain, target))",
    "cgroups (path TEXT PRIMARY KEY, state TEXT)",
    "policies (domain TEXT PRIMARY KEY, text TEXT)",
    "policies_2 (domain TEXT PRIMARY KEY, text TEXT)",
    "storages (name TEXT PRIMARY KEY, text TEXT)",
    "leaving (name TEXT PRIMARY KEY, socket TEXT)",
    "tables (kind TEXT, name TEXT, text TEXT, PRIMARY KEY (kind, name))",
)
_HAND = "limits in force now count as set by hand"
_UNREAD = "the VM's policy counts only once it can be read again"
# What follows if a row of what these queries read can't be used.
_LOST = {
    _DRIVES: _HAND,
    _DRIVES_2: _HAND,
    _CGROUPS: "cgroups keep what they have now",
    _POLICIES: _UNREAD,
    _POLICIES_2: _UNREAD,
    _STORAGES: "what the storage has taught is forgotten",
    _LEAVING: "the VM's drives keep the limits that they have",
    _TABLES: "what it said holds no longer",
}


def _put(table: str, *columns: str) -> str:
    """Return a statement that writes a row of a table."""
    marks = ", ".join("?" * len(columns))
    return f"INSERT OR REPLACE INTO {table} ({', '.join(columns)}) VALUES ({marks})"


# The statements that write what these queries read.
_PUT = {
    _DRIVES: _put("drives", "domain", "target", "state"),
    _DRIVES_2: _put("drives_2", "domain", "target", "state"),
    _CGROUPS: _put("cgroups", "path", "state"),
    _POLICIES: _put("policies", "domain", "text"),
    _POLICIES_2: _put("policies_2", "domain", "text"),
    _STORAGES: _put("storages", "name", "text"),
    _LEAVING: _put("leaving", "name", "socket"),
    _TABLES: _put("tables", "kind", "name", "text"),
}


_DRIVE, _DOMAIN = "WHERE domain = ? AND target = ?", "WHERE domain = ?"
# By the rows' version: the query that reads them, and the statement that deletes one.
_OF_DRIVES = {
    1: (_DRIVES, f"DELETE FROM drives {_DRIVE}"),
    2: (_DRIVES_2, f"DELETE FROM drives_2 {_DRIVE}"),
}
_OF_POLICIES = {
    1: (_POLICIES, f"DELETE FROM policies {_DOMAIN}"),
    2: (_POLICIES_2, f"DELETE FROM policies_2 {_DOMAIN}"),
}


class _LaterVersion(sqlite3.DatabaseError):
    """A later iokeel wrote the file."""


@dataclass(frozen=True, slots=True)
class _Changes(Generic[K, V]):
    """The rows of a table that differ from those saved, by key, and the keys to delete."""

    new: Mapping[K, V]
    gone: Collection[K]

    @classmethod
    def of(
        cls, saved: Mapping[K, V | None], now: Mapping[K, V], *, whole: bool = True
    ) -> _Changes[K, V]:
        """whole: all others are gone."""
        new = {
            key: row
            for key, row in now.items()
            if (old := saved.get(key)) is not row and old != row
        }
        return cls(new, saved.keys() - now.keys() if whole else ())

    def __bool__(self) -> bool:
        return bool(self.new or self.gone)

    def note(self, saved: dict[K, V | None]) -> None:
        """Take them over into what is saved."""
        saved.update(self.new)
        for key in self.gone:
            del saved[key]


def _of_versions(
    versions: Mapping[int, tuple[str, str]],
    rows: Sequence[tuple[int, tuple[str, ...]]],
    gone: Collection[tuple[str, ...]],
) -> Iterator[_Statement]:
    """Yield the statements that write rows, each into the table of its version and no other.

    rows: each with its version; their text is last. gone: the keys of rows to delete.
    """
    for version, (query, delete) in versions.items():
        yield delete, [*gone, *(row[:-1] for of, row in rows if of != version)]
        yield _PUT[query], [row for of, row in rows if of == version]


def _of_tables(tables: Mapping[TableId, str | None]) -> tuple[_Statement, _Statement]:
    """Return the statements that write tables of the configuration. None: an empty one."""
    full = [(*table, text) for table, text in tables.items() if text is not None]
    return (
        ("DELETE FROM tables WHERE kind = ? AND name = ?", [*tables]),
        (_PUT[_TABLES], full),
    )


def _readable(rows: Callable[[str], list[tuple[str, ...]]]) -> Iterator[_Statement]:
    """Yield the statements that write what can be read of a database. rows: those of a query."""
    for query, put in _PUT.items():
        with contextlib.suppress(sqlite3.Error, OSError):
            yield put, rows(query)


class StateStore:
    """The agent's state folder: `state.db`, and `lock` that one agent holds.

    A full disk must not keep a policy from being saved: a restart would go back to the one before.
    So `reserve` keeps some space, which is given up when there is no other. On a filesystem that
    has become read-only, an agent still starts with what was saved, because new guests need limits.

    policies: the last good policy of each VM that may have a bad one next, by UUID; by name if an
    older version saved none, and by socket if [[discover]] finds it. leaving: the VMs at sockets
    that have gone from the configuration, but couldn't be left, by name; after `load`, all that the
    agent before has served or couldn't leave. sockets: of the VMs that are reached by those, by
    name. processes: the QEMUs that drives' states are about, by VM; after `load`, ENDED for one of
    an earlier boot. uuids: of the VMs that they are about, by name. `load` fills all but the
    sockets, and each `save` writes the changes of all. strict: what can't be used raises
    ConfigError and stays as it is. Else it counts as empty, because new guests need limits.
    """

    def __init__(self, folder: Path, *, strict: bool = False) -> None:
        self._folder = folder
        self._strict = strict
        self._file = folder / "state.db"
        self._reserve = folder / "reserve"
        self.policies: dict[str, LastGood] = {}
        self.leaving: dict[str, VmConfig] = {}
        self.sockets: dict[str, str] = {}
        self.processes: dict[str, Process] = {}
        self.uuids: dict[str, str] = {}
        self._boot = boot_id()
        self._locked = False
        self._database: sqlite3.Connection | None = None
        self._saved: dict[DriveId, Kept | None] = {}  # None: as it was found
        self._saved_policies: dict[str, LastGood | None] = {}
        self._saved_storages: dict[str, str | None] = {}
        self._saved_leaving: dict[str, str | None] = {}
        self._cgroups: dict[str, str] = {}
        self._tables: dict[TableId, str | None] = {}  # as a running agent has them; None: empty
        self._saved_tables = self._tables
        self._lock = threading.RLock()
        self._reads_later = False  # a copy of a file that a later iokeel wrote

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for one agent. Raises ConfigError if another has it."""
        with self._lock_file() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    file.name, "another agent runs with this state_dir", "stop it first"
                ) from None
            self._locked = True
            try:
                yield
            finally:
                self._close()
                self._locked = False

    def _lock_file(self) -> IO[str]:
        """Return the open file of the lock. Raises ConfigError."""
        path = self._folder / "lock"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            return path.open("w")
        except OSError as error:
            if error.errno == errno.EROFS:
                with contextlib.suppress(OSError):
                    return path.open()  # an earlier agent's
            raise ConfigError(
                str(path),
                error.strerror or str(error),
                "let the agent write it, or set another state_dir",
            ) from None

    def check(self) -> None:
        """Raise ConfigError if a later iokeel wrote the file. An agent may have it open."""
        try:
            with self._file.open("rb") as file:
                version = int.from_bytes(file.read(_VERSION_AT.stop)[_VERSION_AT])
        except OSError:
            return
        if version > VERSION:
            raise ConfigError(
                str(self._file),
                _LATER.format(version),
                "install that iokeel again, or stop the agent first: this one then takes what it"
                f" can read, and {later(self._file).name} keeps the rest",
            )

    def load(self) -> dict[DriveId, DriveState]:
        """Return the saved states; none, and a line in the log, if they can't be used."""
        # An older agent wrote those of version 1 last, if both have a row.
        rows = [*self._read(_DRIVES_2), *self._read(_DRIVES)]
        known = {}
        self.processes.clear()
        self.uuids.clear()
        for domain, target, text in rows:
            drive = DriveId(domain, target)
            self._saved[drive] = None
            try:
                known[drive] = state_of(text)
                self._note(domain, about_of(text))
            except NOT_OURS as error:
                self._cant_use(_DRIVES, f"{drive}: {type(error).__name__}: {error}")
        self.policies.clear()
        for domain, text in [*self._read(_POLICIES_2), *self._read(_POLICIES)]:
            self._saved_policies[domain] = None
            try:
                last = self._saved_policies[domain] = policy_of(text)
            except NOT_OURS as error:
                self._cant_use(_POLICIES, f"{domain}: {type(error).__name__}: {error}")
            else:  # a row of an older version is by name
                self.policies[last.uuid or domain] = last
        self.leaving.clear()
        for name, text in self._read(_LEAVING):
            self._saved_leaving[name] = None
            try:
                # By turns, because it isn't known whether the socket has another owner.
                socket = _SOCKET.validate_python(text)
                self.leaving[name] = VmConfig(name, socket, shared=True)
            except NOT_OURS as error:
                self._cant_use(_LEAVING, f"{name}: {type(error).__name__}: {error}")
            else:
                self._saved_leaving[name] = text
        return known

    def _note(self, domain: str, about: About) -> None:
        """Note which VM and QEMU a row is about; the later QEMU if drives have several."""
        if about.uuid is not None:
            self.uuids[domain] = about.uuid
        if (qemu := about.qemu) is not None:
            process = qemu.process if qemu.boot == self._boot else ENDED
            last = self.processes.get(domain, process)
            self.processes[domain] = max(last, process, key=lambda each: each.started)

    def load_storages(self) -> dict[StorageId, StorageState]:
        """Return what storages have taught; none, and a line in the log, if that can't be used."""
        known = {}
        for name, text in self._read(_STORAGES):
            self._saved_storages[name] = None
            try:
                known[name] = storage_of(text)
            except NOT_OURS as error:
                self._cant_use(_STORAGES, f"storage {name}: {type(error).__name__}: {error}")
            else:
                self._saved_storages[name] = text
        return known

    def _read(self, query: str) -> list[tuple[str, ...]]:
        """Return the rows of a query; none, and a line in the log, if they can't be read."""
        try:
            if self._is_read_only():
                return self._rows_of_a_copy(query)
            try:
                return self._with_room(lambda: self._rows(query))
            except _LaterVersion as error:
                if self._strict:
                    raise
                self._keep_for_later(error)
                return self._with_room(lambda: self._rows(query))
        except (sqlite3.Error, OSError) as error:
            self._cant_use(query, str(error))
            # Else it is out of reach, and not damaged.
            if not isinstance(error, (sqlite3.OperationalError, OSError)):
                self._set_aside()
            return []

    def _is_read_only(self) -> bool:
        try:
            return bool(os.statvfs(self._folder).f_flag & os.ST_RDONLY)
        except OSError:  # it is gone, say
            return False

    def _rows_of_a_copy(self, query: str) -> list[tuple[str, ...]]:
        """Return the rows of a query from a copy: SQLite can't read its log without writing."""
        where = _COPIES if os.access(_COPIES, os.W_OK) else None
        with TemporaryDirectory(prefix="iokeel-", dir=where) as folder:
            for file in (self._file, self._file.with_name(f"{self._file.name}-wal")):
                with contextlib.suppress(FileNotFoundError):
                    shutil.copy(file, folder)
            copy = StateStore(Path(folder))
            copy._reads_later = not self._strict
            try:
                return copy._rows(query)
            finally:
                copy._close()

    def _rows(self, query: str) -> list[tuple[str, ...]]:
        with self._using() as database:
            return database.execute(query).fetchall()

    def _cant_use(self, query: str, why: str) -> None:
        if self._strict:
            raise ConfigError(
                str(self._file),
                f"can't be used ({shown_path(why)}), so nobody knows what guests had before",
                "set what drives should have (`virsh blkdeviotune`), move the file away, and try"
                " again",
            )
        log.warning("%s: can't be used (%s); %s", self._file, shown_path(why), _LOST[query])

    def _set_aside(self) -> None:
        """Rename a damaged database, and write a new one with what can be read of it.

        Cgroups and tables are as they are known. The next save of all drives adds the rest.
        """
        with self._lock:
            left = [*_readable(self._rows), (_PUT[_CGROUPS], [*self._cgroups.items()])]
            self._close()
            self._saved = dict.fromkeys(self._saved)
            self._saved_policies = dict.fromkeys(self._saved_policies)
            self._saved_storages = dict.fromkeys(self._saved_storages)
            self._saved_leaving = dict.fromkeys(self._saved_leaving)
            set_aside(self._file)
            self._begin(*left, *_of_tables(self._tables))

    def _keep_for_later(self, error: _LaterVersion) -> None:
        """Rename a database that a later iokeel wrote, and write a new one with what can be read.

        Before anything else is done with it.
        """
        with self._lock:
            left = [*_readable(self._rows_of_a_copy)]
            self._close()
            log.warning(
                "%s: %s; what this one can read of it counts, and %s keeps the rest for that one",
                *(self._file, error, later(self._file)),
            )
            keep_for_later(self._file)
            self._begin(*left)

    def _begin(self, *statements: _Statement) -> None:
        """Write a new database. What fails is told."""
        try:
            self._write(*statements)
        except sqlite3.Error as error:
            log.error("%s", self._not_written(error, _WITHOUT))

    def save(
        self,
        drives: Mapping[DriveId, DriveState],
        storages: Mapping[StorageId, StorageState] | None = None,
        *,
        whole: bool = False,
        exact: bool = False,
    ) -> bool:
        """Write the changes of some drives, of storages, policies and tables, in one step.

        storages: all; None leaves those that are saved. whole: they are all the drives there are.
        exact: credit to the second (rows.py). Returns False if there is no change.

        Raises StateNotWritten; the states saved before are then still there.
        """
        with self._lock:  # so that the last call is what stays
            return self._save(drives, storages, whole=whole, exact=exact)

    def _save(
        self,
        drives: Mapping[DriveId, DriveState],
        storages: Mapping[StorageId, StorageState] | None,
        *,
        whole: bool,
        exact: bool,
    ) -> bool:
        sent = {
            drive: self._kept_of(drive.domain, known, exact)
            for drive, known in drives.items()
            if known.sent.limits is not None
        }
        texts = {name: storage_text(known) for name, known in (storages or {}).items()}
        taught = {name: text for name, text in texts.items() if text is not None}
        of_drives = _Changes.of(self._saved, sent, whole=whole)
        of_policies = _Changes.of(self._saved_policies, dict(self.policies))
        of_storages = _Changes.of(self._saved_storages, taught, whole=storages is not None)
        sockets = self.sockets | {vm.name: str(vm.socket) for vm in [*self.leaving.values()]}
        of_leaving = _Changes.of(self._saved_leaving, sockets)
        tables = self._tables  # a reload has others
        of_tables = _of_tables(tables) if tables is not self._saved_tables else ()
        if not (of_drives or of_policies or of_storages or of_leaving or of_tables):
            return False
        try:
            self._write(
                *_of_versions(
                    _OF_DRIVES,
                    [
                        (kept.version, (*drive, drive_text(kept)))
                        for drive, kept in of_drives.new.items()
                    ],
                    of_drives.gone,
                ),
                *_of_versions(
                    _OF_POLICIES,
                    [
                        (version_of(last), (domain, policy_text(last)))
                        for domain, last in of_policies.new.items()
                    ],
                    [(domain,) for domain in of_policies.gone],
                ),
                (_PUT[_STORAGES], [*of_storages.new.items()]),
                ("DELETE FROM storages WHERE name = ?", [(name,) for name in of_storages.gone]),
                (_PUT[_LEAVING], [*of_leaving.new.items()]),
                ("DELETE FROM leaving WHERE name = ?", [(name,) for name in of_leaving.gone]),
                *of_tables,
            )
        except sqlite3.Error as error:
            raise self._failed(error, _WITHOUT) from None
        of_drives.note(self._saved)
        of_policies.note(self._saved_policies)
        of_storages.note(self._saved_storages)
        of_leaving.note(self._saved_leaving)
        self._saved_tables = tables
        return True

    def _kept_of(self, domain: str, known: DriveState, exact: bool) -> Kept:
        process, uuid = self.processes.get(domain), self.uuids.get(domain)
        qemu = None if process is None else Qemu(process, self._boot)
        version = version_of(self.policies.get(uuid or domain))
        return kept_of(known, qemu, uuid, version, exact=exact)

    def keep_tables(self, config: Config) -> Config:
        """Save a configuration's tables, and return it with the last good ones that it lacks.

        Nothing that fails here stops the agent; the log says so.
        """
        self._tables = {TableId(kind, name): text for kind, name, text in self._read(_TABLES)}
        kept = self.with_tables(config)
        try:
            self._write(*_of_tables(self._tables))
        except sqlite3.Error as error:
            without = "a restart forgets tenants and storages that go from the configuration"
            log.error("%s", self._not_written(error, without))
        else:
            self._saved_tables = self._tables
        return kept

    def with_tables(self, config: Config) -> Config:
        """Return what keep_tables does, for a running agent: the next `save` writes the tables."""
        last, now = self._tables, tables_to_save(config)
        kept, unusable = with_last_good(
            config, {table: text for table, text in last.items() if text is not None}
        )
        for why in unusable:
            self._cant_use(_TABLES, why)
        self._tables = {table: text for table, text in last.items() if table not in now} | now
        return kept

    def load_cgroups(self) -> dict[str, str]:
        """Return the saved texts of cgroups, by path; none if they can't be read."""
        self._cgroups = {path: text for path, text in self._read(_CGROUPS)}
        return dict(self._cgroups)

    def save_cgroups(self, changed: Mapping[str, str | None]) -> None:
        """Write changed texts of cgroups, by path, in one step; None forgets one.

        Raises StateNotWritten; the texts saved before are then still there.
        """
        kept = [(path, text) for path, text in changed.items() if text is not None]
        gone = [(path,) for path, text in changed.items() if text is None]
        others = {path: text for path, text in self._cgroups.items() if path not in changed}
        self._cgroups = others | dict(kept)
        try:
            self._write(
                (_PUT[_CGROUPS], kept),
                ("DELETE FROM cgroups WHERE path = ?", gone),
            )
        except sqlite3.Error as error:
            without = "a restart can't put cgroups back as they were"
            raise self._failed(error, without) from None

    def hangs(self) -> StateNotWritten:
        """Return the error of a write that doesn't end."""
        why, mend = "its disk doesn't answer", "see what holds the disk up"
        return StateNotWritten(str(self._file), why, _WITHOUT, mend)

    def _failed(self, error: sqlite3.Error, without: str) -> StateNotWritten:
        """Return the error of a failed save. A damaged file is set aside, for the next one."""
        if self._strict or type(error) is not sqlite3.DatabaseError:
            return self._not_written(error, without)
        self._set_aside()
        why = f"{error}; it was set aside as {damaged(self._file).name}"
        mend = "a new one is written within seconds; see what damaged it"
        return StateNotWritten(str(self._file), why, mend=mend)

    def _not_written(self, error: sqlite3.Error, without: str) -> StateNotWritten:
        """Return the error of a failed write. without: what is lost until it can be written."""
        reason = os.strerror(errno.EROFS) if self._is_read_only() else str(error)
        return StateNotWritten(str(self._file), reason, without)

    def _write(self, *statements: _Statement) -> None:
        """Carry out statements in one step, each with all its rows. Raises sqlite3.Error."""
        with self._lock:
            self._with_room(lambda: self._carry_out(statements))
            self._keep_a_reserve()

    def _carry_out(self, statements: Iterable[_Statement]) -> None:
        with self._using() as database:
            for statement, rows in statements:
                database.executemany(statement, rows)

    def _with_room(self, work: Callable[[], T]) -> T:
        """Do something with the database; on a full disk once more, without reserve and log."""
        try:
            return work()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _NO_SPACE:
                raise
        with self._lock:
            with contextlib.suppress(OSError):
                self._reserve.unlink(missing_ok=True)
            self._close()
            return work()

    def _keep_a_reserve(self) -> None:
        with contextlib.suppress(OSError):
            if self._reserve.stat().st_size >= _RESERVE_BYTES:  # less, if a kill cut it short
                return
        try:
            with self._reserve.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, _RESERVE_BYTES)
        except OSError:  # it may have got a part of the space
            with contextlib.suppress(OSError):
                self._reserve.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    @contextlib.contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction. Raises sqlite3.Error."""
        with told_as_damage(), self._lock, self._open() as database:
            yield database

    def _open(self) -> sqlite3.Connection:
        if self._database is None:
            # Calls come one at a time, but not all from one thread.
            database = sqlite3.connect(self._file, check_same_thread=False)
            database.text_factory = readable
            try:
                if self._locked:
                    # Nobody else has the file open, so SQLite needs none for shared memory: a
                    # write to that would end the process if the disk is full (SIGBUS).
                    database.execute("PRAGMA locking_mode = EXCLUSIVE")
                [[version]] = database.execute("PRAGMA user_version")
                if version > VERSION and not self._reads_later:
                    raise _LaterVersion(_LATER.format(version))
                if version < VERSION:
                    with contextlib.suppress(sqlite3.OperationalError):  # a full disk can be read
                        database.execute(f"PRAGMA user_version = {VERSION}")
                # The file has to outlive the agent. That needs no flush to disk, which would cost
                # more than all the rest. Limits end with the host, so a failure of power costs no
                # more than the last policies and tables: those before them are in force again.
                database.execute("PRAGMA journal_mode = WAL")
                database.execute("PRAGMA synchronous = NORMAL")
                for table in _SCHEMA:
                    database.execute(f"CREATE TABLE IF NOT EXISTS {table}")
            except BaseException:
                database.close()
                raise
            self._database = database
        return self._database
