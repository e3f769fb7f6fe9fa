"""A guest's limits, read from its QEMU ten times a second, through a monitor beside libvirt's."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from benchmarks.demo.limits_in_force import Limits, group_limits, group_passed
from testing.hypervisors.dialects import throttle_groups
from testing.hypervisors.qmp_client import QmpClient
from testing.sampler import Sampler

_INTERVAL_S = 0.1
_CONNECT_S = 0.5
_DISK = re.compile(r"(?:^|/)(?:(virtio)-disk|(scsi)\d+-0-0-|(ide)\d+-\d+-)(\d+)\b")
_PREFIXES = {"virtio": "vd", "scsi": "sd", "ide": "hd"}


class Look(NamedTuple):
    """A guest at a time, in seconds of the epoch.

    status: QEMU's word for it; None if QEMU didn't answer. limits: by target. passed: the cost of
    all that QEMU let through, by its own count and by target; empty if it doesn't count. took_s:
    how long before that time limits and counts may have been read.
    """

    at_s: float
    status: str | None
    limits: Mapping[str, Limits]
    passed: Mapping[str, float] = MappingProxyType({})
    took_s: float = 0.0


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
            asked_s = time.time()
            limits, passed = _drives(client)
            at_s = time.time()
            self.looks.append(Look(at_s, status, limits, passed, at_s - asked_s))


def _drives(client: QmpClient) -> tuple[dict[str, Limits], dict[str, float]]:
    """Return the limits of each drive, and what passed, if QEMU counts it."""
    groups: dict[str, Any] = {group["name"]: group for group in throttle_groups(client.ask)}
    limits, passed = {}, {}
    for block in client.ask("query-block"):
        disk = _DISK.search(block.get("qdev", ""))
        if disk and (inserted := block.get("inserted")):
            prefix = next(_PREFIXES[bus] for bus in disk.groups()[:3] if bus)
            target = f"{prefix}{chr(ord('a') + int(disk[4]))}"
            if group := groups.get(inserted.get("group")):
                limits[target] = group_limits(group)
                passed[target] = group_passed(group)
            else:
                limits[target] = _legacy_limits(inserted)
    return limits, passed


def _legacy_limits(inserted: Mapping[str, Any]) -> Limits:
    names = ("bps", "bps_rd", "bps_wr", "iops", "iops_rd", "iops_wr", "iops_size")
    return Limits(*(inserted.get(name, 0) for name in names))
