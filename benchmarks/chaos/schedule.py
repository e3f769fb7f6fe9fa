"""Which fault comes when: drawn from a seed alone, so that a seed repeats a run's plan."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

_GAP_S = (0.5, 4.0)  # between two faults of one lane


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    lanes: what it breaks. Faults that share a lane never overlap. hold_s: how long it lasts.
    """

    name: str
    lanes: tuple[str, ...]
    hold_s: tuple[float, float]


@dataclass(frozen=True)
class Fault:
    """A fault of the plan.

    at_s: when it begins, in seconds from the first one's earliest start. hold_s: from its begin to
    its undoing. guest: the index of the guest that it concerns. draw: 0 to 1, for what else it has
    to choose.
    """

    at_s: float
    hold_s: float
    kind: str
    guest: int
    draw: float

    def __str__(self) -> str:
        return f"{self.at_s:7.1f} s  {self.kind}, guest {self.guest}, for {self.hold_s:.1f} s"


def _kind(name: str, lanes: str, least_s: float, most_s: float) -> Kind:
    return Kind(name, tuple(sorted(lanes.split())), (least_s, most_s))


KINDS = (
    _kind("agent killed", "agent", 0.2, 4),
    _kind("agent ended", "agent", 0.2, 4),
    _kind("agent hangs", "agent", 1, 5),
    _kind("class gone", "agent", 2, 5),
    _kind("state read-only", "agent state", 1, 4),
    _kind("state full", "state", 2, 8),
    _kind("clock steps", "clock", 2, 10),
    _kind("libvirtd killed", "libvirtd", 0.2, 4),
    _kind("libvirtd hangs", "libvirtd", 1, 5),
    _kind("limits by hand", "libvirtd agent", 3, 5),
    _kind("disk plugged", "libvirtd", 3, 6),
    _kind("guest suspended", "libvirtd", 0.5, 3),
    _kind("snapshot", "libvirtd", 0.5, 4),
    _kind("guest saved", "libvirtd", 0, 2),
    _kind("name like another's", "libvirtd", 2, 5),
    _kind("new limit", "policy", 0.5, 5),
    _kind("bad limit", "policy", 1, 6),
    _kind("bad policy", "policy", 1, 6),
    _kind("unknown class", "policy", 1, 6),
)
_LANES = sorted({lane for kind in KINDS for lane in kind.lanes})


def plan(seed: int, length_s: float, guests: int) -> list[Fault]:
    """Return the faults of a run, by their begin."""
    random = Random(seed)
    faults = []
    free_s = {lane: random.uniform(*_GAP_S) for lane in _LANES}
    while (lane := min(_LANES, key=free_s.__getitem__)) and free_s[lane] < length_s:
        kind = random.choice([kind for kind in KINDS if lane in kind.lanes])
        at_s = max(free_s[held] for held in kind.lanes)
        hold_s = random.uniform(*kind.hold_s)
        if at_s < length_s:
            faults.append(Fault(at_s, hold_s, kind.name, random.randrange(guests), random.random()))
        for held in kind.lanes:
            free_s[held] = at_s + hold_s + random.uniform(*_GAP_S)
    return sorted(faults, key=lambda fault: fault.at_s)


def lanes_of(fault: Fault) -> tuple[str, ...]:
    """Return what a fault breaks, in order of names."""
    (kind,) = (kind for kind in KINDS if kind.name == fault.kind)
    return kind.lanes
