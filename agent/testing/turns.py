"""Turns on a machine, between processes: alone, or together with all others that are not alone."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self


class Turn:
    """A turn together with others, as a context manager. `alone` makes it one alone for a while.

    Nobody overtakes the head of the queue, so a process that wants to be alone gets its turn.
    """

    def __init__(self, queue: Path, machine: Path) -> None:
        """queue, machine: files or folders, the same for all processes."""
        self._stack = contextlib.ExitStack()
        self._queue = self._stack.enter_context(_opened(queue))
        self._machine = self._stack.enter_context(_opened(machine))

    def __enter__(self) -> Self:
        self._take(fcntl.LOCK_SH)
        return self

    def __exit__(self, *_: object) -> None:
        fcntl.flock(self._machine, fcntl.LOCK_UN)  # a child may still hold a copy of the handle
        self._stack.close()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until no other has a turn, and let nobody have one meanwhile."""
        fcntl.flock(self._machine, fcntl.LOCK_UN)
        self._take(fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._machine, fcntl.LOCK_UN)
            self._take(fcntl.LOCK_SH)

    def _take(self, kind: int) -> None:
        fcntl.flock(self._queue, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._machine, kind)
        finally:
            fcntl.flock(self._queue, fcntl.LOCK_UN)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)
