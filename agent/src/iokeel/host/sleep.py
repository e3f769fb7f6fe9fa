"""Tells whether a QEMU has served any I/O since a moment, without a word from it.

A request counts when a thread of QEMU says so: the main loop or an iothread, whatever the storage,
the image's format and the way to the kernel. A thread that hasn't run has ended none. The kernel
counts how often and how long each has run (/proc/PID/task/TID/schedstat), and a look at that costs
half a microsecond. An idle guest's own ticks run on its vCPUs' threads. These end no requests, but
for devices that are served while the vCPU waits, such as a floppy drive.

Two things make an unchanged count proof. A thread that runs on counts with the scheduler's next
tick, which a CPU without ticks (nohz_full) has once a second; but one that was asleep counts at
once when it runs again. So all of them have to be asleep when the counts are taken. And only these
threads, or a monitor's command that the main loop carries out, can start others.

Under emulation (TCG) the main loop runs for the guest's timers too, so no guest is seen asleep
while its kernel ticks. That is no error: its counters are read then.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from iokeel.host.process import Process, process

_PROC = Path("/proc")
# As QEMU names the threads of vCPUs; without debug-threads=on they are like any other.
_VCPU = re.compile(rb"CPU \d+/(?:KVM|TCG)")
_MOST_BYTES = 128
# A kernel without CONFIG_SCHED_INFO.
_UNCOUNTED = b"0 0 0\n"
# More threads than that, and it costs less to ask QEMU.
_MOST_THREADS = 16


class Asleep:
    """A QEMU whose threads, but for its vCPUs, were all asleep when this was made.

    It keeps a file open for each.
    """

    __slots__ = ("_counts",)

    def __init__(self, counts: list[tuple[int, bytes]]) -> None:
        """counts: by file descriptor, what it said."""
        self._counts = counts

    @classmethod
    def now(cls, qemu: Process, proc: Path = _PROC) -> Asleep | None:
        """Return a QEMU that sleeps now; None if one of its threads runs, or if that isn't told."""
        asleep = cls([])
        try:
            if asleep._take(proc / str(qemu.pid) / "task") and process(qemu.pid, proc) == qemu:
                return asleep
        except OSError:  # it has ended, or there are too many open files
            pass
        asleep.close()
        return None

    def _take(self, tasks: Path) -> bool:
        threads = [tasks / thread for thread in os.listdir(tasks)]
        threads = [thread for thread in threads if not _VCPU.match((thread / "comm").read_bytes())]
        if len(threads) > _MOST_THREADS:
            return False
        for thread in threads:
            file = os.open(thread / "schedstat", os.O_RDONLY | os.O_CLOEXEC)
            self._counts.append((file, count := os.pread(file, _MOST_BYTES, 0)))
            # After the count, or it may have run in between, and run on.
            state = (thread / "stat").read_bytes().rpartition(b") ")[2][:1]
            if count == _UNCOUNTED or state == b"R":
                return False
        return True

    @property
    def files(self) -> int:
        """The number of files that it keeps open."""
        return len(self._counts)

    @property
    def still(self) -> bool:
        """Whether none of its threads has run since."""
        try:
            for file, count in self._counts:
                if os.pread(file, _MOST_BYTES, 0) != count:
                    return False
        except OSError:  # it has ended
            return False
        return True

    def close(self) -> None:
        """Close its files."""
        for file, _ in self._counts:
            os.close(file)
        self._counts = []
