"""What the agent tells the service manager that has started it, systemd say (sd_notify(3)).

One datagram a message, sent without waiting. A message that can't be sent is dropped, because no
agent should end or wait for its service manager.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator, Mapping

from iokeel.words.quoting import escaped


class ServiceManager:
    """The service manager, if there is one."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        # A leading @ stands for the NUL of an abstract address.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._told = ""
        self._is_ready = False
        self._reloads = 0

    def alive(self, status: str) -> None:
        """Say that the agent works, and in a line what it does. To be called at least once a tick.

        The first call, and the first after all reloading(), says that it is ready too.
        """
        lines = ["WATCHDOG=1"]
        is_ready = not self._reloads
        if is_ready and not self._is_ready:
            lines.append("READY=1")
        if status != self._told:
            lines.append(f"STATUS={escaped(' '.join(status.split()))}")
        if self._send(lines):
            self._told, self._is_ready = status, is_ready

    @contextlib.contextmanager
    def reloading(self) -> Iterator[None]:
        """Say that it reads its configuration again, while the context lasts.

        Several contexts may last at once.
        """
        now_us = time.monotonic_ns() // 1000
        self._send(["RELOADING=1", f"MONOTONIC_USEC={now_us}"])
        self._is_ready = False
        self._reloads += 1
        try:
            yield
        finally:
            self._reloads -= 1

    def stopping(self) -> None:
        """Say that it stops."""
        self._send(["STOPPING=1"])

    def _send(self, lines: list[str]) -> bool:
        if not self._address:
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.connect(self._address)
                sender.send("\n".join(lines).encode(errors="replace"))
        except (OSError, ValueError):  # ValueError: an address with a NUL
            return False
        return True
