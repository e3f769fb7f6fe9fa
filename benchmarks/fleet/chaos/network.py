"""Network namespaces on a bridge, each of which can be cut off from the others, or slowed down."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_SUBNET = "10.99.0"
_CABLE = Path(__file__).with_name("slow_cable.py")


class Network:
    """Namespaces by the names of their hosts."""

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._own = f"iokeel{os.getpid()}"

    def start(self) -> None:
        """Make them. Nothing outside of them is changed."""
        hub = f"{self._own}-hub"
        _ip("netns", "add", hub)
        _ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        self._address(hub, "bridge", 1)
        for number, name in enumerate(self._names):
            own = self._namespace(name)
            _ip("netns", "add", own)
            ends = ("link", "add", f"v{number}", "type", "veth", "peer", "name", "net", "netns")
            _ip("-n", hub, *ends, own)
            _ip("-n", hub, "link", "set", f"v{number}", "master", "bridge", "up")
            self._address(own, "net", number + 2)

    def _address(self, namespace: str, link: str, number: int) -> None:
        _ip("-n", namespace, "link", "set", "lo", "up")
        _ip("-n", namespace, "addr", "add", f"{_SUBNET}.{number}/24", "dev", link)
        _ip("-n", namespace, "link", "set", link, "up")

    def end(self) -> None:
        """Remove them."""
        for name in [*self._names, "hub"]:
            subprocess.run(
                ["ip", "netns", "del", self._namespace(name)], check=False, capture_output=True
            )

    def _namespace(self, name: str) -> str:
        return f"{self._own}-{name}"

    def address(self, name: str) -> str:
        """Return a host's address."""
        return f"{_SUBNET}.{self._names.index(name) + 2}"

    def inside(self, name: str) -> tuple[str, ...]:
        """Return the words before a command that is to run on a host, or on the "hub"."""
        return ("ip", "netns", "exec", self._namespace(name))

    @contextlib.contextmanager
    def cut(self, *names: str) -> Iterator[None]:
        """Cut hosts off."""
        self._switch(names, "down")
        try:
            yield
        finally:
            self._switch(names, "up")

    @contextlib.contextmanager
    def slow(self, name: str, delay_s: float, loss_ratio: float) -> Iterator[None]:
        """Have what a host sends arrive late, if at all."""
        hub, number = self._namespace("hub"), self._names.index(name)
        link, tap = f"v{number}", f"slow{number}"
        cable = [sys.executable, str(_CABLE), link, tap, str(delay_s), str(loss_ratio)]
        with subprocess.Popen([*self.inside("hub"), *cable], stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                if not process.stdout.readline():
                    raise RuntimeError(f"the slow cable of {name} ended")
                _ip("-n", hub, "link", "set", tap, "master", "bridge", "up")
                _ip("-n", hub, "link", "set", link, "nomaster")
                yield
            finally:
                process.kill()
                _ip("-n", hub, "link", "set", link, "master", "bridge")

    def _switch(self, names: tuple[str, ...], state: str) -> None:
        for name in names:
            link = f"v{self._names.index(name)}"
            _ip("-n", self._namespace("hub"), "link", "set", link, state)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
