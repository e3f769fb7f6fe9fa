"""Finds a VM's cgroup, and checks that it is that VM's alone.

libvirt gives each guest a group of its own: machine.slice/machine-qemu\\x2d1\\x2dNAME.scope with
systemd, machine/qemu-1-NAME.libvirt-qemu without. The guest's threads have groups below it, which
the io controller isn't in. So in cgroup v2 the guest's own group is the smallest that can be
bounded; v1 bounds the very group that a process is in. A QEMU outside libvirt has a group of its
own if its starter made one, as systemd does for each unit.

A QEMU may try to look as if it weren't alone: it forks, and the child outlives its parent. So
libvirt's group for a guest is the guest's, whoever is in it, and a group that was a VM's alone
stays its own, unless another VM's QEMU joins it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from iokeel.errors import CgroupRefused
from iokeel.host.kernel import mounts, number_of, read_text
from iokeel.host.process import Process, parent, process

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
    vm: str,
    qemu: Process,
    hierarchy: Hierarchy,
    proc: Path = Path("/proc"),
    others: Collection[int] = (),
    was_its: Callable[[Path], bool] = lambda _: False,
) -> Path | None:
    """Return the folder of a VM's group; None if its process is gone.

    others: the processes of other VMs. was_its: tells whether a group was the VM's alone. Raises
    CgroupRefused if others are in that group, or if it must not be bounded.
    """
    path = _path(qemu.pid, hierarchy, proc)
    if path is None or process(qemu.pid, proc) != qemu or path.endswith(" (deleted)"):
        return None
    below = os.path.relpath(path, hierarchy.root)
    parts = [] if below == "." else below.split("/")
    if parts[:1] == [".."]:
        raise CgroupRefused(vm, path, "which the agent doesn't see from its own cgroup namespace")
    bounded = _bounded(parts, hierarchy)
    folder = hierarchy.folder.joinpath(*bounded)
    why = _refused(bounded, hierarchy, proc)
    if why is None and not any(map(_LIBVIRT.fullmatch, parts)):
        why = _shared(folder, qemu, proc, others, is_its=was_its(folder))
    if why is not None:
        raise CgroupRefused(vm, path, why)
    return folder


def _bounded(parts: list[str], hierarchy: Hierarchy) -> list[str]:
    """Return the smallest group that can be bounded, of those that a process is in."""
    if hierarchy.version != 2:
        return parts
    for number, part in enumerate(parts):
        if _LIBVIRT.fullmatch(part):
            parts = parts[: number + 1]
            break
    while parts and read_text(hierarchy.folder.joinpath(*parts, "cgroup.type")) == "threaded":
        parts = parts[:-1]
    return parts


def has_processes(folder: Path) -> bool:
    """Return whether there are processes in a group, or in the groups below it."""
    return next(_processes(folder), None) is not None


def _refused(parts: list[str], hierarchy: Hierarchy, proc: Path) -> str | None:
    """Return why a group must not be bounded, as a clause about it; None if it may be."""
    if not parts:
        return "the root of all groups"
    own = _path(os.getpid(), hierarchy, proc)
    if own is not None and _holds(os.path.join(hierarchy.root, *parts), own):
        return "which the agent is in itself"
    return None


def _shared(
    folder: Path, qemu: Process, proc: Path, others: Collection[int], *, is_its: bool
) -> str | None:
    """Return who else is in a group, as a clause about it; None if nobody is that matters."""
    for pid in dict.fromkeys(_processes(folder)):
        matters = not is_its or pid in others
        if matters and pid != qemu.pid and not _descends(pid, qemu.pid, proc):
            return f"which process {pid} is in too"
    return None


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
