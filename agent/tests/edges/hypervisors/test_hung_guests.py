"""The agent beside QEMUs that hang, on a libvirt that is made up: it blocks as libvirt does."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import libvirt
import pytest

from iokeel.config.load import parse
from iokeel.daemon import Agent
from iokeel.hypervisors.libvirt.calls import _READINGS_AT_ONCE
from iokeel.hypervisors.libvirt.source import LibvirtSource
from iokeel.report.metrics.prometheus import Metrics
from iokeel.store.store import StateStore
from testing.hypervisors.iotune import highest_rate, inserted
from testing.hypervisors.libvirt_error import refusal
from testing.waiting import until
from testing.workers import Alone

pytestmark = pytest.mark.alone

# More than take turns at once: guests that hang when they get limits, and others at any question.
BUSY = [f"db{number}" for number in range(16)]
DEAD = [f"mail{number}" for number in range(16)]
OTHERS = ["web1", "web2"]
# A turn is short beside the waits: who waits for guests that hang has waited for many turns.
TICK_S, SET_S, READ_S, JOB_WAIT_S = 0.2, 4.0, 6.0, 20.0
TURN_S = 0.1
# Each guest that hangs has a turn of its own, six at a time; and two turns to find the first.
TURNS = -(-len(BUSY + DEAD) // _READINGS_AT_ONCE) + 2
A_TICK = round(TICK_S / TURN_S)  # in turns
XML = """
<domain>
  <name>{}</name>
  <metadata>
    <policy xmlns="urn:iokeel:policy:1"><drive target="vda" limit="{}"/></policy>
  </metadata>
  <devices><disk><target dev="vda"/><alias name="vda"/></disk></devices>
</domain>
"""


@dataclass
class Guest:
    """A domain as a handle of libvirt's.

    answers: cleared while its QEMU hangs. tells: QEMU tells its limits even then.
    """

    title: str
    limit: int = 300
    limits: dict[str, int] = field(default_factory=dict)
    tells: bool = True
    answers: threading.Event = field(default_factory=threading.Event)
    job: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.answers.set()

    def name(self) -> str:
        return self.title

    def UUIDString(self) -> str:
        return f"uuid of {self.title}"

    def isActive(self) -> int:
        return 1

    def ID(self) -> int:
        return 1

    def XMLDesc(self, _flags: int) -> str:
        return XML.format(self.title, self.limit)

    def command(self, text: str) -> str:
        if "query-block" not in text:
            return '{"return": []}'
        if not self.tells:
            self.ask_qemu()
        return json.dumps({"return": [{"qdev": "vda", "inserted": inserted(self.limits)}]})

    def jobStats(self) -> dict[str, int]:
        return {"type": libvirt.VIR_DOMAIN_JOB_NONE}

    def setBlockIoTune(self, _target: str, values: dict[str, int], _flags: int) -> None:
        self.ask_qemu()
        self.limits = {name: value for name, value in values.items() if value}

    def setMetadata(self, *_: object) -> None:
        self.ask_qemu()

    def ask_qemu(self) -> None:
        """Have one call wait for QEMU, and others for that one."""
        if not self.job.acquire(timeout=JOB_WAIT_S):
            raise refusal(libvirt.VIR_ERR_OPERATION_TIMEOUT)
        try:
            self.answers.wait(60)
        finally:
            self.job.release()

    @property
    def held_to(self) -> float:
        return highest_rate(self.limits) if self.limits else float("inf")


def _command(guest: Guest, text: str, _flags: int) -> str:
    return guest.command(text)


class Host:
    """libvirt's connection, and its events."""

    def __init__(self) -> None:
        self.began_s = 0.0
        self.turns = 0  # that another call would have had, one after the other, on this machine
        self.waits: list[int] = []  # the turns until each sample that waited for a guest
        self.guests = {name: Guest(name) for name in (*BUSY, *DEAD, *OTHERS)}
        for name in DEAD:
            self.guests[name].tells = False

    async def connect(self, _timeout_s: float) -> None:
        self.connected = True

    async def lost(self) -> None:
        await asyncio.Event().wait()

    async def take_turns(self) -> None:
        """Count the turns of a call that hangs: a busy machine has fewer in the same time."""
        self.began_s = time.monotonic()
        while True:
            await asyncio.to_thread(time.sleep, TURN_S)
            self.turns += 1

    def check_turns(self, turns: int, most: int = TURNS) -> None:
        """Check that nobody waited for more turns than guests that hang may take."""
        took_s = (time.monotonic() - self.began_s) / max(1, self.turns)
        if turns > most and took_s > 2 * TURN_S:  # calls that have to wait for a turn time out
            pytest.skip(f"a turn took {took_s:.2f} s: the machine was too busy to tell")
        assert turns <= most

    def check_waits(self) -> None:
        """Check that samples soon waited for no guest that hangs."""
        self.check_turns(self.waits[-1] - self.waits[0] if self.waits else 0)

    def disconnect(self) -> None:
        self.connected = False

    def close(self) -> None:
        pass

    def listAllDomains(self, _flags: int) -> list[Guest]:
        return [*self.guests.values()]

    def lookupByName(self, name: str) -> Guest:
        return self.guests[name]

    def getAllDomainStats(self, _kind: int, _flags: int) -> list[tuple[Guest, dict[str, Any]]]:
        return self.domainListGetStats([*self.guests.values()], 0, 0)

    def domainListGetStats(
        self, guests: list[Guest], _kind: int, _flags: int
    ) -> list[tuple[Guest, dict[str, Any]]]:
        found = []
        for guest in guests:
            values: dict[str, Any] = {"block.count": 1, "block.0.name": "vda"}
            if guest.job.acquire(blocking=False):  # libvirt asks no QEMU that is busy (NOWAIT)
                if len(guests) > 1 and not guest.answers.is_set():
                    self.waits.append(self.turns)
                try:
                    guest.answers.wait(60)
                finally:
                    guest.job.release()
                names = ("rd.reqs", "rd.bytes", "wr.reqs", "wr.bytes")
                values |= {f"block.0.{name}": 0 for name in names}
            found.append((guest, values))
        return found


class Run:
    """An agent that ticks on a host."""

    def __init__(self, host: Host, agent: Agent, source: LibvirtSource) -> None:
        self.host, self.agent, self.source = host, agent, source
        self.ticks = 0

    async def tick(self) -> None:
        begun = time.monotonic()
        await self.agent.look(None)
        self.ticks += 1
        await asyncio.sleep(max(0.0, TICK_S - (time.monotonic() - begun)))

    def promise(self, limit: int, names: list[str]) -> None:
        """Change policies, as libvirtd tells."""
        for name in names:
            self.host.guests[name].limit = limit
            self.source.announce(name)

    async def until_held(self, limit: int, names: list[str], most_ticks: int = 10) -> None:
        """Tick until guests are held to a limit, which takes so many ticks at most."""
        ticks, turns = self.ticks, self.host.turns
        while any(self.host.guests[n].held_to > 1.1 * limit for n in names):
            await self.tick()
            assert self.ticks < ticks + 500
        self.host.check_turns(self.host.turns - turns, most_ticks * A_TICK)


@pytest.fixture
async def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: Alone) -> AsyncIterator[Run]:
    host = Host()
    monkeypatch.setattr("libvirt.open", lambda _uri: host)
    monkeypatch.setattr("libvirt_qemu.qemuMonitorCommand", _command)
    monkeypatch.setattr("iokeel.hypervisors.libvirt.source.Events", lambda *_: host)
    monkeypatch.setattr("iokeel.hypervisors.libvirt.source._CALL_TIMEOUT_S", READ_S)
    monkeypatch.setattr("iokeel.running.enforcer._SET_TIMEOUT_S", SET_S)
    monkeypatch.setattr("iokeel.hypervisors.libvirt.calls._TURN_S", TURN_S)
    config = parse(f"[agent]\ntick_seconds = {TICK_S}".encode(), "agent.toml")
    source = LibvirtSource("test://host/", {}, {})
    agent = Agent(config, [source], StateStore(tmp_path), Metrics())
    with alone():  # which stops this loop, and so comes before anything runs on it
        beside = [asyncio.create_task(each) for each in (source.run(), host.take_turns())]
        await until(lambda: len(source.vms()) == len(host.guests))
        made = Run(host, agent, source)
        await made.until_held(300, [*host.guests])
        yield made
        for guest in host.guests.values():
            guest.answers.set()
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)


async def test_guests_that_hang_keep_no_other_from_its_limits(run: Run) -> None:
    guests, threads = run.host.guests, threading.active_count()
    for name in (*BUSY, *DEAD):
        guests[name].answers.clear()
    for limit in (280, 240, 200):
        run.promise(limit, [*BUSY, *DEAD, *OTHERS])
        await run.until_held(limit, OTHERS, 6)
        for _ in range(6):
            await run.tick()
    run.host.check_waits()
    assert {guests[name].held_to > 250 for name in (*BUSY, *DEAD)} == {True}
    assert threading.active_count() <= threads + len(BUSY + DEAD) + 8, "one for each that hangs"
    for name in (*BUSY, *DEAD):
        guests[name].answers.set()
    await run.until_held(limit, [*BUSY, *DEAD])


async def test_guests_that_hang_at_once_cost_no_sample_each(run: Run) -> None:
    for name in (*BUSY, *DEAD):
        run.host.guests[name].answers.clear()
    for _ in range(10):
        await run.tick()
    assert run.host.waits, "the first one that hangs is found by a sample"
    for _ in range(10):
        await run.tick()
    run.host.check_waits()
    for name in (*BUSY, *DEAD):
        run.host.guests[name].answers.set()
    run.promise(100, [*BUSY, *DEAD])
    await run.until_held(100, [*BUSY, *DEAD])


async def test_the_last_limits_are_in_force_soon_after_a_guest_answers_again(run: Run) -> None:
    guest = run.host.guests["db0"]
    guest.answers.clear()
    run.promise(250, ["db0"])
    for _ in range(15):
        await run.tick()
    run.promise(100, ["db0"])
    for _ in range(5):
        await run.tick()
    assert guest.held_to > 250
    guest.answers.set()
    await run.until_held(100, ["db0"], 4)
