"""Turns on the machine, for tests that run in several processes (pytest --numprocesses).

A test marked `alone` measures a time or a rate. It runs while no other test of the checkout does.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

# One process has all tests of a suite of hosts, so that two are side by side at most.
HOSTS = [
    pytest.param(suite, marks=pytest.mark.xdist_group(suite)) for suite in ("bookworm", "trixie")
]

# Two folders of the checkout, because every test process can lock them.
_QUEUE = Path(__file__).parent
_MACHINE = _QUEUE.parent


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outside the timeout, which must not count the wait
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test and its fixtures in its turn."""
    with turn(_QUEUE, _MACHINE, alone=item.get_closest_marker("alone") is not None):
        return (yield)


@contextlib.contextmanager
def turn(queue: Path, machine: Path, *, alone: bool) -> Iterator[None]:
    """Hold a machine, alone or with others who are not. queue, machine: files or folders to lock.

    Nobody overtakes the one at the head of the queue, so whoever wants to be alone gets there.
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
