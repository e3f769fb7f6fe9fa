"""A hypervisor's worth of QMP monitors without the VMs: what does the agent cost with N drives?

Serves N unix sockets that speak QMP as QEMU 7.2.22 does for virtio-blk drives on raw files, one
client at a time each: the greeting, qmp_capabilities, query-block, query-blockstats,
query-named-block-nodes, qom-list, query-status, block_set_io_throttle, and an event now and then.
Replies have QEMU's own members, order and length (1.5 kB a drive for query-blockstats). Counters
follow a workload that shifts every minute or so and keeps to the limits that are set, so that a
controller has something to retune.

    python -m benchmarks.agent_cost.synthetic_hypervisor /tmp/vms --vms 100 --drives 1

makes /tmp/vms/vm00000.qmp and on, prints one line of JSON when all listen, and serves until its
standard input ends or it gets SIGTERM. Nothing of it is a real disk: it measures the agent, not
a guest.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GREETING = (
    b'{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, '
    b'"package": "Debian 1:7.2+dfsg-7+deb12u18+b3"}, "capabilities": ["oob"]}}\r\n'
)

# What guests do: request size in bytes, part of it that reads, requests a second when not limited.
WORKLOADS = (
    (4096, 1.0, 0.0),
    (4096, 0.7, 800.0),
    (4096, 1.0, 6000.0),
    (8192, 0.6, 3000.0),
    (16384, 0.8, 2500.0),
    (65536, 0.5, 900.0),
    (262144, 0.0, 500.0),
    (1048576, 1.0, 300.0),
)
MEAN_PHASE_S = 60.0
QUEUE_DEPTH = 16
BASE_LATENCY_S = 0.0002
DEVICE_BPS = 1e9
_DECODER = json.JSONDecoder()

# Members as QEMU 7.2 sends them, in its order.
_STATS = (
    '{"unmap_operations": 0, "unmap_merged": 0, "flush_total_time_ns": %(flush_ns)d, '
    '"wr_highest_offset": %(highest)d, "wr_total_time_ns": %(wr_ns)d, "failed_wr_operations": 0, '
    '"failed_rd_operations": 0, "wr_merged": 0, "wr_bytes": %(wr_bytes)d, "timed_stats": [], '
    '"failed_unmap_operations": 0, "failed_flush_operations": 0, "account_invalid": %(account)s, '
    '"rd_total_time_ns": %(rd_ns)d, "invalid_unmap_operations": 0, "flush_operations": %(flush)d, '
    '"wr_operations": %(wr)d, "unmap_bytes": 0, "rd_merged": 0, "rd_bytes": %(rd_bytes)d, '
    '"unmap_total_time_ns": 0, "invalid_flush_operations": 0, "account_failed": %(account)s, '
    '%(idle)s"rd_operations": %(rd)d, "invalid_wr_operations": 0, "invalid_rd_operations": 0}'
)
_NOTHING = dict.fromkeys(
    ("flush_ns", "highest", "wr_ns", "wr_bytes", "rd_ns", "flush", "wr", "rd_bytes", "rd"), 0
)
_BLOCKSTATS = (
    '{"device": "", "parent": {"stats": '
    + _STATS % {**_NOTHING, "account": "false", "idle": ""}
    + ', "node-name": "NAME-file", "driver-specific": {"discard-bytes-ok": 0, "discard-nb-ok": 0,'
    ' "driver": "file", "discard-nb-failed": 0}}, "stats": '
    + _STATS.replace("%(idle)s", '"idle_time_ns": %(idle)d, ').replace("%(account)s", "true")
    + ', "node-name": "NAME-format", "qdev": "/machine/peripheral/NAME/virtio-backend"}'
)
LIMITS = tuple(
    f"{what}{way}{burst}" for burst in ("", "_max") for what in ("bps", "iops")
    for way in ("", "_rd", "_wr")
)  # fmt: skip
LENGTHS = tuple(f"{name}_length" for name in LIMITS[6:])


class Drive:
    """One virtio-blk drive, its workload and the limits that were set on it."""

    def __init__(self, vm: str, number: int, seed: int) -> None:
        self.target = f"vd{chr(ord('a') + number)}"
        self.qdev = f"/machine/peripheral/{self.target}/virtio-backend"
        self.path = f"/var/lib/images/{vm}-{self.target}.raw"
        self.limits: dict[str, int] = {}
        self._levels: dict[str, float] = {}
        self._rng = random.Random(seed)
        self._template = _BLOCKSTATS.replace("NAME", self.target)
        self._workload = self._rng.choice(WORKLOADS)
        self._then_s = time.monotonic()
        self._shift_s = self._then_s + self._rng.expovariate(1 / MEAN_PHASE_S)
        self._reads = self._writes = self._read_bytes = self._write_bytes = 0
        self._read_part = self._write_part = self._read_s = self._write_s = 0.0

    def blockstats(self) -> str:
        """Return the drive's element of query-blockstats as of now."""
        now_s = time.monotonic()
        while self._shift_s < now_s:
            self._advance(self._shift_s)
            self._workload = self._rng.choice(WORKLOADS)
            self._shift_s += self._rng.expovariate(1 / MEAN_PHASE_S)
        self._advance(now_s)
        return self._template % {
            "rd": self._reads, "rd_bytes": self._read_bytes, "rd_ns": self._read_s * 1e9,
            "wr": self._writes, "wr_bytes": self._write_bytes, "wr_ns": self._write_s * 1e9,
            "flush": self._writes // 50, "flush_ns": self._writes // 50 * 90_000, "idle": 3_962_972,
            "highest": 17_179_869_184,
        }  # fmt: skip

    def achieved_iops(self) -> float:
        """Return what the workload gets under the limits, in requests a second."""
        size_bytes, read_ratio, iops = self._workload
        for name, charge in self._charges(size_bytes, read_ratio):
            iops = min(iops, self._allowed(name) / charge)
        return iops

    def _charges(self, size_bytes: int, read_ratio: float) -> Iterator[tuple[str, float]]:
        """Yield each limit in force, and what a request is charged of it on average."""
        units = max(1.0, size_bytes / (self.limits.get("iops_size") or size_bytes))
        for way, part in (("", 1.0), ("_rd", read_ratio), ("_wr", 1 - read_ratio)):
            for name, charge in ((f"iops{way}", units), (f"bps{way}", size_bytes)):
                if part > 0 and name in self.limits:
                    yield name, charge * part

    def _allowed(self, name: str) -> float:
        """Return what a limit lets through a second: its burst until that is used up."""
        length_s = self.limits.get(f"{name}_max_length", 1)
        burst = self.limits.get(f"{name}_max", 0)
        full = length_s < 2 or self._levels.get(name, 0.0) >= burst * length_s
        return self.limits[name] if full else burst

    def _advance(self, to_s: float) -> None:
        elapsed_s = to_s - self._then_s
        self._then_s = to_s
        size_bytes, read_ratio, offered = self._workload
        iops = self.achieved_iops()
        for name, charge in self._charges(size_bytes, read_ratio):
            level = self._levels.get(name, 0.0) + (iops * charge - self.limits[name]) * elapsed_s
            self._levels[name] = max(0.0, level)
        latency_s = BASE_LATENCY_S + size_bytes / DEVICE_BPS
        if iops < offered:
            latency_s = max(latency_s, QUEUE_DEPTH / iops)
        # Whole requests only, as QEMU counts; the rest is carried over.
        self._read_part += iops * read_ratio * elapsed_s
        self._write_part += iops * (1 - read_ratio) * elapsed_s
        reads, writes = int(self._read_part), int(self._write_part)
        self._read_part -= reads
        self._write_part -= writes
        self._reads += reads
        self._writes += writes
        self._read_bytes += reads * size_bytes
        self._write_bytes += writes * size_bytes
        self._read_s += reads * latency_s
        self._write_s += writes * latency_s

    def set_limits(self, arguments: dict[str, Any]) -> str | None:
        """Put limits in force as block_set_io_throttle does; return QEMU's complaint, or None."""
        given = {name: arguments.get(name, 0) for name in LIMITS}
        for what in ("bps", "iops"):
            for burst in ("", "_max"):
                if given[what + burst] and (
                    given[f"{what}_rd{burst}"] or given[f"{what}_wr{burst}"]
                ):
                    return (
                        "bps/iops/max total values and read/write values cannot be used at the "
                        "same time"
                    )
        if min(given.values()) < 0 or max(given.values()) > 10**15:
            return "bps/iops/max values must be within [0, 1000000000000000]"
        iops_size = arguments.get("iops_size", 0)
        if iops_size and not any(given[name] for name in ("iops", "iops_rd", "iops_wr")):
            return "iops size requires an iops value to be set"
        self.limits = {name: value for name, value in given.items() if value}
        self.limits |= {
            name: arguments[name]
            for name in LENGTHS
            if self.limits.get(name.removesuffix("_length")) and name in arguments
        }
        if iops_size:
            self.limits["iops_size"] = iops_size
        self._levels.clear()  # as stock QEMU empties its buckets
        return None

    def group(self) -> str | None:
        """Return the drive's element of query-throttle-groups, which stock QEMU has not."""
        return None

    def block(self) -> dict[str, Any]:
        """Return the drive's element of query-block."""
        inserted: dict[str, Any] = {name: 0 for name in LIMITS[:6]}
        inserted |= self.limits
        if self.limits:
            inserted["group"] = self.qdev
        inserted |= self._node("format", "raw")
        return {
            "io-status": "ok", "device": "", "locked": False, "removable": False,
            "inserted": inserted, "qdev": self.qdev, "type": "unknown",
        }  # fmt: skip

    def nodes(self) -> list[dict[str, Any]]:
        """Return the drive's elements of query-named-block-nodes."""
        limits = dict.fromkeys(LIMITS[:6], 0)
        return [limits | self._node("format", "raw"), limits | self._node("file", "file")]

    def _node(self, kind: str, driver: str) -> dict[str, Any]:
        return {
            "detect_zeroes": "off",
            "image": {
                "virtual-size": 1 << 34, "filename": self.path, "format": driver,
                "actual-size": 1 << 33, "dirty-flag": False,
            },
            "ro": False, "node-name": f"{self.target}-{kind}", "backing_file_depth": 0,
            "drv": driver, "write_threshold": 0, "encrypted": False,
            "cache": {"no-flush": False, "direct": True, "writeback": True}, "file": self.path,
        }  # fmt: skip


class Vm:
    """One VM: its drives, and its monitor's clients, of which the first is served."""

    def __init__(self, name: str, drives: int, seed: int, hung: bool, exact: bool = False) -> None:
        self.schema: list[dict[str, Any]] = []
        self.drives: list[Drive]
        numbers = range(drives)
        if exact:
            from benchmarks.agent_cost.synthetic_exact import SCHEMA, ExactDrive

            self.drives = [ExactDrive(name, number, seed * 64 + number) for number in numbers]
            self.schema = SCHEMA
        else:
            self.drives = [Drive(name, number, seed * 64 + number) for number in numbers]
        self.clients: list[Client] = []
        self.hung = hung

    def reply(self, request: dict[str, Any]) -> str | None:
        """Return the reply to a request, as QEMU would; None where the VM hangs."""
        command, arguments = request.get("execute"), request.get("arguments", {})
        tail = f', "id": {json.dumps(request["id"])}}}\r\n' if "id" in request else "}\r\n"
        if command == "query-blockstats":
            if self.hung:
                return None
            drives = ", ".join(drive.blockstats() for drive in self.drives)
            return f'{{"return": [{drives}]{tail}'
        if command == "query-throttle-groups" and self.schema:
            groups = ", ".join(group for drive in self.drives if (group := drive.group()))
            return f'{{"return": [{groups}]{tail}'
        answer: Any = {}
        if command == "query-qmp-schema" and self.schema:
            answer = self.schema
        elif command == "query-block":
            answer = [drive.block() for drive in self.drives]
        elif command == "query-named-block-nodes":
            answer = [node for drive in self.drives for node in drive.nodes()]
        elif command == "qom-list":
            answer = [{"name": "type", "type": "string"}]
        elif command == "query-status":
            answer = {"status": "running", "singlestep": False, "running": True}
        elif command == "block_set_io_throttle":
            drive = next((d for d in self.drives if d.qdev == arguments.get("id")), None)
            if drive is None:
                return _error("DeviceNotFound", f"Device '{arguments.get('id')}' not found", tail)
            if complaint := drive.set_limits(arguments):
                return _error("GenericError", complaint, tail)
        elif command != "qmp_capabilities":
            return _error("CommandNotFound", f"The command {command} has not been found", tail)
        return f'{{"return": {json.dumps(answer)}{tail}'


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
        # Requests need no newline between them: qemu.qmp sends none.
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


async def serve(vms: dict[Path, Vm], events_a_minute: float, ready: Any) -> None:
    """Serve VMs' monitors until cancelled; sends True over `ready` once all of them listen."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, os._exit, 0)
    for path, vm in vms.items():
        path.unlink(missing_ok=True)
        await loop.create_unix_server(lambda vm=vm: Client(vm), str(path), backlog=1)  # type: ignore[misc]
    ready.send(True)
    rng = random.Random(len(vms))
    while True:
        await asyncio.sleep(rng.expovariate(max(1e-9, events_a_minute * len(vms) / 60)))
        vm = rng.choice(list(vms.values()))
        if vm.clients:
            seconds, microseconds = divmod(time.time_ns() // 1000, 1_000_000)
            vm.clients[0].write(
                b'{"timestamp": {"seconds": %d, "microseconds": %d}, "event": "RTC_CHANGE", '
                b'"data": {"offset": 0, "qom-path": "/machine/unattached/device[8]"}}\r\n'
                % (seconds, microseconds)
            )


def raise_file_limit(wanted: int) -> None:
    """Raise RLIMIT_NOFILE to `wanted` descriptors; exits with what to do where it can't be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(hard, wanted)))
    except (ValueError, PermissionError):
        sys.exit(f"{wanted} open files needed, {hard} allowed: raise the limit (ulimit -n)")


def main() -> None:
    """Serve until standard input ends or SIGTERM comes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path, help="where the sockets are made")
    parser.add_argument("--vms", type=int, default=100)
    parser.add_argument("--drives", type=int, default=1, help="drives a VM (at most 26)")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--hung", type=int, default=0, help="VMs that never answer for counters")
    parser.add_argument("--exact", action="store_true", help="with cost curves, as patched")
    parser.add_argument("--events", type=float, default=0.1, help="events a VM and minute")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    raise_file_limit(2 * options.vms // options.processes + 200)
    options.directory.mkdir(parents=True, exist_ok=True)
    workers = []
    for worker in range(options.processes):
        vms = {
            options.directory / f"vm{number:05}.qmp": Vm(
                f"vm{number:05}", options.drives, options.seed * 100_003 + number,
                hung=number < options.hung, exact=options.exact,
            )
            for number in range(worker, options.vms, options.processes)
        }  # fmt: skip
        here, there = multiprocessing.Pipe()
        process = multiprocessing.Process(
            target=lambda vms=vms, there=there: asyncio.run(serve(vms, options.events, there)),
            daemon=True,
        )
        process.start()
        workers.append((process, here))
    for process, here in workers:
        if not here.poll(60):
            sys.exit(f"process {process.pid} does not listen after 60 s")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(
        json.dumps(
            {"vms": options.vms, "drives": options.drives, "pids": [p.pid for p, _ in workers]}
        ),
        flush=True,
    )
    while sys.stdin.buffer.read(4096):
        pass


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    main()
