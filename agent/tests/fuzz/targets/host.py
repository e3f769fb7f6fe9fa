"""The kernel's files, and what is saved of VMs' cgroups."""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import astuple
from pathlib import Path

from iokeel.core.enforce.backstop import CgroupOrder, IoMax
from iokeel.core.values.storage import Place
from iokeel.host.block_devices import StoragePaths
from iokeel.host.cgroup.groups import Cgroups
from iokeel.host.disk_counters import DiskStats, read_pressure
from iokeel.host.in_use import InUse
from iokeel.host.process import guest, is_guest, is_qemu, parent, process
from testing.host.cgroups import Host, Memory
from tests.fuzz.budget import one_line
from tests.fuzz.targets.target import Target

_FOLDER = tempfile.TemporaryDirectory(prefix="iokeel-fuzz-", dir="/dev/shm")
_DEVICE = "8:0"
_WORDS = [
    *(b"0::/machine.slice 7:cpu,blkio:/ rw cgroup2 cgroup overlay upperdir= nfs btrfs zfs".split()),
    *(b"io memory max rbps= wbps= riops=5 wiops= default threaded domain inode found ours".split()),
    *(b"guest=db1 -name qemu-system-x86_64 kvm some avg10=1.00 full total=5 (deleted)".split()),
    *(rb"\040 \134 machine-qemu\x2d1\x2ddb1.scope qemu-1-db1.libvirt-qemu emulator".split()),
    *(b" - ", b"=== ", b"\n=== ", b"8:0", b"(a) b) S 1", b"Z", b"[bfq]"),
]


def _parts(data: bytes) -> list[bytes]:
    """Return the contents of several files in an input, which lines of === part."""
    return re.split(rb"^===.*\n", data, flags=re.MULTILINE)[1:]


class _Files:
    """Files below a folder, in a fixed order."""

    def __init__(self, name: str, *paths: str) -> None:
        self.folder = Path(_FOLDER.name) / name
        self._paths = [self.folder / path for path in paths]
        for path in self._paths:
            path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, data: bytes) -> None:
        """Give each file its part of an input."""
        parts = _parts(data)
        for i, path in enumerate(self._paths):
            path.write_bytes(parts[i] if i < len(parts) else b"")


_PROC = _Files("proc", "diskstats", "pressure/io", "5/stat", "5/cmdline", "5/comm", "run/db1.pid",
               "swaps", "self/mountinfo", "sys/dev/block/8:0/dev",
               "sys/dev/block/8:0/loop/backing_file")  # fmt: skip
_STATS = DiskStats(_PROC.folder, _PROC.folder / "sys")
(_PROC.folder / "5/fd").mkdir()


def proc(data: bytes) -> None:
    """Whatever the kernel's files hold, what they tell is known or not."""
    _PROC.write(data)
    folder, sys = _PROC.folder, _PROC.folder / "sys"
    for counters in _STATS.read({"sda": Place("sda", _DEVICE)}).values():
        assert all(number >= 0 for number in astuple(counters))
    if (pressure := read_pressure(folder)) is not None:
        assert pressure.some_ratio >= 0
    process(5, folder)
    parent(5, folder)
    is_qemu(5, folder)
    is_guest(5, "db1", folder)
    guest("db1", folder / "run", folder)
    places = StoragePaths(sys, folder)
    places.mount_point("/images/a.raw")
    places.of_device(_DEVICE)
    for use in InUse(sys, folder).users_of_device(os.makedev(8, 0)):
        one_line(use)
    [*InUse(sys, folder).guests_on_filesystem(str(folder))]


_V2, _V1 = (Host(Path(_FOLDER.name) / f"v{version}", version) for version in (2, 1))
_ORDER = CgroupOrder({_DEVICE: IoMax(riops=500)}, weight=200)


def cgroup(data: bytes) -> None:
    """Whatever a VM's group and its saved text hold, it is bounded or not, and put back."""
    _bounded(_V1 if len(data) % 2 else _V2, _parts(data))


def _bounded(host: Host, parts: list[bytes]) -> None:
    qemu = _QEMUS[host.version]
    group = _GROUPS[host.version]
    files = [
        host.proc / str(qemu.pid) / "cgroup",
        group / ("io.max" if host.version == 2 else "blkio.throttle.read_iops_device"),
        group / "cgroup.procs",
        group / ("cgroup.type" if host.version == 2 else "blkio.bfq.weight"),
        host.proc / "1/stat",
    ]
    before = [file.read_bytes() for file in files]
    for file, part in zip(files, parts[1:], strict=False):
        file.write_bytes(part)
    memory = Memory()
    if parts:
        memory.saved[str(group)] = parts[0].decode(errors="replace")
    cgroups = Cgroups(memory, host.proc, host.sys)
    cgroups.apply({"db1": _ORDER}, {"db1": qemu})
    cgroups.apply({}, {})
    cgroups.restore()
    for file, text in zip(files, before, strict=True):
        file.write_bytes(text)


_MADE = {host.version: host.guest(1, "db1") for host in (_V2, _V1)}
_GROUPS = {version: group for version, (group, _) in _MADE.items()}
_QEMUS = {version: qemu for version, (_, qemu) in _MADE.items()}

TARGETS = [Target("proc", proc, 1 << 16, _WORDS), Target("cgroup", cgroup, 1 << 14, _WORDS)]
