"""A simulated disk as kernel block devices: a file by FUSE, and loop devices over it."""

import errno
import fcntl
import os
import struct
import subprocess
from pathlib import Path

from testing.lab.disks.disksim import DEVICES, built
from testing.lab.roots.namespace import Namespace
from testing.processes import end, ready

# linux/loop.h
LOOP_CTL_GET_FREE, LOOP_CONFIGURE = 0x4C82, 0x4C0A
AUTOCLEAR, DIRECT_IO = 4, 16
LOOP_CONFIG = "=II 5Q 4I 160x 2Q 64x"
"""linux/loop.h's struct loop_config: fd, block size, loop_info64 with its flags."""


class FuseLoop:
    """Block devices over a simulated disk. They go when it is closed, or when its owner dies.

    devices: their paths, such as /dev/loop0.
    """

    def __init__(
        self, inside: Namespace, folder: Path, name: str, paths: int = 1, **options: object
    ) -> None:
        """Make the devices.

        inside: the namespace of the simulation, so that it and its mount end with the owner.
        folder: a folder there, for the file. paths: how many devices. name, options: see
        lab.nbdkit.Nbdkit. Raises RuntimeError when a program or the kernel refuses.
        """
        file = folder / "disk"
        file.touch()
        given = {"params": DEVICES[name], **options}
        argv = [str(built() / "disksim-fuse"), str(file)]
        argv += [f"{name}={value}" for name, value in given.items() if value is not None]
        self._fuse = inside.popen(argv, stderr=subprocess.PIPE)
        try:
            seen = Path(f"/proc/{inside.pid}/root{file}")
            ready(self._fuse, lambda: seen.stat().st_size > 0, "disksim-fuse")
            backing = os.open(seen, os.O_RDWR | os.O_CLOEXEC)
            try:
                attached = [_attach(backing) for _ in range(paths)]
            finally:
                os.close(backing)
        except BaseException:
            self._fuse.kill()
            raise
        self.devices = [device for device, _ in attached]
        self._loops = [loop for _, loop in attached]

    def close(self) -> None:
        """Give the devices back; other programs keep them until they close them."""
        for loop in self._loops:
            os.close(loop)
        end(self._fuse)


def _attach(backing: int) -> tuple[Path, int]:
    """Return a loop device over a file, and a descriptor; it ends with the last one closed."""
    info = struct.pack(LOOP_CONFIG, backing, 512, *[0] * 8, AUTOCLEAR | DIRECT_IO, 0, 0)
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        while True:
            device = Path(f"/dev/loop{fcntl.ioctl(control, LOOP_CTL_GET_FREE)}")
            loop = os.open(device, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(loop, LOOP_CONFIGURE, info)
                return device, loop
            except OSError as error:
                os.close(loop)
                if error.errno != errno.EBUSY:  # someone else was quicker
                    raise RuntimeError(f"{device}: {error}") from error
    finally:
        os.close(control)
