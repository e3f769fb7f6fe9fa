"""Simulated hosts on which the capacity's feedback and headroom are tried, and their figures.

Of the feedback, eight guests want all they can get of a disk whose capacity is halved and comes
back, or is configured too high or too low:

- settle_s: seconds from a step until latency stays below HIGH times its target and throughput above
  85 % of the disk's at its target, the worst step;
- over_s: seconds with a latency above twice its target, the sum over the steps;
- lost: the mean loss of throughput against the disk's at the target, from a step until the next;
- noise_lost, noise_over: the loss of throughput, and the part of the seconds above HIGH times the
  target, at constant capacity, when the mean latency of a second is seen with lognormal noise of
  sigma 0.2;
- retunes: changes of limits for a drive and hour, then.

Of the headroom, a victim does 2 s of 4K reads every 10 s beside seven that want all they can get,
on a disk that does only half at first:

- victim: its mean latency over its target, in the last bursts;
- others: the throughput of all then, over the disk's at the victim's target;
- back_s: seconds from when the disk does all until that is above 80 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from math import inf
from statistics import mean

import numpy as np

from iokeel.core.values.policy import DrivePolicy
from iokeel.core.values.storage import StoragePolicy
from testing.sim.fleet import Fleet, Record
from testing.sim.guests import Guest, Kind, Phase, idle
from testing.sim.storage import Disk

Figures = dict[str, float]
CAPACITY = 20_000  # normalized iops
BASE_S = 0.0002  # of a request on the idle disk
TARGET_MS = 1.0
SOFT_KNEE, SHARP_KNEE = 1.0, 4.0  # exponents of the load (testing/sim/storage.py)
# Of the feedback: until the first step, from each until the next, and with noise, all of it.
BEFORE_S, STEP_S, NOISE_S = 40, 80, 240
NOISE = 0.2  # sigma
#: Of the target as configured. The law's own grows with size, for this mix to about 1.6 times that.
HIGH = 1.75
# Of the headroom: while the disk does half, all of it, and its end, for the last bursts.
HALF_S, ROOM_S, LATE_S = 100, 300, 100


@dataclass(frozen=True)
class Case:
    """A disk whose real capacity follows `parts` of CAPACITY, a step each."""

    name: str
    configured: int
    parts: tuple[float, ...]

    def real(self, at_s: float) -> float:
        """Return its real capacity at a time."""
        step = int(max(0.0, at_s - BEFORE_S) // STEP_S) + (at_s >= BEFORE_S)
        return CAPACITY * self.parts[min(step, len(self.parts) - 1)]


HALVED = Case("halved and back", CAPACITY, (1.0, 0.5, 1.0))
CASES = (
    HALVED,
    Case("30 % too high", round(1.3 * CAPACITY), (1.0, 1.0)),
    Case("30 % too low", round(CAPACITY / 1.3), (1.0, 1.0)),
)


def used_at(strain: float, knee: float) -> float:
    """Return the part of a disk that is used when its latency is `strain` times its target."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        over = 1 + middle**knee / (1 - middle) > strain * TARGET_MS / BASE_S / 1000
        low, high = (low, middle) if over else (middle, high)
    return low


def greedy(count: int, exact: bool) -> list[Guest]:
    """Return guests that want all they can get, by weight, with requests of different sizes."""
    sizes = (4, 8, 16, 64)
    return [
        Guest(
            f"g{i}",
            DrivePolicy(weight=100 * (1 + i % 4), reservation=500 * (i % 3)),
            iter([Phase(inf, inf, Kind.of(sizes[i % 4]), 32)]),
            exact=exact,
        )
        for i in range(count)
    ]


def run_steps(
    case: Case, knee: float, exact: bool, noise: float = 0.0, seconds: int | None = None
) -> Record:
    """Run all steps of a case, or so many seconds of it."""
    disk = Disk(StoragePolicy(case.configured, TARGET_MS), case.real, BASE_S, knee, noise)
    fleet = Fleet(greedy(8, exact), [disk], seed=3)
    return fleet.run(seconds or BEFORE_S + STEP_S * (len(case.parts) - 1))


def feedback_figures(knee: float, exact: bool) -> Figures:
    """Return the figures of the feedback."""
    settle, over, lost = [], 0, []
    for case in CASES:
        did = run_steps(case, knee, exact)
        starts = [0] if len(case.parts) == 2 else [BEFORE_S, BEFORE_S + STEP_S]
        for start in starts:
            part = case.parts[-1] if start != BEFORE_S else case.parts[1]
            end = start + STEP_S
            best = used_at(1, knee) * CAPACITY * part
            throughput = did.served[start:end].sum(axis=1)
            strain = did.wait_s[start:end, 0] * 1000 / TARGET_MS
            bad = np.flatnonzero((strain > HIGH) | (throughput < 0.85 * best))
            settle.append(int(bad[-1]) + 1 if len(bad) else 0)
            over += int((strain > 2).sum())
            lost.append(1 - min(1.0, float(np.minimum(throughput, best).mean()) / best))
    noisy = run_steps(Case("noise", CAPACITY, (1.0, 1.0)), knee, exact, NOISE, NOISE_S)
    throughput = noisy.served[BEFORE_S:].sum(axis=1)
    best = used_at(1, knee) * CAPACITY
    real = noisy.wait_s[BEFORE_S:, 0] * 1000 / TARGET_MS
    changes = sum(noisy.retunes(BEFORE_S).values())
    return {
        "settle_s": max(settle),
        "over_s": over,
        "lost": mean(lost),
        "noise_lost": 1 - min(1.0, float(np.minimum(throughput, best).mean()) / best),
        "noise_over": float((real > HIGH).mean()),
        "retunes": changes / 8 / (NOISE_S - BEFORE_S) * 3600,
    }


def bursts() -> Iterator[Phase]:
    """Yield bursts of 2 s every 10 s."""
    return cycle((idle(8), Phase(2, inf, Kind.of(4), 1)))


def run_victim(knee: float, exact: bool) -> Record:
    """Run a victim beside seven that want all they can get."""
    victim = Guest("victim", DrivePolicy(latency_target_ms=TARGET_MS), bursts(), exact=exact)
    disk = Disk(StoragePolicy(CAPACITY), capacity_beside_victim, BASE_S, knee)
    return Fleet([victim, *greedy(7, exact)], [disk]).run(ROOM_S)


def capacity_beside_victim(at_s: float) -> float:
    """Return the real capacity of the victim's disk at a time."""
    return CAPACITY * (0.5 if at_s < HALF_S else 1.0)


def headroom_figures(knee: float, exact: bool) -> Figures:
    """Return the figures of the headroom."""
    did = run_victim(knee, exact)
    late = slice(ROOM_S - LATE_S, None)
    busy = did.latency_s[late, 0] > 0
    strain = did.latency_s[late, 0][busy] * 1000 / TARGET_MS
    throughput = did.served.sum(axis=1) / (used_at(1, knee) * CAPACITY)
    low = np.flatnonzero(throughput[HALF_S:] < 0.8)
    return {
        "victim": float(strain.mean()),
        "others": float(throughput[late].mean()),
        "back_s": int(low[-1]) + 1 if len(low) else 0,
        "retunes": sum(did.retunes(ROOM_S - LATE_S).values()) / 8 / LATE_S * 3600,
    }


def by_setup(figures: Callable[[float, bool], Figures]) -> dict[str, Figures]:
    """Return figures with stock and exact throttles, on disks with a soft and a sharp knee."""
    return {
        f"{'exact' if exact else 'stock'}, {'soft' if knee == SOFT_KNEE else 'sharp'}": figures(
            knee, exact
        )
        for exact in (False, True)
        for knee in (SOFT_KNEE, SHARP_KNEE)
    }
