"""nbdkit with a simulated disk, on a unix socket."""

import subprocess
import tempfile
from pathlib import Path
from typing import Self

from testing.lab.disks.disksim import DEVICES, built
from testing.processes import end, ready

THREADS = 256
"""Commands of one connection that can be under way at once."""


class Nbdkit:
    """A simulated disk that NBD clients reach at `uri`; a context manager.

    device: a name of DEVICES. size_bytes: how much of the device it has, from the start (None:
    all). slowdown: the factor by which all times are stretched. log: a file for all commands.
    options: others of the plugin: `store`, or a device's parameters.
    The server ends when its owner does, in any way.
    """

    def __init__(
        self,
        device: str,
        size_bytes: int | None = None,
        slowdown: float = 1,
        log: Path | None = None,
        **options: object,
    ) -> None:
        self.slowdown = slowdown
        self._folder = tempfile.TemporaryDirectory(prefix="disksim-")
        self.socket = Path(self._folder.name) / "nbd.sock"
        given = {"slowdown": slowdown, "size": size_bytes, "log": log, **options}
        argv = ["nbdkit", "--foreground", "--exit-with-parent", f"--threads={THREADS}"]
        argv += [f"--unix={self.socket}", str(built() / "disksim.so"), f"params={DEVICES[device]}"]
        argv += [f"{name}={value}" for name, value in given.items() if value is not None]
        self.process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
        try:
            ready(self.process, self.socket.exists, "nbdkit")
        except BaseException:
            self._folder.cleanup()
            raise

    @property
    def uri(self) -> str:
        """The disk's address, for fio's nbd engine and the like."""
        return f"nbd+unix:///?socket={self.socket}"

    def close(self) -> None:
        """End it; clients must be gone."""
        end(self.process)
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
