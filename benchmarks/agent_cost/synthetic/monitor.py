"""The QMP monitors of synthetic VMs: one client at a time, as QEMU serves them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TypedDict

from benchmarks.agent_cost.synthetic.drive import Arguments, Drive
from benchmarks.agent_cost.synthetic.exact_drive import QUERY_GROUPS, SCHEMA, ExactDrive

GREETING = (
    b'{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, '
    b'"package": "Debian 1:7.2+dfsg-7+deb12u18+b3"}, "capabilities": ["oob"]}}\r\n'
)
_DECODER = json.JSONDecoder()


class Request(TypedDict, total=False):
    """A request of QMP."""

    execute: str
    arguments: Arguments
    id: object


class Vm:
    """One VM: its drives, and the clients of its monitor, which serves only the first.

    hung: it never answers for counters. exact: its QEMU has cost curves. idle: it does nothing.
    """

    def __init__(
        self, name: str, drives: int, seed: int, *, hung: bool, exact: bool, idle: bool = False
    ) -> None:
        kind = ExactDrive if exact else Drive
        self.drives = [kind(name, number, seed * 64 + number, idle) for number in range(drives)]
        self.schema: Sequence[object] = SCHEMA if exact else ()
        self.clients: list[Client] = []
        self.hung = hung

    def reply(self, request: Request) -> str | None:
        """Return the reply to a request, as QEMU would; None if the VM hangs."""
        command = request.get("execute", "")
        tail = f', "id": {json.dumps(request["id"])}}}\r\n' if "id" in request else "}\r\n"
        if command == "query-blockstats":
            if self.hung:
                return None
            drives = ", ".join(drive.blockstats() for drive in self.drives)
            return f'{{"return": [{drives}]{tail}'
        if command == QUERY_GROUPS and self.schema:
            groups = ", ".join(group for drive in self.drives if (group := drive.group()))
            return f'{{"return": [{groups}]{tail}'
        if command == "block_set_io_throttle":
            return self._set_limits(request.get("arguments", {}), tail)
        answer = self._answer(command)
        if answer is None:
            return _error("CommandNotFound", f"The command {command} has not been found", tail)
        return f'{{"return": {json.dumps(answer)}{tail}'

    def _answer(self, command: str) -> object:
        """Return the answer to a question that an agent seldom asks; None: no such command."""
        match command:
            case "qmp_capabilities":
                return {}
            case "query-qmp-schema" if self.schema:
                return self.schema
            case "query-block":
                return [drive.block() for drive in self.drives]
            case "query-named-block-nodes":
                return [node for drive in self.drives for node in drive.nodes()]
            case "qom-list":
                return [{"name": "type", "type": "string"}]
            case "query-block-jobs":
                return []
            case "query-status":
                return {"status": "running", "singlestep": False, "running": True}
        return None

    def _set_limits(self, arguments: Arguments, tail: str) -> str:
        drive = next((d for d in self.drives if d.qdev == arguments.get("id")), None)
        if drive is None:
            return _error("DeviceNotFound", f"Device '{arguments.get('id')}' not found", tail)
        if complaint := drive.set_limits(arguments):
            return _error("GenericError", complaint, tail)
        return f'{{"return": {{}}{tail}'


def _error(kind: str, text: str, tail: str) -> str:
    return f'{{"error": {json.dumps({"class": kind, "desc": text})}{tail}'


class Client(asyncio.Protocol):
    """One connection to a VM's monitor; a second one waits for its greeting."""

    def __init__(self, vm: Vm) -> None:
        self.vm = vm
        self._transport: asyncio.Transport | None = None
        self._buffer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.vm.clients.append(self)
        if self.vm.clients[0] is self:
            self.write(GREETING)

    def data_received(self, data: bytes) -> None:
        # Requests need no newline between them, and qemu.qmp sends none.
        self._buffer = (self._buffer + data.decode()).lstrip()
        while self._buffer:
            try:
                request, end = _DECODER.raw_decode(self._buffer)
            except ValueError:
                return
            self._buffer = self._buffer[end:].lstrip()
            if (reply := self.vm.reply(request)) is not None:
                self.write(reply.encode())

    def connection_lost(self, exc: Exception | None) -> None:
        served = self.vm.clients[0] is self
        self.vm.clients.remove(self)
        if served and self.vm.clients:
            self.vm.clients[0].write(GREETING)

    def write(self, data: bytes) -> None:
        """Send bytes to the client."""
        assert self._transport is not None
        self._transport.write(data)
