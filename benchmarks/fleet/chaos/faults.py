"""The faults of a site, at random from a seed: those of hosts and those of etcd, side by side."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import cycle
from random import Random
from subprocess import CalledProcessError
from typing import TypeVar

from benchmarks.fleet.chaos.hostile import hostile
from benchmarks.fleet.chaos.site import MEMBERS, Site, SiteHost, agent_of
from testing.agents import Agent
from testing.host.clock import STEPS_S
from testing.waiting import eventually

_HOLD_S = (2.0, 40.0)
_HOSTILE_S = (10.0, 60.0)
_GAP_S = (1.0, 15.0)
_SAYS_S = 30.0
_STEPS_S = cycle(STEPS_S)
_DELAY_S, _LOSS_RATIO = 0.2, 0.1
T = TypeVar("T")

OfHost = Callable[[Site, SiteHost], AbstractContextManager[None]]
OfEtcd = Callable[[Site, Random], AbstractContextManager[None]]


# Hosts


@contextmanager
def _cut_off(site: Site, host: SiteHost) -> Iterator[None]:
    with site.network.cut(host.name):
        yield


@contextmanager
def _slow(site: Site, host: SiteHost) -> Iterator[None]:
    with site.network.slow(host.name, _DELAY_S, _LOSS_RATIO):
        yield


@contextmanager
def _coordinator_cut_off(site: Site, host: SiteHost) -> Iterator[None]:
    with site.network.cut(_coordinator(site) or host.name):
        yield


@contextmanager
def _killed(site: Site, host: SiteHost) -> Iterator[None]:
    host.agent.end()
    yield
    host.agent.start()


@contextmanager
def _ended(site: Site, host: SiteHost) -> Iterator[None]:
    host.agent.stop()
    yield
    host.agent.start()


@contextmanager
def _hangs(site: Site, host: SiteHost) -> Iterator[None]:
    host.agent.send(signal.SIGSTOP)
    yield
    host.agent.send(signal.SIGCONT)


@contextmanager
def _clock_steps(site: Site, host: SiteHost) -> Iterator[None]:
    host.agent.clock.step(next(_STEPS_S))
    yield
    host.agent.clock.step(0)


@contextmanager
def _namesake(site: Site, host: SiteHost) -> Iterator[None]:
    """Start another agent with the host's name. It has no drive that it could reach."""
    other = agent_of(site.folder, f"{host.name}2", site.network, site.etcd, site.folder / "nowhere")
    other.start()
    try:
        eventually(lambda: other.says("is in the fleet already, as another host"), _SAYS_S)
        yield
    finally:
        other.end()


def _coordinator(site: Site) -> str | None:
    for host in site.hosts.values():
        with suppress(Exception):  # it may hang, or be dead
            if _metric(host.agent, "iokeel_fleet_coordinated_tenants") > 0:
                return host.name
    return None


def _metric(agent: Agent, name: str) -> float:
    return agent.metrics().get(name, 0.0)


# etcd


@contextmanager
def _member_cut_off(site: Site, random: Random) -> Iterator[None]:
    with site.network.cut(random.choice(MEMBERS)):
        yield


@contextmanager
def _member_slow(site: Site, random: Random) -> Iterator[None]:
    with site.network.slow(random.choice(MEMBERS), _DELAY_S, _LOSS_RATIO):
        yield


@contextmanager
def _two_members_cut_off(site: Site, random: Random) -> Iterator[None]:
    with site.network.cut(*random.sample(MEMBERS, 2)):
        yield


@contextmanager
def _member_killed(site: Site, random: Random) -> Iterator[None]:
    member = random.choice(site.etcd.members)
    member.kill()
    yield
    _again(lambda: site.etcd.start(member))


@contextmanager
def _member_hangs(site: Site, random: Random) -> Iterator[None]:
    member = random.choice(site.etcd.members)
    member.stop()
    yield
    member.resume()


@contextmanager
def _hostile(site: Site, random: Random) -> Iterator[None]:
    with hostile(site, random, random.uniform(*_HOSTILE_S)):
        yield


@contextmanager
def _compacted(site: Site, random: Random) -> Iterator[None]:
    found = json.loads(_again(lambda: site.etcd.ctl("get", "nothing")))
    revision = str(found["header"]["revision"])
    with suppress(CalledProcessError):  # compacted there already
        site.etcd.ctl("compact", revision)
    yield


@contextmanager
def _restored(site: Site, random: Random) -> Iterator[None]:
    snapshot = site.folder / "snapshot"
    snapshot.unlink(missing_ok=True)
    _again(lambda: site.etcd.ctl("snapshot", "save", str(snapshot), one=True))
    yield
    site.etcd.restore(snapshot)
    site.etcd.start()


def _again(do: Callable[[], T]) -> T:
    """Do what may fail while etcd elects a leader."""

    def attempt() -> tuple[T]:
        return (do(),)

    return eventually(attempt, 60.0)[0]


OF_HOSTS: dict[str, OfHost] = {
    "host cut off": _cut_off,
    "host's network slow": _slow,
    "coordinator cut off": _coordinator_cut_off,
    "agent killed": _killed,
    "agent ended": _ended,
    "agent hangs": _hangs,
    "clock steps": _clock_steps,
    "second host of a name": _namesake,
}
OF_ETCD: dict[str, OfEtcd] = {
    "member cut off": _member_cut_off,
    "member's network slow": _member_slow,
    "two members cut off": _two_members_cut_off,
    "member killed": _member_killed,
    "member hangs": _member_hangs,
    "etcd compacted": _compacted,
    "etcd restored": _restored,
    "a host is hostile": _hostile,
}


class Faults:
    """Makes faults until the time is over. made: how many, by kind. error: what went wrong."""

    def __init__(self, site: Site, seed: int, say: Callable[[str], None]) -> None:
        self.made: Counter[str] = Counter()
        self.error: Exception | None = None
        self._site = site
        self._seed = seed
        self._say = say
        self._begun_s = time.monotonic()

    def run(self, seconds: float) -> None:
        """Make faults for some seconds, and undo the last ones. Raises what went wrong."""
        until_s = time.monotonic() + seconds
        lanes = [threading.Thread(target=self._lane, args=(lane, until_s)) for lane in (0, 1)]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
        if self.error is not None:
            raise self.error

    def _lane(self, lane: int, until_s: float) -> None:
        random = Random(f"{self._seed} {lane}")
        try:
            while time.monotonic() < until_s and self.error is None:
                self._one(random, hosts=lane == 0)
                time.sleep(random.uniform(*_GAP_S))
        except Exception as error:
            self.error = error

    def _one(self, random: Random, *, hosts: bool) -> None:
        hold_s = random.uniform(*_HOLD_S)
        if hosts:
            kind = random.choice([*OF_HOSTS])
            host = random.choice([*self._site.hosts.values()])
            made, what = OF_HOSTS[kind](self._site, host), f"{kind}: {host.name}"
        else:
            kind = random.choice([*OF_ETCD])
            made, what = OF_ETCD[kind](self._site, random), kind
        self._say(f"{time.monotonic() - self._begun_s:7.1f} s  {what}, for {hold_s:.0f} s")
        self.made[kind] += 1
        with made:
            time.sleep(hold_s)
