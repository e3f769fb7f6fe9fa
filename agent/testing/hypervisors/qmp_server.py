"""A QMP server on a real unix socket, as good or as bad as a test needs.

It keeps counters and limits in QEMU's words, and records all requests.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from iokeel.hypervisors.qemu.limits import qapi_name
from testing.hypervisors.dialects import FORMER, plain

GREETING = b'{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}}}}\r\n'
#: Fields of the former patched QEMU's limits besides the curves, with their values in a new group.
DEFAULTS = {"split-size": 0, "idle-credit-ms": 100}
_UNUSED: dict[str, object] = {
    "cost-read": [],
    "cost-write": [],
    **DEFAULTS,
    "max-in-flight": 0,
    "latency": False,
}

_BLOCK_INFO = """
    bps bps_rd bps_wr iops iops_rd iops_wr
    bps_max bps_rd_max bps_wr_max iops_max iops_rd_max iops_wr_max
    bps_max_length bps_rd_max_length bps_wr_max_length
    iops_max_length iops_rd_max_length iops_wr_max_length iops_size group
""".split()


def qdev(target: str) -> str:
    """Return QEMU's name of a virtio-blk device."""
    return f"/machine/peripheral/{target}/virtio-backend"


class QmpServer:
    """One VM's monitor.

    drives, counters: by target, a drive's answer to query-block and to query-blockstats. objects:
    by name, the limits of throttle-group objects, in plain words (dialects.py). groups: by name,
    the answer to query-throttle-groups without the limits (None: QEMU has no curves). devices: by
    id, the types of devices that aren't virtio-blk-pci. nodes: the answer to
    query-named-block-nodes. daemon: True for a storage daemon. dialect: the words of its series of
    patches. jobs: the answer to query-block-jobs. answers: by command, a function whose result is
    sent instead of the right reply (None: nothing). asked: the requests so far. pieces: the number
    of bytes to send at a time.
    """

    def __init__(self, path: Path, targets: Iterable[str] = ("vda",)) -> None:
        self.path = path
        self.greeting = GREETING
        self.drives: dict[str, dict[str, Any]] = {}
        self.counters: dict[str, dict[str, object]] = {}
        self.objects: dict[str, dict[str, object]] = {}
        self.groups: dict[str, dict[str, object]] | None = None
        self.devices: dict[str, str] = {}
        self.nodes: list[dict[str, object]] = []
        self.daemon = False
        self.dialect = FORMER
        self.jobs: list[dict[str, object]] = []
        self.answers: dict[str, Callable[[dict[str, object]], bytes | None]] = {}
        self.asked: list[dict[str, Any]] = []
        self.connections = 0
        self.pieces = 1 << 20
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.AbstractServer | None = None
        for target in targets:
            self.plug(target)

    def plug(self, target: str, file: str = "/images/a.raw", **limits: object) -> None:
        """Add a drive; QEMU sends no event for that."""
        inserted: dict[str, Any] = {"node-name": f"{target}-node", "drv": "raw", "file": file}
        inserted |= dict.fromkeys(("bps", "bps_rd", "bps_wr", "iops", "iops_rd", "iops_wr"), 0)
        self.drives[target] = {
            "device": "",
            "qdev": qdev(target),
            "type": "unknown",
            "inserted": inserted | limits,
        }
        names = ("operations", "bytes", "total_time_ns")
        self.counters[target] = {f"{way}_{name}": 0 for way in ("rd", "wr") for name in names}

    async def start(self) -> QmpServer:
        """Listen."""
        self._server = await asyncio.start_unix_server(self._serve, self.path)
        return self

    async def stop(self) -> None:
        """End like a killed QEMU: connections break, and the socket's file stays."""
        if self._server is not None:
            self._server.close()
        self.drop()
        await asyncio.sleep(0)

    def drop(self, last_words: bytes = b"") -> None:
        """Break all connections, in the middle of something perhaps."""
        for writer in self._writers:
            writer.write(last_words)
            writer.close()
        self._writers.clear()

    def send(self, data: bytes) -> None:
        """Send bytes to every client that is still there."""
        self._writers = [writer for writer in self._writers if not writer.is_closing()]
        for writer in self._writers:
            for start in range(0, len(data), self.pieces):
                writer.write(data[start : start + self.pieces])

    def event(self, name: str) -> None:
        """Send an event."""
        self.send(json.dumps({"event": name, "data": {}, "timestamp": {}}).encode() + b"\r\n")

    def commands(self) -> list[str]:
        """Return the names of the commands so far."""
        return [request["execute"] for request in self.asked]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self.connections += 1
        writer.write(self.greeting)
        with suppress(ConnectionError):  # the client has gone
            while line := await reader.readline():
                request = json.loads(line)
                self.asked.append(request)
                answer = (self.answers.get(request["execute"]) or self.reply)(request)
                if answer is not None:
                    self.send(answer)

    def reply(self, request: dict[str, Any]) -> bytes:
        """Return the right reply to a request."""
        match request["execute"]:
            case "block_set_io_throttle":
                return self._set_limits(request)
            case "qom-get" | "qom-set":
                return self._object(request)
            case "block-job-set-speed":
                return self._set_speed(request)
            case "qom-list" if request["arguments"]["path"] != "/objects":
                return answer(request, self._devices(request["arguments"]["path"]))
        told = self._told(request["execute"])
        if told is None:
            return error(request, "CommandNotFound", "The command has not been found")
        return answer(request, told)

    def _told(self, question: str) -> object:
        """Return the answer to a command that changes nothing; None: there is no such command."""
        match question:
            case "qmp_capabilities":
                return {}
            case "query-qmp-schema":
                return self._schema()
            case self.dialect.query_groups if self.groups is not None:
                return [self._group(name) for name in self.groups]
            case "qom-list":
                groups = [{"name": n, "type": "child<throttle-group>"} for n in self.objects]
                return [{"name": "type", "type": "string"}, *groups]
            case "query-named-block-nodes":
                return self.nodes
            case "query-block":
                return list(self.drives.values())
            case "query-block-jobs":
                return self.jobs
            case "query-blockstats":
                return [self._blockstats(target) for target in self.drives]
        return None

    def _devices(self, place: str) -> list[dict[str, str]]:
        types = dict.fromkeys(self.drives, "virtio-blk-pci") | self.devices
        if place != "/machine/peripheral":
            types = {}
        children = [{"name": name, "type": f"child<{kind}>"} for name, kind in types.items()]
        return [{"name": "type", "type": "string"}, *children]

    def _set_limits(self, request: dict[str, Any]) -> bytes:
        arguments = request["arguments"]
        named = [d for d in self.drives.values() if d["qdev"] == arguments["id"]]
        if not named:
            return error(request, "DeviceNotFound", f"Device '{arguments['id']}' not found")
        named[0]["inserted"] |= {k: v for k, v in arguments.items() if k in _BLOCK_INFO}
        if self.groups is not None:
            self.join(arguments["id"], _object_limits(arguments))
        return answer(request, {})

    def _object(self, request: dict[str, Any]) -> bytes:
        """Return the reply to a question for a throttle group's limits, or to a change of them."""
        arguments = request["arguments"]
        name = arguments["path"].removeprefix("/objects/")
        if name not in self.objects:
            return error(request, "DeviceNotFound", f"Device '{name}' not found")
        if request["execute"] == "qom-get":
            return answer(request, self._shown(self.objects[name]))
        self.objects[name] |= plain(arguments["value"])
        return answer(request, {})

    def job(self, name: str, kind: str = "backup", speed: int = 0, offset: int = 0) -> None:
        """Begin a block job, or move one on; QEMU sends an event when one begins."""
        told = {"device": name, "type": kind, "speed": speed, "offset": offset, "len": 1 << 30}
        self.jobs = [job for job in self.jobs if job["device"] != name] + [told]

    def _set_speed(self, request: dict[str, Any]) -> bytes:
        name = request["arguments"]["device"]
        for job in self.jobs:
            if job["device"] == name:
                job["speed"] = request["arguments"]["speed"]
                return answer(request, {})
        return error(request, "DeviceNotActive", f"No active block job on device '{name}'")

    def throttle(self, name: str, *members: dict[str, str], **reads: object) -> None:
        """Add a throttle group. reads: statistics of its reads."""
        nothing = dict.fromkeys(("requests", "bytes", "cost", "waited"), 0)
        nothing |= {"wait-total-ns": 0, "wait-max-ns": 0, "waiting": 0}
        given = {key.replace("_", "-"): value for key, value in reads.items()}
        self.groups = self.groups or {}
        self.groups[name] = {
            "members": [{**member, "read": {}, "write": {}} for member in members],
            "levels": {"iops-total": {"level": 1.5, "size": 10}},
            "read": {**nothing, "sizes": [], **given},
            "write": {**nothing, "sizes": []},
        }

    def join(self, device: str, limits: Mapping[str, object]) -> None:
        """Put a device into a group of its own, like block_set_io_throttle."""
        assert self.groups is not None
        if device not in self.groups:
            self.throttle(device, {"qdev": device, "node-name": "x"})
        self.objects[device] = {**self.objects.get(device, self.unused()), **limits}

    def _group(self, name: str) -> dict[str, Any]:
        assert self.groups is not None
        limits = self._shown(self.objects[name])
        return {"name": name, "limits": limits, **self.groups[name]}

    def _schema(self) -> list[dict[str, Any]]:
        words, is_patched = self.dialect, self.groups is not None
        patched = [*self.unused()] if is_patched else []
        outer = [words.extra] if is_patched and words.extra else patched
        members = [{"name": name, "type": "int"} for name in ["bps-read", *outer, "iops-total"]]
        members = [m | {"type": "20"} if m["name"] == words.extra else m for m in members]
        features = [words.keeps_levels] if is_patched and words.extra else []
        commands = ["query-block", "qom-list"]
        commands += [words.query_groups] if is_patched else []
        commands += [] if self.daemon else ["device_add"]
        return [
            *({"name": name, "meta-type": "command", "ret-type": "1"} for name in commands),
            {"name": "17", "meta-type": "object", "members": members, "features": features},
            {"name": "20", "meta-type": "object", "members": [{"name": name} for name in patched]},
            {"name": "18", "meta-type": "alternate", "members": [{"type": "int"}]},
            {"name": "19", "meta-type": "enum", "members": [{"name": "a"}], "values": ["a"]},
        ]

    def unused(self) -> dict[str, object]:
        """Return the limits that stock QEMU lacks, as a new group has them."""
        return {name: _UNUSED[name] for name in map(qapi_name, self.dialect.fields)}

    def _shown(self, limits: Any) -> Any:
        """Return limits as QEMU tells them: without those that it lacks and nobody uses."""
        if not isinstance(limits, dict):  # a test's, which make no sense
            return limits
        unused, extra = self.unused(), self.dialect.extra
        if not extra:
            return {name: value for name, value in limits.items() if value != unused.get(name)}
        shown = {name: value for name, value in limits.items() if name not in unused}
        inner = {name: limits.get(name, unused[name]) for name in unused}
        return shown if inner == unused else shown | {extra: inner}

    def _blockstats(self, target: str) -> dict[str, Any]:
        drive, stats = self.drives[target], self.counters[target] | {"timed_stats": []}
        node = {k: v for k, v in drive.get("inserted", {}).items() if k == "node-name"}
        return {"device": drive["device"], "qdev": drive["qdev"], "stats": stats} | node


def answer(request: Mapping[str, object], value: object) -> bytes:
    """Return a reply."""
    return json.dumps({"return": value, "id": request["id"]}).encode() + b"\r\n"


def _object_limits(arguments: dict[str, Any]) -> dict[str, Any]:
    """Translate arguments of block_set_io_throttle into plain fields of ThrottleLimits."""
    found = {}
    arguments = plain(arguments)
    for name, value in arguments.items():
        if name.startswith(("bps", "iops")) and name != "iops_size":
            unit, _, rest = name.partition("_")
            way, _, end = rest.partition("_") if rest[:2] in ("rd", "wr") else ("", "", rest)
            way = {"rd": "read", "wr": "write", "": "total"}[way]
            found["-".join([unit, way, *end.split("_")] if end else [unit, way])] = value
        elif name in ("iops_size", *_UNUSED):
            found[name.replace("_", "-")] = value
    return found


def error(request: Mapping[str, object], kind: str, text: str) -> bytes:
    """Return an error reply."""
    reply = {"id": request["id"], "error": {"class": kind, "desc": text}}
    return json.dumps(reply).encode() + b"\r\n"
