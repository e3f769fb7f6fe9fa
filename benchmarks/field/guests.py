"""A host's guests: how they are booted, and the load that fio makes in each."""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.chaos.monitor import Monitor
from benchmarks.demo.fio_log import Completions, GuestClock
from benchmarks.field.draw import BURST_PAUSE_S, LOAD_MIB, Drive
from benchmarks.fio_log import EVERY_REQUEST
from iokeel.libvirt_xml.schema import NAMESPACE
from testing.lab.blkio import ROOT, blkio_groups
from testing.lab.guests.domain import DiskSpec, domain_xml
from testing.lab.guests.vm import Vm
from testing.lab.host import Host
from testing.lab.image import Image, image
from testing.waiting import eventually

_BLKDISCARD = Path("/usr/sbin/blkdiscard")
_CACHED_MIB = 48
_LOAD = "rm -f /tmp/io_iops.log*; fio --output=/tmp/fio.out /tmp/job.fio && gzip /tmp/io_iops.log"


@dataclass
class Guest:
    """A guest that runs. group: the folder of its cgroup; None if the host has no blkio (v1)."""

    drive: Drive
    vm: Vm
    monitor: Monitor
    group: Path | None
    _readings: list[tuple[float, float]] = field(default_factory=list)
    _load: int = 0

    @property
    def name(self) -> str:
        """Its domain's name."""
        return self.vm.name

    def start_load(self, seconds: float, seed: int) -> None:
        """Start fio."""
        self.vm.write("/tmp/job.fio", fio_job(self.drive, seconds, seed).encode())
        self._readings = []
        self._read_clock()
        self._load = self.vm.start_program(_LOAD)

    def end_load(self) -> Completions:
        """Wait for fio's end, and return all requests on the host's clock."""
        ended = self.vm.wait(self._load, timeout=120)
        if ended.status != 0:
            said = self.vm.exec("tail -n 5 /tmp/fio.out", check=False).stdout.decode()
            raise RuntimeError(f"{self.name}: fio failed: {said or ended.stderr.decode()}")
        self._read_clock()
        log = gzip.decompress(self.vm.read("/tmp/io_iops.log.gz"))
        return Completions.parse(log, GuestClock(tuple(self._readings)))

    def _read_clock(self) -> None:
        self._readings.append((time.time(), self.vm.clock_offset().seconds))


def fio_job(drive: Drive, seconds: float, seed: int) -> str:
    """Return the job of a drive's load, whose requests a seed repeats."""
    load = drive.load
    size_mib = _CACHED_MIB if load.demand == "cached" else LOAD_MIB
    options: dict[str, object] = {
        "ioengine": "libaio", "direct": 1, "thread": 1, "filename": drive.device,
        "size": f"{size_mib}m", "time_based": 1, "runtime": seconds, "norandommap": 1,
        "randrepeat": 1, "randseed": seed, "rw": "randrw", "rwmixread": load.read_percent,
        "bs": f"{load.read_bytes},{load.write_bytes}", "iodepth": load.depth,
        "write_iops_log": "/tmp/io", "per_job_logs": 0, **EVERY_REQUEST,
    }  # fmt: skip
    if load.read_percent in (0, 100):
        options["rw"] = "randread" if load.read_percent else "randwrite"
    if load.iops is not None:  # fio's rate is of each direction
        reads = round(load.iops * load.read_percent / 100)
        options["rate_iops"] = f"{max(1, reads)},{max(1, load.iops - reads)}"
    if load.burst is not None:
        options |= {
            "thinktime": f"{BURST_PAUSE_S * 1000:.0f}ms",
            "thinktime_blocks": load.burst,
            "thinktime_blocks_type": "issue",
        }
    return "[load]\n" + "".join(f"{name}={value}\n" for name, value in options.items())


def policy(drive: Drive) -> str | None:
    """Return the policy element of a drive's domain; None if it has none."""
    if drive.limit is None:
        return None
    words = f'target="{drive.target}" limit="{drive.limit}"'
    if drive.reservation:
        words += f' reservation="{drive.reservation}"'
    if drive.latency_target_ms is not None:
        words += f' latency-target-ms="{drive.latency_target_ms}"'
    return f'<iokeel:policy xmlns:iokeel="{NAMESPACE}"><iokeel:drive {words}/></iokeel:policy>'


@contextmanager
def guests(
    host: Host, drives: Sequence[Drive], disks: dict[str, DiskSpec], emulator: Path | None
) -> Iterator[list[Guest]]:
    """Boot a guest for each drive, each in a cgroup of its own, and end them."""
    boots = image((_BLKDISCARD,))
    with ExitStack() as stack:
        names = [drive.name for drive in drives]
        groups: dict[str, str] = {}
        if (ROOT / "blkio.throttle.io_serviced").exists():
            groups = stack.enter_context(blkio_groups(names))
        with ThreadPoolExecutor(len(drives)) as threads:
            booting = [
                threads.submit(_boot, host, drive, disks[drive.name], boots, emulator)
                for drive in drives
            ]
        booted = [each.result() for each in booting]
        made = []
        for drive, vm in zip(drives, booted, strict=True):
            stack.callback(vm.destroy)
            group = ROOT / groups[vm.name] if groups else None
            if group is not None:
                (group / "cgroup.procs").write_text(str(_process(host, vm.name)))
            monitor = stack.enter_context(Monitor(_socket(host, vm.name)))
            eventually(lambda monitor=monitor: monitor.looks[-1].limits)  # type: ignore[misc]
            made.append(Guest(drive, vm, monitor, group))
        yield made


def _boot(host: Host, drive: Drive, disk: DiskSpec, boots: Image, emulator: Path | None) -> Vm:
    vm = Vm(host, drive.name)
    vm.define(
        domain_xml(
            drive.name,
            [disk],
            image=boots,
            folder=host.dir,
            policy=policy(drive),
            emulator=emulator,
            monitor=_socket(host, drive.name),
            machine="pc" if drive.bus == "ide" else "q35",
        )
    )
    vm.start()
    vm.exec(f"until [ -b {drive.device} ]; do usleep 10000; done")
    return vm


def _socket(host: Host, name: str) -> Path:
    return host.dir / f"{name}.qmp"


def _process(host: Host, name: str) -> int:
    """Return the number of a guest's QEMU, outside of the host."""
    socket = str(_socket(host, name)).encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
        except OSError:  # it has just ended
            continue
        if b"-uuid" in words and socket in words:
            return int(folder.name)
    raise RuntimeError(f"{name}: its QEMU isn't among this machine's processes")
