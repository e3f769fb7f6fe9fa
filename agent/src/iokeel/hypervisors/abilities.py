"""What a QEMU can do, by its own schema: asked of its binary, or of a running one's monitor."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

log = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
# A schema is one line of some 200 KB.
_MOST_BYTES = 16 << 20
_COMMANDS = b'{"execute":"qmp_capabilities"}\n{"execute":"query-qmp-schema"}\n'
_ASKED = 2


class Member(msgspec.Struct, gc=False):
    """A member of an object of the schema."""

    name: str = ""


class SchemaEntry(msgspec.Struct):
    """An element of query-qmp-schema: only commands go by their own names there."""

    name: str = ""
    meta_type: str = msgspec.field(name="meta-type", default="")
    members: list[Member] = []


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a QEMU can do.

    cost_curve: its throttle groups can charge by a curve, split large reads, and limit the credit
    after idleness. group_statistics: they tell what they do, by query-throttle-groups.
    guest_devices: it can have some; a storage daemon can't.
    """

    cost_curve: bool = False
    group_statistics: bool = False
    guest_devices: bool = True

    @classmethod
    def of(cls, schema: Sequence[SchemaEntry]) -> Abilities:
        """Return what a schema tells."""
        commands = {entry.name for entry in schema if entry.meta_type == "command"}
        limits = {"iops-total", "cost-read", "cost-write", "split-size", "idle-credit-ms"}
        curve = any(limits <= {m.name for m in entry.members} for entry in schema if entry.members)
        return cls(curve, "query-throttle-groups" in commands, "device_add" in commands)


class _Reply(msgspec.Struct):
    schema: list[SchemaEntry] = msgspec.field(name="return")


_DECODER = msgspec.json.Decoder(_Reply)


async def abilities_of(path: str) -> Abilities:
    """Return what a QEMU binary can do.

    Starts it without a machine, as libvirtd does to learn that. Where that fails, it can do no
    more than any QEMU, and why is logged: stock limits hold with any.
    """
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            return Abilities.of(_DECODER.decode(await _schema(path)).schema)
    except (OSError, ValueError, TimeoutError, msgspec.DecodeError) as error:
        log.warning("%s: its schema can't be read (%r); using stock limits", path, error)
        return Abilities()


async def _schema(path: str) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *(path, "-machine", "none", "-nodefaults", "-nographic", "-no-user-config"),
        *("-accel", "tcg", "-monitor", "none", "-serial", "none", "-qmp", "stdio"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=_MOST_BYTES,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(_COMMANDS)
        await process.stdin.drain()
        replies = 0
        line = b""
        # Told to quit, it would leave unsaid what the pipe has no room for.
        while replies < _ASKED and (line := await process.stdout.readline()):
            replies += b'"return"' in line
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    return line
