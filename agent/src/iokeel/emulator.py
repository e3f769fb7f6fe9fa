"""What a QEMU binary can do, by its own schema: asked of the binary, not of a guest's monitor."""

from __future__ import annotations

import asyncio
import json
import logging

log = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
# A schema is one line of some 300 KB.
_MOST_BYTES = 16 << 20
_COMMANDS = b'{"execute":"qmp_capabilities"}\n{"execute":"query-qmp-schema"}\n{"execute":"quit"}\n'


async def has_cost_curve(path: str) -> bool:
    """Whether a QEMU's throttle groups can charge by a cost curve.

    Starts the binary without a machine, as libvirtd does to learn what it can do. Where that
    fails, the answer is no, and why is logged: stock limits hold with any QEMU.
    """
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            process = await asyncio.create_subprocess_exec(
                *(path, "-machine", "none", "-nodefaults", "-nographic", "-no-user-config"),
                *("-accel", "tcg", "-monitor", "none", "-serial", "none", "-qmp", "stdio"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=_MOST_BYTES,
            )
            try:
                out, _ = await process.communicate(_COMMANDS)
            finally:
                if process.returncode is None:
                    process.kill()
    except (OSError, TimeoutError) as error:
        log.warning("%s: its schema can't be read (%r); using stock limits", path, error)
        return False
    return any(_tells_of_curve(line) for line in out.splitlines() if b'"cost-read"' in line)


def _tells_of_curve(line: bytes) -> bool:
    """Whether a schema has an object with the members of a throttle group's limits and a curve."""
    entries = json.loads(line).get("return", [])
    members = [{m["name"] for m in entry.get("members", []) if "name" in m} for entry in entries]
    return any({"iops-total", "cost-read", "cost-write"} <= names for names in members)
