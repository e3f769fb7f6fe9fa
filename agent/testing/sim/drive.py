"""A simulated drive: streams of requests through a throttle that the real control law sets.

A stream is backlogged: it always has `depth` requests waiting. Streams take turns in proportion to
their depth, as in a guest whose queue is full. The disk behind takes no time, so the drive does
exactly what its limits let through.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

import iokeel.core.measure.drive as measuring
from iokeel.core.decide import decide
from iokeel.core.values.counters import NS_PER_S, Counters, DriveId
from iokeel.core.values.curve import DEFAULT_MODEL, CostModel
from iokeel.core.values.limits import STOCK
from iokeel.core.values.observation import DriveSeen, Observation, SetLimits
from iokeel.core.values.policy import DrivePolicy
from iokeel.core.values.state import State
from testing.sim.throttle import Throttle

DRIVE = DriveId("guest", "vda")
_WINDOW_STEP_S = 0.05


@dataclass(frozen=True)
class Stream:
    """Requests of one kind.

    sizes: (bytes, probability). rate: requests a second; None: as many as the limits let through.
    at_random: they come at random moments (a Poisson process), and not at equal distances.
    """

    sizes: tuple[tuple[int, float], ...]
    write_ratio: float = 0.0
    depth: int = 16
    rate: float | None = None
    at_random: bool = False

    @classmethod
    def of(cls, size_bytes: int, rate: float | None = None) -> Stream:
        """Return a stream of requests that all have one size."""
        return cls(((size_bytes, 1.0),), rate=rate)


@dataclass(frozen=True)
class Phase:
    """The guest's streams for a time.

    in_turn: its requests pass in the order in which they wait, and not by chance.
    """

    seconds: float
    streams: tuple[Stream, ...]
    in_turn: bool = False


@dataclass
class Run:
    """A run's log: (time, cost) of each request, and (time, reason) of each limits change."""

    requests: list[tuple[float, float]] = field(default_factory=list)
    changes: list[tuple[float, str]] = field(default_factory=list)

    def rate(self, start_s: float, end_s: float) -> float:
        """Return the rate in a window, in normalized I/O operations a second."""
        return sum(cost for _, cost in self._between(start_s, end_s)) / (end_s - start_s)

    def worst_window(self, start_s: float, end_s: float) -> float:
        """Return the highest rate of all one-second windows that begin in [start, end - 1]."""
        inside = self._between(start_s, end_s)
        edges = [cost for _, cost in inside]
        times = [at for at, _ in inside]
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
            begin += _WINDOW_STEP_S
        return worst

    def _between(self, start_s: float, end_s: float) -> list[tuple[float, float]]:
        first, last = (bisect_left(self.requests, (at_s,)) for at_s in (start_s, end_s))
        return self.requests[first:last]


class _Drive:
    """The drive: its throttle, its counters and its log."""

    def __init__(self, model: CostModel) -> None:
        self.throttle = Throttle()
        self.log = Run()
        self._model = model
        self._counts = [0, 0, 0, 0]

    def counters(self, at_s: float) -> Counters:
        """Return its counters at a time."""
        reads, read_bytes, writes, write_bytes = self._counts
        return Counters(round(at_s * NS_PER_S), reads, read_bytes, writes, write_bytes, 0, 0)

    def limit(self, order: SetLimits, at_s: float) -> None:
        """Put limits in force."""
        self.throttle.set(order.limits, at_s)
        self.log.changes.append((at_s, order.reason.name))

    def serve(self, write: bool, size_bytes: int, at_s: float) -> float:
        """Serve a request that may pass, and return the time that it takes."""
        self.throttle.account(write, size_bytes)
        self._counts[2 * write] += 1
        self._counts[2 * write + 1] += size_bytes
        curve = self._model.write if write else self._model.read
        self.log.requests.append((at_s, curve.cost(size_bytes)))
        # An unthrottled disk serves 10,000 requests a second.
        return 0.0 if self.throttle.limited else 1e-4


class _Agent:
    """The control law: it looks at the drive each tick, and again if it suspects something.

    horizon: when it is next to do something.
    """

    def __init__(
        self,
        drive: _Drive,
        policy: DrivePolicy,
        state: State,
        *,
        tick_s: float,
        tick_offset_s: float,
        tick_late_s: float,
        delay_s: float,
        chance: random.Random,
        on_tick: Callable[[State], None] | None,
    ) -> None:
        self.horizon = tick_offset_s
        self._drive, self._policy, self._state = drive, policy, state
        self._tick_s, self._delay_s, self._on_tick = tick_s, delay_s, on_tick
        self._late_s, self._chance = tick_late_s, chance
        self._due_tick = self._next_tick = tick_offset_s
        self._looks = [tick_offset_s]
        self._pending: list[tuple[float, SetLimits]] = []

    def work(self, until: float) -> None:
        """Do its work up to a time."""
        while self.horizon <= until:
            at = self.horizon
            if self._pending and self._pending[0][0] == at:
                _, order = self._pending.pop(0)
                self._drive.limit(order, at)
            else:
                self._look(at)
            self.horizon = min([*self._looks, *(t for t, _ in self._pending)])

    def _look(self, at: float) -> None:
        self._looks.remove(at)
        is_tick = at == self._next_tick
        if is_tick:
            self._due_tick += self._tick_s
            late_s = self._chance.uniform(0, self._late_s) if self._late_s else 0.0
            self._next_tick = self._due_tick + late_s
            self._looks.append(self._next_tick)
        in_force = None if self._pending else self._drive.throttle.limits
        drive = DriveSeen(self._policy, self._drive.counters(at), in_force, abilities=STOCK)
        seen = Observation({DRIVE: drive}, partial=not is_tick)
        self._state, orders = decide(self._state, seen, round(at * NS_PER_S))
        self._pending += [(at + self._delay_s, order) for order in orders]
        if self._state.suspects:
            self._looks.append(at + measuring.LOOK_AGAIN_S)
        if self._on_tick is not None:
            self._on_tick(self._state)


class _Guest:
    """The guest's requests in a phase."""

    def __init__(self, phase: Phase, start: float, chance: random.Random) -> None:
        self._chance, self._in_turn = chance, phase.in_turn
        self._turns = [s for s in phase.streams for _ in range(s.depth)]
        if phase.in_turn:
            chance.shuffle(self._turns)
        self._due = {
            id(s): start + (self._distance_s(s) if s.at_random else 0.0)
            for s in phase.streams
            if s.rate is not None
        }

    @property
    def next_due(self) -> float:
        """When the first of its streams is due. All of them have a rate, or there are none."""
        return min(self._due.values(), default=inf)

    def ready(self, now: float) -> Stream | None:
        """Return a stream whose turn it is, or None if none is due."""
        turns = self._turns
        if self._due:
            turns = [s for s in turns if s.rate is None or self._due[id(s)] <= now]
        if not turns:
            return None
        return turns[0] if self._in_turn else self._chance.choice(turns)

    def request(self, stream: Stream) -> tuple[bool, int]:
        """Return whether a stream's next request writes, and its size in bytes."""
        write = self._chance.random() < stream.write_ratio
        sizes, weights = zip(*stream.sizes, strict=True)
        return write, self._chance.choices(sizes, weights)[0]

    def sent(self, stream: Stream, now: float) -> None:
        """Note that a stream's request has passed."""
        if self._in_turn:
            self._turns.remove(stream)
            self._turns.append(stream)
        if stream.rate is not None:
            due = self._due[id(stream)] + self._distance_s(stream)
            self._due[id(stream)] = max(due, now - 1)

    def _distance_s(self, stream: Stream) -> float:
        """Return the time between two requests of a stream that has a rate."""
        assert stream.rate is not None
        return self._chance.expovariate(stream.rate) if stream.at_random else 1 / stream.rate


def run(
    phases: Sequence[Phase],
    policy: DrivePolicy,
    *,
    model: CostModel = DEFAULT_MODEL,
    tick_s: float = 1.0,
    tick_offset_s: float = 0.37,
    tick_late_s: float = 0.0,
    delay_s: float = 0.01,
    seed: int = 1,
    on_tick: Callable[[State], None] | None = None,
) -> Run:
    """Run a drive through phases under the control law.

    tick_offset_s: the time of the first tick. tick_late_s: the most by which a later tick is late,
    at random. delay_s: the time from a decision until its limits are in force.
    """
    chance = random.Random(seed)
    drive = _Drive(model)
    agent = _Agent(
        drive,
        policy,
        State(model),
        tick_s=tick_s,
        tick_offset_s=tick_offset_s,
        tick_late_s=tick_late_s,
        delay_s=delay_s,
        chance=random.Random(seed),
        on_tick=on_tick,
    )
    now = start = 0.0
    for phase in phases:
        end = start + phase.seconds
        guest = _Guest(phase, start, chance)
        while now < end:
            stream = guest.ready(now)
            if stream is None:
                now = min(end, guest.next_due)
                agent.work(now)
                continue
            write, size = guest.request(stream)
            now = _passes(drive, agent, write, now, end)
            if now < end:
                guest.sent(stream, now)
                now += drive.serve(write, size, now)
        start = end
    return drive.log


def _passes(drive: _Drive, agent: _Agent, write: bool, now: float, end: float) -> float:
    """Return when a request passes the throttle, or the end if that is sooner."""
    while now < end:
        agent.work(now)
        wait = drive.throttle.wait_s(write, now)
        if wait <= 0:
            break
        now = min(now + wait + 1e-9, max(agent.horizon, now + 1e-9), end)
    return now
