"""What the agent's SQLite files have in common: how their texts are read, and a damaged one."""

from __future__ import annotations

import contextlib
from pathlib import Path


def readable(raw: bytes) -> str:
    """Return a text of a database. If it isn't UTF-8, only its own row is damaged."""
    return raw.decode(errors="replace")


def set_aside(file: Path) -> None:
    """Rename a damaged file, which nothing has open, so that a new one can be made."""
    with contextlib.suppress(OSError):
        file.rename(file.with_suffix(".damaged"))
        for part in ("wal", "shm"):
            file.with_name(f"{file.name}-{part}").unlink(missing_ok=True)
