"""A QMP connection for tests and benchmarks, with nothing of the agent's own code."""

from __future__ import annotations

import io
import json
import socket
from pathlib import Path
from typing import Any

from testing.waiting import eventually


class QmpError(Exception):
    """QEMU refused a command."""


class QmpClient:
    """A connection to a monitor, which serves one client at a time. Events are passed over."""

    def __init__(self, path: Path, connect_s: float = 60.0) -> None:
        """Connect, trying for `connect_s` seconds; then raises OSError."""
        self._file = eventually(lambda: _connected(path), connect_s)
        self._file.readline()
        self.ask("qmp_capabilities")

    def ask(self, command: str, **arguments: object) -> Any:
        """Return the answer to a command. Raises QmpError with QEMU's words."""
        request = {"execute": command, "arguments": arguments}
        self._file.write(json.dumps(request).encode() + b"\n")
        self._file.flush()
        while "event" in (reply := json.loads(self._file.readline())):
            pass
        if "error" in reply:
            raise QmpError(f"{command}: {reply['error']['desc']}")
        return reply["return"]

    def close(self) -> None:
        """Let the next client have the monitor."""
        self._file.close()

    def __enter__(self) -> QmpClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _connected(path: Path) -> io.BufferedRWPair:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        return connection.makefile("rwb")
