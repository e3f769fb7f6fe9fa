"""Which way of asking many QEMUs for their counters costs least?

Each variant asks every socket for query-blockstats once a second, as the agent does, and turns
the replies into iokeel's Counters. The sockets are synthetic_hypervisor's, with replies of the
length that QEMU 7.2 sends. What is measured is this process's own CPU time (user and system,
time.process_time) over a tick, at one tick a second so that caches are as cold as the agent finds
them. us = 1e6 * CPU seconds of the tick / (sockets * drives). The median over the ticks counts;
variants take turns, so that what else the machine does meets all of them alike.

    python -m benchmarks.agent_cost.qmp_path --vms 100

writes benchmarks/results/qmp-path.json and prints it as a table. It needs qemu.qmp, orjson and
msgspec; the agent needs only what the choice fell on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from iokeel.config.settings import VmConfig
from iokeel.core.counters import Counters
from iokeel.core.policy import DomainPolicy
from iokeel.hypervisors.qmp.drives import BlockStats
from iokeel.hypervisors.qmp.source import QmpSource

BENCHMARKS = Path(__file__).resolve().parents[1]
QUERY = b'{"execute":"query-blockstats","id":1}\n'
Decode = Callable[[bytes], list[Counters]]
Tick = Callable[[], Awaitable[int]]


def _plain(loads: Callable[[bytes], Any]) -> Decode:
    def decode(line: bytes) -> list[Counters]:
        return _from_dicts(loads(line)["return"])

    return decode


def _from_dicts(drives: list[dict[str, Any]]) -> list[Counters]:
    now_ns = time.monotonic_ns()
    return [
        Counters(
            now_ns, s["rd_operations"], s["rd_bytes"], s["wr_operations"], s["wr_bytes"],
            s["rd_total_time_ns"], s["wr_total_time_ns"],
        )
        for drive in drives
        for s in (drive["stats"],)
    ]  # fmt: skip


class Reply(msgspec.Struct, gc=False):
    """A reply to query-blockstats, or an event."""

    answer: list[BlockStats] = msgspec.field(name="return", default=[])
    id: int | None = None
    event: str = ""


def _typed() -> Decode:
    decoder = msgspec.json.Decoder(Reply)

    def decode(line: bytes) -> list[Counters]:
        now_ns = time.monotonic_ns()
        return [
            Counters(
                now_ns, s.rd_operations, s.rd_bytes, s.wr_operations, s.wr_bytes,
                s.rd_total_time_ns, s.wr_total_time_ns,
            )
            for drive in decoder.decode(line).answer
            for s in (drive.stats,)
        ]  # fmt: skip

    return decode


def _decoder(name: str) -> Decode:
    if name == "json":
        return _plain(json.loads)
    if name == "orjson":
        return _plain(import_module("orjson").loads)
    return _typed()


class Round:
    """What a tick waits for: so many lines, each decoded as it comes."""

    def __init__(self, decode: Decode) -> None:
        self.decode = decode
        self.outstanding = 0
        self.drives = 0
        self.done: asyncio.Future[None] | None = None

    def line(self, line: bytes) -> None:
        """Take one reply; events are skipped."""
        if b'"event"' in line[:80]:
            return
        self.drives += len(self.decode(line))
        self.outstanding -= 1
        if not self.outstanding and self.done is not None:
            self.done.set_result(None)


class Lean(asyncio.Protocol):
    """Lines over an asyncio transport."""

    def __init__(self, round_: Round) -> None:
        self.round = round_
        self.buffer = b""
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        for line in lines:
            self.round.line(line)


class Buffered(asyncio.BufferedProtocol):
    """Lines over an asyncio transport that reads into one buffer, shared by all connections."""

    shared = bytearray(1 << 18)

    def __init__(self, round_: Round) -> None:
        self.round = round_
        self.buffer = b""
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.shared

    def buffer_updated(self, nbytes: int) -> None:
        *lines, self.buffer = (self.buffer + self.shared[:nbytes]).split(b"\n")
        for line in lines:
            self.round.line(line)


async def qemu_qmp(paths: list[str], _: Decode) -> Tick:
    """The library: a QMPClient a socket, one execute() each, gathered."""
    clients = [import_module("qemu.qmp").QMPClient(path) for path in paths]
    for client, path in zip(clients, paths, strict=True):
        await client.connect(path)

    async def tick() -> int:
        replies = await asyncio.gather(*(c.execute("query-blockstats") for c in clients))
        return sum(len(_from_dicts(reply)) for reply in replies)

    return tick


def transports(protocol: type[Lean | Buffered]) -> Callable[[list[str], Decode], Awaitable[Tick]]:
    """asyncio transports with a protocol of our own; one Future for all replies."""

    async def connect(paths: list[str], decode: Decode) -> Tick:
        loop = asyncio.get_running_loop()
        setup, round_ = Round(lambda _: []), Round(decode)
        connections = []
        for path in paths:
            _, connection = await loop.create_unix_connection(lambda: protocol(setup), path)
            setup.outstanding, setup.done = 2, loop.create_future()
            connection.transport.write(b'{"execute":"qmp_capabilities"}\n')
            await setup.done
            connection.round = round_
            connections.append(connection)

        async def tick() -> int:
            round_.outstanding, round_.drives = len(connections), 0
            round_.done = loop.create_future()
            for connection in connections:
                connection.transport.write(QUERY)
            await round_.done
            return round_.drives

        return tick

    return connect


async def one_epoll(paths: list[str], decode: Decode) -> Tick:
    """Plain sockets under an epoll of our own, which is one file to asyncio's loop."""
    loop = asyncio.get_running_loop()
    poll, round_ = select.epoll(), Round(decode)
    sockets: dict[int, socket.socket] = {}
    buffers: dict[int, bytes] = {}
    for path in paths:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(path)
        sock.recv(65536)
        sock.sendall(b'{"execute":"qmp_capabilities"}\n')
        sock.recv(65536)
        sock.setblocking(False)
        poll.register(sock.fileno(), select.EPOLLIN)
        sockets[sock.fileno()], buffers[sock.fileno()] = sock, b""

    def readable() -> None:
        for fd, _ in poll.poll(0):
            data = sockets[fd].recv(65536)
            *lines, buffers[fd] = (buffers[fd] + data).split(b"\n")
            for line in lines:
                round_.line(line)

    loop.add_reader(poll.fileno(), readable)

    async def tick() -> int:
        round_.outstanding, round_.drives = len(sockets), 0
        round_.done = loop.create_future()
        for sock in sockets.values():
            sock.send(QUERY)
        await round_.done
        return round_.drives

    return tick


async def agent(paths: list[str], _: Decode) -> Tick:
    """What the agent ships: iokeel.hypervisors.qmp.source, with all that makes it robust."""
    vms = [VmConfig(Path(path).stem, Path(path), DomainPolicy({})) for path in paths]
    source = QmpSource(vms)
    task = asyncio.create_task(source.run())
    while len(source.vms()) < len(vms):
        await asyncio.sleep(0.1)

    async def tick() -> int:
        assert not task.done()
        return len(await source.sample(None, 5.0))

    return tick


VARIANTS: dict[str, tuple[Callable[[list[str], Decode], Awaitable[Tick]], str]] = {
    "qemu.qmp": (qemu_qmp, "json"),
    "asyncio.Protocol + json": (transports(Lean), "json"),
    "asyncio.Protocol + orjson": (transports(Lean), "orjson"),
    "asyncio.Protocol + msgspec": (transports(Lean), "msgspec"),
    "asyncio.BufferedProtocol + json": (transports(Buffered), "json"),
    "asyncio.BufferedProtocol + msgspec": (transports(Buffered), "msgspec"),
    "the agent's QmpSource": (agent, "msgspec"),
    "one epoll + json": (one_epoll, "json"),
    "one epoll + msgspec": (one_epoll, "msgspec"),
}


async def measure(variant: str, directory: Path, ticks: int, tick_s: float) -> list[float]:
    """Return the CPU of each tick of one variant, in us per drive."""
    connect, decoder = VARIANTS[variant]
    tick = await connect(sorted(map(str, directory.glob("*.qmp"))), _decoder(decoder))
    costs = []
    for number in range(ticks + 3):
        await asyncio.sleep(tick_s)
        before = time.process_time_ns()
        drives = await tick()
        if number >= 3:
            costs.append((time.process_time_ns() - before) / drives / 1000)
    return costs


def main() -> None:
    """Measure all variants, each in a process of its own against the same sockets."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--vms", type=int, default=100)
    parser.add_argument("--drives", type=int, default=1)
    parser.add_argument("--ticks", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3, help="turns of all variants")
    parser.add_argument("--tick-seconds", type=float, default=1.0)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, default=BENCHMARKS / "results" / "qmp-path.json")
    options = parser.parse_args()
    if options.only:
        costs = measure(options.only, options.directory, options.ticks, options.tick_seconds)
        print(json.dumps(asyncio.run(costs)))
        return
    found: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    with tempfile.TemporaryDirectory() as directory:
        hypervisor = subprocess.Popen(
            [
                *(sys.executable, "-m", "benchmarks.agent_cost.synthetic_hypervisor", directory),
                *(f"--vms={options.vms}", f"--drives={options.drives}", "--events=0"),
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert hypervisor.stdout is not None
        hypervisor.stdout.readline()
        try:
            for _ in range(options.rounds):
                for variant in VARIANTS:
                    command = [
                        *(
                            sys.executable,
                            "-m",
                            "benchmarks.agent_cost.qmp_path",
                            f"--only={variant}",
                        ),
                        *(f"--directory={directory}", f"--ticks={options.ticks}"),
                        f"--tick-seconds={options.tick_seconds}",
                    ]
                    run = subprocess.run(command, stdout=subprocess.PIPE, check=True)
                    found[variant] += json.loads(run.stdout)
        finally:
            hypervisor.terminate()
            hypervisor.wait()
    results = [
        {
            "variant": variant,
            "cpu_us_per_drive_and_tick": round(statistics.median(costs), 1),
            "quartiles": [round(cost, 1) for cost in statistics.quantiles(costs)[::2]],
            "lowest": round(min(costs), 1),
        }
        for variant, costs in found.items()
    ]
    for result in results:
        print("{cpu_us_per_drive_and_tick:8} us  (lowest {lowest:6})  {variant}".format(**result))
    cpus = [x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")]
    scenario = {
        "question": " ".join((__doc__ or "").split("\n")[0].split()),
        "sockets": options.vms,
        "drives_a_socket": options.drives,
        "ticks": options.ticks * options.rounds,
        "tick_s": options.tick_seconds,
        "cpu": cpus[0].partition(": ")[2] if cpus else platform.processor(),
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in ("qemu.qmp", "orjson", "msgspec")},
    }
    options.output.write_text(
        json.dumps({"scenario": scenario, "results": results}, indent=2) + "\n"
    )


if __name__ == "__main__":
    main()
