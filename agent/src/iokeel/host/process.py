"""The process that a VM is: found by libvirt's pid file, or by who listens at a socket.

A pid file may be older than the process that has its number now, and a socket may have been made
by another than who serves it: what is found is believed when its command line says that it is
that VM's QEMU.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from iokeel.host.mounts import text_of

_PROC = Path("/proc")
_RUN = Path("/run/libvirt/qemu")
_UCRED = struct.Struct("3i")
# starttime, counted from what follows the name in brackets (proc(5)); before it, ppid.
_STARTED, _PARENT = 19, 1


class Process(NamedTuple):
    """A process. started: ticks since boot; a pid is used again, the two together are not."""

    pid: int
    started: int


def process(pid: int, proc: Path = _PROC) -> Process | None:
    """Return a process by its pid, or None where there is none."""
    status = _status(pid, proc)
    return Process(pid, int(status[_STARTED])) if status else None


def parent(pid: int, proc: Path = _PROC) -> int | None:
    """Return the pid of a process's parent, or None where it is gone."""
    status = _status(pid, proc)
    return int(status[_PARENT]) if status else None


def guest(name: str, run: Path | None = None, proc: Path = _PROC) -> Process | None:
    """Return the QEMU of a guest that libvirt runs on this host, or None where it isn't found.

    run: where libvirt keeps pid files; None for its usual places.
    """
    for folder in [run] if run is not None else _run_folders():
        pid = text_of(folder / f"{name}.pid") or ""
        if pid.isdigit() and (found := process(int(pid), proc)) and is_guest(found.pid, name, proc):
            return found
    return None


def peer(connected: socket.socket, proc: Path = _PROC) -> Process | None:
    """Return the QEMU that listens at a unix socket, or None where it is none."""
    size = _UCRED.size
    pid, _, _ = _UCRED.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return process(pid, proc) if is_qemu(pid, proc) else None


def is_qemu(pid: int, proc: Path = _PROC) -> bool:
    """Whether a process is a QEMU, by the name that it was started under."""
    program = os.path.basename(_arguments(pid, proc)[0])
    return program.startswith("qemu-") or program == "kvm"


def is_guest(pid: int, name: str, proc: Path = _PROC) -> bool:
    """Whether a process is the QEMU of a guest that libvirt has started under a name."""
    arguments = _arguments(pid, proc)
    option = "guest=" + name.replace(",", ",,")  # a comma in a value is doubled
    for said in (arguments[i + 1] for i, word in enumerate(arguments[:-1]) if word == "-name"):
        rest = said.removeprefix(option)
        if rest != said and (not rest or (rest[0] == "," and rest[:2] != ",,")):
            return True
    return False


def _arguments(pid: int, proc: Path) -> list[str]:
    return (text_of(proc / str(pid) / "cmdline") or "").split("\0")


def _status(pid: int, proc: Path) -> list[str] | None:
    fields = (text_of(proc / str(pid) / "stat") or "").rpartition(")")[2].split()
    return fields if len(fields) > _STARTED and fields[0] not in "ZX" else None


def _run_folders() -> Iterator[Path]:
    yield _RUN
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):  # qemu:///session
        yield Path(runtime) / "libvirt/qemu/run"
