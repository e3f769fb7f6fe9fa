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

Params = dict[str, float]


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
            if alone and self.inside and "flush" in (first.op, *(c.op for c in self.inside)):
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

    def us(self, name: str) -> int:
        return math.floor(self.p[name] * 1000 + 0.5)

    def over_link(self, way: int, size: int) -> int:
        way = way if self.p["link_duplex"] else 0
        self.link[way] = max(self.link[way], self.now) + self.link_ns(size)
        return self.link[way]

    def enter(self, command: Command) -> None:
        kind = "read" if command.op == "read" else "write"
        command.start = max(self.controller, self.now)
        self.controller = command.start + self.us(f"{kind}_command_us")
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
            self.finish(command, self.now + self.us("latency_us"))
        self.hand_out()

    def wait(self, command: Command) -> None:
        command.mark = self.put
        self.flushes.append(command)
        self.flushed()

    def flushed(self) -> None:
        begun = [job[0] for job in (*self.to_program, *self.programming) if job]
        safe = min([self.taken, *begun])
        while self.flushes and self.flushes[0].mark <= safe:
            self.finish(self.flushes.popleft(), self.now + self.us("latency_us"))

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
            self.to_program[unit], self.programming[unit] = None, job
            self.busy[unit], self.has_read[unit] = True, False
            self.at(self.now + self.us("program_us"), lambda: self.programmed(unit))
        elif self.pages[unit]:
            command, part = self.pages[unit].popleft()
            self.busy[unit] = self.has_read[unit] = True
            self.at(self.now + self.us("read_us"), lambda: self.page_read(unit, command, part))

    def page_read(self, unit: int, command: Command, part: int) -> None:
        there = self.over_link(0, part)
        self.busy[unit] = False
        self.left[command] -= 1
        if not self.left[command]:
            self.finish(command, there + self.us("latency_us"))
        self.work(unit)
        self.hand_out()

    def programmed(self, unit: int) -> None:
        job = self.programming[unit]
        assert job
        self.buffered -= job[1]
        self.programming[unit], self.busy[unit] = None, False
        self.flushed()
        self.admit()
        self.work(unit)
        self.hand_out()


def serve(params: Params, commands: Sequence[Command]) -> None:
    """Fill in the times of commands that arrive in this order at a device."""
    (Hdd if "rpm" in params else Flash)(params).run(commands)
