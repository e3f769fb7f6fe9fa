"""A host that boots in a guest: cgroup v2, with all of the kernel's controllers of I/O.

Its only disk is the stage's. Each drive is a process of fio in a cgroup of its own there.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.bench.errors import BenchError
from testing.lab.fio import Job
from testing.lab.guests.domain import DiskSpec, domain_xml
from testing.lab.guests.vm import Vm
from testing.lab.host import Host
from testing.lab.image import image
from testing.lab.kernel import with_io_latency

CGROUPS = Path("/sys/fs/cgroup")
QUEUE = Path("/sys/block/vda/queue")
_BOOT_S = 120
_MEMORY_MIB = 1536  # fio keeps all of its log until it ends


def prepare() -> None:
    """Build its kernel, if that isn't done yet. Raises BenchError."""
    try:
        with_io_latency()
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        mend = "correct what is said above, or leave out the scenarios whose host boots"
        raise BenchError("the kernel of the host that boots", str(error), mend) from error


@contextmanager
def booted_host(
    host: Host, disk: Path, groups: Iterable[Path], *, rotational: bool
) -> Iterator[Vm]:
    """Boot it, with these cgroups. Its disk has no scheduler, and looks as it does outside."""
    vm = Vm(host, "booted")
    vm.define(
        domain_xml(
            vm.name,
            [DiskSpec("vda", disk)],
            image=replace(image(), kernel=with_io_latency()),
            folder=host.dir,
            memory_mib=_MEMORY_MIB,
        )
    )
    vm.start(_BOOT_S)
    with vm:
        vm.exec(f"mount -t cgroup2 none {CGROUPS} && echo +io >{CGROUPS}/cgroup.subtree_control")
        vm.exec(["mkdir", *map(str, groups)])
        write(vm, {QUEUE / "rotational": int(rotational), QUEUE / "scheduler": "none"})
        yield vm


def write(vm: Vm, files: Mapping[Path, object]) -> None:
    """Write the kernel's files there, in order."""
    vm.exec("set -e\n" + "\n".join(f"echo '{value}' >{path}" for path, value in files.items()))


def device_number(vm: Vm) -> str:
    """Return the disk's MAJOR:MINOR, as cgroups name it."""
    return vm.exec(["cat", str(QUEUE.parent / "dev")]).stdout.decode().strip()


def entering(group: str) -> Job:
    """Return what puts a job of fio into a cgroup: each job is a process, and the shell's parent.

    fio adds a redirection of its own to the command's end.
    """
    return {"exec_prerun": f"echo $PPID | tee {CGROUPS / group}/cgroup.procs"}
