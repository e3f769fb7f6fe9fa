"""A stage: a disk, and a scenario's drives on it, each a process in a cgroup of its own.

A drive is an export of a storage daemon, one for each VM of the scenario, or a real guest's disk,
or a process of a host that boots in a guest.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.bench.running.booted_host import CGROUPS, QUEUE, booted_host, write
from benchmarks.bench.scenario import Drive, Scenario
from iokeel.libvirt_xml.schema import NAMESPACE
from testing.hypervisors.qmp_client import QmpClient
from testing.lab.blkio import ROOT as BLKIO
from testing.lab.blkio import blkio_groups
from testing.lab.disks.shared_device import SharedDevice, queue_settings
from testing.lab.disks.shared_disk import SharedDisk
from testing.lab.guests.domain import DiskSpec
from testing.lab.guests.vm import Vm
from testing.lab.host import Host
from testing.lab.qemu import patched

#: How the name of a run's folder begins, before its owner's process id.
FOLDER = "iokeel-bench-"
#: libvirt's names of QEMU's limits.
_LIBVIRT = {
    "iops-total": "total-iops-sec",
    "bps-total": "total-bytes-sec",
    "iops-size": "size-iops-sec",
}
_LIBVIRT_BURST = {
    "iops-total-max": "total-iops-sec-max",
    "iops-total-max-length": "total-iops-sec-max-length",
    "bps-total-max": "total-bytes-sec-max",
    "bps-total-max-length": "total-bytes-sec-max-length",
}
#: Limits in QEMU's words.
Limits = Mapping[str, int]


@dataclass(frozen=True)
class Place:
    """Where a drive is. number: of its export, if it is one. group: its cgroup."""

    drive: Drive
    number: int | None
    group: Path


@dataclass(frozen=True)
class Stage:
    """All drives of a run in their places.

    host: of the guests, if there are any. booted: the host that booted, if all drives are there.
    """

    scenario: Scenario
    disk: SharedDevice
    folder: Path
    places: tuple[Place, ...]
    guests: Mapping[str, Vm]
    host: Host | None
    booted: Vm | None = None

    @property
    def exports(self) -> list[tuple[Drive, int]]:
        """The drives that are exports, with their numbers."""
        return [(each.drive, each.number) for each in self.places if each.number is not None]

    @property
    def device_number(self) -> str:
        """The disk's MAJOR:MINOR, as cgroups name it."""
        return Path("/sys/block", self.disk.device.name, "dev").read_text().strip()

    def set_scheduler(self, name: str) -> None:
        """Give the disk one of the kernel's schedulers, where its drives are."""
        if self.booted is None:
            self.disk.set_scheduler(name)
            return
        settings = queue_settings(name, self.scenario.slowdown)
        write(self.booted, {QUEUE / file: value for file, value in settings.items()})

    def set_limits(self, places: Sequence[Place], limits: Limits) -> None:
        """Give drives QEMU's own limits; what `limits` leaves out is unlimited.

        places: several exports of one storage daemon share a throttle group.
        """
        first, *others = places
        if first.number is None:
            named = {libvirt: limits.get(qemu, 0) for qemu, libvirt in _LIBVIRT.items()}
            named |= {name: limits[qemu] for qemu, name in _LIBVIRT_BURST.items() if qemu in limits}
            words = [word for name, value in named.items() for word in (f"--{name}", str(value))]
            vm = self.guests[first.drive.name]
            vm.host.virsh("blkdeviotune", vm.name, "vda", *words, "--live")
            return
        group = f"group{first.number}"
        with QmpClient(self.disk.qmp_socket(first.number)) as qmp:
            for other in others:
                node = {"driver": "throttle", "node-name": f"drive{other.number}"}
                node |= {"file": f"part{other.number}", "throttle-group": group}
                qmp.ask("blockdev-reopen", options=[node])
            qmp.ask("qom-set", path=f"/objects/{group}", property="limits", value=dict(limits))


@contextmanager
def stage(scenario: Scenario, daemon: Path, *, exact: bool) -> Iterator[Stage]:
    """Set a stage, without any control yet.

    daemon: the qemu-storage-daemon to use. exact: guests run on the patched QEMU.
    """
    exports = [drive for drive in scenario.drives if not (drive.guest or scenario.booted)]
    guests = [drive for drive in scenario.drives if drive.guest]
    vms = [len(list(drives)) for _, drives in groupby(exports, key=lambda drive: drive.vm)]
    with ExitStack() as stack:
        host, running = None, {}
        if guests or scenario.booted:
            host = stack.enter_context(Host.bookworm())
        disk = stack.enter_context(_disk(scenario, len(exports), daemon, vms, host))
        disk.set_scheduler("none")
        prefix = f"{FOLDER}{os.getpid()}-"
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix)))
        if host is not None:
            host.start_libvirtd()
            if scenario.booted:
                places = [Place(one, None, CGROUPS / one.name) for one in scenario.drives]
                own = [place.group for place in places]
                disk_inside = booted_host(host, disk.device, own, rotational=disk.is_rotational)
                booted = stack.enter_context(disk_inside)
                yield Stage(scenario, disk, folder, tuple(places), {}, host, booted)
                return
            emulator = patched(host) if exact else None
            for drive in guests:
                spec = DiskSpec("vda", disk.device)
                vm = Vm.boot(host, drive.name, [spec], policy=policy_xml(drive), emulator=emulator)
                running[drive.name] = stack.enter_context(vm)
        groups = stack.enter_context(blkio_groups(drive.vm for drive in scenario.drives))
        places = []
        numbers = iter(range(len(exports)))
        for drive in scenario.drives:
            number = None if drive.guest else next(numbers)
            group = BLKIO / groups[drive.vm]
            if number is not None:
                (group / "cgroup.procs").write_text(str(disk.process(number)))
            elif host is not None:  # process ids are the host's own there
                pid = f"/run/libvirt/qemu/{drive.name}.pid"
                host.run(["sh", "-c", f"cat {pid} >{group}/cgroup.procs"])
            places.append(Place(drive, number, group))
        yield Stage(scenario, disk, folder, tuple(places), running, host)


def _disk(
    scenario: Scenario, drives: int, daemon: Path, apart: Sequence[int], host: Host | None
) -> SharedDevice:
    """Start a disk: a real one, or the one that the scenario simulates.

    host: where the storage daemons run, if there are guests beside them.
    """
    inside = host.namespace if host is not None else None
    if scenario.is_real:
        return SharedDevice(Path(scenario.device), drives, daemon, apart, inside)
    changed: Any = dict(scenario.disk)
    return SharedDisk(
        scenario.device,
        drives,
        slowdown=scenario.slowdown,
        binary=daemon,
        apart=apart,
        inside=inside,
        **changed,
    )


def policy_xml(drive: Drive) -> str:
    """Return a drive's policy as a domain's metadata."""
    values = " ".join(f'{key.replace("_", "-")}="{v}"' for key, v in drive.policy.items())
    return f'<i:policy xmlns:i="{NAMESPACE}"><i:drive target="vda" {values}/></i:policy>'
