"""The abilities of a QEMU binary, which libvirt doesn't tell."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import msgspec

from iokeel.hypervisors.qmp.throttle_groups import QemuAbilities, SchemaEntry

log = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
# A schema is one line of some 200 KB.
_MOST_BYTES = 16 << 20
_COMMANDS = b'{"execute":"qmp_capabilities"}\n{"execute":"query-qmp-schema"}\n'
_ANSWERS = _COMMANDS.count(b"\n")


class _Reply(msgspec.Struct):
    schema: list[SchemaEntry] = msgspec.field(name="return")


_DECODER = msgspec.json.Decoder(_Reply)


async def abilities_of(path: str) -> QemuAbilities:
    """Return the abilities of a QEMU binary.

    The binary is started without a machine, as libvirtd does for the same purpose. If that fails,
    the reason is logged and it counts as stock QEMU: stock limits work with any.
    """
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            return QemuAbilities.of(_DECODER.decode(await _schema(path)).schema)
    except (OSError, ValueError, TimeoutError, msgspec.DecodeError) as error:
        log.warning("%s: can't read its QMP schema (%r); using stock limits", path, error)
        return QemuAbilities()


async def _schema(path: str) -> bytes:
    """Return the line that answers query-qmp-schema."""
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
        answers = 0
        line = b""
        # It is killed after the last answer: on `quit` it would drop what the pipe can't hold.
        while answers < _ANSWERS and (line := await process.stdout.readline()):
            answers += b'"return"' in line
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    return line
