"""The host of a run: its libvirtd, its agent, and guests whose fio never stops."""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from benchmarks.chaos.journal import Journal
from benchmarks.chaos.monitor import Monitor
from benchmarks.demo.fio_log import Completions, GuestClock
from benchmarks.demo.guests import shift_job
from iokeel.libvirt_xml.schema import NAMESPACE
from testing.agents import HostAgent
from testing.host.clock import Clock
from testing.lab.guests.domain import DiskSpec, domain_xml, folder_in_memory, make_disk
from testing.lab.guests.vm import Vm
from testing.lab.host import PROJECT, Host
from testing.lab.image import image
from testing.lab.qemu import patched
from testing.waiting import eventually

SIZES = (4096, 8192, 16384, 32768, 65536)  # bytes
DEPTH = 4
# In normalized iops.
PLUGGED_LIMIT = 500
_FIRST_LIMIT = 600
_DISK_MIB = 64
_JOBS = 6
_SECTIONS = 6  # of a job, each with one size of requests
_SECTION_S = (2, 7)
# fio's log of a job goes into an archive before the next job, because all files are in memory.
_LOAD = f"""
job=0
while [ ! -e /tmp/end ]; do
    fio --output=/tmp/fio.out /tmp/job-$job.fio || [ -e /tmp/end ] || exit 1
    gzip -c /tmp/io_iops.log >>/tmp/io.log.gz
    rm /tmp/io_iops.log
    job=$(((job + 1) % {_JOBS}))
done
"""
_CLASS = f"[classes.chaos]\nlimit = {PLUGGED_LIMIT}\n"
_BROKEN = [f"{PROJECT}/.venv/bin/python", f"{PROJECT}/benchmarks/chaos/broken_agent.py"]


class ChaosAgent(HostAgent):
    """The agent of the host, whose wall clock can be set, and whose class can be taken away."""

    def __init__(self, host: Host, *, broken: bool) -> None:
        super().__init__(host, _CLASS)
        self.clock = Clock(host.dir / "clock")
        self.environment = self.clock.environment
        self._whole = self.config.read_text()
        self.state.mkdir()
        # A disk of its own, which a fault fills.
        host.run(["mount", "-t", "tmpfs", "-o", "size=1m", "state", self.state])
        if broken:
            self.command = _BROKEN

    def __exit__(self, *failure: object) -> None:
        """End it. Its log is shown only if the run failed, because it is long."""
        if any(failure):
            super().__exit__(*failure)
        else:
            self.end()

    def set_class(self, *, there: bool) -> None:
        """Write the configuration anew, with the class or without."""
        self.config.write_text(self._whole if there else self._whole.replace(_CLASS, ""))


@dataclass
class Guest:
    """A guest with its load. limit: that of its last good policy."""

    vm: Vm
    monitor: Monitor
    spare: DiskSpec
    folder: Path
    by_class: bool
    limit: int = _FIRST_LIMIT
    _readings: list[tuple[float, float]] = field(default_factory=list)
    _load: int = 0

    @property
    def name(self) -> str:
        """Its domain's name."""
        return self.vm.name

    def policy(self, limit: int | str, class_: str = "chaos") -> str:
        """Return a policy. What it says of the disk that may be plugged in is always the same."""
        drive = f'<drive target="vda" limit="{limit}"/>'
        if self.by_class:
            return f'<policy class="{class_}">{drive}</policy>'
        words = f'class="{class_}"' if class_ != "chaos" else f'limit="{PLUGGED_LIMIT}"'
        return f'<policy>{drive}<drive target="vdb" {words}/></policy>'

    def read_clock(self) -> None:
        """Measure its clock against the host's."""
        self._readings.append((time.time(), self.vm.clock_offset().seconds))

    def start_load(self, random: Random) -> None:
        """Start fio, whose requests change their size every few seconds."""
        for number in range(_JOBS):
            job = _job(random)
            self.vm.write(f"/tmp/job-{number}.fio", job.encode())
        self.read_clock()
        self._load = self.vm.start_program(_LOAD)

    def end_load(self) -> Completions:
        """End fio, and return all requests on the host's clock."""
        self.vm.exec("touch /tmp/end; killall -q -INT fio || true")  # none runs between two jobs
        ended = self.vm.wait(self._load)
        if ended.status != 0:
            said = self.vm.exec("tail -n 5 /tmp/fio.out", check=False).stdout.decode()
            raise RuntimeError(f"{self.name}: fio failed: {said}")
        self.read_clock()
        log = gzip.decompress(self.vm.read("/tmp/io.log.gz"))
        return Completions.parse(log, GuestClock(tuple(self._readings)))


def _job(random: Random) -> str:
    sections = []
    start_s = 0
    for number in range(_SECTIONS):
        length_s = random.randint(*_SECTION_S)
        size = random.choice(SIZES)
        sections.append(f"[{number}]\nbs={size}\nstartdelay={start_s}\nruntime={length_s}")
        start_s += length_s
    return shift_job(random.choice((30, 70, 100)), DEPTH, sections)


@dataclass
class ChaosHost:
    """Everything that faults reach."""

    host: Host
    agent: ChaosAgent
    guests: list[Guest]
    journal: Journal

    def set_policy(self, guest: Guest, text: str) -> None:
        """Set a running guest's policy, as soon as libvirtd lets one."""
        words = ("--uri", NAMESPACE, "--key", "iokeel", "--set", text, "--live")
        self.insist("metadata", guest.name, *words)

    def set_limit(self, guest: Guest, limit: int) -> None:
        """Give a running guest's drive vda a limit."""
        guest.limit = limit
        self.journal.limits[guest.name, "vda"].append((time.time(), limit))
        self.set_policy(guest, guest.policy(limit))

    def begin(self, seed: int) -> None:
        """Start every guest's load, and forget what its monitor has seen before."""
        for number, guest in enumerate(self.guests):
            guest.monitor.looks.clear()
            guest.start_load(Random(f"{seed} {number}"))

    def insist(self, *words: str | Path) -> None:
        """Run a virsh command until libvirtd has done it."""
        eventually(lambda: (self.host.virsh(*words), True)[1])


@contextmanager
def chaos_host(*, exact: bool, broken: bool = False, guests: int = 2) -> Iterator[ChaosHost]:
    """Start everything but the load, and yield it once the agent holds every drive.

    exact: the guests' QEMU has the patches.
    """
    with ExitStack() as stack:
        host = stack.enter_context(Host.bookworm())
        folder = stack.enter_context(folder_in_memory("chaos"))
        host.start_libvirtd()
        emulator = patched(host) if exact else None
        with ThreadPoolExecutor(guests) as threads:
            booting = [threads.submit(_boot, host, folder, n, emulator) for n in range(guests)]
        booted = [guest.result() for guest in booting]
        chaos = ChaosHost(host, ChaosAgent(host, broken=broken), booted, Journal())
        with chaos.agent:
            for guest in booted:
                chaos.set_limit(guest, guest.limit)
                chaos.journal.limits[guest.name, "vdb"].append((time.time(), PLUGGED_LIMIT))
            for guest in booted:
                stack.enter_context(guest.monitor)
                # By QEMU's word: the agent reports limits as soon as it has decided on them.
                eventually(guest.monitor.sees_limits)
            yield chaos


def _boot(host: Host, folder: Path, number: int, emulator: Path | None) -> Guest:
    name = f"chaos{number}"
    disk, spare = (
        DiskSpec(target, make_disk(folder / f"{name}-{target}", _DISK_MIB), cache="writeback",
                 io="threads")
        for target in ("vda", "vdb")
    )  # fmt: skip
    socket = host.dir / f"{name}.qmp"
    vm = Vm(host, name)
    vm.define(
        domain_xml(name, [disk], image=image(), folder=host.dir, emulator=emulator, monitor=socket)
    )
    vm.start()
    return Guest(vm, Monitor(socket), spare, folder, by_class=number % 2 == 1)
