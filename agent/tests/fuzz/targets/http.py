"""The HTTP API, its client, and the libvirt hook: requests and answers on a real unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import tempfile
import threading
from collections.abc import Collection
from pathlib import Path

from iokeel.cli import client
from iokeel.config.settings import Config
from iokeel.config.tables import AgentConfig
from iokeel.core.values.state import State
from iokeel.errors import IokeelError
from iokeel.hypervisors.source import DriveInfo, VmInfo
from iokeel.report.history import History
from iokeel.report.http import Api, serve
from iokeel.report.metrics.prometheus import Metrics
from iokeel.report.snapshot import Known, Snapshot, snapshot_of
from tests.fuzz.budget import Broken, only
from tests.fuzz.targets.hook import HOOK
from tests.fuzz.targets.target import Target

_FOLDER = tempfile.TemporaryDirectory(prefix="iokeel-fuzz-")
_API = Path(_FOLDER.name) / "api.sock"
_AGENT = Path(_FOLDER.name) / "agent.sock"
_CONFIG = Path(_FOLDER.name) / "agent.toml"
_WORDS = [
    *(b"GET POST HTTP/1.1 /v1/vms /v1/storages /v1/why?domain=db1&target=vda /v1/hook".split()),
    *(b"/v1/host /v1/history?domain=db1&seconds=60&series=wait_s /v1/settings".split()),
    *(b"/v1/recommend?domain=db1&limit=5 /v1/report?seconds=60".split()),
    *(b"/v1/policy?domain=db1 <policy xmlns='urn:iokeel:policy:1'/> drive limit class".split()),
    *(b"/metrics Content-Length: 5 Transfer-Encoding: chunked Host: a gzip deflate".split()),
    *(b"domain operation xml prepare start db1 vda ok error where what mend".split()),
    *(b"\r\n\r\n", b"HTTP/1.1 200 OK\r\n", b"%00", b"%0a", b"%ff", b"Content-Encoding: gzip\r\n"),
]


def http(data: bytes) -> None:
    """Every request gets an answer that isn't a failure of the agent's own."""
    _LOOP.run_until_complete(_asked(data))


def message(data: bytes) -> None:
    """So does every message of a hook."""
    head = b"POST /v1/hook HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(data)
    _LOOP.run_until_complete(_asked(head + data))


async def _asked(data: bytes) -> None:
    reader, writer = await asyncio.open_unix_connection(_API)
    writer.write(data)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    if b"HTTP/1.1 5" in answer or b"HTTP/1.0 5" in answer:
        raise Broken(f"the agent answers {answer[:300]!r}")


def client_(data: bytes) -> None:
    """Whatever answers, the command has records or an error."""
    _ANSWER[0] = data
    for ask in (lambda: client.vms(_AGENT), lambda: client.storages(_AGENT),
                lambda: client.why(_AGENT, "db1", None),
                lambda: client.history(_AGENT, 60)):  # fmt: skip
        with only(IokeelError):
            ask()


def hook(data: bytes) -> None:
    """Whatever answers, and whatever the configuration is, the hook knows what to do."""
    _ANSWER[0] = data
    with contextlib.suppress(HOOK.NoAnswer):
        wrong = HOOK.ask(str(_AGENT), {"domain": "db1", "operation": "prepare"})
        assert wrong is None or isinstance(wrong, str)
    _CONFIG.write_bytes(data)
    path, strict, observe = HOOK.settings(quiet=True)
    assert isinstance(path, str)
    assert isinstance(strict, bool)
    assert isinstance(observe, bool)
    assert HOOK.metadata(data).count(b"\n") <= data.count(b"\n") + 1


def _snapshot(domains: Collection[str] | None = None) -> Snapshot:
    return snapshot_of(_KNOWN, domains)


def _answers() -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(_AGENT))
        listening.listen()
        _READY.set()
        while True:
            connected, _ = listening.accept()
            with connected:
                connected.recv(1 << 16)
                try:
                    connected.sendall(_ANSWER[0])
                except OSError:
                    pass


_KNOWN = Known(State(), {"db1": VmInfo("db1", {"vda": DriveInfo("vda")}, None)}, {}, {}, {}, {}, 0)
_METRICS = Metrics()
_LOOP = asyncio.new_event_loop()
_SERVING = serve(
    Api(Config, _snapshot, lambda name: None, _METRICS, History(), itertools.count().__next__),
    AgentConfig(socket=_API),
)
_LOOP.run_until_complete(_SERVING.__aenter__())
_ANSWER = [b""]
_READY = threading.Event()
threading.Thread(target=_answers, daemon=True).start()
_READY.wait()
os.environ["IOKEEL_CONFIG"] = str(_CONFIG)

TARGETS = [
    Target("http", http, 1 << 16, _WORDS),
    Target("message", message, 1 << 20, _WORDS),
    Target("client", client_, 1 << 16, _WORDS),
    Target("hook", hook, 1 << 16, _WORDS),
]
