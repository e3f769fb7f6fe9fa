"""A disk that several drives share: simulated, but a block device of this kernel."""

import contextlib
import tempfile
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Self

from testing.lab import qemu
from testing.lab.cache import cache_dir
from testing.lab.disksim import DEVICES, params
from testing.lab.fuse_loop import FuseLoop
from testing.lab.namespace import Namespace
from testing.lab.storage_daemon import StorageDaemon


class SharedDisk:
    """A simulated disk, a loop device over it, and a storage daemon that shares it out.

    with SharedDisk("sata-ssd-px-256m5s", drives=16) as disk:
        fio({"ioengine": "nbd", "uri": disk.uri(0), "rw": "randread", ...})

    All of it goes when it is closed, or when its owner ends in any way.

    device: the loop device; /proc/diskstats, blkio cgroups and schedulers see its requests.
    devices: it and other ways to the same disk, each with a queue and counters of its own, as
        hosts on a SAN have them.
    slowdown: the factor by which the disk's times are stretched: rates are that much lower than
        the device's, latencies that much higher.
    """

    def __init__(
        self, name: str, drives: int = 16, drive_bytes: int | None = None, slowdown: float = 1,
        binary: Path | None = None, log: Path | None = None, apart: bool | Sequence[int] = False,
        paths: int = 1, **options: object,
    ) -> None:  # fmt: skip
        """Start a disk.

        name: of lab.disksim.DEVICES. drives: how many share it; 0: no storage daemon.
        drive_bytes: of each, one after the other from the disk's start (None: all of the disk,
            in equal parts of whole mebibytes).
        binary: of qemu-storage-daemon (None: the one with this project's patches).
        log: where the disk logs each request.
        apart: a storage daemon for each drive, or for so many drives each, one after the other; the
            kernel tells only processes apart.
        paths: how many devices. The storage daemons use the first one.
        options: parameters that differ from the device's.
        """
        if drive_bytes is None:
            drive_bytes = int(params(name)["capacity"]) // max(drives, 1) >> 20 << 20
        self.name, self.slowdown = name, slowdown
        self.params_file, self.drive_bytes = DEVICES[name], drive_bytes
        self._daemons: dict[int, StorageDaemon] = {}
        with contextlib.ExitStack() as stack:
            folder = Path(tempfile.mkdtemp(prefix="disk-", dir="/tmp"))
            shown = {path: (path, "rw") for path in (Path("/tmp"), cache_dir(), folder)}
            inside = stack.enter_context(Namespace(folder, Path("/"), shown))
            loop = FuseLoop(
                inside, folder, name, paths=paths, slowdown=slowdown, log=log, **options
            )
            stack.callback(loop.close)
            self.devices = loop.devices
            self.device = self.devices[0]
            self._set_queue("rotational", int(name.startswith("hdd")))
            self._set_queue("read_ahead_kb", 128)  # loop takes more than a disk's default
            self.set_scheduler("none")  # a loop device keeps what it was last given
            sizes = [1] * drives if apart is True else apart or [drives] * bool(drives)
            ends = list(accumulate(sizes))
            for part in [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]:
                own = folder / f"daemon{part[0]}"
                own.mkdir()
                daemon = StorageDaemon(
                    inside, binary or qemu.storage_daemon(), own, self.device, part, drive_bytes
                )
                self._daemons.update(dict.fromkeys(part, daemon))
                stack.callback(daemon.close)
            self._stack = stack.pop_all()

    def qmp_socket(self, drive: int) -> Path:
        """Return the QMP socket of a drive's storage daemon."""
        return self._daemon(drive).qmp_socket

    def uri(self, drive: int) -> str:
        """Return a drive's address for NBD clients."""
        return self._daemon(drive).uri(drive)

    def process(self, drive: int) -> int:
        """Return the process id of a drive's storage daemon."""
        return self._daemon(drive).process.pid

    def set_scheduler(self, name: str) -> None:
        """Give the device one of the kernel's schedulers: none, bfq, mq-deadline, kyber.

        BFQ's own times are stretched like the disk's. Its heuristics for interactive processes
        are off, as in its authors' own measurements of shares.
        """
        self._set_queue("scheduler", name)
        if name == "bfq":
            self._set_queue("iosched/low_latency", 0)
            self._set_queue("iosched/slice_idle_us", round(8000 * self.slowdown))
            self._set_queue("iosched/timeout_sync", round(124 * self.slowdown))

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
