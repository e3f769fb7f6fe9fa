"""The rules of README.md once more, in Python: for the tests, and for runs in virtual time.

Written from the rules, not from the C: an agenda of closures instead of typed events, and
geometry by formulas of its own. Times are nanoseconds of the model.
"""

import functools
import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.disksim.params import check

Params = dict[str, float]
ALONE = {"flush", "discard"}
"""Alone in the device, if it has `flush_exclusive`."""
_NS = {
    1: ("read_us", "read_command_us", "write_command_us", "latency_us", "extra_us"),
    1e3: ("pause_ms",),
    1e6: ("pause_every_s", "extra_from_s", "extra_to_s"),
}
"""Times of flash that are rounded to nanoseconds, by the microseconds of their unit."""


@dataclass(eq=False)
class Command:
    """One command, and what became of it."""

    op: str
    fua: bool
    offset: int
    length: int
    arrival: int
    entered: int = -1
    start: int = -1
    unit: int = -1
    done: int = -1
    mark: int = 0


class Device:
    """What both kinds have: an agenda, a queue before the device, a number of places in it."""

    def __init__(self, params: Params) -> None:
        """params: a device's, without `kind`. Raises ValueError if they make none."""
        check(params)
        self.p = params
        self.now = 0
        self.agenda: list[tuple[int, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.queue: deque[Command] = deque()
        self.inside: set[Command] = set()

    def at(self, when: int, what: Callable[[], None]) -> None:
        heapq.heappush(self.agenda, (when, next(self.order), what))

    def run_until(self, when: float) -> None:
        while self.agenda and self.agenda[0][0] <= when:
            self.now, _, what = heapq.heappop(self.agenda)
            what()

    def run(self, commands: Sequence[Command]) -> None:
        """Serve all commands, which are in the order of their arrival."""
        for command in commands:
            self.run_until(command.arrival)
            self.now = command.arrival
            self.queue.append(command)
            self.let_in()
        self.run_until(math.inf)

    def let_in(self) -> None:
        alone = bool(self.p["flush_exclusive"])
        while self.queue and len(self.inside) < self.p["queue_depth"]:
            first = self.queue[0]
            if alone and self.inside and ALONE & {first.op, *(c.op for c in self.inside)}:
                break
            self.inside.add(self.queue.popleft())
            first.entered = self.now
            self.enter(first)

    def finish(self, command: Command, when: int) -> None:
        def leave() -> None:
            self.inside.remove(command)
            self.let_in()

        command.done = when
        self.at(when, leave)

    def link_ns(self, size: int) -> int:
        return math.floor(size * 1000 / self.p["link_mb_s"] + 0.5)

    def enter(self, command: Command) -> None:
        raise NotImplementedError


class Hdd(Device):
    """One arm over a spiral."""

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self.turn_ns = 60e9 / params["rpm"]
        self.outer, self.inner = (params[f"rate_{e}_mb_s"] / 1000 for e in ("outer", "inner"))
        self.turns = params["capacity"] / (self.turn_ns * ((self.outer + self.inner) / 2))
        self.head, self.since, self.busy, self.reading_on = 0, 0, False, False
        self.segments: deque[list[int]] = deque(maxlen=int(params["segments"]))
        self.reads: list[Command] = []
        self.writes: list[tuple[int, Command]] = []  # in the buffer, with a number
        self.destaging: tuple[int, Command] | None = None
        self.stalled: deque[Command] = deque()
        self.flushes: deque[Command] = deque()
        self.buffered = self.numbers = 0

    def revolution(self, byte: int) -> float:
        fall = self.outer - self.inner
        area = byte / (self.turns * self.turn_ns)
        root = math.sqrt(max(0.0, self.outer**2 - 2 * fall * area))
        return self.turns * (self.outer - root) / fall

    def head_now(self) -> tuple[int, bool]:
        """Return where the head is, and whether it goes on reading."""
        if not self.reading_on:
            return self.head, self.now == self.since
        x = (self.revolution(self.head) + (self.now - self.since) / self.turn_ns) / self.turns
        volume = self.turns * self.turn_ns
        byte = int(volume * (self.outer * x - (self.outer - self.inner) * x * x / 2))
        most = min(self.head + int(self.p["readahead_bytes"]), int(self.p["capacity"]))
        byte = max(self.head, min(byte, most))
        return byte, byte < most or self.now == self.since

    def joins(self, command: Command) -> bool:
        return self.reading_on and self.segments[0][0] <= command.offset <= self.head_now()[0]

    def position_ns(self, command: Command) -> float:
        head, moving = self.head_now()
        target = command.offset
        if command.op == "read" and self.joins(command):
            if moving:
                return 0.0
            target = head
        elif command.offset == self.head and self.now == self.since:
            return 0.0
        here, there = self.revolution(head), self.revolution(target)
        seek = 0.0
        if abs(there - here) >= 1:
            reach = math.sqrt(abs(there - here) / self.turns)
            low, high = self.p["seek_min_us"], self.p["seek_max_us"]
            seek = 1000 * (low + (high - low) * reach)
        part = (there - (self.now + seek) / self.turn_ns) % 1.0
        return seek + (part * self.turn_ns if part < 1 - 1e-6 else 0.0)

    def enter(self, command: Command) -> None:
        self.at(self.now + int(self.p["command_us"] * 1000), lambda: self.ready(command))

    def ready(self, command: Command) -> None:
        if command.op == "read":
            if self.is_buffered(command):
                command.start = self.now
                self.finish(command, self.now + self.link_ns(command.length))
            else:
                self.reads.append(command)
        elif command.op == "write":
            self.stalled.append(command)
            self.admit()
        elif command.op == "discard":
            raise ValueError("a hard disk takes no discards")
        else:
            command.start, command.mark = self.now, self.numbers
            self.flushes.append(command)
            self.flushed()
        self.move()

    def is_buffered(self, command: Command) -> bool:
        for i, (begin, end) in enumerate(self.segments):
            if i == 0 and self.busy and self.destaging is None:
                continue
            if i == 0 and self.reading_on:
                end = self.head_now()[0]
            if begin <= command.offset and command.offset + command.length <= end:
                return True
        return False

    def admit(self) -> None:
        while self.stalled:
            first = self.stalled[0]
            if self.buffered and self.buffered + first.length > self.p["buffer_bytes"]:
                break
            self.stalled.popleft()
            self.buffered += first.length
            first.start = self.now
            there = self.now + self.link_ns(first.length)
            self.at(there, functools.partial(self.in_buffer, first))

    def in_buffer(self, command: Command) -> None:
        self.writes.append((self.numbers, command))
        self.numbers += 1
        if not command.fua:
            self.finish(command, self.now)
        self.move()

    def flushed(self) -> None:
        left = [number for number, _ in self.writes]
        left += [self.destaging[0]] if self.destaging else []
        while self.flushes and self.flushes[0].mark <= min(left, default=math.inf):
            self.finish(self.flushes.popleft(), self.now)

    def choose(self) -> Command | None:
        if self.reads and self.now - self.reads[0].entered >= int(self.p["aging_ms"] * 1e6):
            return self.reads[0]
        choice = list(self.reads)
        pressed = self.stalled or self.flushes or any(c.fua for _, c in self.writes)
        if pressed or not self.reads:
            choice += [c for _, c in self.writes[: int(self.p["queue_depth"])]]
        return min(choice, key=self.position_ns, default=None)

    def move(self) -> None:
        command = None if self.busy else self.choose()
        if command is None:
            return
        cost, (head, _) = self.position_ns(command), self.head_now()
        begin, end = command.offset, command.offset + command.length
        joining = command.op == "read" and self.joins(command)
        if self.reading_on:
            self.segments[0][1] = head
        if command.op == "read":
            self.reads.remove(command)
            if joining:
                begin, end = head, max(head, end)
                self.segments[0][1] = end
            else:
                self.segments.appendleft([begin, end])
        else:
            self.destaging = next(pair for pair in self.writes if pair[1] is command)
            self.writes.remove(self.destaging)
        if command.op == "read" or command.fua:
            command.start, command.unit = self.now, 0
        self.busy, self.reading_on, self.head = True, False, end
        media = (self.revolution(end) - self.revolution(begin)) * self.turn_ns
        self.at(math.floor(self.now + cost + media + 0.5), lambda: self.arrived(command))

    def arrived(self, command: Command) -> None:
        self.busy, self.since = False, self.now
        if command.op == "read":
            self.reading_on = True
            self.finish(command, self.now)
        else:
            self.destaging = None
            self.buffered -= command.length
            if command.fua:
                self.finish(command, self.now)
            self.flushed()
            self.admit()
        self.move()


class Flash(Device):
    """Units in parallel behind a controller, a link and a buffer."""

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self.n = int(params["units"])
        self.pages: list[deque[tuple[Command, int]]] = [deque() for _ in range(self.n)]
        self.to_program: list[tuple[int, int] | None] = [None] * self.n
        self.programming: list[tuple[int, int] | None] = [None] * self.n
        self.busy = [False] * self.n
        self.has_read = [False] * self.n
        self.left: dict[Command, int] = {}
        self.controller = 0
        self.link = [0, 0]
        self.stalled: deque[Command] = deque()
        self.flushes: deque[Command] = deque()
        self.buffered = self.put = self.taken = self.turn = 0
        self.paused_until = self.last_program = 0
        self.since_pause = self.cached = 0.0
        self.ns = {
            name: math.floor(params.get(name, 0) * scale * 1000 + 0.5)
            for scale, names in _NS.items()
            for name in names
        }
        self.every, self.pause = self.ns["pause_every_s"], self.ns["pause_ms"]

    def working(self, begin: int, takes: int) -> int:
        """Return how long work takes that begins then."""
        by_time = self.every and begin % self.every >= self.every - self.pause
        if by_time or begin < self.paused_until:
            return math.floor(takes * self.p["pause_factor"] + 0.5)
        return takes

    def latency(self) -> int:
        extra = self.ns["extra_from_s"] <= self.now < self.ns["extra_to_s"]
        return self.ns["latency_us"] + (self.ns["extra_us"] if extra else 0)

    def over_link(self, way: int, size: int) -> int:
        way = way if self.p["link_duplex"] else 0
        begin = max(self.link[way], self.now)
        self.link[way] = begin + self.working(begin, self.link_ns(size))
        return self.link[way]

    def enter(self, command: Command) -> None:
        kind = "read" if command.op == "read" else "write"
        command.start = max(self.controller, self.now)
        takes = self.ns[f"{kind}_command_us"]
        if command.op == "discard":
            takes += math.floor(command.length * 1000 / self.p["discard_mb_s"] + 0.5)
        self.controller = command.start + self.working(command.start, takes)
        self.at(self.controller, lambda: self.ready(command))

    def ready(self, command: Command) -> None:
        if command.op == "read":
            size, end = int(self.p["page_bytes"]), command.offset + command.length
            first, last = command.offset // size, (end - 1) // size
            command.unit = first % self.n
            self.left[command] = last - first + 1
            for page in range(first, last + 1):
                part = min(end, (page + 1) * size) - max(command.offset, page * size)
                self.pages[page % self.n].append((command, part))
                self.work(page % self.n)
        elif command.op == "write":
            self.stalled.append(command)
            self.admit()
        elif command.op == "discard":
            self.finish(command, self.now + self.latency())
        else:
            self.wait(command)
        self.hand_out()

    def admit(self) -> None:
        while self.stalled:
            first = self.stalled[0]
            if self.buffered and self.buffered + first.length > self.p["buffer_bytes"]:
                break
            self.stalled.popleft()
            self.buffered += first.length
            there = self.over_link(1, first.length)
            self.at(there, functools.partial(self.in_buffer, first))

    def in_buffer(self, command: Command) -> None:
        self.put += command.length
        if command.fua:
            self.wait(command)
        else:
            self.finish(command, self.now + self.latency())
        self.hand_out()

    def wait(self, command: Command) -> None:
        command.mark = self.put
        self.flushes.append(command)
        self.flushed()

    def flushed(self) -> None:
        begun = [job[0] for job in (*self.to_program, *self.programming) if job]
        safe = min([self.taken, *begun])
        while self.flushes and self.flushes[0].mark <= safe:
            self.finish(self.flushes.popleft(), self.now + self.latency())

    def hand_out(self) -> None:
        whole = int(self.p["program_bytes"])
        wanted = self.flushes[-1].mark if self.flushes else 0
        if self.stalled and self.buffered == self.put - self.taken:
            wanted = self.put
        while self.put - self.taken >= whole or self.taken < wanted:
            if self.to_program[self.turn]:
                break
            size = min(whole, self.put - self.taken)
            self.to_program[self.turn] = (self.taken, size)
            self.taken += size
            unit, self.turn = self.turn, (self.turn + 1) % self.n
            self.work(unit)

    def work(self, unit: int) -> None:
        if self.busy[unit]:
            return
        its_turn = bool(self.stalled or self.flushes) and self.has_read[unit]
        if (job := self.to_program[unit]) and (its_turn or not self.pages[unit]):
            takes = self.program_ns(job[1])
            self.to_program[unit], self.programming[unit] = None, job
            self.busy[unit], self.has_read[unit] = True, False
            self.at(self.now + takes, lambda: self.programmed(unit))
        elif self.pages[unit]:
            command, part = self.pages[unit].popleft()
            self.busy[unit] = self.has_read[unit] = True
            takes = self.working(self.now, self.ns["read_us"])
            self.at(self.now + takes, lambda: self.page_read(unit, command, part))

    def program_ns(self, size: int) -> int:
        """Return how long a program takes that begins now; it may go to the SLC cache."""
        us = self.p["program_us"]
        if most := self.p.get("slc_bytes"):
            if not any(self.programming):
                idle = self.now - self.last_program
                self.cached = max(0.0, self.cached - idle * self.p["slc_empty_mb_s"] / 1000)
            if self.cached + size <= most:
                self.cached += size
            else:
                us *= self.p["slc_factor"]
        return self.working(self.now, math.floor(us * 1000 + 0.5))

    def page_read(self, unit: int, command: Command, part: int) -> None:
        there = self.over_link(0, part)
        self.busy[unit] = False
        self.left[command] -= 1
        if not self.left[command]:
            self.finish(command, there + self.latency())
        self.work(unit)
        self.hand_out()

    def programmed(self, unit: int) -> None:
        job = self.programming[unit]
        assert job
        self.last_program = self.now
        self.since_pause += job[1]
        if 0 < (every := self.p.get("pause_every_bytes", 0)) <= self.since_pause:
            self.since_pause -= every
            self.paused_until = self.now + self.ns["pause_ms"]
        self.buffered -= job[1]
        self.programming[unit], self.busy[unit] = None, False
        self.flushed()
        self.admit()
        self.work(unit)
        self.hand_out()


def serve(params: Params, commands: Sequence[Command]) -> None:
    """Fill in the times of commands that arrive in this order at a device."""
    (Hdd if "rpm" in params else Flash)(params).run(commands)
