"""What a QEMU that a guest has taken over tells the agent, or does to it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from testing.hypervisors.qmp_server import QmpServer, answer, error, qdev

Trick = Callable[[QmpServer, random.Random], Coroutine[Any, Any, None]]

_STEP_S = 0.2
_WORDS = (
    "\x1b]0;owned\x07\x1b[2J", "x\nERROR iokeel.daemon: forged", "\u202egnp.exe", "\u2028",
    "\x9b3m", "a" * 300, "../../etc/passwd", "{{ 7*7 }}", "%n%s", "\ud800", "", " ", "vda ",
    "vd\u00a0a", "\0",
)  # fmt: skip


async def numbers(server: QmpServer, chance: random.Random) -> None:
    """Counters that jump, fall, or aren't numbers."""
    while True:
        for counters in server.counters.values():
            for name in counters:
                counters[name] = _number(chance)
        await asyncio.sleep(_STEP_S)


def _number(chance: random.Random) -> object:
    size = chance.choice((3, 9, 18, 19, 20, 40, 308, 309, 400, 4000))
    return chance.choice((10**size, -(10**size), chance.randrange(10**size), 1e308, -1, None, "7"))


async def long_times(server: QmpServer, chance: random.Random) -> None:
    """One request at a time, which took for weeks."""
    each_ns = 10 ** chance.randrange(9, 19)
    counters: Any = server.counters["disk0"]
    while True:
        counters["rd_operations"] += 1
        counters["rd_bytes"] += 4096
        counters["rd_total_time_ns"] += each_ns
        await asyncio.sleep(chance.choice((0.01, 0.1, 1.0)))


async def groups(server: QmpServer, chance: random.Random) -> None:
    """A patched QEMU whose throttle groups have spent absurd costs."""
    server.groups = {}
    server.join(qdev("disk0"), {})
    while True:
        for group in server.groups.values():
            for field in ("requests", "bytes", "cost", "waited", "wait-total-ns"):
                told: Any = group[chance.choice(("read", "write"))]
                told[field] = _number(chance)
        await asyncio.sleep(_STEP_S)


async def names(server: QmpServer, chance: random.Random) -> None:
    """Drives with other names at each look."""
    while True:
        server.drives.clear()
        server.counters.clear()
        for i in range(chance.choice((1, 20, 300))):
            name = chance.choice(_WORDS) + str(chance.randrange(10**6)) * chance.choice(
                (1, 1, 1000)
            )
            server.plug(f"{name}{i}", chance.choice(("nbd://filer/", "/", "json:")) + name)
        server.event("DEVICE_DELETED")
        await asyncio.sleep(_STEP_S)


async def many_drives(server: QmpServer, chance: random.Random) -> None:
    """Thousands of drives with nested names of files."""
    deep = "json:" + '{"file":' * 50 + '"x"' + "}" * 50
    for i in range(chance.choice((300, 3000))):
        server.plug(f"d{i}", deep)
    while True:
        server.event("BLOCK_WRITE_THRESHOLD")
        await asyncio.sleep(_STEP_S)


async def jobs(server: QmpServer, chance: random.Random) -> None:
    """Block jobs without end, at absurd speeds."""
    for i in range(chance.choice((5, 5000))):
        server.job(f"{chance.choice(_WORDS)}{i}", speed=10 ** chance.randrange(19))
    while True:
        server.event("JOB_STATUS_CHANGE")
        await asyncio.sleep(_STEP_S)


async def large_replies(server: QmpServer, chance: random.Random) -> None:
    """Megabytes in answer to anything, for each question another kind."""
    size = 1 << chance.randrange(16, 26)
    kinds: tuple[Callable[[], bytes], ...] = (
        lambda: b'{"return": [' + b"{}," * (size // 3) + b"{}]",
        lambda: b'{"return": "' + b"x" * size + b'"',
        lambda: b'{"return": ' + b"[" * min(size, 10**5),
        lambda: b" " * size + b'{"return": {}',
    )

    def reply(request: Mapping[str, object]) -> bytes:
        return chance.choice(kinds)() + f', "id": {request["id"]}}}\r\n'.encode()

    for name in ("query-qmp-schema", "query-block", "query-blockstats", "qom-list"):
        if chance.random() < 0.5:
            server.answers[name] = reply
    server.drop()
    await asyncio.Event().wait()


async def garbage(server: QmpServer, chance: random.Random) -> None:
    """Answers that are no JSON, or have the id of another question."""

    told: tuple[object, ...] = (None, 7, [], [None], "x", {})
    values = [json.dumps({"return": each}).encode() for each in told]

    def reply(request: dict[str, Any]) -> bytes:
        right = server.reply(request)
        return chance.choice((
            right[: chance.randrange(len(right))],
            chance.randbytes(1000) + b"\r\n",
            right.replace(b'"id"', b'"di"'),
            answer({"id": chance.randrange(100)}, {}),
            chance.choice(values) + b"\r\n",
            right * 3,
        ))  # fmt: skip

    for name in ("query-block", "query-blockstats", "query-qmp-schema", "qmp_capabilities"):
        server.answers[name] = reply
    while True:
        await asyncio.sleep(_STEP_S * 5)
        server.drop(chance.choice((b"", b"\r\n", b'{"return": ', b"\xff" * 100)))


async def errors(server: QmpServer, chance: random.Random) -> None:
    """Refuses all, with words for a terminal."""

    def reply(request: Mapping[str, object]) -> bytes:
        return error(
            request, chance.choice(_WORDS), chance.choice(_WORDS) * chance.choice((1, 10**4))
        )

    for name in ("query-block", "query-blockstats", "block_set_io_throttle", "qom-list"):
        if chance.random() < 0.7:
            server.answers[name] = reply
    await asyncio.Event().wait()


async def events(server: QmpServer, chance: random.Random) -> None:
    """Events as fast as they go."""
    name = chance.choice(("DEVICE_DELETED", "BLOCK_IO_ERROR", "RESUME", "STOP", "X" * 1000))
    while True:
        for _ in range(100):
            server.event(name)
        await asyncio.sleep(0.001)


async def silence(server: QmpServer, chance: random.Random) -> None:
    """Doesn't answer, or late."""
    for name in ("query-block", "query-blockstats", "query-qmp-schema"):
        if chance.random() < 0.7:
            server.answers[name] = lambda request: None
    server.drop()
    await asyncio.Event().wait()


async def comes_and_goes(server: QmpServer, chance: random.Random) -> None:
    """Hangs up at once, again and again."""
    while True:
        server.drop()
        await asyncio.sleep(0.01)


async def limits(server: QmpServer, chance: random.Random) -> None:
    """Takes each limit, and tells others."""

    def reply(request: Mapping[str, object]) -> bytes:
        for drive in server.drives.values():
            drive["inserted"] |= {"iops": chance.randrange(10**6), "bps": _number(chance)}
        return answer(request, list(server.drives.values()))

    server.answers["query-block"] = reply
    await asyncio.Event().wait()


async def link(server: QmpServer, chance: random.Random) -> None:
    """Its socket is a link to a neighbour's, or gone."""
    path: Path = server.path
    path.unlink()
    if chance.random() < 0.7:
        path.symlink_to(path.with_name("honest0.qmp"))
    server.drop()
    await asyncio.Event().wait()


TRICKS: Mapping[str, Trick] = {
    trick.__name__: trick
    for trick in (
        numbers, long_times, groups, names, many_drives, jobs, large_replies, garbage, errors,
        events, silence, comes_and_goes, limits, link,
    )
}  # fmt: skip
