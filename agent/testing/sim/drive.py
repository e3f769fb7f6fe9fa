"""A simulated drive: streams of requests through a throttle that the real control law sets.

A stream is backlogged: it always has `depth` requests waiting. Streams take turns in proportion to
their depth, as in a guest whose queue is full. The disk behind takes no time, so the drive does
exactly what its limits let through.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import iokeel.core.drive.retune as retune
from iokeel.core.abilities import STOCK
from iokeel.core.counters import NS_PER_S, Counters, DriveId
from iokeel.core.curve import DEFAULT_MODEL, CostModel
from iokeel.core.decide import decide
from iokeel.core.observation import DriveSeen, Observation
from iokeel.core.orders import SetLimits
from iokeel.core.policy import DrivePolicy
from iokeel.core.state import State
from testing.sim.throttle import Throttle

DRIVE = DriveId("guest", "vda")


@dataclass(frozen=True)
class Stream:
    """Requests of one kind.

    sizes: (bytes, probability). rate: requests a second; None: as many as the limits let through.
    """

    sizes: tuple[tuple[int, float], ...]
    write_ratio: float = 0.0
    depth: int = 16
    rate: float | None = None

    @classmethod
    def of(cls, size_bytes: int, **options: float) -> Stream:
        """Return a stream of requests that all have one size."""
        return cls(((size_bytes, 1.0),), **options)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Phase:
    """The guest's streams for a time."""

    seconds: float
    streams: tuple[Stream, ...]


@dataclass
class Run:
    """A run's log: (time, cost) of each request, and (time, reason) of each limits change."""

    requests: list[tuple[float, float]] = field(default_factory=list)
    changes: list[tuple[float, str]] = field(default_factory=list)

    def rate(self, start_s: float, end_s: float) -> float:
        """Return the rate in a window, in normalized I/O operations a second."""
        return sum(c for t, c in self.requests if start_s <= t < end_s) / (end_s - start_s)

    def worst_window(self, start_s: float, end_s: float, step_s: float = 0.05) -> float:
        """Return the highest rate of all one-second windows that begin in [start, end - 1]."""
        edges = [cost for _, cost in self.requests]
        times = [at for at, _ in self.requests]
        worst = total = 0.0
        first = last = 0
        begin = start_s
        while begin <= end_s - 1:
            while last < len(times) and times[last] < begin + 1:
                total += edges[last]
                last += 1
            while first < last and times[first] < begin:
                total -= edges[first]
                first += 1
            worst = max(worst, total)
            begin += step_s
        return worst


def run(
    phases: Sequence[Phase],
    policy: DrivePolicy,
    *,
    model: CostModel = DEFAULT_MODEL,
    tick_s: float = 1.0,
    tick_offset_s: float = 0.37,
    delay_s: float = 0.01,
    seed: int = 1,
    on_tick: Callable[[State], None] | None = None,
) -> Run:
    """Run a drive through phases under the control law.

    tick_offset_s: the time of the first tick. delay_s: the time from a decision until its limits
    are in force.
    """
    result = Run()
    chance = random.Random(seed)
    throttle = Throttle()
    counts = [0, 0, 0, 0]
    state = State(model)
    looks = [tick_offset_s]
    next_tick = tick_offset_s
    pending: list[tuple[float, SetLimits]] = []
    horizon = tick_offset_s  # when the agent is next to do something
    now = start = 0.0

    def look(at: float, full: bool) -> None:
        nonlocal state
        counters = Counters(round(at * NS_PER_S), counts[0], counts[1], counts[2], counts[3], 0, 0)
        in_force = None if pending else throttle.limits
        seen = Observation(
            {DRIVE: DriveSeen(policy, counters, in_force, abilities=STOCK)}, partial=not full
        )
        state, orders = decide(state, seen, round(at * NS_PER_S))
        for order in orders:
            pending.append((at + delay_s, order))
        if state.suspects:
            looks.append(at + retune.LOOK_AGAIN_S)
        if on_tick is not None:
            on_tick(state)

    def pass_time(until: float) -> None:
        """Do the agent's work up to a time."""
        nonlocal next_tick, horizon
        while horizon <= until:
            at = horizon
            if pending and pending[0][0] == at:
                _, order = pending.pop(0)
                throttle.set(order.limits, at)
                result.changes.append((at, order.reason.name))
            else:
                looks.remove(at)
                full = at == next_tick
                if full:
                    next_tick = at + tick_s
                    looks.append(next_tick)
                look(at, full)
            horizon = min([*looks, *(t for t, _ in pending)])

    for phase in phases:
        end = start + phase.seconds
        turns = [s for s in phase.streams for _ in range(s.depth)]
        paced = any(s.rate is not None for s in turns)
        due = {id(s): start for s in phase.streams}
        while now < end:
            if not turns:
                pass_time(end)
                now = end
                break
            ready = turns
            if paced:
                ready = [s for s in turns if s.rate is None or due[id(s)] <= now]
            if not ready:
                now = min(end, *(due[id(s)] for s in turns))
                pass_time(now)
                continue
            stream = chance.choice(ready)
            write = chance.random() < stream.write_ratio
            sizes, weights = zip(*stream.sizes, strict=True)
            size = chance.choices(sizes, weights)[0]
            while now < end:
                pass_time(now)
                wait = throttle.wait_s(write, now)
                if wait <= 0:
                    break
                now = min(now + wait + 1e-9, max(horizon, now + 1e-9), end)
            if now >= end:
                break
            if stream.rate is not None:
                due[id(stream)] = max(due[id(stream)] + 1 / stream.rate, now - 1)
            throttle.account(write, size)
            counts[2 * write] += 1
            counts[2 * write + 1] += size
            curve = model.write if write else model.read
            result.requests.append((now, curve.cost(size)))
            if not throttle.limited:
                now += 1e-4  # an unthrottled disk serves 10,000 requests a second
        start = end
    return result
