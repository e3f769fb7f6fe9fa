"""A kernel block device whose requests go to an NBD server: nbdfuse makes a file, loop a device."""

import fcntl
import os
import struct
import subprocess
import time
from pathlib import Path

from lab.namespace import Namespace

LOOP_CTL_GET_FREE, LOOP_CONFIGURE = 0x4C82, 0x4C0A
AUTOCLEAR, DIRECT_IO = 4, 16
LOOP_CONFIG = "=II 5Q 4I 160x 2Q 64x"
"""linux/loop.h's struct loop_config: fd, block size, loop_info64 with its flags."""
CONNECTIONS = 16
MAX_BACKGROUND = 1024
"""Requests that FUSE lets be under way at once; 12 where nobody says so."""


class FuseLoop:
    """A loop device over an NBD server, with direct I/O; it goes when closed, or its owner dies.

    device: its path, such as /dev/loop0.
    """

    def __init__(self, inside: Namespace, folder: Path, uri: str) -> None:
        """Make the device.

        inside: where nbdfuse runs, so that it and its mount end with the owner.
        folder: an empty folder there for the mount.
        Raises RuntimeError when nbdfuse or the kernel refuses.
        """
        file = folder / "disk"
        argv = ["nbdfuse", f"--connections={CONNECTIONS}", str(file), uri]
        self._nbdfuse = inside.popen(argv, stderr=subprocess.PIPE, text=True)
        try:
            seen = Path(f"/proc/{inside.pid}/root{file}")
            deadline = time.monotonic() + 20
            while not seen.exists():
                if self._nbdfuse.poll() is not None or time.monotonic() > deadline:
                    self._nbdfuse.kill()
                    raise RuntimeError(f"nbdfuse: {self._nbdfuse.communicate()[1].strip()}")
                time.sleep(0.01)
            inside.run(["mount", "-t", "fusectl", "fusectl", "/sys/fs/fuse/connections"])
            # FUSE numbers its connections by the minor numbers of their mounts.
            settings = f"/sys/fs/fuse/connections/{os.minor(seen.parent.stat().st_dev)}"
            for name in ("max_background", "congestion_threshold"):
                Path(f"/proc/{inside.pid}/root{settings}/{name}").write_text(str(MAX_BACKGROUND))
            backing = os.open(seen, os.O_RDWR | os.O_CLOEXEC)
            try:
                self.device, self._loop = _attach(backing)
            finally:
                os.close(backing)
        except BaseException:
            self._nbdfuse.kill()
            raise

    def close(self) -> None:
        """Give the device back; who else has it open keeps it until they close it."""
        os.close(self._loop)
        self._nbdfuse.terminate()
        self._nbdfuse.communicate()


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
                if error.errno != 16:  # EBUSY: someone else was quicker
                    raise RuntimeError(f"{device}: {error}") from error
    finally:
        os.close(control)
