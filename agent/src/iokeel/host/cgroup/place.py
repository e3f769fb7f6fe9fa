"""Finds a VM's cgroup, and checks that it is that VM's alone.

libvirt gives each guest a group of its own: machine.slice/machine-qemu\\x2d1\\x2dNAME.scope with
systemd, machine/qemu-1-NAME.libvirt-qemu without. The guest's threads have groups below it, which
the io controller isn't in. So in cgroup v2 the guest's own group is the smallest that can be
bounded; v1 bounds the very group that a process is in. A QEMU outside libvirt has a group of its
own if its starter made one, as systemd does for each unit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from iokeel.errors import CgroupRefused
from iokeel.host.kernel_files import number_of, read_text
from iokeel.host.mounts import mounts
from iokeel.host.process import Process, is_qemu, parent, process

_LIBVIRT = re.compile(r"machine-qemu\\x2d.+\.scope|qemu-\d+-.+\.libvirt-qemu")
# Helpers are a few processes below their QEMU. This bounds the search in a tree that changes.
_MOST_PARENTS = 64


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """The cgroups that bound I/O: v2's, or v1's blkio.

    folder: the mount point. root: the path of the cgroup that is mounted there.
    """

    version: int
    folder: Path
    root: str


def io_hierarchy(proc: Path = Path("/proc")) -> Hierarchy | None:
    """Return the cgroups that bound I/O on this host; None if there are none."""
    legacy = None
    for mount in mounts(proc):
        folder = Path(mount.point)
        if mount.kind == "cgroup2":
            if "io" in (read_text(folder / "cgroup.controllers") or "").split():
                return Hierarchy(2, folder, mount.root)
        elif mount.kind == "cgroup" and "blkio" in mount.options.split(","):
            legacy = legacy or Hierarchy(1, folder, mount.root)
    return legacy


def group_of(
    vm: str, qemu: Process, hierarchy: Hierarchy, proc: Path = Path("/proc")
) -> Path | None:
    """Return the folder of a VM's group; None if its process is gone.

    Raises CgroupRefused if others are in that group, or if it must not be bounded.
    """
    path = _path(qemu.pid, hierarchy, proc)
    if path is None or process(qemu.pid, proc) != qemu or path.endswith(" (deleted)"):
        return None
    below = os.path.relpath(path, hierarchy.root)
    if below.split("/")[0] == "..":
        raise CgroupRefused(vm, path, "which the agent doesn't see from its own cgroup namespace")
    parts = [] if below == "." else below.split("/")
    of_libvirt = next((i for i, part in enumerate(parts) if _LIBVIRT.fullmatch(part)), None)
    if of_libvirt is not None and hierarchy.version == 2:
        parts = parts[: of_libvirt + 1]
    folder = hierarchy.folder.joinpath(*parts)
    while hierarchy.version == 2 and parts and read_text(folder / "cgroup.type") == "threaded":
        folder = folder.parent
        parts.pop()
    if not parts:
        raise CgroupRefused(vm, path, "the root of all groups")
    own = _path(os.getpid(), hierarchy, proc)
    if own is not None and _holds(os.path.join(hierarchy.root, *parts), own):
        raise CgroupRefused(vm, path, "which the agent is in itself")
    for pid in dict.fromkeys(_processes(folder)):
        if pid != qemu.pid and not _descends(pid, qemu.pid, proc):
            if of_libvirt is None:
                raise CgroupRefused(vm, path, f"which process {pid} is in too")
            if is_qemu(pid, proc):  # a helper (for a TPM, a filesystem) is the VM's own
                raise CgroupRefused(vm, path, f"which another QEMU, process {pid}, is in too")
    return folder


def _path(pid: int, hierarchy: Hierarchy, proc: Path) -> str | None:
    """Return the path of a process's group, as in /proc/PID/cgroup."""
    text = read_text(proc / str(pid) / "cgroup") or ""
    for line in text.split("\n"):  # a name may have any other character that ends lines
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        ours = controllers == "" if hierarchy.version == 2 else "blkio" in controllers.split(",")
        if ours and path.startswith("/") and "\0" not in path:
            return path
    return None


def _processes(folder: Path) -> Iterator[int]:
    """Yield the processes of a group and of the groups below it."""
    for below, _, files in os.walk(folder):
        if "cgroup.procs" in files:  # a threaded group's can't be read; the group above has it
            text = read_text(Path(below) / "cgroup.procs") or ""
            yield from (pid for word in text.split() if (pid := number_of(word)) is not None)


def _descends(pid: int, ancestor: int, proc: Path) -> bool:
    above: int | None = pid
    for _ in range(_MOST_PARENTS):
        above = parent(above, proc) if above else None
        if above == ancestor:
            return True
    return above is None and process(pid, proc) is None  # it has just gone


def _holds(group: str, path: str) -> bool:
    return path == group or path.startswith(f"{group}/")
