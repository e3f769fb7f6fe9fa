"""The command and the agent as processes of their own, and a QEMU without a guest for them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

IOKEEL = Path(sys.executable).parent / "iokeel"
QEMU = "qemu-system-x86_64"
NOBODY = 65534
_START_S = 30.0


@dataclass(frozen=True)
class Done:
    """What a command printed, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one line on stderr; there must be one, and nothing that looks like a traceback."""
        (line,) = self.err.splitlines()
        assert line.startswith("iokeel: ")
        assert "Traceback" not in line
        return line.removeprefix("iokeel: ")


def iokeel(
    *words: str | Path,
    stdin: bytes = b"",
    environment: Mapping[str, str] | None = None,
    uid: int | None = None,
    timeout_s: float = 60,
) -> Done:
    """Run the command in an environment that says nothing of a terminal or of an agent."""
    unwanted = ("COLUMNS", "IOKEEL_SOCKET", "FORCE_COLOR")
    env = {k: v for k, v in os.environ.items() if k not in unwanted} | {**(environment or {})}
    done = subprocess.run(
        [IOKEEL, *words],
        input=stdin,
        capture_output=True,
        env=env,
        user=uid,
        group=uid,
        extra_groups=None if uid is None else [],
        timeout=timeout_s,
        check=False,
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + _START_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.05)


def http(
    where: Path | tuple[str, int], method: str, path: str, body: bytes = b""
) -> tuple[int, str, str]:
    """Ask by HTTP, with nothing of the agent's own code; return status, content type and body."""
    kind = socket.AF_UNIX if isinstance(where, Path) else socket.AF_INET
    with socket.socket(kind) as connection:
        connection.settimeout(10)
        connection.connect(str(where) if isinstance(where, Path) else where)
        head = f"{method} {path} HTTP/1.0\r\nHost: agent\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        with connection.makefile("rb") as answer:
            top, _, rest = answer.read().partition(b"\r\n\r\n")
    status, *headers = top.decode().split("\r\n")
    fields = dict(header.lower().split(": ", 1) for header in headers)
    return int(status.split()[1]), fields["content-type"], rest.decode()


def free_port() -> int:
    """Return a port that nobody serves now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_qemu(folder: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """Start a QEMU with two drives and no guest; return it and its QMP socket."""
    path = folder / "qmp.sock"
    words = ["-S", "-display", "none", "-nodefaults", "-machine", "q35,accel=tcg", "-m", "16"]
    words += ["-qmp", f"unix:{path},server=on,wait=off"]
    for target in ("vda", "vdb"):
        (folder / target).write_bytes(bytes(1 << 20))
        words += ["-drive", f"if=none,id=d-{target},format=raw,file={folder / target}"]
        words += ["-device", f"virtio-blk-pci,drive=d-{target},id={target}"]
    process = subprocess.Popen([QEMU, *words], stderr=subprocess.PIPE)
    wait_for(path.exists, f"{QEMU} serves QMP")
    return process, path


class Agent:
    """An agent that is a process of its own, without libvirt."""

    def __init__(self, folder: Path, vms: str = "", agent: str = "") -> None:
        self.folder = folder
        self.socket = folder / "agent.sock"
        self.state = folder / "state"
        self.config = folder / "agent.toml"
        self.config.write_text(
            f'[agent]\nsocket = "{self.socket}"\nstate_dir = "{self.state}"\n{agent}\n'
            f"[libvirt]\nenabled = false\n{vms}\n"
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Agent:
        """Start it, and wait until it answers."""
        with (self.folder / "agent.log").open("ab") as log:
            command: list[str | Path] = [IOKEEL, "agent", "--config", self.config]
            self.process = subprocess.Popen(command, stderr=log)
        wait_for(self.answers, f"the agent answers\n{self.log()}")
        return self

    def answers(self) -> bool:
        """Whether it serves its socket. Fails where it has ended."""
        assert self.process is not None
        assert self.process.poll() is None, self.log()
        try:
            return http(self.socket, "GET", "/v1/vms")[0] == 200
        except OSError:
            return False

    def log(self) -> str:
        """Return what it has said so far."""
        return (self.folder / "agent.log").read_text()

    def ask(self, path: str) -> Any:
        """Return the JSON at a path."""
        status, kind, body = http(self.socket, "GET", path)
        assert (status, kind) == (200, "application/json; charset=utf-8")
        return json.loads(body)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it by a signal, and return its exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(20)

    def end(self) -> None:
        """End it if it still runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
