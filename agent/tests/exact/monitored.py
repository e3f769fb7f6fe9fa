"""QEMUs with two monitors and no libvirt: one is the agent's, the other one a test's."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_START_S = 20.0


class Monitored:
    """A qemu-storage-daemon or a QEMU. agent_socket: the monitor that is the agent's."""

    def __init__(self, folder: Path, command: Sequence[str | Path], name: str) -> None:
        self.agent_socket = folder / f"{name}.qmp"
        mine = folder / f"{name}-test.qmp"
        monitors = [
            word
            for number, path in enumerate((self.agent_socket, mine))
            for word in (
                *("--chardev", f"socket,id=c{number},path={path},server=on,wait=off"),
                *_monitor(number, command[0]),
            )
        ]
        self.process = subprocess.Popen([*command, *monitors])
        deadline = time.monotonic() + _START_S
        while not (mine.exists() and self.agent_socket.exists()):
            assert self.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(mine))
        self._file = sock.makefile("rwb")
        sock.close()
        self._file.readline()
        self.ask("qmp_capabilities")

    def ask(self, command: str, **arguments: Any) -> Any:
        """Return the answer to a command."""
        self._file.write(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        self._file.flush()
        while "event" in (reply := json.loads(self._file.readline())):
            pass
        assert "error" not in reply, reply
        return reply["return"]

    def group(self, name: str) -> dict[str, Any]:
        """Return what query-throttle-groups says of a group."""
        (found,) = [g for g in self.ask("query-throttle-groups") if g["name"] == name]
        group: dict[str, Any] = found
        return group

    def set_object(self, name: str, **limits: Any) -> None:
        """Change limits of a group by hand."""
        value = {key.replace("_", "-"): value for key, value in limits.items()}
        self.ask("qom-set", path=f"/objects/{name}", property="limits", value=value)

    def end(self) -> None:
        """Kill it."""
        self._file.close()
        self.process.kill()
        self.process.wait()


def _monitor(number: int, program: str | Path) -> tuple[str, ...]:
    if "storage-daemon" in str(program):
        return ("--monitor", f"chardev=c{number}")
    return ("-mon", f"chardev=c{number},mode=control")
