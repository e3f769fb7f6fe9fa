"""Turns on a machine, between processes: alone, or together with all others that are not alone."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def turn(queue: Path, machine: Path, *, alone: bool) -> Iterator[None]:
    """Wait for a turn, and hold it. queue, machine: files or folders, the same for all processes.

    Nobody overtakes the head of the queue, so a process that wants to be alone gets its turn.
    """
    with _locked(queue, fcntl.LOCK_EX) as head:
        with _locked(machine, fcntl.LOCK_EX if alone else fcntl.LOCK_SH):
            fcntl.flock(head, fcntl.LOCK_UN)
            yield


@contextlib.contextmanager
def _locked(path: Path, kind: int) -> Iterator[int]:
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, kind)
        yield handle
        fcntl.flock(handle, fcntl.LOCK_UN)  # a child may still hold a copy of the handle
    finally:
        os.close(handle)
