"""A host with a running agent, and what tests ask of them."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from iokeel.cli.client import why
from testing.lab.host import Host

URN = "urn:iokeel:policy:1"
T = TypeVar("T")


def policy(*drives: str, **attributes: str) -> str:
    """Return a policy element; each drive is its attributes, such as 'target="vda" limit="1"'."""
    words = " ".join(f'{name.rstrip("_")}="{value}"' for name, value in attributes.items())
    body = "".join(f"<iokeel:drive {drive}/>" for drive in drives)
    return f'<iokeel:policy xmlns:iokeel="{URN}" {words}>{body}</iokeel:policy>'


def eventually(ask: Callable[[], T], timeout_s: float = 15.0) -> T:
    """Return what `ask` returns once that is true; raise what it last raised, or AssertionError."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if answer := ask():
                return answer
            failed: Exception = AssertionError(f"not so within {timeout_s} s")
        except Exception as error:
            failed = error
        if time.monotonic() > deadline:
            raise failed
        time.sleep(0.1)


class Agent:
    """The agent on a host, as its operator has it: a process, its command, its log."""

    def __init__(self, host: Host, extra: str = "", state: Path | None = None) -> None:
        self.host = host
        self.socket = host.dir / "agent.sock"
        self.log = host.dir / "agent.log"
        self.config = host.dir / "agent.toml"
        self.config.write_text(
            f'[agent]\nsocket = "{self.socket}"\nstate_dir = "{state or host.dir / "state"}"\n'
            f'[libvirt]\nuri = "{host.uri}"\n{extra}'
        )
        self.process: subprocess.Popen[Any] | None = None

    def start(self) -> Agent:
        """Start it, and wait until it answers."""
        with self.log.open("ab") as log:
            self.process = self.host.popen(
                [*self.host.iokeel, "agent", "--config", self.config], stderr=log
            )
        eventually(lambda: self.metrics() is not None, 30)
        return self

    def stop(self) -> int:
        """Stop it as systemd does, and return its exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)

    def kill(self) -> None:
        """End it as the kernel does when memory runs out."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stats(self, *words: str) -> Any:
        """Return what `iokeel stats --json` prints."""
        options = ["--json", "--socket", str(self.socket), *words]
        return json.loads(self.host.run([*self.host.iokeel, "stats", *options]).stdout)

    def drive(self, domain: str, target: str = "vda") -> dict[str, Any]:
        """Return one drive's record."""
        (vm,) = [vm for vm in self.stats() if vm["domain"] == domain]
        (drive,) = [drive for drive in vm["drives"] if drive["target"] == target]
        record: dict[str, Any] = drive
        return record

    def why(self, domain: str, target: str = "vda") -> str:
        """Return the explanation of a drive's limits."""
        return "\n".join(why(self.socket, domain, target)[target])

    def metrics(self) -> dict[str, float]:
        """Return /metrics by sample, labels in the order in which they are sent."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.socket))
            connection.sendall(b"GET /metrics HTTP/1.0\r\nHost: agent\r\n\r\n")
            with connection.makefile(newline="") as answer:
                head, _, text = answer.read().partition("\r\n\r\n")
        assert " 200 " in head.splitlines()[0]
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        return {key: float(value) for key, _, value in (line.rpartition(" ") for line in lines)}

    def says(self, text: str) -> bool:
        """Whether its log has a text."""
        return text in self.log.read_text()


def blkdeviotune(host: Host, domain: str, target: str = "vda") -> dict[str, int]:
    """Return what virsh shows of a disk's limits, in libvirt's words; those that are set."""
    lines = host.virsh("blkdeviotune", domain, target).splitlines()
    pairs = [line.split(":") for line in lines if ":" in line]
    found = {name.strip(): value.strip() for name, value in pairs}
    return {name: int(value) for name, value in found.items() if value.isdigit() and int(value)}


def set_metadata(host: Host, domain: str, text: str) -> None:
    """Change a running domain's policy; `text` has no namespace, as virsh wants it."""
    host.virsh(
        "metadata", domain, "--uri", URN, "--key", "iokeel", "--set", text, "--live", "--config"
    )


@contextlib.contextmanager
def running_agent(host: Host, extra: str = "") -> Iterator[Agent]:
    """Run an agent; what it logged is shown where the test fails. extra: of its configuration."""
    running = Agent(host, extra).start()
    try:
        yield running
    finally:
        if running.process is not None and running.process.poll() is None:
            running.kill()
        print(running.log.read_text())
        running.log.unlink()
