"""A host of the fleet that was taken over: what it writes into etcd for a while, at random.

It writes whatever docs/fleet.md says that others don't go by: claims and offices of hosts that
aren't there, values that nobody can read, and claims without end. The agents' limits have to hold,
and so do their ticks, their memory and the rate of their logs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random
from subprocess import CalledProcessError

from benchmarks.fleet.chaos.site import STORAGE, TENANT, Site

_PREFIX = "/iokeel/"
_BUDGETS = (f"tenant/{TENANT}", f"storage/{STORAGE}")
_HOSTS = 30
_FLOOD = 24  # claims of _FLOOD_BYTES, more than an answer may have
_FLOOD_BYTES = 1 << 20
_PAUSE_S = 1.0
_NUMBERS = (0, 1, 1000, 10**9, 2**53)

#: Keys and values.
Writes = dict[str, str]


def _number(random: Random) -> int:
    return random.choice(_NUMBERS)


def _claims(budget: str, random: Random) -> Writes:
    """Claims of hosts that aren't there, for all there is."""
    claim = {"v": 1, "instance": "x", "weight": random.choice((1, 10**8))}
    claim |= {name: _number(random) for name in ("reservation", "wants", "most", "held")}
    return {f"claims/{budget}/ghost{n}": json.dumps(claim) for n in range(_HOSTS)}


def _junk(budget: str, random: Random) -> Writes:
    """Values that nobody can read."""
    value = random.choice(("", "?", "{", "[" * 5000, '{"v":1}', '{"v":1,"host":5}'))
    keys = f"leaders/{budget}", f"claims/{budget}/junk", f"wants/{budget}/junk", "hosts/junk"
    return dict.fromkeys((*keys, "credit/junk"), value)


def _ghost(budget: str, random: Random) -> Writes:
    """An office of a host that isn't there."""
    return {f"leaders/{budget}": json.dumps({"v": 1, "host": f"ghost{random.randrange(_HOSTS)}"})}


def _flood(budget: str, random: Random) -> Writes:
    """A claim of a megabyte."""
    return {f"claims/{budget}/flood{random.randrange(_FLOOD)}": "x" * _FLOOD_BYTES}


_KINDS: tuple[Callable[[str, Random], Writes], ...] = (_claims, _junk, _ghost, _flood)


@contextmanager
def hostile(site: Site, random: Random, hold_s: float) -> Iterator[None]:
    """Write what a hostile host does for a while, and take back what is left of it."""
    until_s = time.monotonic() + hold_s
    lease = _lease(site)
    while time.monotonic() < until_s:
        kind, budget = random.choice(_KINDS), random.choice(_BUDGETS)
        for _ in range(_FLOOD if kind is _flood else 1):
            _write(site, kind(budget, random), random.choice(("0", lease)))
        time.sleep(_PAUSE_S)
    yield
    for part in ("claims", "wants"):
        for name in ("ghost", "junk", "flood"):
            for budget in _BUDGETS:
                _try(site, "del", "--prefix", f"{_PREFIX}{part}/{budget}/{name}")
    _try(site, "del", f"{_PREFIX}hosts/junk")
    _try(site, "del", f"{_PREFIX}credit/junk")


def _lease(site: Site) -> str:
    words = _try(site, "--write-out=simple", "lease", "grant", "120").split()
    return words[1] if len(words) > 1 else "0"


def _write(site: Site, writes: Writes, lease: str) -> None:
    for key, value in writes.items():
        _try(site, "put", f"--lease={lease}", f"{_PREFIX}{key}", stdin=value)


def _try(site: Site, *words: str, stdin: str = "") -> str:
    with suppress(CalledProcessError):  # etcd may have no leader at this moment
        return site.etcd.ctl(*words, stdin=stdin)
    return ""
