"""What has to be so before a run begins, and what an earlier one may have left."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import result_file
from benchmarks.bench.errors import BenchError
from benchmarks.bench.running.stage import FOLDER
from testing.lab import qemu
from testing.lab.blkio import remove_stale
from testing.lab.needs import missing

#: fio logs each request, and a run is read before it is forgotten.
_ROOM_BYTES = 1 << 30
_BUSY_LOAD = 1.0  # of the last minute


def check_machine(results: Path) -> None:
    """Raise BenchError if programs or rights are missing, or a disk is nearly full."""
    if lacking := missing():
        raise BenchError("this machine", "something is missing", lacking)
    check_room(results)


def check_room(results: Path) -> None:
    """Raise BenchError if a disk is nearly full."""
    for folder in (Path(tempfile.gettempdir()), results):
        free = shutil.disk_usage(folder).free
        if free < _ROOM_BYTES:
            raise BenchError(
                str(folder),
                f"the disk has {free >> 20} MiB free, a run needs {_ROOM_BYTES >> 20}",
                "make room, or set TMPDIR and --results to other disks",
            )


@contextmanager
def only_one(results: Path) -> Iterator[None]:
    """Keep others from a folder of results. Raises BenchError if another has it."""
    folder = os.open(results, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        mend = "wait for its end, or give --results with another folder"
        raise BenchError(str(results), "another run writes its results there", mend) from None
    finally:
        os.close(folder)


def patched_daemon() -> Path:
    """Return the storage daemon with the patches, built if need be. Raises BenchError."""
    try:
        return qemu.storage_daemon()
    except (OSError, subprocess.CalledProcessError) as error:
        mend = "correct what is said above, or leave out the controllers that need the patches"
        raise BenchError("the patched QEMU", f"can't be built: {error}", mend) from error


def busy() -> str | None:
    """Return a warning if other programs keep the machine busy; None if they don't."""
    load = os.getloadavg()[0]
    if load < _BUSY_LOAD:
        return None
    return (
        f"the machine is busy (load {load:.1f} in the last minute): if that is not from a run"
        " before this one, the figures are those of the machine, not of the controllers"
    )


def check_daemon(daemon: Path) -> None:
    """Raise BenchError if a qemu-storage-daemon doesn't start."""
    try:
        result_file.version(daemon)
    except (OSError, subprocess.CalledProcessError) as error:
        mend = "apt-get install qemu-system-common, or name another by --daemon"
        what = f"this qemu-storage-daemon doesn't start: {error}"
        raise BenchError(str(daemon), what, mend) from error


def use_best_effort() -> None:
    """Give this process and all that it starts the usual class and priority of I/O.

    Else the kernel takes both from the processor's: BFQ serves processes that run when nothing else
    does (SCHED_IDLE) all alike, whatever their cgroups' weights.
    """
    class_and_priority = ["--class", "best-effort", "--classdata", "4"]
    subprocess.run(["ionice", *class_and_priority, "--pid", str(os.getpid())], check=True)


def clean_up() -> None:
    """Remove the cgroups and folders of runs that were killed; all else ends with its owner."""
    remove_stale()
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER}*-*"):
        owner = folder.name.removeprefix(FOLDER).partition("-")[0]
        if not Path("/proc", owner).exists():
            shutil.rmtree(folder)
