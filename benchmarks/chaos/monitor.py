"""A guest's limits, read from its QEMU ten times a second, through a monitor beside libvirt's."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.demo.limits_in_force import Limits, group_limits
from testing.qmp_client import QmpClient, QmpError
from testing.sampler import Sampler

_INTERVAL_S = 0.1
_CONNECT_S = 0.5
_DISK = re.compile(r"/virtio-disk(\d+)/")


class Look(NamedTuple):
    """A guest at a time, in seconds of the epoch.

    status: QEMU's word for it; None if QEMU didn't answer. limits: by target.
    """

    at_s: float
    status: str | None
    limits: Mapping[str, Limits]


class Monitor(Sampler):
    """Looks at a guest's QEMU. looks: what it saw so far."""

    def __init__(self, socket: Path) -> None:
        super().__init__()
        self.looks: list[Look] = []
        self._socket = socket

    def sees_limits(self) -> bool:
        """Return whether each drive had limits when it looked last."""
        limits = self.looks[-1].limits.values() if self.looks else ()
        return bool(limits) and all(map(any, limits))

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with QmpClient(self._socket, _CONNECT_S) as client:
                    self._look(client)
            except (OSError, ValueError):  # no QEMU serves the socket, or it has just ended
                self.looks.append(Look(time.time(), None, {}))
                self._stop.wait(_INTERVAL_S)

    def _look(self, client: QmpClient) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due = max(due + _INTERVAL_S, time.monotonic())
            status = client.ask("query-status")["status"]
            limits = _limits(client)
            self.looks.append(Look(time.time(), status, limits))


def _limits(client: QmpClient) -> dict[str, Limits]:
    try:
        groups = {group["name"]: group for group in client.ask("query-throttle-groups")}
    except QmpError:  # a QEMU without the patches
        groups = {}
    found = {}
    for block in client.ask("query-block"):
        disk = _DISK.search(block.get("qdev", ""))
        if disk and (inserted := block.get("inserted")):
            group = groups.get(inserted.get("group"))
            target = f"vd{chr(ord('a') + int(disk[1]))}"
            found[target] = group_limits(group) if group else _legacy_limits(inserted)
    return found


def _legacy_limits(inserted: Mapping[str, Any]) -> Limits:
    names = ("bps", "bps_rd", "bps_wr", "iops", "iops_rd", "iops_wr", "iops_size")
    return Limits(*(inserted.get(name, 0) for name in names))
