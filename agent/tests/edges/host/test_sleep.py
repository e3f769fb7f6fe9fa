"""Whether a process has run since a moment, by the kernel's counts of its threads."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from iokeel.host.process import Process, process
from iokeel.host.sleep import Asleep
from testing.waiting import eventually

# It answers each line, and has a thread that runs all the time if it is given a name for that.
_PROGRAM = """
import ctypes, sys, threading
def run():
    ctypes.CDLL(None).prctl(15, sys.argv[1].encode(), 0, 0, 0)
    print(flush=True)
    while True:
        pass
if sys.argv[1]:
    threading.Thread(target=run, daemon=True).start()
else:
    print(flush=True)
while sys.stdin.readline():
    print(flush=True)
"""


class Child:
    """A process that sleeps until it is woken."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self._popen = popen
        found = process(popen.pid)
        assert found is not None
        self.process: Process = found

    def wake(self) -> None:
        """Have it answer."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.stdin.write("\n")
        self._popen.stdin.flush()
        self._popen.stdout.readline()

    def asleep(self) -> Asleep:
        """Return it once it sleeps."""
        found = eventually(lambda: Asleep.now(self.process), 10, what="it sleeps")
        assert found is not None
        return found

    def end(self) -> None:
        """End it."""
        self._popen.kill()
        self._popen.wait()


@contextmanager
def child(runs_as: str = "") -> Iterator[Child]:
    """Run a process. runs_as: the name of a thread of it that runs all the time."""
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, runs_as],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as popen:
        assert popen.stdout is not None
        popen.stdout.readline()
        found = Child(popen)
        try:
            yield found
        finally:
            found.end()


def test_a_process_that_sleeps_is_still_until_it_wakes() -> None:
    with child() as other:
        asleep = other.asleep()
        time.sleep(0.3)
        assert asleep.still
        other.wake()
        assert not asleep.still
        asleep.close()


def test_no_wake_is_too_short_to_be_seen() -> None:
    with child() as other:
        for _ in range(200):
            asleep = other.asleep()
            other.wake()
            assert not asleep.still
            asleep.close()


def test_a_process_with_a_thread_that_runs_is_not_asleep() -> None:
    with child("IO iothread1") as other:
        for _ in range(100):  # a thread that waits for a processor counts as one that runs
            assert Asleep.now(other.process) is None


def test_vcpus_may_run_while_a_qemu_sleeps() -> None:
    with child("CPU 0/KVM") as other:
        # Its threads of Python wait for each other, so the other one runs as well, but seldom.
        asleep = other.asleep()
        assert asleep.files == 1
        asleep.close()


def test_a_process_that_has_ended_is_not_still() -> None:
    with child() as other:
        asleep = other.asleep()
        other.end()
        assert not asleep.still
        asleep.close()
        assert Asleep.now(other.process) is None


def test_another_process_with_its_number_is_not_it() -> None:
    with child() as other:
        other.asleep().close()
        assert Asleep.now(other.process._replace(started=1)) is None
