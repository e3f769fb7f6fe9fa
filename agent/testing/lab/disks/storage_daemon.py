"""A qemu-storage-daemon that shares one block device out to throttled drives."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testing.lab.roots.namespace import Namespace
from testing.processes import end, ready

#: So many requests of a connection are under way at most: QEMU's nbd/server.c, MAX_NBD_REQUESTS.
CONNECTION_DEPTH = 16


class StorageDaemon:
    """A storage daemon whose drives are equal parts of one device, each in its own throttle group.

    drives: the numbers of its parts. Drive i is the node `drive{i}` in the throttle group
    `/objects/group{i}`, over the raw node `part{i}`, over `disk`; NBD clients reach it as the
    export `drive{i}` of `nbd_socket`.
    qmp_socket: its QMP server, one client at a time.
    """

    def __init__(
        self, inside: Namespace, binary: Path, folder: Path, device: Path, drives: Sequence[int],
        drive_bytes: int, aio: str = "io_uring",
    ) -> None:  # fmt: skip
        """Start it. Raises RuntimeError with its words when it doesn't."""
        self.qmp_socket, self.nbd_socket = folder / "qmp.sock", folder / "nbd.sock"
        argv = [
            str(binary),
            "--chardev",
            f"socket,id=qmp,path={self.qmp_socket},server=on,wait=off",
        ]
        argv += ["--monitor", "chardev=qmp", "--nbd-server"]
        argv += [f"addr.type=unix,addr.path={self.nbd_socket},max-connections=0"]
        for option, values in self._nodes(device, drives, drive_bytes, aio):
            argv += [option, json.dumps(values)]
        self.process = inside.popen(argv, stderr=subprocess.PIPE)
        # It makes the NBD server after all that stands before it on the command line.
        sockets = (self.qmp_socket, self.nbd_socket)
        ready(self.process, lambda: all(path.exists() for path in sockets), binary.name)

    @staticmethod
    def _nodes(
        device: Path, drives: Sequence[int], drive_bytes: int, aio: str
    ) -> list[tuple[str, dict[str, Any]]]:
        disk = {"driver": "host_device", "node-name": "disk", "filename": str(device), "aio": aio}
        disk |= {"locking": "off"}  # a guest may have it too
        nodes: list[tuple[str, dict[str, Any]]] = []
        nodes.append(("--blockdev", disk | {"cache": {"direct": True}}))
        for i in drives:
            where = {"offset": i * drive_bytes, "size": drive_bytes}
            part = {"driver": "raw", "node-name": f"part{i}", "file": "disk"} | where
            drive = {"driver": "throttle", "node-name": f"drive{i}", "file": f"part{i}"}
            export = {"type": "nbd", "id": f"export{i}", "node-name": f"drive{i}"}
            nodes += [
                ("--object", {"qom-type": "throttle-group", "id": f"group{i}"}),
                ("--blockdev", part),
                ("--blockdev", drive | {"throttle-group": f"group{i}"}),
                ("--export", export | {"name": f"drive{i}", "writable": True}),
            ]
        return nodes

    def uri(self, drive: int) -> str:
        """Return a drive's address for NBD clients."""
        return f"nbd+unix:///drive{drive}?socket={self.nbd_socket}"

    def close(self) -> None:
        """End it; requests under way are lost."""
        end(self.process)
