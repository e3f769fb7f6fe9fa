"""Adds up what the QEMUs of several hosts are held to, without the agent's code but its curve."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from iokeel.core.values.curve import DEFAULT_CURVE, CostCurve
from testing.hypervisors.dialects import plain
from testing.hypervisors.iotune import TOLERANCE, highest_rate
from testing.hypervisors.qmp_client import QmpClient
from testing.sampler import Sampler

_PAUSE_S = 0.1
_NAMES = {"iops": "total_iops_sec", "iops_size": "size_iops_sec", "bps": "total_bytes_sec"}


class Watched:
    """A QEMU's drives, over a monitor that no agent uses.

    ready: it has been seen with a limit on each drive. Before that, the guest has just started, and
    no agent has found it yet.
    """

    def __init__(self, socket: Path) -> None:
        self._qmp = QmpClient(socket)
        self.ready = False

    def rates(self) -> dict[str, float]:
        """Return the highest normalized rate of each drive; none while it isn't ready."""
        found = self._rates()
        self.ready = self.ready or all(rate < inf for rate in found.values())
        return found if self.ready else {}

    def _rates(self) -> dict[str, float]:
        """Return the highest normalized rate of each drive, by stock QEMU's limits now."""
        found: dict[str, float] = {}
        for block in self._qmp.ask("query-block"):
            limits: Mapping[str, Any] = block.get("inserted") or {}
            named = {name: int(limits.get(key, 0)) for key, name in _NAMES.items()}
            found[block["device"]] = highest_rate(named)
        return found

    def close(self) -> None:
        self._qmp.close()


class WatchedGroups(Watched):
    """A storage daemon's throttle groups that charge by a cost curve. Others have no limit."""

    def __init__(
        self, socket: Path, groups: Sequence[str], curve: CostCurve = DEFAULT_CURVE
    ) -> None:
        super().__init__(socket)
        self._groups = groups
        self._curve = [{"size": size, "cost": cost} for size, cost in curve.points]

    def _rates(self) -> dict[str, float]:
        found = {}
        for group in self._groups:
            path = f"/objects/{group}"
            limits = plain(self._qmp.ask("qom-get", path=path, property="limits"))
            is_priced = limits.get("cost-read") == limits.get("cost-write") == self._curve
            found[group] = float(limits["iops-total"] or inf) if is_priced else inf
        return found


class Monitor(Sampler):
    """Adds up all QEMUs' rates ten times a second in a thread. A context manager.

    worst: the highest sum seen. samples: how often it was taken. last: the last rates, by
    QEMU; seen: their sum. history: all of them with their times, by the monotonic clock.

    QEMUs are asked one after another, and a limit may move from one to another meanwhile. So all
    are asked twice, and the lower answer counts: a sum that is too high for longer is seen.
    """

    def __init__(self, watched: Mapping[str, Watched]) -> None:
        super().__init__()
        self.watched = watched
        self.worst = 0.0
        self.samples = 0
        self.last: dict[str, float] = {}
        self.history: list[tuple[float, dict[str, float]]] = []

    def __exit__(self, *_: object) -> None:
        try:
            super().__exit__()
        finally:
            for qemu in self.watched.values():
                qemu.close()

    @property
    def seen(self) -> float:
        return sum(self.last.values())

    def _run(self) -> None:
        while not self._stop.wait(_PAUSE_S):
            self._sample()

    def _sample(self) -> None:
        first = {name: qemu.rates() for name, qemu in self.watched.items()}
        second = {name: qemu.rates() for name, qemu in self.watched.items()}
        self.last = {
            name: sum(min(rate, first[name].get(drive, rate)) for drive, rate in rates.items())
            for name, rates in second.items()
        }
        self.samples += 1
        self.worst = max(self.worst, self.seen)
        self.history.append((time.monotonic(), self.last))


def settled(monitor: Monitor, **expected: float) -> Callable[[], bool]:
    """Return a question: are QEMUs held to these rates?

    The limits of an idle drive follow its share by LOOSE_RATIO only, and stock limits let some
    sizes through at more than they are made for.
    """

    def ask() -> bool:
        monitor.check()
        return all(
            0.7 * rate <= monitor.last.get(name, 0) <= TOLERANCE * rate + 2
            for name, rate in expected.items()
        )

    return ask


def sockets(folders: Iterable[Path]) -> dict[str, Watched]:
    """Return the QEMUs of testing.agents.start_qemu in some folders, by the folders' names."""
    return {folder.name: Watched(folder / "watch.sock") for folder in folders}
