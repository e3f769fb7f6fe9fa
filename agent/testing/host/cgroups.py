"""A host's cgroups and processes as files. Unlike the kernel's, they keep one device each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from threading import Event

from iokeel.errors import IokeelError
from iokeel.host.process import Process

V2_FILES = {"cgroup.procs": "", "cgroup.type": "domain\n", "io.max": "", "io.stat": ""}
V1_FILES = {
    "cgroup.procs": "",
    "blkio.throttle.read_bps_device": "",
    "blkio.throttle.write_bps_device": "",
    "blkio.throttle.read_iops_device": "",
    "blkio.throttle.write_iops_device": "",
    "blkio.throttle.io_service_bytes": "Total 0\n",
    "blkio.throttle.io_serviced": "Total 0\n",
    "blkio.bfq.weight": "100\n",
}


def scope(number: int, name: str) -> str:
    """Return the group that systemd makes for a guest on libvirt's behalf."""
    return rf"machine.slice/machine-qemu\x2d{number}\x2d{name}.scope"


class Memory:
    """A store for the contents of cgroup files; it refuses while it is `full`.

    It hangs unless it `answers`, for 20 s at most.
    """

    def __init__(self) -> None:
        self.saved: dict[str, str] = {}
        self.full = False
        self.answers = Event()
        self.answers.set()

    def load_cgroups(self) -> dict[str, str]:
        return dict(self.saved)

    def save_cgroups(self, changed: Mapping[str, str | None]) -> None:
        self.answers.wait(20)
        if self.full:
            raise IokeelError("state.db", "is full")
        for path, text in changed.items():
            self.saved.pop(path, None)
            if text is not None:
                self.saved[path] = text


class Host:
    """A host with processes in `proc`, devices in `sys`, and groups in `cgroups`."""

    def __init__(self, folder: Path, version: int = 2, root: str = "/") -> None:
        self.version = version
        self.proc, self.sys, self.cgroups = folder / "proc", folder / "sys", folder / "cgroups"
        for path in (self.proc / "self", self.sys, self.cgroups):
            path.mkdir(parents=True)
        kind = "cgroup2 cgroup2 rw" if version == 2 else "cgroup cgroup rw,blkio"
        self.root = root
        (self.proc / "self/mountinfo").write_text(
            f"20 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 20 0:30 {root} {self.cgroups} rw - {kind}\n"
        )
        if version == 2:
            (self.cgroups / "cgroup.controllers").write_text("cpu io memory\n")
        (self.cgroups / "cgroup.procs").write_text("1\n")
        self.process(1, "init", "/init.scope")
        self.process(os.getpid(), "python3", "/system.slice/iokeel.service")

    def process(
        self, pid: int, command: str, path: str, *, parent: int = 1, started: int = 7
    ) -> Process:
        """Make a process in a group. path: the group's in /proc/PID/cgroup."""
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        fields = ["S", str(parent), *["0"] * 17, str(started), "0"]
        (folder / "stat").write_text(f"{pid} (a) b) {' '.join(fields)}\n")
        (folder / "cmdline").write_text(command.replace(" ", "\0") + "\0")
        if self.version == 2:
            (folder / "cgroup").write_text(f"1:name=systemd:/x\n0::{path}\n")
        else:
            (folder / "cgroup").write_text(f"7:cpu,blkio:{path}\n0::/elsewhere\n")
        return Process(pid, started)

    def group(self, path: str, *pids: int, **files: str) -> Path:
        """Make a group with processes in it."""
        folder = self.cgroups / path
        folder.mkdir(parents=True)
        for name, text in (V2_FILES if self.version == 2 else V1_FILES).items():
            (folder / name).write_text(text)
        for name, text in files.items():
            (folder / name.replace("_", ".")).write_text(text)
        (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
        return folder

    def guest(self, number: int, name: str) -> tuple[Path, Process]:
        """Make a guest like libvirt and systemd; return its group and its QEMU."""
        pid, path = 1000 + number, scope(number, name)
        top = self.group(path)
        inner = "" if self.version == 1 else "/libvirt/emulator"
        folder = self.group(f"{path}{inner}", pid) if inner else top
        if inner:
            (folder / "cgroup.type").write_text("threaded\n")
            (folder / "io.max").unlink()
        else:
            (top / "cgroup.procs").write_text(f"{pid}\n")
        command = f"/usr/bin/qemu-system-x86_64 -name guest={name},debug-threads=on -S"
        return top, self.process(pid, command, f"{self.root.rstrip('/')}/{path}{inner}")

    def device(self, number: str, scheduler: str = "none") -> None:
        """Make a disk. scheduler: the text of its file in sysfs."""
        folder = self.sys / "dev/block" / number / "queue"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "scheduler").write_text(f"{scheduler}\n")
