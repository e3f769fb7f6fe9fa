"""The process of a VM: found by libvirt's pid file, or by who listens at a socket.

Neither is proof. A pid file may be older than the process that has its number now, and a socket
may be made by one process and served by another. So a process counts as a VM's QEMU only if its
command line says so. A QEMU can overwrite that, but not where it is or what it was started from: by
its pid file it also counts if it is in the group that libvirt made for the guest, and at a socket
if the file that it runs is a QEMU's.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from iokeel.host.kernel import number_of, read_text

_PROC = Path("/proc")
_RUN = Path("/run/libvirt/qemu")
_UCRED = struct.Struct("3i")
# Fields of /proc/PID/stat, counted from the one after the name in brackets (proc(5)).
_STATE, _PARENT, _STARTED = 0, 1, 19
# The group that libvirt makes for a guest, with systemd and without. Of the guest's name it has the
# characters that a host's name may have, and no more than 64 in all.
_GUESTS_GROUP = re.compile(
    r"/(?:machine-qemu\\x2d\d+\\x2d([^/\n]+)\.scope|qemu-\d+-([^/\n]+)\.libvirt-qemu)(?=[/\n]|$)"
)
_LONG_NAME = 40
# Options by which a QEMU goes on with a guest that ran before. The last one is Proxmox VE's.
_GOES_ON = frozenset({"incoming", "loadvm", "loadstate"})


class Process(NamedTuple):
    """A process. started: in ticks since boot. A pid is used again, but not with the same start."""

    pid: int
    started: int


#: Stands for a process that has certainly ended: none has pid 0.
ENDED = Process(0, 0)


def boot_id() -> str:
    """Return the kernel's name of this boot; empty if it tells none."""
    return read_text(_PROC / "sys/kernel/random/boot_id") or ""


def process(pid: int, proc: Path = _PROC) -> Process | None:
    """Return a process by its pid; None if there is none."""
    status = _status(pid, proc)
    started = number_of(status[_STARTED]) if status else None
    return None if started is None else Process(pid, started)


def parent(pid: int, proc: Path = _PROC) -> int | None:
    """Return the pid of a process's parent; None if the process is gone."""
    status = _status(pid, proc)
    return number_of(status[_PARENT]) if status else None


def is_stopped(pid: int) -> bool:
    """Return True if a process is stopped (SIGSTOP, a debugger)."""
    status = _status(pid, _PROC)
    return status is not None and status[_STATE] in "Tt"


def guest(
    name: str, run: Path | None = None, proc: Path = _PROC, uuid: str | None = None
) -> Process | None:
    """Return the QEMU of a guest that libvirt runs on this host; None if it isn't found.

    run: the folder of libvirt's pid files; None for its usual ones. uuid: the guest's; None if it
    isn't known.
    """
    for folder in [run] if run is not None else _run_folders():
        pid = number_of(read_text(folder / f"{name}.pid") or "")
        by_file = None if pid is None else process(pid, proc)
        if by_file is not None and (
            is_guest(by_file.pid, name, proc) or _is_in_group_of(name, by_file.pid, proc)
        ):
            return by_file
    # A libvirt in a container has these files there, or other numbers in them. Another QEMU may say
    # that it is this one, but isn't in the group that libvirt made for it; and what this one starts
    # is younger.
    pids = [] if uuid is None else [pid for each in os.listdir(proc) if (pid := number_of(each))]
    claims = [process(pid, proc) for pid in pids if is_guest(pid, name, proc, uuid)]
    found = [each for each in claims if each is not None]
    if held := [each for each in found if _is_in_group_of(name, each.pid, proc)]:
        return min(held, key=lambda each: each.started)
    return found[0] if len(found) == 1 else None


def qemu(pid: int, proc: Path = _PROC) -> Process | None:
    """Return a QEMU by its pid; None if it is none. Blocks while its memory map is changed."""
    return process(pid, proc) if is_qemu(pid, proc) else None


class Peer(NamedTuple):
    """The process at the other end of a unix socket, and its user."""

    pid: int
    uid: int


def peer(connected: socket.socket) -> Peer:
    """Return who listens at a unix socket, or who has connected to one."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _ = _UCRED.unpack(credentials)
    return Peer(pid, uid)


def is_qemu(pid: int, proc: Path = _PROC) -> bool:
    """Return True if a process is a QEMU, by the name that it was started under, or by its file."""
    programs = [_arguments(pid, proc)[0]]
    with contextlib.suppress(OSError):
        programs.append(os.readlink(proc / str(pid) / "exe"))
    names = [os.path.basename(program) for program in programs]
    return any(name.startswith("qemu-") or name == "kvm" for name in names)


def has_booted(pid: int, proc: Path = _PROC) -> bool:
    """Return True if a QEMU was started to boot its guest, and not to go on with one that ran.

    False if nothing is known of the process. Blocks while its memory map is changed.
    """
    program, *words = _arguments(pid, proc)
    options = {word.lstrip("-") for word in words if word.startswith("-")}
    return program != "" and not options & _GOES_ON


def is_guest(pid: int, name: str, proc: Path = _PROC, uuid: str | None = None) -> bool:
    """Return True if a process is the QEMU that libvirt started for the guest of that name.

    uuid: the guest's; None if it doesn't matter.
    """
    arguments = _arguments(pid, proc)
    if uuid is not None and ("-uuid", uuid) not in pairwise(arguments):
        return False
    option = "guest=" + name.replace(",", ",,")  # a comma in a value is doubled
    for value in (arguments[i + 1] for i, word in enumerate(arguments[:-1]) if word == "-name"):
        rest = value.removeprefix(option)
        if rest != value and (not rest or (rest[0] == "," and rest[:2] != ",,")):
            return True
    return False


def _is_in_group_of(name: str, pid: int, proc: Path) -> bool:
    """Return whether a process is in the group that libvirt made for the guest of that name."""
    plain = re.sub("[^A-Za-z0-9]", "", name)
    for match in _GUESTS_GROUP.finditer(read_text(proc / str(pid) / "cgroup") or ""):
        kept = re.sub(r"\\x[0-9a-f]{2}|[^A-Za-z0-9]", "", match[1] or match[2])
        if kept == plain or (len(kept) > _LONG_NAME and plain.startswith(kept)):
            return kept != ""
    return False


def _arguments(pid: int, proc: Path) -> list[str]:
    return (read_text(proc / str(pid) / "cmdline") or "").split("\0")


def _status(pid: int, proc: Path) -> list[str] | None:
    fields = (read_text(proc / str(pid) / "stat") or "").rpartition(")")[2].split()
    return fields if len(fields) > _STARTED and fields[_STATE] not in "ZX" else None


def _run_folders() -> Iterator[Path]:
    yield _RUN
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):  # qemu:///session
        yield Path(runtime) / "libvirt/qemu/run"
