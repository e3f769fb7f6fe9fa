"""A part of a run: the same load and the same events, without iokeel or with it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.chaos.journal import Journal, Span
from benchmarks.chaos.monitor import Look
from benchmarks.demo.fio_log import Completions
from benchmarks.field.draw import Happens
from benchmarks.field.events import Scene, happening
from benchmarks.field.ground import Ground
from benchmarks.field.guests import Guest
from benchmarks.field.watch import Account, Moment, Said, Watch
from testing.agents import Agent
from testing.lab.host import Host

HEAD_S = 5.0
"""What is discarded: programs start, and the agent learns what the drives do."""
_TAIL_S = 1.0


@dataclass(frozen=True)
class Part:
    """What was measured, by drive. Times are the host's epoch.

    begin_s: when the head is over. said: None without iokeel. drained: when QEMU let requests
    through that waited.
    """

    begin_s: float
    seconds: float
    done: Mapping[str, Completions]
    looks: Mapping[str, Sequence[Look]]
    moments: Sequence[Moment]
    said: Mapping[str, Sequence[Said]] | None
    drained: Mapping[str, Sequence[Span]]


def run_part(
    host: Host,
    ground: Ground,
    memory: Path,
    guests: Sequence[Guest],
    happens: Sequence[Happens],
    agent: Agent | None,
    seconds: float,
    seed: int,
) -> Part:
    """Run the load in all guests, and return what was measured. agent: None: without iokeel.

    seconds: after the head.
    """
    journal = Journal()
    scene = Scene(host, ground, memory, journal, seconds)
    with ExitStack() as stack:
        watch = stack.enter_context(Watch(ground.device, ground.number, guests))
        account = None if agent is None else stack.enter_context(Account(agent, guests))
        for guest in guests:
            guest.monitor.looks.clear()
        for number, guest in enumerate(guests):
            guest.start_load(HEAD_S + seconds + _TAIL_S, seed + number)
        begin_s = time.time() + HEAD_S
        time.sleep(HEAD_S)
        with ExitStack() as events:
            for happen in happens:
                events.enter_context(happening(happen.event, scene, guests[happen.drive]))
            time.sleep(max(0.0, begin_s + seconds - time.time()))
    done = {guest.name: guest.end_load() for guest in guests}
    looks = {guest.name: tuple(guest.monitor.looks) for guest in guests}
    said = None if account is None else account.said
    return Part(begin_s, seconds, done, looks, watch.moments, said, journal.drained)
