"""A hypervisor's folders for the libvirt hook, and agents to answer it: good ones, and liars."""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import IO, Any

from iokeel.core.values.policy import BUILTIN_CLASSES
from iokeel.errors import PolicyError
from iokeel.libvirt_xml.policy import parse_policy

HOOK = Path(__file__).parents[3] / "libvirt-hooks" / "qemu.d" / "50-iokeel"
POLICY = '<policy xmlns="urn:iokeel:policy:1" class="gold"/>'
GOOD = f"<domain><name>db1</name><metadata>{POLICY}</metadata></domain>".encode()
TRIES = 4
# What the hook says if a busy machine made it late.
_LATE = (b"no answer from the agent in 1 s", b"not done in 1 s", b"no domain XML on stdin")


def in_time(
    run: Callable[[], subprocess.CompletedProcess[bytes]],
) -> subprocess.CompletedProcess[bytes]:
    """Run the hook, and again if a busy machine made it late."""
    for _ in range(TRIES):
        done = run()
        if not any(words in done.stderr for words in _LATE):
            break
    return done


@dataclass
class Host:
    """A hypervisor's folders, as the hook sees them."""

    folder: Path
    strict: bool = False
    told: list[dict[str, Any]] = field(default_factory=list)

    @property
    def served(self) -> Path:
        return self.folder / "agent.sock"

    @property
    def config(self) -> Path:
        return self.folder / "agent.toml"

    def configure(self, *, strict: bool) -> None:
        self.config.write_text(
            f'[agent]\nsocket = "{self.served}"\n[hook]\nstrict = {str(strict).lower()}\n'
        )

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin", "IOKEEL_CONFIG": str(self.config)}

    def hook(
        self, operation: str, xml: bytes | IO[bytes] = GOOD, **more: Any
    ) -> subprocess.CompletedProcess[bytes]:
        """Call the hook as libvirt does; it says nothing on stdout, and is done in time."""
        given: dict[str, Any] = {"input": xml} if isinstance(xml, bytes) else {"stdin": xml}
        done = subprocess.run(
            [HOOK, "db1", operation, "begin", "-"],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=more.pop("stderr", subprocess.PIPE),
            timeout=120,
            check=False,
            **given,
            **more,
        )
        assert done.stdout == b""
        return done

    def answered(self, operation: str, xml: bytes = GOOD) -> subprocess.CompletedProcess[bytes]:
        """Call the hook if nothing hangs, and again if a busy machine made it late."""

        def run() -> subprocess.CompletedProcess[bytes]:
            self.told.clear()
            return self.hook(operation, xml)

        return in_time(run)

    def install_check(self, script: str) -> None:
        """Put a command `iokeel` on PATH that does this."""
        command = self.folder / "bin" / "iokeel"
        command.parent.mkdir(exist_ok=True)
        command.write_text(f"#!/bin/sh\n{script}\n")
        command.chmod(0o755)

    @contextlib.contextmanager
    def agent(self, answer: Callable[[dict[str, Any]], Any] | None = None) -> Iterator[None]:
        """Serve the agent's API; `answer` makes the answer of a message."""
        told = self.told

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                message = json.loads(self.rfile.read(length))
                assert self.path == "/v1/hook"
                told.append(message)
                body = json.dumps((answer or judge)(message)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        class Server(socketserver.ThreadingUnixStreamServer):
            daemon_threads = True

            def get_request(self) -> tuple[socket.socket, Any]:
                request, _ = super().get_request()
                return request, ("local", 0)  # a unix socket's client has no name

        with Server(str(self.served), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.05,))
            thread.start()
            try:
                yield
            finally:
                server.shutdown()
                thread.join()
                self.served.unlink()

    @contextlib.contextmanager
    def liar(self, talk: Callable[[socket.socket], None]) -> Iterator[None]:
        """Serve the socket with something that is no agent."""
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(self.served))
            listening.listen()

            def serve() -> None:
                with contextlib.suppress(OSError):
                    while True:
                        connected, _ = listening.accept()
                        with connected, contextlib.suppress(OSError):
                            talk(connected)

            thread = threading.Thread(target=serve, daemon=True)
            thread.start()
            try:
                yield
            finally:
                listening.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        self.served.unlink()


def judge(message: dict[str, Any]) -> dict[str, Any]:
    """Answer as the agent does."""
    if "xml" in message:
        try:
            parse_policy(message["xml"], BUILTIN_CLASSES, f"domain {message['domain']}")
        except PolicyError as error:
            return {"ok": False, "error": str(error)}
    return {"ok": True}


def silent(talk: socket.socket) -> None:
    """Read and never answer, until the hook is gone."""
    while talk.recv(65536):
        pass


def trickle(talk: socket.socket) -> None:
    """Answer a byte at a time, each within the timeout of a read."""
    talk.recv(65536)
    for byte in b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1000:
        talk.sendall(bytes([byte]))
        time.sleep(0.2)


def says(answer: bytes) -> Callable[[socket.socket], None]:
    def talk(connected: socket.socket) -> None:
        connected.recv(65536)
        connected.sendall(answer)

    return talk


def http(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


LIES: dict[str, Callable[[socket.socket], None]] = {
    "silent": silent,
    "trickle": trickle,
    "closes": lambda talk: None,
    "closes in mid-reply": says(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"ok": fal'),
    "no HTTP": says(b"\x00\xff\x00 hello\r\n\r\n"),
    "endless header": says(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1_000_000),
    "endless headers": says(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 10_000),
    "endless body": says(http(b'{"ok": false, "error": "' + b"x" * 1_000_000)),
    "error": says(http(b'{"ok": false, "error": "x"}', "500 Internal Server Error")),
    "not found": says(http(b'{"error": "x"}', "404 Not Found")),
    "HTML": says(http(b"<html>ok</html>")),
    "no JSON object": says(http(b'["ok"]')),
    "ok is a text": says(http(b'{"ok": "false", "error": "x"}')),
    "ok is 0": says(http(b'{"ok": 0, "error": "x"}')),
    "ok is null": says(http(b'{"ok": null, "error": "x"}')),
    "no ok": says(http(b'{"error": "x"}')),
    "nothing": says(http(b"{}")),
    "no error": says(http(b'{"ok": false}')),
    "error is no text": says(http(b'{"ok": false, "error": {"a": 1}}')),
    "deep": says(http(b"[" * 50_000)),
    "not UTF-8": says(http(b'{"ok": \xff}')),
}
