"""What the agent's SQLite files have in common: how their texts are read, and a damaged one."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path


def readable(raw: bytes) -> str:
    """Return a text of a database. If it isn't UTF-8, only its own row is damaged."""
    return raw.decode(errors="replace")


@contextlib.contextmanager
def told_as_damage() -> Iterator[None]:
    """Raise sqlite3.DatabaseError in place of the other errors that a damaged file causes."""
    try:
        yield
    except (MemoryError, UnicodeDecodeError):
        # A damaged length is too large, or SQLite's message names an object that isn't UTF-8.
        raise sqlite3.DatabaseError("its schema is damaged") from None
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_ERROR:  # a column isn't there, say
            raise sqlite3.DatabaseError(f"its schema is damaged: {error}") from None
        raise


def damaged(file: Path) -> Path:
    """Return where a damaged file is put."""
    return file.with_suffix(".damaged")


def set_aside(file: Path) -> None:
    """Rename a damaged file, which nothing has open, so that a new one can be made."""
    with contextlib.suppress(OSError):
        file.rename(damaged(file))
        for part in ("wal", "shm"):
            _part(file, part).unlink(missing_ok=True)


def later(file: Path) -> Path:
    """Return where a file is put that a later iokeel wrote."""
    return file.with_suffix(".later")


def keep_for_later(file: Path) -> None:
    """Rename a file that a later iokeel wrote, and its log. Nothing has it open."""
    with contextlib.suppress(OSError):
        file.rename(later(file))
        _part(file, "shm").unlink(missing_ok=True)
        _part(later(file), "wal").unlink(missing_ok=True)  # of one before
        _part(file, "wal").rename(_part(later(file), "wal"))


def _part(file: Path, part: str) -> Path:
    return file.with_name(f"{file.name}-{part}")
