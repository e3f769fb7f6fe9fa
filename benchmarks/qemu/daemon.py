"""Storage daemons with a throttle group over null devices, stock and patched."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from benchmarks.qemu.curves import Limits
from testing.hypervisors.dialects import TODAYS
from testing.hypervisors.qmp_client import QmpClient
from testing.lab.qemu import binaries

DISK_BYTES = 8 << 30
Which = Literal["stock", "patched"]
BOTH: tuple[Which, Which] = ("stock", "patched")


@dataclass(frozen=True)
class Daemons:
    """The two qemu-storage-daemons that are compared. quick: shorter runs."""

    stock: Path
    patched: Path
    quick: bool

    @classmethod
    def built(cls, stock: Path | None, patched: Path | None, quick: bool) -> Daemons:
        """Return the daemons of two folders; None: those that qemu-patches/build makes."""
        folders = (stock or binaries("--stock"), patched or binaries())
        old, new = (folder / "qemu-storage-daemon" for folder in folders)
        return cls(old, new, quick)

    def of(self, which: Which) -> Path:
        """Return one of the two."""
        return self.stock if which == "stock" else self.patched


@dataclass(frozen=True)
class Count:
    """What a throttle group says of its reads or writes."""

    requests: int
    cost: float


@dataclass(frozen=True)
class GroupStats:
    """What a patched QEMU says of a throttle group, as far as it is used here."""

    read: Count
    write: Count


class Daemon:
    """A qemu-storage-daemon with one throttle group, and an NBD export for each member."""

    def __init__(self, binary: Path, folder: Path, limits: Limits, argv: Sequence[str]) -> None:
        self.folder, self.limits = folder, limits
        self._nbd = folder / "nbd.sock"
        monitor = folder / "qmp.sock"
        group = {"qom-type": "throttle-group", "id": "group", "limits": limits}
        start = [str(binary), "--chardev", f"socket,id=mon,path={monitor},server=on,wait=off"]
        start += ["--monitor", "chardev=mon", "--object", json.dumps(group)]
        start += ["--nbd-server", f"addr.type=unix,addr.path={self._nbd},max-connections=0"]
        self.process = subprocess.Popen([*start, *argv])
        try:
            self._qmp = QmpClient(monitor)
        except OSError:
            self.process.kill()
            self.process.wait()
            raise

    def uri(self, member: int = 0) -> str:
        """Return a member's address for NBD clients."""
        return f"nbd+unix:///t{member}?socket={self._nbd}"

    def stats(self) -> GroupStats:
        """Return the patched QEMU's counts of the group."""
        [group] = msgspec.convert(self._qmp.ask(TODAYS.query_groups), list[GroupStats])
        return group

    def set_limits(self, limits: Limits) -> None:
        """Give the group other limits."""
        self._qmp.ask("qom-set", path="/objects/group", property="limits", value=limits)

    def cpu_seconds(self) -> float:
        """Return the CPU time that the main thread has used, which does all requests."""
        return int(Path(f"/proc/{self.process.pid}/schedstat").read_text().split()[0]) / 1e9

    def close(self) -> None:
        """End it."""
        self._qmp.ask("quit")
        self._qmp.close()
        self.process.wait(20)


@contextlib.contextmanager
def daemon(binary: Path, limits: Limits, members: int = 1) -> Iterator[Daemon]:
    """Run a daemon whose throttle group has so many members."""
    argv: list[str] = []
    for i in range(members):
        null = {"driver": "null-co", "node-name": f"null{i}", "size": DISK_BYTES}
        node: dict[str, object] = {"driver": "throttle", "node-name": f"t{i}", "file": f"null{i}"}
        node["throttle-group"] = "group"
        export = {"type": "nbd", "id": f"e{i}", "node-name": f"t{i}", "writable": True}
        argv += ["--blockdev", json.dumps(null), "--blockdev", json.dumps(node)]
        argv += ["--export", json.dumps(export)]
    with tempfile.TemporaryDirectory(prefix="iokeel-bench-") as folder:
        instance = Daemon(binary, Path(folder), limits, argv)
        try:
            yield instance
        finally:
            instance.close()
