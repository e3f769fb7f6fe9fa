"""What the agent set, kept over its restarts, so that it knows its own limits again."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from iokeel.core.counters import DriveId, Flow
from iokeel.core.curve import CostCurve
from iokeel.core.drive.burst import Credit
from iokeel.core.drive.envelope import Mix
from iokeel.core.limits import ThrottleLimits
from iokeel.core.state import DriveState
from iokeel.errors import ConfigError, CurveError, IokeelError

log = logging.getLogger(__name__)

_CURVES = ("cost_read", "cost_write")
_LEAST = {"idle_credit_ms": 0}
# What comes of reading something that this didn't write.
_NOT_OURS = (ValueError, KeyError, TypeError, IndexError, RecursionError, CurveError)


class Store:
    """The agent's state folder: `state.db`, and `lock` that one agent holds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "state.db"
        self._database: sqlite3.Connection | None = None
        self._saved: dict[DriveId, _Kept | None] = {}  # None: as it was found
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for one agent. Raises ConfigError where another has it."""
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
        """Return what was saved; nothing, and a line in the log, where it can't be used."""
        try:
            with self._lock, self._open() as database:
                rows = database.execute("SELECT domain, target, state FROM drives").fetchall()
        except sqlite3.Error as error:
            self._cant_use(str(error))
            if not isinstance(error, sqlite3.OperationalError):  # it is damaged, not out of reach
                self._set_aside()
            return {}
        known = {}
        for domain, target, text in rows:
            drive = DriveId(domain, target)
            self._saved[drive] = None
            try:
                known[drive] = _state(json.loads(text))
            except _NOT_OURS as error:
                self._cant_use(f"{drive}: {type(error).__name__}: {error}")
        return known

    def _cant_use(self, why: str) -> None:
        log.warning(
            "%s: can't be used (%s); limits now in force count as set by hand", self._file, why
        )

    def _set_aside(self) -> None:
        """Rename a damaged database, so that a new one can be written."""
        self._close()
        with contextlib.suppress(OSError):
            self._file.rename(self._file.with_suffix(".damaged"))
            for part in ("wal", "shm"):
                self._file.with_name(f"{self._file.name}-{part}").unlink(missing_ok=True)

    def save(self, drives: Mapping[DriveId, DriveState], *, whole: bool = False) -> None:
        """Write what changed of some drives, or with `whole` of all there are, in one step.

        Raises IokeelError; what was saved before is then still there.
        """
        new = {drive: _kept(known) for drive, known in drives.items() if known.sent is not None}
        changed = {drive: kept for drive, kept in new.items() if self._saved.get(drive) != kept}
        gone = self._saved.keys() - new.keys() if whole else set()
        if not changed and not gone:
            return
        try:
            with self._lock, self._open() as database:
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

    def load_cgroups(self) -> dict[str, str]:
        """Return what was saved of cgroups, by path; nothing where it can't be read."""
        try:
            with self._lock, self._open() as database:
                return dict(database.execute("SELECT path, state FROM cgroups").fetchall())
        except sqlite3.Error as error:
            log.warning("%s: can't be read (%s); cgroups stay as they are", self._file, error)
            return {}

    def save_cgroups(self, changed: Mapping[str, str | None]) -> None:
        """Write what changed of cgroups, by path, in one step; None forgets one.

        Raises IokeelError; what was saved before is then still there.
        """
        kept = [(path, text) for path, text in changed.items() if text is not None]
        gone = [(path,) for path, text in changed.items() if text is None]
        try:
            with self._lock, self._open() as database:
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

    def _open(self) -> sqlite3.Connection:
        if self._database is None:
            # Its calls are made one at a time, though not all in one thread.
            database = sqlite3.connect(self._file, check_same_thread=False)
            try:
                # What the agent has done is lost with the host: only its own end counts, and that
                # needs no flush, which costs more than all the rest.
                database.execute("PRAGMA journal_mode = WAL")
                database.execute("PRAGMA synchronous = NORMAL")
                database.execute(
                    "CREATE TABLE IF NOT EXISTS drives"
                    " (domain TEXT, target TEXT, state TEXT, PRIMARY KEY (domain, target))"
                )
                database.execute(
                    "CREATE TABLE IF NOT EXISTS cgroups (path TEXT PRIMARY KEY, state TEXT)"
                )
            except sqlite3.Error:
                database.close()
                raise
            self._database = database
        return self._database


class _Kept(NamedTuple):
    """What is saved of a drive's state."""

    sent: ThrottleLimits | None
    replaced: ThrottleLimits | None
    found: ThrottleLimits | None
    credit_seconds: int
    credit_open: bool
    granted_seconds: float
    priced_for: Mix | None


def _kept(known: DriveState) -> _Kept:
    return _Kept(
        known.sent,
        known.replaced,
        known.found,
        round(known.credit.seconds),
        known.credit.open,
        known.granted_s,
        known.priced_for,
    )


def _text(kept: _Kept) -> str:
    limits = {name: _set(getattr(kept, name)) for name in ("sent", "replaced", "found")}
    return json.dumps(kept._asdict() | limits)


def _set(limits: ThrottleLimits | None) -> dict[str, Any] | None:
    if limits is None:
        return None
    return {
        name: value.points if isinstance(value, CostCurve) else value
        for name, value in limits._asdict().items()
        if value is not None
    }


def _limits(saved: Mapping[str, Any] | None) -> ThrottleLimits | None:
    return None if saved is None else _throttle(saved)


def _throttle(saved: Mapping[str, Any]) -> ThrottleLimits:
    values: dict[str, Any] = dict(saved)
    curves: dict[str, Any] = {n: _curve(values.pop(n)) for n in _CURVES if n in values}
    if not all(isinstance(n, int) and n >= _LEAST.get(name, 1) for name, n in values.items()):
        raise ValueError(f"limits {saved}")
    return ThrottleLimits(**values, **curves)


def _curve(saved: Sequence[Any]) -> CostCurve:
    return CostCurve(tuple((int(size), float(cost)) for size, cost in saved))


def _flow(saved: Sequence[Any]) -> Flow:
    raw_iops, bps, seen_bytes = saved
    return Flow(float(raw_iops), float(bps), tuple(seen_bytes))


def _state(saved: Mapping[str, Any]) -> DriveState:
    mix = saved["priced_for"]
    return DriveState(
        sent=_throttle(saved["sent"]),
        replaced=_limits(saved["replaced"]),
        found=_limits(saved["found"]),
        credit=Credit(float(saved["credit_seconds"]), bool(saved["credit_open"])),
        granted_s=float(saved["granted_seconds"]),
        priced_for=mix and Mix(_flow(mix[0]), _flow(mix[1])),
    )
