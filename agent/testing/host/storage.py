"""Storages to calibrate: loop devices, small filesystems, and nbdkit's exports."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testing.waiting import eventually

MIB = 1 << 20


@contextmanager
def loop_device(folder: Path, size: int, *options: str) -> Iterator[Path]:
    """Yield a loop device of random data. size: in bytes."""
    file = folder / "disk.raw"
    with file.open("wb") as disk:
        for _ in range(size // MIB):
            disk.write(os.urandom(MIB))
    words: list[str | Path] = ["losetup", "--find", "--show", *options, file]
    device = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    try:
        yield Path(device)
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


@contextmanager
def mounted(folder: Path, what: str | Path, *options: str) -> Iterator[Path]:
    """Mount a filesystem on a new folder, and yield the folder."""
    folder.mkdir()
    subprocess.run(["mount", *options, what, folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@contextmanager
def nbd_server(folder: Path, *words: str | Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Serve an nbdkit plugin with its options; yield the URI and the process."""
    socket, pid = folder / "nbd.sock", folder / "nbd.pid"
    server = subprocess.Popen(
        ["nbdkit", "--foreground", "--unix", socket, "--pidfile", pid, *words]
    )
    try:
        eventually(pid.exists, what="nbdkit serves", process=server)
        yield f"nbd+unix:///?socket={socket}", server
    finally:
        server.kill()
        server.wait()
