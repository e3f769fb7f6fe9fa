"""Names and messages of a QEMU that lies, in the agent's log and on an operator's terminal."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from testing.agents import Agent, iokeel
from testing.hypervisors.qmp_server import QmpServer, error
from testing.waiting import until

FORGED = "ERROR iokeel.daemon: all is lost"
DESC = "\x1b]0;owned\x07\x1b[2J\x9b31m\nroot, run this\u202e\u2028"
VM = """
[cgroup]
enabled = false
[[vm]]
name = "evil"
socket = "{}"
class = "bronze"
"""


@pytest.mark.parametrize("target", ["vda", f"x\n{FORGED}\x1b[2J\x9b31m\u202e"])
async def test_a_qemus_words_are_shown_and_never_run(short_folder: Path, target: str) -> None:
    server = QmpServer(short_folder / "evil.qmp", [target])
    server.answers["block_set_io_throttle"] = lambda r: error(r, "GenericError", DESC)
    await server.start()
    agent = Agent(short_folder, VM.format(server.path))
    try:
        await asyncio.to_thread(agent.start)
        await until(lambda: agent.says("owned"))
        ask = ("--socket", agent.socket)
        for words in (("stats",), ("why", "evil"), ("top", "--once"), ("policy", "check", "evil")):
            done = await asyncio.to_thread(iokeel, *words, *ask)
            lines = (done.out + done.err).removesuffix("\n").split("\n")
            assert all(line.isprintable() for line in lines), words
    finally:
        await asyncio.to_thread(agent.end)
        await server.stop()
    lines = agent.log().removesuffix("\n").split("\n")
    assert all(line.isprintable() for line in lines)
    assert not any(line.startswith(FORGED) for line in lines)
