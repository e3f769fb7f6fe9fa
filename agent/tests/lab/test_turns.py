"""Whoever is to be alone waits for the others, and they for it."""

import fcntl
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

from testing.turns import Turn
from testing.waiting import eventually


class Someone(threading.Thread):
    """Takes its turn, and goes when it is told to."""

    def __init__(self, folder: Path, *, alone: bool) -> None:
        super().__init__()
        self.folder, self.alone = folder, alone
        self.here, self.told = threading.Event(), threading.Event()
        self.start()

    def run(self) -> None:
        with Turn(self.folder / "queue", self.folder / "machine") as turn:
            with turn.alone() if self.alone else nullcontext():
                self.here.set()
                self.told.wait(60)

    def go(self) -> None:
        self.told.set()
        self.join()


def taken(path: Path) -> bool:
    """Return whether somebody has locked a file."""
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("queue", "machine"):
        (tmp_path / name).touch()
    return tmp_path


def test_others_are_here_together(folder: Path) -> None:
    both = [Someone(folder, alone=False) for _ in range(2)]
    assert all(each.here.wait(60) for each in both)
    for each in both:
        each.go()


def test_one_who_is_alone_waits_and_is_not_overtaken(folder: Path) -> None:
    first = Someone(folder, alone=False)
    assert first.here.wait(60)
    alone = Someone(folder, alone=True)
    eventually(lambda: taken(folder / "queue"))
    last = Someone(folder, alone=False)
    assert not alone.here.wait(0.3)
    assert not last.here.wait(0.3)
    first.go()
    assert alone.here.wait(60)
    assert not last.here.wait(0.3)
    alone.go()
    assert last.here.wait(60)
    last.go()


def test_a_failure_ends_a_turn(folder: Path) -> None:
    turn = Turn(folder / "queue", folder / "machine")
    with pytest.raises(ValueError, match="x"), turn, turn.alone():
        raise ValueError("x")
    after = Someone(folder, alone=True)
    assert after.here.wait(60)
    after.go()
