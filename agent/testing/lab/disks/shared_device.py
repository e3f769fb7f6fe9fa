"""A block device that several drives share, each an export of a storage daemon."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Self

from testing.lab import qemu
from testing.lab.cache import cache_dir
from testing.lab.disks.storage_daemon import StorageDaemon
from testing.lab.roots.namespace import Namespace


class SharedDevice:
    """A block device, and storage daemons that share it out.

    with SharedDevice(Path("/dev/sdx"), drives=16) as disk:
        fio({"ioengine": "nbd", "uri": disk.uri(0), "rw": "randread", ...})

    The daemons end, and the device has the scheduler again that it had, when it is closed.

    device: /proc/diskstats, blkio cgroups and schedulers see its requests.
    devices: it and other ways to the same disk, each with a queue and counters of its own, as
        hosts on a SAN have them.
    drive_bytes: the size of each drive.
    slowdown: the factor by which the disk's times are stretched: rates are that much lower than
        the device's, latencies that much higher.
    """

    devices: Sequence[Path]
    drive_bytes: int
    slowdown: float = 1.0

    def __init__(
        self,
        device: Path,
        drives: int = 16,
        binary: Path | None = None,
        apart: bool | Sequence[int] = False,
        inside: Namespace | None = None,
    ) -> None:
        """Share out a device, in equal parts of whole mebibytes.

        drives: how many share it; 0: no storage daemon.
        binary: of qemu-storage-daemon (None: the one with this project's patches).
        apart: a storage daemon for each drive, or for so many drives each, one after the other; the
            kernel tells only processes apart.
        inside: where the storage daemons run (None: in a namespace of their own). An agent finds
            their cgroups only if it runs there too, or outside.
        """
        self.devices = [device]
        sectors = int(Path("/sys/block", device.name, "size").read_text())
        self.drive_bytes = (sectors << 9) // max(drives, 1) >> 20 << 20
        with contextlib.ExitStack() as stack:
            stack.callback(self._set_queue, "scheduler", scheduler_of(device))
            stack.callback(self._set_queue, "scheduler", "none")  # else BFQ would keep our settings
            own, folder = self._namespace(stack)
            self._share(inside or own, folder, stack, drives, binary, apart)
            self._stack = stack.pop_all()

    @property
    def device(self) -> Path:
        """The device that the storage daemons use."""
        return self.devices[0]

    @staticmethod
    def _namespace(stack: contextlib.ExitStack) -> tuple[Namespace, Path]:
        """Return where its programs run, and a folder for their sockets."""
        folder = Path(tempfile.mkdtemp(prefix="disk-", dir="/tmp"))
        shown = {path: (path, "rw") for path in (Path("/tmp"), cache_dir(), folder)}
        return stack.enter_context(Namespace(folder, Path("/"), shown)), folder

    def _share(
        self,
        inside: Namespace,
        folder: Path,
        stack: contextlib.ExitStack,
        drives: int,
        binary: Path | None,
        apart: bool | Sequence[int],
    ) -> None:
        """Start the storage daemons."""
        self._daemons: dict[int, StorageDaemon] = {}
        sizes = [1] * drives if apart is True else apart or [drives] * bool(drives)
        ends = list(accumulate(sizes))
        for part in [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]:
            own = folder / f"daemon{part[0]}"
            own.mkdir()
            daemon = StorageDaemon(
                inside, binary or qemu.storage_daemon(), own, self.device, part, self.drive_bytes
            )
            self._daemons.update(dict.fromkeys(part, daemon))
            stack.callback(daemon.close)

    def qmp_socket(self, drive: int) -> Path:
        """Return the QMP socket of a drive's storage daemon."""
        return self._daemon(drive).qmp_socket

    def uri(self, drive: int) -> str:
        """Return a drive's address for NBD clients."""
        return self._daemon(drive).uri(drive)

    def process(self, drive: int) -> int:
        """Return the process id of a drive's storage daemon."""
        return self._daemon(drive).process.pid

    @property
    def is_rotational(self) -> bool:
        """Whether the kernel takes the device for a hard disk."""
        return Path("/sys/block", self.device.name, "queue/rotational").read_text() == "1\n"

    def set_scheduler(self, name: str) -> None:
        """Give the device one of the kernel's schedulers: none, bfq, mq-deadline, kyber."""
        for file, value in queue_settings(name, self.slowdown).items():
            self._set_queue(file, value)

    def _set_queue(self, name: str, value: object) -> None:
        for device in self.devices:
            Path("/sys/block", device.name, "queue", name).write_text(str(value))

    def _daemon(self, drive: int) -> StorageDaemon:
        if not self._daemons:
            raise RuntimeError("this disk has no storage daemon: give it drives")
        return self._daemons[drive]

    def close(self) -> None:
        """End everything; clients must be gone."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def scheduler_of(device: Path) -> str:
    """Return the scheduler that a device has: the kernel puts it in brackets."""
    said = Path("/sys/block", device.name, "queue/scheduler").read_text()
    return said.partition("[")[2].partition("]")[0] or "none"


def queue_settings(scheduler: str, slowdown: float) -> dict[str, object]:
    """Return what gives a disk one of the kernel's schedulers, by file in its folder `queue`.

    BFQ's own times are stretched like the disk's. Its heuristics for interactive processes are
    off, as in its authors' own measurements of shares.
    """
    settings: dict[str, object] = {"scheduler": scheduler}
    if scheduler == "bfq":
        settings["iosched/low_latency"] = 0
        settings["iosched/slice_idle_us"] = round(8000 * slowdown)
        settings["iosched/timeout_sync"] = round(124 * slowdown)
    return settings
