"""A simulated host: many drives on a few disks, held to their policies by the real control law.

Time passes in steps of STEP_S. In each, every drive does as much as its demand, its throttle
(throttles.py) and its disk (storage.py) allow. Every STEPS_A_TICK steps `decide` sees the counters,
and its orders are in force `delay_steps` later. Drives that it wants to look at again are seen
again after half a tick. Only the guests' phases and the noise of the disks' latency are random,
both from seeds, so that a run can be repeated.
"""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from iokeel.core.decide import decide
from iokeel.core.divide.held import with_outcomes
from iokeel.core.values.counters import NS_PER_S, Counters, ThrottleCount, ThrottleCounters
from iokeel.core.values.curve import DEFAULT_MODEL
from iokeel.core.values.limits import STOCK, UNLIMITED, ThrottleLimits
from iokeel.core.values.observation import DriveSeen, Observation, SetLimits, StorageSeen
from iokeel.core.values.policy import TenantPolicy
from iokeel.core.values.state import State
from iokeel.core.values.storage import StorageCounters
from iokeel.store.store import StateStore
from testing.hypervisors.abilities import PATCHED
from testing.sim.guests import Guest, Phase, idle
from testing.sim.storage import Array, Disk, serve
from testing.sim.throttles import Throttles

# Its disks serve whole requests, and take as long for large ones as for small ones.
_EXACT = PATCHED._replace(splits=False)
STEPS_A_TICK = 4
STEP_S = 0.25
# A request that the host's cache answers takes so long.
_CACHE_S = 0.00005
_EPOCH_NS = 1000 * NS_PER_S


@dataclass
class Faults:
    """Faults, by tick (and drive, or disk).

    lost: drives whose counters can't be read. failing: drives whose orders fail. gone: drives that
    don't exist; they come back as new. again: drives whose guests start again between two ticks.
    counters: a disk's faulty counters, "none", "frozen" or "garbage". down: ticks in which no agent
    runs; the next agent starts from the store.
    """

    lost: frozenset[tuple[int, int]] = frozenset()
    failing: frozenset[tuple[int, int]] = frozenset()
    gone: frozenset[tuple[int, int]] = frozenset()
    again: frozenset[tuple[int, int]] = frozenset()
    counters: Mapping[tuple[int, int], str] = field(default_factory=dict)
    down: frozenset[int] = frozenset()


@dataclass
class Record:
    """The log of a run: a row a tick, a column a drive or disk.

    served, asked: normalized operations a second, in the second after the tick: the mean served,
    and the least asked for. most: the highest rate served in any second that ends in this one.
    pressure: a drive's requests in flight if its disk holds it back, in normalized operations.
    latency_s: the mean time of each drive's requests, without its throttle's wait. wait_s, used:
    each disk's latency, and the used part of it. usable: the agent's estimate of its capacity.
    free: a drive had no limits at some time in the second. stuck: its last order had failed.
    orders: (tick, drive, reason).
    """

    served: Array
    asked: Array
    pressure: Array
    most: Array
    latency_s: Array
    wait_s: Array
    used: Array
    usable: Array
    free: Array
    stuck: Array
    orders: list[tuple[int, int, str]] = field(default_factory=list)
    states: list[State] = field(default_factory=list)

    @classmethod
    def of(cls, ticks: int, drives: int, disks: int) -> Record:
        a, b, c, d, e = (np.zeros((ticks, drives), np.float32) for _ in range(5))
        f, g, h = (np.zeros((ticks, disks), np.float32) for _ in range(3))
        i, j = (np.zeros((ticks, drives), bool) for _ in range(2))
        return cls(a, b, c, d, e, f, g, h, i, j)

    def retunes(self, since_tick: int = 0) -> Mapping[int, int]:
        """Return how often each drive's limits were changed, from a tick on."""
        count: dict[int, int] = defaultdict(int)
        for tick, i, _ in self.orders:
            if tick >= since_tick:
                count[i] += 1
        return count


class Fleet:
    """Guests, their throttles and disks, and an agent.

    granted, granted_storages: what a fleet of hosts grants this one, as in Observation.
    """

    def __init__(
        self,
        guests: Sequence[Guest],
        disks: Sequence[Disk],
        tenants: Mapping[str, TenantPolicy] | None = None,
        *,
        faults: Faults | None = None,
        delay_steps: int = 0,
        seed: int = 1,
        managed: bool = True,
        granted: Mapping[str, TenantPolicy] | None = None,
        granted_storages: Mapping[str, int | None] | None = None,
    ) -> None:
        self.guests, self.disks, self.tenants = guests, disks, dict(tenants or {})
        self.faults = faults or Faults()
        self.delay_steps, self.managed = delay_steps, managed
        self._granted, self._granted_storages = granted or {}, granted_storages or {}
        self.state = State(DEFAULT_MODEL, {}, self.tenants)
        count = len(guests)
        self._chance = np.random.default_rng(seed)
        self._throttles = Throttles(count)
        self._disk = np.array([guest.disk for guest in guests], np.intp)
        self._cached = np.array([guest.cached for guest in guests], bool)
        self._index = {guest.drive: i for i, guest in enumerate(guests)}
        self._phases: list[Phase] = [idle(0)] * count
        self._due: dict[int, list[int]] = {0: list(range(count))}
        self._until = [0.0] * count
        self._asked, self._pressure, self._cost, self._write = np.zeros((4, count))
        self._depth = np.ones(count)
        self._bytes = np.zeros((2, count))
        # Of reads and of writes: whole requests and bytes, a begun request's part, and seconds.
        self._done, self._sent = np.zeros((2, count), np.int64), np.zeros((2, count), np.int64)
        self._begun, self._took = np.zeros((2, count)), np.zeros((2, count))
        # Of throttles that count: the cost charged, seconds waited, and requests that waited.
        self._charged, self._waits = np.zeros((2, count)), np.zeros((2, count))
        self._waited = np.zeros((2, count), np.int64)
        self._disk_done = np.zeros((2, len(disks)))
        self._disk_sent = np.zeros((2, len(disks)))
        self._disk_took, self._disk_busy = np.zeros((2, len(disks)))
        self._disk_shown: list[StorageCounters | None] = [None] * len(disks)
        self._noise = np.ones(len(disks))
        self._is_full = np.zeros(count, bool)
        self._pending: dict[int, list[SetLimits]] = defaultdict(list)
        self._waiting: dict[int, int] = {}
        # Drives whose last order has failed: the tick of the next try, and how long it waits for.
        self._failed: dict[int, tuple[int, int]] = {}
        # Guests' QEMUs, by the number of their starts: now, and at the last look at each.
        self._starts: Counter[str] = Counter()
        self._processes: dict[str, int] = {}
        self._step = 0

    def run(self, seconds: int, *, keep_states: bool = False) -> Record:
        """Let some seconds pass, and return their log."""
        record = Record.of(seconds, len(self.guests), len(self.disks))
        recent: deque[Array] = deque(maxlen=STEPS_A_TICK)
        for row in range(seconds):
            tick = self._step // STEPS_A_TICK
            self._begin(tick)
            record.asked[row] = inf
            for part in range(STEPS_A_TICK):
                self._change_phases()
                if self.managed and tick not in self.faults.down:
                    if part == 0:
                        self._look(tick, record)
                    elif part == STEPS_A_TICK // 2 and self.state.suspects:
                        vms = {drive.domain for drive in self.state.suspects}
                        again = {i for drive, i in self._index.items() if drive.domain in vms}
                        self._look(tick, record, again)
                for order in self._pending.pop(self._step, ()):
                    self._carry_out(order, tick)
                record.free[row] |= self._throttles.are_free
                asked = self._asks(tick)
                done, latency_s, waits, used = self._pass(asked)
                recent.append(done)
                record.served[row] += done / STEPS_A_TICK
                record.asked[row] = np.minimum(record.asked[row], asked)
                record.pressure[row] = self._pressure
                record.most[row] = np.maximum(record.most[row], sum(recent) / len(recent))
                record.latency_s[row] += latency_s / STEPS_A_TICK
                record.wait_s[row] += waits / STEPS_A_TICK
                record.used[row] += used / STEPS_A_TICK
                self._step += 1
            record.stuck[row, [*self._failed]] = True
            record.usable[row] = [self._usable(disk) for disk in self.disks]
            if keep_states:
                record.states.append(self.state)
        return record

    def _usable(self, disk: Disk) -> float:
        known = self.state.storages.get(self._name(self.disks.index(disk)))
        return inf if known is None or known.division.usable is None else known.division.usable

    @staticmethod
    def _name(disk: int) -> str:
        return f"disk{disk}"

    # Guests, throttles and disks

    @property
    def in_force(self) -> list[ThrottleLimits]:
        """Return the limits of each guest's throttle."""
        return self._throttles.limits

    def _begin(self, tick: int) -> None:
        noises = np.array([disk.noise for disk in self.disks])
        self._noise = np.exp(noises * self._chance.standard_normal(len(noises)) - noises**2 / 2)
        gone, again = self.faults.gone, self.faults.again
        for i, guest in enumerate(self.guests if gone or again else ()):
            if (tick, i) in again:
                self._starts[guest.drive.domain] += 1
                for drive, k in self._index.items():
                    if drive.domain == guest.drive.domain:
                        self._renew(k)
            if (tick, i) in gone and (tick - 1, i) not in gone:
                self._starts[guest.drive.domain] += guest.vm is None  # else it is unplugged
                self._renew(i)

    def _renew(self, i: int) -> None:
        """Put a new drive in the place of one."""
        self._throttles.set(i, UNLIMITED, self._phases[i].kind, self.guests[i].exact)
        self._done[:, i] = self._sent[:, i] = 0
        self._waited[:, i] = 0
        self._took[:, i] = self._charged[:, i] = self._waits[:, i] = 0.0
        self._waiting.pop(i, None)
        self._failed.pop(i, None)

    def _change_phases(self) -> None:
        for i in self._due.pop(self._step, ()):
            guest = self.guests[i]
            while self._until[i] < (self._step + 0.5) * STEP_S:
                phase = next(guest.phases, idle(inf))
                self._phases[i] = phase
                self._until[i] += phase.seconds
            phase = self._phases[i]
            self._asked[i] = phase.rate
            self._cost[i] = phase.kind.cost()
            self._write[i] = phase.kind.write_ratio
            self._depth[i] = phase.depth
            self._pressure[i] = phase.depth * phase.kind.cost()
            self._bytes[:, i] = phase.kind.mean_bytes
            self._throttles.price(i, phase.kind, guest.exact)
            if self._until[i] < inf:
                due = max(self._step + 1, round(self._until[i] / STEP_S))
                self._due.setdefault(due, []).append(i)

    def _asks(self, tick: int) -> Array:
        if not self.faults.gone:
            return self._asked
        gone = [(tick, i) in self.faults.gone for i in range(len(self.guests))]
        return np.where(gone, 0.0, self._asked)

    def _pass(self, asked: Array) -> tuple[Array, Array, Array, Array]:
        """Let a step pass. Return each drive's rate and latency, each disk's latency and load."""
        allowed = np.minimum(asked, self._throttles.most(STEP_S))
        now_s = self._step * STEP_S
        capacity = np.array([disk.capacity(now_s) for disk in self.disks])
        base_s = np.array([disk.base_s for disk in self.disks])
        knee = np.array([disk.knee for disk in self.disks])
        asked_of_disk = np.where(self._cached, 0.0, allowed)
        done, waits, used = serve(asked_of_disk, self._pressure, self._disk, capacity, base_s, knee)
        from_cache = np.minimum(allowed, self._pressure / _CACHE_S)
        done = np.where(self._cached, from_cache, done)
        self._throttles.account(done, STEP_S)
        waits = waits * self._noise
        requests = done / self._cost
        latency_s = np.where(self._cached, _CACHE_S, waits[self._disk]) * (done > 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            full = np.where(asked > 1.001 * done, self._depth / requests, 0.0)
        parts = np.stack((1 - self._write, self._write))
        self._begun += parts * (requests * STEP_S)
        whole = np.floor(self._begun).astype(np.int64)
        self._begun -= whole
        self._done += whole
        self._sent += np.rint(whole * self._bytes).astype(np.int64)
        took = np.where(requests > 0, np.maximum(latency_s, full), 0.0)
        self._took += whole * took
        self._charged += parts * (done * STEP_S)
        self._waits += whole * (took - latency_s)
        self._waited += np.where(took > 1.001 * latency_s, whole, 0)
        self._is_full = took > 1.001 * latency_s
        to_disk = np.where(self._cached, 0.0, requests)
        by_disk = np.bincount(self._disk, to_disk * STEP_S, len(self.disks))
        writes = np.bincount(self._disk, to_disk * self._write * STEP_S, len(self.disks))
        self._disk_done += (by_disk - writes, writes)
        passed = parts * (to_disk * STEP_S) * self._bytes
        self._disk_sent += [np.bincount(self._disk, way, len(self.disks)) for way in passed]
        self._disk_took += by_disk * waits
        self._disk_busy += np.minimum(1.0, used) * STEP_S
        return done, latency_s, waits, used

    # The agent

    @property
    def now_ns(self) -> int:
        return _EPOCH_NS + round(self._step * STEP_S * NS_PER_S)

    def _look(self, tick: int, record: Record, only: set[int] | None = None) -> None:
        if only is None and tick - 1 in self.faults.down:
            self._restart()
        drives = self._drives(tick, only)
        seen = Observation(
            drives,
            only is not None,
            {} if only is not None else self._storages(tick),
            granted=self._granted,
            granted_storages=self._granted_storages,
            restarted=self._restarted({drive.domain for drive in drives}, only),
        )
        self.state, orders = decide(self.state, seen, self.now_ns)
        for order in orders:
            i = self._index[order.drive]
            record.orders.append((tick, i, order.reason.name))
            self._waiting[i] = self._step + self.delay_steps
            self._pending[self._step + self.delay_steps].append(order)

    def _restarted(self, there: set[str], only: set[int] | None) -> list[str]:
        """Return the VMs with another QEMU than at the last look, as Observer.restarted."""
        if only is None:
            for gone in self._processes.keys() - there:
                del self._processes[gone]
        now = {name: self._starts[name] for name in there}
        found = [name for name, start in now.items() if self._processes.get(name, start) != start]
        self._processes.update(now)
        return found

    def _drives(self, tick: int, only: set[int] | None) -> dict[Any, DriveSeen]:
        now_ns = self.now_ns
        rows = zip(
            self._done[0].tolist(),
            self._sent[0].tolist(),
            self._done[1].tolist(),
            self._sent[1].tolist(),
            np.rint(self._took[0] * NS_PER_S).astype(np.int64).tolist(),
            np.rint(self._took[1] * NS_PER_S).astype(np.int64).tolist(),
            strict=True,
        )
        faults, drives = self.faults, {}
        for i, (guest, row) in enumerate(zip(self.guests, rows, strict=True)):
            if (only is not None and i not in only) or (faults.gone and (tick, i) in faults.gone):
                continue
            lost = faults.lost and (tick, i) in faults.lost
            failed = i in self._failed and self._failed[i][0] <= tick
            known = i not in self._waiting and (i not in self._failed or failed)
            drives[guest.drive] = DriveSeen(
                guest.policy,
                None if lost else self._counters(now_ns, row, i),
                self._throttles.limits[i] if known else None,
                failed,
                _EXACT if guest.exact else STOCK,
                self._name(guest.disk),
                guest.tenant,
                guest.vm[1] if guest.vm else None,
            )
        return drives

    def _counters(self, now_ns: int, row: Sequence[int], i: int) -> Counters:
        reads, read_bytes, writes, write_bytes, read_ns, write_ns = row
        return Counters(
            now_ns, reads, read_bytes, writes, write_bytes, read_ns, write_ns, self._group(i)
        )

    def _group(self, i: int) -> ThrottleCounters | None:
        """Return the counters of a drive's throttle group; None if its QEMU has none."""
        if not self.guests[i].exact:
            return None
        count = [
            ThrottleCount(
                int(self._done[way, i]),
                int(self._sent[way, i]),
                float(self._charged[way, i]),
                int(self._waited[way, i]),
                round(self._waits[way, i] * NS_PER_S),
                int(self._depth[i]) if self._is_full[i] else 0,
            )
            for way in (0, 1)
        ]
        return ThrottleCounters(self.now_ns, *count)

    def _storages(self, tick: int) -> dict[str, StorageSeen]:
        seen = {}
        for k, disk in enumerate(self.disks):
            reads, writes = self._disk_done[:, k]
            took = self._disk_took[k] * reads / max(1.0, reads + writes)
            other = self._disk_took[k] - took
            busy = self._disk_busy[k]
            values: tuple[float, ...] = (
                reads,
                took * NS_PER_S,
                writes,
                other * NS_PER_S,
                0,
                busy * NS_PER_S,
                *self._disk_sent[:, k],
            )
            fault = self.faults.counters.get((tick, k))
            if fault == "garbage":
                values = tuple(float(self._chance.integers(0, 2**62)) for _ in values)
            shown = StorageCounters(self.now_ns, *map(round, values))
            if fault == "frozen":
                shown = self._disk_shown[k] or shown
            self._disk_shown[k] = shown
            hidden = not disk.counted or fault == "none"
            seen[self._name(k)] = StorageSeen(disk.policy, None if hidden else shown)
        return seen

    def _carry_out(self, order: SetLimits, tick: int) -> None:
        i = self._index[order.drive]
        self._waiting.pop(i, None)
        if (tick, i) in self.faults.gone:
            return
        if (tick, i) in self.faults.failing:
            _, last_s = self._failed.get(i, (0, 0))  # as in outcomes.py
            wait_s = max(1, min(2 * last_s, 30))
            self._failed[i] = tick + wait_s, wait_s
            return
        self._failed.pop(i, None)
        self._throttles.set(i, order.limits, self._phases[i].kind, self.guests[i].exact)
        self.state = with_outcomes(self.state, [order])

    def _restart(self) -> None:
        """Start an agent from what the last one stored."""
        with tempfile.TemporaryDirectory() as folder:
            StateStore(Path(folder)).save(self.state.drives, self.state.storages, whole=True)
            store = StateStore(Path(folder))
            drives, storages = store.load(), store.load_storages()
        self.state = State(DEFAULT_MODEL, drives, self.tenants, storages)
        self._pending.clear()
        self._waiting.clear()
        self._failed.clear()
