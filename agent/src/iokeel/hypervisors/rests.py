"""The VMs at rest: those whose counters can't have changed, so that nobody need ask for them.

A VM begins to rest once two readings in a row are the same and its QEMU sleeps (host/sleep.py). As
long as it does, its counters are what they were, and count as read at each tick. The tick that
finds it awake asks for them, so a drive that wakes is seen as soon as if all were read.

A request that ends after the reading and before the look at QEMU's threads is seen with the VM's
next reading, so that look comes soon after. Whatever follows wakes the VM.
"""

from __future__ import annotations

import asyncio
import random
import resource
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from iokeel.core.values.counters import Counters, DriveId
from iokeel.host.process import Process
from iokeel.host.sleep import Asleep
from iokeel.hypervisors.source import VmInfo

# Nothing can have changed meanwhile, so this is only for what a kernel or a QEMU may do unlike
# others; in the mean.
REST_S = 300.0
# QEMU's threads sleep so long after an answer.
_SETTLED_S = 0.02
# Each look at a QEMU's threads costs as much as a reading.
_BEGINNINGS_A_TICK = 64
# A VM that doesn't rest for so long isn't tried for twice as long as the last time.
_WORTH_S = 5.0
_MOST_PAUSE_S = 60.0

#: A VM's counters by drive.
_Reading = Mapping[DriveId, Counters]


@dataclass(slots=True)
class _Rest:
    """A VM at rest. Times are by the monotonic clock."""

    qemu: Process
    asleep: Asleep
    reading: _Reading
    since_s: float
    until_s: float


class Rests:
    """Which VMs of a source rest, and their counters."""

    def __init__(self) -> None:
        self._rests: dict[str, _Rest] = {}
        self._last: dict[str, _Reading] = {}  # of the last tick's readings, by VM
        self._pauses: dict[str, tuple[float, float]] = {}  # when to try again, and its length
        self._files = 0

    @property
    def names(self) -> Collection[str]:
        """The VMs at rest."""
        return self._rests.keys()

    def take(self, vm: VmInfo, at_ns: int, found: dict[DriveId, Counters]) -> bool:
        """Put the counters of a VM at rest into `found`; return False if it has to be read.

        at_ns: the monotonic clock, just before.
        """
        rest = self._rests.get(vm.name)
        if rest is None:
            return False
        if vm.process != rest.qemu or at_ns >= rest.until_s * 1e9 or not rest.asleep.still:
            self._last[vm.name] = self._end(vm.name)  # if the next is the same, it rests again
            return False
        for drive, counters in rest.reading.items():
            found[drive] = _as_of(at_ns, counters)
        return True

    def came(self, vms: Mapping[str, VmInfo], found: _Reading) -> None:
        """Note a tick's readings. vms: all that run; those that don't any more rest no longer."""
        for name in self._rests.keys() - vms.keys():
            self._end(name)
        last, readings = self._last, defaultdict[str, dict[DriveId, Counters]](dict)
        for drive, counters in found.items():
            readings[drive.domain][drive] = counters
        self._last, now_s = {**readings}, time.monotonic()
        idle = [
            name
            for name, reading in readings.items()
            if name in last
            and _are_same(last[name], reading)
            and (vm := vms.get(name)) is not None
            and vm.process is not None
            and len(reading) == len(vm.drives)
            and self._pauses.get(name, (0.0, 0.0))[0] <= now_s
        ]
        if idle:
            some = {name: vms[name] for name in idle[:_BEGINNINGS_A_TICK]}
            asyncio.get_running_loop().call_later(_SETTLED_S, self._begin, some, {**self._last})

    def forget(self, names: Iterable[str]) -> None:
        """Let VMs rest no longer: they are read otherwise, or something has changed."""
        for name in names:
            self._last.pop(name, None)
            if name in self._rests:
                self._end(name)

    def _begin(self, vms: Mapping[str, VmInfo], readings: Mapping[str, _Reading]) -> None:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        for name, vm in vms.items():
            reading, qemu = readings.get(name), vm.process
            if reading is None or self._last.get(name) is not reading or name in self._rests:
                continue  # something has changed since, or it has been read again
            asleep = Asleep.now(qemu) if qemu is not None and self._files < most else None
            if qemu is None or asleep is None:
                self._pause(name)
                continue
            self._files += asleep.files
            now_s = time.monotonic()
            until_s = now_s + REST_S * random.uniform(0.5, 1.5)  # not all VMs in the same tick
            self._rests[name] = _Rest(qemu, asleep, reading, now_s, until_s)

    def _end(self, name: str) -> _Reading:
        """End a VM's rest, and return its last reading."""
        rest = self._rests.pop(name)
        self._files -= rest.asleep.files
        rest.asleep.close()
        if time.monotonic() - rest.since_s < _WORTH_S:
            self._pause(name)
        else:
            self._pauses.pop(name, None)
        return rest.reading

    def _pause(self, name: str) -> None:
        _, last_s = self._pauses.get(name, (0.0, 0.5))
        pause_s = min(2 * last_s, _MOST_PAUSE_S)
        self._pauses[name] = time.monotonic() + pause_s, pause_s


def _as_of(at_ns: int, counters: Counters) -> Counters:
    """Return counters as if they were read at another time."""
    if counters.throttle is None:
        return Counters._make((at_ns, *counters[1:]))
    throttle = counters.throttle._replace(at_ns=at_ns)
    return counters._replace(at_ns=at_ns, throttle=throttle)


def _are_same(earlier: _Reading, later: _Reading) -> bool:
    """Return whether two readings of a VM's drives differ in their times only."""
    return earlier.keys() == later.keys() and all(
        now[1:7] == before[1:7] and _as_of(0, now) == _as_of(0, before)
        for drive, now in later.items()
        for before in (earlier[drive],)
    )
