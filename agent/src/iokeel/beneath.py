"""Measures what VMs' images and block jobs do below QEMU's throttle, and which bounds hold VMs."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping

from iokeel.block_jobs import BlockJobs
from iokeel.core.backstop import NOTHING, Io, IoMax, model_of
from iokeel.core.beneath import COPIED, Beneath, Reading, Work, is_watched, seen, work_of
from iokeel.core.counters import Counters, DriveId
from iokeel.core.state import DriveState, State
from iokeel.drive_storages import DriveStorages
from iokeel.host.cgroup.groups import Cgroups, Counted
from iokeel.report.snapshot import CgroupKnown

_NO_BOUNDS = IoMax()
# A bound that is this much too tight is wrong now. Smaller steps follow with the next check.
_WIDER_RATIO = 1.1
# A VM that no bound can hold is read once in so many looks.
_QUIET_LOOKS = 4
# A drive waits all the time if it has this many requests in flight on average.
_WAITING = 0.5


class Measured:
    """What is known of VMs' groups. uncounted: VMs whose groups' counters can't be read."""

    def __init__(self, cgroups: Cgroups, storages: DriveStorages, jobs: BlockJobs) -> None:
        self.uncounted = frozenset[str]()
        self._cgroups, self._storages, self._jobs = cgroups, storages, jobs
        self._groups: dict[str, dict[str, Beneath]] = {}  # by VM and device
        self._counters: dict[DriveId, Counters | None] = {}  # of drives, at the last reading
        self._holding: dict[DriveId, tuple[str, ...]] = {}
        self._looks = 0

    def added(self, copying: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Io]:
        """Return what a normalized operation adds, by VM and device.

        copying: where VMs have images that are on others.
        """
        found = {
            (vm, device): known.added
            for vm, devices in self._groups.items()
            for device, known in devices.items()
            if known.added != NOTHING
        }
        return found | {place: found.get(place, NOTHING).most(COPIED) for place in copying}

    def known(self, vm: str) -> CgroupKnown:
        """Return what is known of a VM's group."""
        holding = {drive.target: of for drive, of in self._holding.items() if drive.domain == vm}
        return CgroupKnown(self._groups.get(vm, {}), holding, vm in self.uncounted)

    def forget(self) -> None:
        """Forget everything: there are no bounds any more."""
        self.uncounted = frozenset()
        self._groups, self._counters, self._holding = {}, {}, {}

    async def look(self, state: State, vms: Collection[str]) -> list[str]:
        """Read the counters of VMs' groups, and return those that have to have wider bounds.

        Most are read every few looks only. One that uses much more than before may have a block job
        that nobody has told of, so it is asked first.
        """
        self._looks += 1
        drives: dict[str, list[DriveId]] = {vm: [] for vm in vms}
        for drive in state.drives:
            if (of := drives.get(drive.domain)) is not None:
                of.append(drive)
        due = {vm for vm, of in drives.items() if self._is_due(state, vm, of)}
        counted = await asyncio.to_thread(self._cgroups.counted, due) if due else {}
        before, had_jobs, room = self._groups, {*self._jobs.running}, self._jobs.room(1.0)
        after = {
            vm: self._of_vm(state, vm, of, drives[vm], room)
            for vm, of in counted.items()
            if of.io is not None
        }
        rising = [vm for vm, known in after.items() if _is_wider(before.get(vm, {}), known)]
        await asyncio.gather(*(self._jobs.ask(vm) for vm in rising))
        for vm in {*rising} & self._jobs.running.keys() - had_jobs:  # it was the job
            after[vm] = {
                device: known._replace(added=_added(before.get(vm, {}), device))
                for device, known in after[vm].items()
            }
        unread = {vm for vm, of in counted.items() if of.io is None}
        self.uncounted = (self.uncounted & drives.keys() - counted.keys()) | unread
        self._groups = {vm: known for vm, known in before.items() if vm in drives} | after
        self._holding = {}
        for vm in counted:
            for drive in drives[vm]:
                self._counters[drive] = state.drives[drive].measured.counters
                if full := self._full(drive):
                    self._holding[drive] = full
        return [vm for vm in rising if _is_wider(before.get(vm, {}), after[vm])]

    def _is_due(self, state: State, vm: str, drives: Iterable[DriveId]) -> bool:
        """Return whether a VM's counters are read in this look: one costs 30 us."""
        if vm in self.uncounted or (self._looks + hash(vm)) % _QUIET_LOOKS == 0:
            return True
        return any(_may_be_held(state.drives[drive]) for drive in drives)

    def _of_vm(
        self,
        state: State,
        vm: str,
        counted: Counted,
        drives: Iterable[DriveId],
        room: Mapping[str, Io],
    ) -> dict[str, Beneath]:
        there: dict[str, list[DriveId]] = {}
        for drive in drives:
            for device in self._storages.devices_of(drive) or ():
                there.setdefault(device, []).append(drive)
        known, io = self._groups.get(vm, {}), counted.io or {}
        is_endless = vm in self._jobs.running and vm not in room
        found = {}
        for device, on in there.items():
            before, bounds = known.get(device, Beneath()), counted.bounds.get(device) or _NO_BOUNDS
            reading = Reading(counted.at_ns, io.get(device, NOTHING))
            work = None
            if not is_endless and is_watched(before, reading, bounds):
                work = self._work(state, on)
            found[device] = seen(before, reading, work, bounds, room.get(vm, NOTHING))
        return found

    def _work(self, state: State, drives: Iterable[DriveId]) -> Work | None:
        readings = []
        for drive in drives:
            known = state.drives[drive]
            earlier, later = self._counters.get(drive), known.measured.counters
            if earlier is None or later is None:
                return None
            readings.append((earlier, later, model_of(state, known)))
        return work_of(readings)

    def _full(self, drive: DriveId) -> tuple[str, ...]:
        """Return the bounds that hold a drive's VM on the drive's devices."""
        known = self._groups.get(drive.domain, {})
        names = (known[on].full for on in self._storages.devices_of(drive) or () if on in known)
        return tuple(dict.fromkeys(name for full in names for name in full))


def _is_wider(before: Mapping[str, Beneath], after: Mapping[str, Beneath]) -> bool:
    """Return whether more is added than was known, on any device."""
    return any(
        any(
            new > _WIDER_RATIO * old
            for new, old in zip(known.added, _added(before, device), strict=True)
        )
        for device, known in after.items()
    )


def _added(known: Mapping[str, Beneath], device: str) -> Io:
    return known[device].added if device in known else NOTHING


def _may_be_held(known: DriveState) -> bool:
    """Return whether a drive waits, or has just stopped, though its limits don't hold it."""
    did = known.measured.rates
    if known.demand.backlogged or did is None:
        return False
    if did.idle:
        return any(known.demand.recent)
    latency_s = did.mean_latency_s
    return latency_s is None or latency_s * (did.read.raw_iops + did.write.raw_iops) >= _WAITING
