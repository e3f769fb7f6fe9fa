"""`iokeel report`, of a real file and over the agent's API."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from iokeel.store.weeks import HOUR_S, VERSION
from testing.agents import Done, iokeel
from testing.sim.recording import Recording
from testing.sim.week import record_week
from testing.simulated_api import SimulatedApi

HOURS = 3


@dataclass
class Host:
    """An agent with a history of three hours until now."""

    socket: Path
    file: Path

    async def run(self, *words: str | Path) -> Done:
        return await asyncio.to_thread(iokeel, "report", *words, "--socket", self.socket)


@pytest.fixture
async def host(short_folder: Path) -> AsyncIterator[Host]:
    recording = Recording(short_folder, int(time.time()) // HOUR_S - HOURS)
    record_week(recording, 60.0, HOURS * HOUR_S - 60)
    made = SimulatedApi([])
    made.hours = recording.recorder.hours
    socket = short_folder / "agent.sock"
    async with made.served(socket):
        yield Host(socket, recording.recorder.file)


async def test_it_is_a_table_for_each_finding(host: Host) -> None:
    done = await host.run()
    assert (done.status, done.err) == (0, "")
    begins = [part.splitlines()[0] for part in done.out.strip().split("\n\n")]
    assert begins[:5] == [
        "NOISY NEIGHBOURS",
        "DRIVES AT THEIR LIMIT",
        "PROMISES",
        "STORAGES",
        "DRIVES FAR BELOW THEIR LIMIT",
    ]
    assert begins[5].startswith("there is no history from before ")
    assert done.out.endswith("; recorded: 3 h\n")


async def test_json_has_the_same(host: Host) -> None:
    found = json.loads((await host.run("--json", "--last", "2d")).out)
    assert found["sections"][1]["rows"][0][0] == "small"
    assert len(found["plots"][0]["p95_iops"]) == HOURS + 1


async def test_the_page_is_one_file(host: Host, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    done = await host.run("--html", page)
    assert (done.status, done.out, done.err) == (0, "", "")
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert "small/vda was sold too little" in text


async def test_what_can_not_be_written_or_read_is_said(host: Host, tmp_path: Path) -> None:
    missing = tmp_path / "missing/report.html"
    done = await host.run("--html", missing)
    assert done.status == 1
    assert done.err == (
        f"iokeel: {missing}: can't be written, no such file or directory; give another file to"
        " --html\n"
    )
    both = await host.run("--html", tmp_path / "report.html", "--json")
    assert both.status == 2
    assert "--json: would print nothing beside --html; give one of them" in both.err
    assert not (tmp_path / "report.html").exists()


async def test_a_file_of_a_later_version_is_said_in_one_line(host: Host) -> None:
    with sqlite3.connect(host.file) as database:
        database.execute(f"PRAGMA user_version = {VERSION + 1}")
    database.close()
    done = await host.run()
    assert done.status == 1
    assert done.err == (
        f"iokeel: history: can't be read, a later iokeel wrote it: it has version {VERSION + 1},"
        f" and this one knows {VERSION}; see what journalctl -u iokeel says of it\n"
    )
