"""A disk that several drives share: simulated, but a block device of this kernel."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from testing.lab.disks.disksim import params
from testing.lab.disks.fuse_loop import FuseLoop
from testing.lab.disks.shared_device import SharedDevice
from testing.lab.roots.namespace import Namespace


class SharedDisk(SharedDevice):
    """A simulated disk, a loop device over it, and storage daemons that share it out.

    All of it goes when it is closed, or when its owner ends in any way.
    """

    def __init__(
        self, name: str, drives: int = 16, drive_bytes: int | None = None, slowdown: float = 1,
        binary: Path | None = None, log: Path | None = None, apart: bool | Sequence[int] = False,
        inside: Namespace | None = None, paths: int = 1, **options: object,
    ) -> None:  # fmt: skip
        """Start a disk.

        name: of lab.disksim.DEVICES. drives, binary, apart, inside: as of SharedDevice.
        drive_bytes: of each, one after the other from the disk's start (None: all of the disk,
            in equal parts of whole mebibytes).
        log: where the disk logs each request.
        paths: how many devices. The storage daemons use the first one.
        options: parameters that differ from the device's.
        """
        if drive_bytes is None:
            drive_bytes = int(params(name)["capacity"]) // max(drives, 1) >> 20 << 20
        self.name, self.slowdown = name, slowdown
        self.drive_bytes = drive_bytes
        with contextlib.ExitStack() as stack:
            own, folder = self._namespace(stack)
            loop = FuseLoop(own, folder, name, paths=paths, slowdown=slowdown, log=log, **options)
            stack.callback(loop.close)
            self.devices = loop.devices
            self._set_queue("rotational", int(name.startswith("hdd")))
            self._set_queue("read_ahead_kb", 128)  # loop takes more than a disk's default
            self.set_scheduler("none")  # a loop device keeps what it was last given
            self._share(inside or own, folder, stack, drives, binary, apart)
            self._stack = stack.pop_all()
