"""A client of the QEMU guest agent, straight on the socket that QEMU makes for its port."""

import json
import secrets
import socket
import threading
import time
from pathlib import Path
from typing import Any


class AgentError(Exception):
    """The guest agent refused a command, or can't be reached."""


class GuestAgent:
    """One connection to a guest agent; safe to share between threads.

    The connection is made at the first call and kept, because an agent without a peer polls its
    port. QEMU serves one peer at a time: a second connection to the same guest waits for ever.
    """

    def __init__(self, path: Path) -> None:
        """path: the unix socket of the guest's agent port."""
        self.path = path
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()

    def call(self, command: str, timeout: float = 30, **arguments: Any) -> Any:
        """Run one agent command and return its answer.

        timeout: seconds. Raises AgentError when the agent refuses, or doesn't answer in time.
        """
        request = {"execute": command, "arguments": arguments}
        with self._lock:
            try:
                answer = self._exchange(request, timeout)
            except OSError as error:
                self._drop()
                raise AgentError(f"{self.path}: {command}: {error}") from error
        if "error" in answer:
            raise AgentError(f"{self.path}: {command}: {answer['error']['desc']}")
        return answer["return"]

    def close(self) -> None:
        """Let go of the connection; the next call makes a new one."""
        with self._lock:
            self._drop()

    def _exchange(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout
        if self._socket is None:
            self._connect(deadline)
        self._send(json.dumps(request).encode(), deadline)
        answer: dict[str, Any] = json.loads(self._receive(b"\n", deadline))
        return answer

    def _connect(self, deadline: float) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(max(0.01, deadline - time.monotonic()))
        self._socket.connect(str(self.path))
        # An earlier peer's leftovers end at the 0xFF before the answer to this very id.
        mark = secrets.randbits(31)
        sync = {"execute": "guest-sync-delimited", "arguments": {"id": mark}}
        self._send(b"\xff" + json.dumps(sync).encode(), deadline)
        while True:
            self._receive(b"\xff", deadline)
            if json.loads(self._receive(b"\n", deadline)).get("return") == mark:
                return

    def _send(self, data: bytes, deadline: float) -> None:
        assert self._socket
        self._socket.settimeout(max(0.01, deadline - time.monotonic()))
        self._socket.sendall(data)

    def _receive(self, end: bytes, deadline: float) -> bytes:
        assert self._socket
        received = bytearray()
        while not received.endswith(end):
            self._socket.settimeout(max(0.01, deadline - time.monotonic()))
            # Never past `end`: the agent speaks only when asked, and a line is its last word.
            part = self._socket.recv(1 if end == b"\xff" else 1 << 20)
            if not part:
                raise ConnectionError("the guest is gone")
            received += part
        return bytes(received)

    def _drop(self) -> None:
        if self._socket:
            self._socket.close()
            self._socket = None
