"""What was saved while the disk was full is there after the agent's end, by its will or not."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from iokeel.core.policy import DomainPolicy, DrivePolicy
from iokeel.state_store import StateStore
from testing.host.storage import mounted

CHANGES = 60  # of one life at most; far more than what SQLite's log has room for


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A state folder on a disk of its own."""
    with mounted(tmp_path / "state", "state", "-t", "tmpfs", "-o", "size=1m") as folder:
        yield folder


@pytest.mark.parametrize("seed", range(8))
def test_a_policy_is_saved_on_a_full_disk(small: Path, seed: int) -> None:
    draw = random.Random(seed)
    limit = _live(small, 0, [1], killed=draw.random() < 0.5)
    for _ in range(6):
        _fill(small)
        for _ in range(draw.randint(1, 3)):
            changes = range(limit + 1, limit + 1 + draw.randrange(CHANGES))
            limit = _live(small, limit, changes, killed=draw.random() < 0.5)
        (small / "filler").unlink()
        limit = _live(small, limit, [limit + 1], killed=draw.random() < 0.5)


def _live(folder: Path, known: int, changes: Sequence[int], *, killed: bool) -> int:
    """Have an agent's state live in a process of its own, and return the last limit."""
    child = os.fork()
    if child == 0:
        _end(folder, known, changes, killed=killed)
    status = os.waitpid(child, 0)[1]
    assert status == 0, os.waitstatus_to_exitcode(status)
    return changes[-1] if changes else known


def _end(folder: Path, known: int, changes: Sequence[int], *, killed: bool) -> NoReturn:
    try:
        store = StateStore(folder)
        with store.lock():
            store.load()
            found = [policy.drives["vda"].limit for policy in store.policies.values()]
            assert found == ([known] if known else []), (found, known)
            for limit in changes:
                store.policies["db1"] = DomainPolicy({"vda": DrivePolicy(limit=limit)})
                store.save({})
            if killed:
                os._exit(0)
        os._exit(0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    finally:
        os._exit(1)


def _fill(folder: Path) -> None:
    with (folder / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
