"""The published rule of a retuner by the average size, in small, to compare with.

The tool looks at a cgroup's reads and writes each second, and every ten seconds gives each
direction a limit on requests: the whole budget, at the price of the last second's average size. A
direction without requests gets the budget in 4K requests. (The tool counts in eBPF, here the
kernel's own counters tell the same.)

The tool doesn't know when a load begins. So each repeat's load begins in another second of the
period.

The period is the one that the tool states. In its published trace of shifts between 8K and 64K
(ebpf-qos-8k-64k-shift.csv) the limit in force changes every 7 s, though: after 17:37:42, :49 and
:56, and after 17:38:03 and :10.
"""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from benchmarks.bench.controllers.controller import Controller, Held
from benchmarks.bench.controllers.kernel import bound, no_throttle, owed_by_group
from benchmarks.bench.running.stage import Stage
from benchmarks.bench.scenario import Scenario
from iokeel.core.values.curve import CostModel

PERIOD_S, LOOK_S = 10, 1.0
_STEP_S = 3  # three repeats are a third of the period apart, ten are all its seconds
SMALL_BYTES = 4 << 10


class AverageSize(Controller):
    """A thread that applies the rule to each VM's cgroup."""

    rule = 2  # the first one's period began in the same second in each repeat

    def __init__(self) -> None:
        super().__init__("average-size", "average size, every 10 s")

    def lacks(self, scenario: Scenario) -> str | None:
        """Return what is missing: blkio.throttle."""
        return no_throttle()

    @contextmanager
    def hold(self, stage: Stage) -> Iterator[Held]:
        """Run the rule until the end of the block. Raises what ended it before."""
        rule = _Rule(stage)
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(rule.run)
            try:
                yield rule
            finally:
                rule.ended.set()
            done.result()


def limit(model: CostModel, budget: float, way: str, requests: int, total_bytes: int) -> int:
    """Return the limit on requests of a direction, by the rule.

    way: read or write. requests, total_bytes: of the last second.
    """
    curve = model.read if way == "read" else model.write
    size = total_bytes / requests if requests else SMALL_BYTES
    return max(1, round(budget / curve.cost(size)))


def is_due(look: int, repeat: int) -> bool:
    """Return whether limits are set at a look.

    look: seconds since the rule began. repeat: of the run, from 0.
    """
    return look % PERIOD_S == _STEP_S * repeat % PERIOD_S


class _Rule:
    def __init__(self, stage: Stage) -> None:
        self.ended = threading.Event()
        self._model, self._device = stage.scenario.model, stage.device_number
        self._budgets, self._repeat = owed_by_group(stage), stage.scenario.repeat
        self._cpu_s = 0.0
        for group, budget in self._budgets.items():
            self._set(group, budget, {})

    def cpu_s(self) -> float | None:
        """Return its thread's processor time so far."""
        return self._cpu_s

    def run(self) -> None:
        """Look each second, and set limits every PERIOD_S."""
        before = {group: self._counts(group) for group in self._budgets}
        looks, begun_s = 0, time.monotonic()
        while not self.ended.wait(max(0.0, begun_s + (looks + 1) * LOOK_S - time.monotonic())):
            looks += 1
            now = {group: self._counts(group) for group in self._budgets}
            if is_due(looks, self._repeat):
                for group, budget in self._budgets.items():
                    grown = {key: now[group][key] - before[group].get(key, 0) for key in now[group]}
                    self._set(group, budget, grown)
            before = now
            usage = resource.getrusage(resource.RUSAGE_THREAD)
            self._cpu_s = usage.ru_utime + usage.ru_stime

    def _counts(self, group: Path) -> dict[tuple[str, str], int]:
        """Return a group's requests and bytes on the disk: (file, Read or Write) -> count."""
        counts: dict[tuple[str, str], int] = {}
        for what in ("io_serviced", "io_service_bytes"):
            for line in (group / f"blkio.throttle.{what}").read_text().splitlines():
                words = line.split()
                if len(words) == 3 and words[0] == self._device:
                    counts[what, words[1]] = int(words[2])
        return counts

    def _set(self, group: Path, budget: float, grown: Mapping[tuple[str, str], int]) -> None:
        for way, label in (("read", "Read"), ("write", "Write")):
            requests = grown.get(("io_serviced", label), 0)
            total = grown.get(("io_service_bytes", label), 0)
            value = limit(self._model, budget, way, requests, total)
            bound(group, self._device, f"{way}_iops", value)
