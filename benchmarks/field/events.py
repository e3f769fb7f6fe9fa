"""What goes on at a host beside its guests' load: each a context manager, which undoes it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.chaos.journal import Journal
from benchmarks.field.draw import DISK_MIB, LOAD_MIB, Event
from benchmarks.field.ground import Ground
from benchmarks.field.guests import Guest
from testing.lab.host import Host

DISCARDS = 20
"""A second, of 64 KiB each."""
ZEROES_BYTES = 1 << 20
ZEROES_S = 5.0
"""Between two of them."""
_REST = f"-o {LOAD_MIB << 20}"  # of the disk, where fio's load isn't


@dataclass(frozen=True)
class Scene:
    """Where it happens. memory: a folder for what jobs write. journal: when QEMU drained disks."""

    host: Host
    ground: Ground
    memory: Path
    journal: Journal
    seconds: float


Happen = Callable[[Scene, Guest], AbstractContextManager[None]]


@contextmanager
def _backup(scene: Scene, guest: Guest) -> Iterator[None]:
    target = scene.memory / f"{guest.name}.backup"
    xml = (
        f"<domainbackup><disks><disk name='{guest.drive.target}' type='file'>"
        f"<target file='{target}'/><driver type='qcow2'/></disk></disks></domainbackup>"
    )
    with _drained(scene, guest):
        scene.host.virsh("backup-begin", guest.name, "/dev/stdin", input=xml)
    yield
    scene.host.run(["virsh", "domjobabort", guest.name], check=False)  # it may have ended
    target.unlink(missing_ok=True)


@contextmanager
def _blockcopy(scene: Scene, guest: Guest) -> Iterator[None]:
    target = scene.memory / f"{guest.name}.copy"
    words = ("--dest", target, "--format", "raw", "--transient-job")
    with _drained(scene, guest):
        scene.host.virsh("blockcopy", guest.name, guest.drive.target, *words)
    yield
    scene.host.virsh("blockjob", guest.name, guest.drive.target, "--abort")
    target.unlink(missing_ok=True)


@contextmanager
def _snapshot(scene: Scene, guest: Guest) -> Iterator[None]:
    assert scene.ground.folder is not None
    overlay = scene.ground.folder / f"{guest.name}.{time.time_ns()}"
    spec = f"{guest.drive.target},file={overlay}"
    options = ("--disk-only", "--atomic", "--no-metadata", "--diskspec", spec)
    with _drained(scene, guest):
        scene.host.virsh("snapshot-create-as", guest.name, "overlay", *options)
    yield


@contextmanager
def _drained(scene: Scene, guest: Guest) -> Iterator[None]:
    with scene.journal.during(scene.journal.drained[guest.name], more_s=0.5):
        yield


@contextmanager
def _discards(scene: Scene, guest: Guest) -> Iterator[None]:
    job = (
        f"fio --name=discards --filename={guest.drive.device} --rw=randtrim --bs=64k --direct=1"
        f" --offset={LOAD_MIB}m --size={DISK_MIB - LOAD_MIB}m --rate_iops={DISCARDS}"
        f" --time_based --runtime={scene.seconds:.0f} --output=/tmp/discards"
    )
    running = guest.vm.start_program(job)
    yield
    ended = guest.vm.wait(running, timeout=60)
    if ended.status != 0:
        raise RuntimeError(f"{guest.name}: fio's discards failed: {ended.stderr.decode()}")


@contextmanager
def _zeroes(scene: Scene, guest: Guest) -> Iterator[None]:
    zero = f"blkdiscard -z {_REST} -l {ZEROES_BYTES} {guest.drive.device}; sleep {ZEROES_S:.0f}"
    count = max(1, int(scene.seconds / ZEROES_S))
    running = guest.vm.start_program(f"for i in $(seq {count}); do {zero}; done")
    yield
    guest.vm.wait(running, timeout=60)


def _host_fio(*options: str) -> Happen:
    """Return a program of the host that reads from the storage, past every guest."""

    @contextmanager
    def happen(scene: Scene, guest: Guest) -> Iterator[None]:
        words = [
            *("fio", "--name=host", f"--filename={scene.ground.device}", "--readonly"),
            *("--time_based", f"--runtime={scene.seconds:.0f}", "--ioengine=psync", *options),
        ]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
            try:
                yield
            finally:
                process.kill()

    return happen


EVENTS: dict[Event, Happen] = {
    "backup": _backup,
    "blockcopy": _blockcopy,
    "snapshot": _snapshot,
    "discards": _discards,
    "zeroes": _zeroes,
    "host reads": _host_fio("--rw=randread", "--bs=16k", "--direct=1", "--rate_iops=150"),
    "host reads cache": _host_fio("--rw=read", "--bs=256k", "--size=32m", "--rate_iops=200"),
}


@contextmanager
def happening(event: Event, scene: Scene, guest: Guest) -> Iterator[None]:
    """Have something happen from now to the end of the block. Raises why it couldn't be undone."""
    with EVENTS[event](scene, guest):
        yield
