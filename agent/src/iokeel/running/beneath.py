"""Follows what VMs' block jobs and images do below QEMU's throttle, beside the ticks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from iokeel.core.enforce.backstop import NOTHING, Io, IoMax, model_of
from iokeel.core.enforce.beneath import COPIED, Beneath, Reading, Work, is_watched, seen, work_of
from iokeel.core.enforce.jobs import Followed, follow, room, speed_to_set
from iokeel.core.values.counters import NS_PER_S, Counters, DriveId
from iokeel.core.values.policy import UNKNOWN
from iokeel.core.values.state import DriveState, State
from iokeel.errors import IokeelError
from iokeel.host.cgroup.groups import Cgroups, Counted
from iokeel.hypervisors.pace import Pace
from iokeel.hypervisors.source import VmInfo
from iokeel.report.metrics.prometheus import Metrics
from iokeel.report.snapshot import CgroupKnown
from iokeel.running.observer import Observer
from iokeel.running.storages import DriveStorages
from iokeel.running.tasks import Tasks
from iokeel.words.log_lines import Sparing

log = logging.getLogger(__name__)

# A VM with jobs is asked this often, because nothing else tells how far they are.
_AGAIN_S = 3
# One without jobs is asked this often, in case an event has been missed.
_SELDOM_S = 60
# A guest may wait for wider bounds meanwhile.
_TIMEOUT_S = 1.0
_ANY_MARGIN = 1.0
# Events may come without end, but a VM is asked no more often than this.
_PAUSE_NS = NS_PER_S // 5
# Lines on a VM's jobs a minute.
_MOST_LINES = 60
_NO_BOUNDS = IoMax()
# A bound that is this much too tight is wrong now. Smaller steps follow with the next check.
_WIDER_RATIO = 1.1
# A VM that no bound can hold is read once in so many looks.
_QUIET_LOOKS = 4
# A drive waits all the time if it has this many requests in flight on average.
_WAITING = 0.5


class BlockJobs:
    """The block jobs of VMs with a policy.

    default_bps: the rate of a job whose VM's policy has none; None for no rate. running: the jobs
    by VM and name. on_room: called when the room for a VM's jobs has changed.
    """

    def __init__(self, observer: Observer, tasks: Tasks, metrics: Metrics) -> None:
        self.default_bps: int | None = None
        self.running: dict[str, dict[str, Followed]] = {}
        self.on_room: Callable[[], None] = lambda: None
        self._observer, self._tasks, self._metrics = observer, tasks, metrics
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._heard: set[str] = set()
        self._asked_ns: dict[str, int] = {}
        self._pace = Pace()  # a QEMU may send events without end
        self._rooms: dict[str, Io | None] = {}
        self._moved: set[str] = set()
        self._told: set[tuple[str, str]] = set()
        self._lines = Sparing(_MOST_LINES, 60.0)

    @property
    def endless(self) -> frozenset[str]:
        """The VMs with a job that moves and has no speed."""
        return frozenset(vm for vm, its in self._rooms.items() if its is None)

    def room(self, margin: float) -> dict[str, Io]:
        """Return the room for jobs, by VM, as far as it has an end. margin: of the bounds."""
        now_ns = time.monotonic_ns()
        found = {vm: room(jobs.values(), margin, now_ns) for vm, jobs in self.running.items()}
        return {vm: its for vm, its in found.items() if its is not None}

    def take_moved(self) -> set[str]:
        """Return the VMs whose jobs' room has changed since this was last asked."""
        moved, self._moved = self._moved, set()
        return moved

    def rate_of(self, vm: str) -> int | None:
        """Return the rate of a VM's jobs; None if there is none."""
        info = self._observer.vms().get(vm)
        if info is None or info.policy is None or info.policy is UNKNOWN:
            return None
        return info.policy.job_bps or self.default_bps

    def heard(self, vm: str) -> None:
        """Ask a VM for its jobs soon: an event tells that one has begun or ended."""
        if vm not in self._heard:
            self._heard.add(vm)
            self._tasks.spawn(self._ask_soon(vm))

    def look(self, now_ns: int) -> None:
        """Ask the VMs for their jobs for which that is due, and forget those that are gone."""
        vms = self._observer.vms()
        for vm in self.running.keys() - vms.keys():
            if not self._observer.may_run(vm):
                self._note(vm, {})
        for vm in self._asked_ns.keys() - vms.keys():
            del self._asked_ns[vm]
            self._pace.forget(vm)
        resting = self._observer.resting()
        for vm in vms:
            wait_s = _AGAIN_S if vm in self.running else _SELDOM_S
            at_ns = self._asked_ns.get(vm)
            if vm in resting and vm not in self.running and at_ns is not None:
                continue  # no job has begun since, or it would run
            if at_ns is None or now_ns - at_ns >= wait_s * NS_PER_S:
                self.heard(vm)
            if vm in self.running:
                self._note(vm, self.running[vm])  # one may have come to a stop

    async def _ask_soon(self, vm: str) -> None:
        await asyncio.sleep(self._pace.wait_s(vm))
        if vm in self._asking:  # its answer may be older than what was heard
            await asyncio.wait([self._asking[vm]])
        self._heard.discard(vm)
        await self.ask(vm)

    async def ask(self, vm: str) -> None:
        """Ask a VM for its jobs now, and give them their speed. Raises nothing."""
        if vm not in self._asking:
            self._asking[vm] = self._tasks.spawn(self._ask(vm))
        await asyncio.wait([self._asking[vm]])

    async def _ask(self, vm: str) -> None:
        try:
            early_ns = self._asked_ns.get(vm, 0) + _PAUSE_NS - time.monotonic_ns()
            await asyncio.sleep(max(0, early_ns) / NS_PER_S)
            info, source = self._observer.vms().get(vm), self._observer.source_of(vm)
            now_ns = self._asked_ns[vm] = time.monotonic_ns()
            if info is None or source is None or not _has_policy(info):
                self._note(vm, {})
                return
            try:
                jobs = await source.jobs(vm, _TIMEOUT_S)
            except IokeelError as error:
                self._failed(vm, "", f"its block jobs aren't known: {error}")
                return
            rate, before = self.rate_of(vm), self.running.get(vm, {})
            found = {job.name: follow(before.get(job.name), job, rate, now_ns) for job in jobs}
            self._note(vm, found)  # they take their room before they have their speed
            self._told -= {(vm, name) for name in {"", *before} - found.keys()}
            if info.policy is not UNKNOWN:  # else its rate isn't known, or whether it has one
                await asyncio.gather(*(self._set(vm, each, rate) for each in found.values()))
        finally:
            del self._asking[vm]

    async def _set(self, vm: str, followed: Followed, rate: int | None) -> None:
        """Give a job its speed, if it has another one from here or none."""
        job, bps = followed.job, speed_to_set(followed, rate)
        source = self._observer.source_of(vm)
        if bps is None or source is None:
            return
        try:
            await source.set_job_speed(vm, job.name, bps, _TIMEOUT_S)
        except IokeelError as error:
            self._failed(vm, job.name, f"its {job.kind} job {job.name} keeps its speed: {error}")
            return
        known = self.running.get(vm, {})
        if job.name in known:
            limited = job._replace(bps=bps or None)
            self._note(vm, {**known, job.name: followed._replace(job=limited, given=bps or None)})

    def _note(self, vm: str, jobs: Mapping[str, Followed]) -> None:
        now_ns = time.monotonic_ns()
        for name in jobs.keys() - self.running.get(vm, {}).keys():
            kind = jobs[name].job.kind
            self._lines.info(log, vm, "VM %s: %s job %s has begun", vm, kind, name)
        for name in self.running.get(vm, {}).keys() - jobs.keys():
            self._lines.info(log, vm, "VM %s: job %s has ended", vm, name)
        its = room(jobs.values(), _ANY_MARGIN, now_ns)
        if its != self._rooms.get(vm, NOTHING):
            self._moved.add(vm)
        self._rooms[vm] = its
        if its == NOTHING:
            del self._rooms[vm]
        if jobs:
            self.running[vm] = dict(jobs)
        else:
            self.running.pop(vm, None)
        if vm in self._moved:
            self.on_room()

    def _failed(self, vm: str, job: str, what: str) -> None:
        """Count an error, and tell it once."""
        self._metrics.errors["jobs"] += 1
        if (vm, job) not in self._told:
            self._told.add((vm, job))
            if not self._lines.may(("failed", vm)):
                return
            log.warning("VM %s: %s", vm, what)


def _has_policy(vm: VmInfo) -> bool:
    """Return whether a VM has a policy for a drive, or may have one."""
    policy = vm.policy
    return policy is not None and any(policy.for_drive(t) is not None for t in vm.drives)


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
    """Return whether a drive waits, or has just stopped, though its limits don't hold it.

    It may if QEMU tells nothing of it.
    """
    did = known.measured.rates
    if did is None:
        return True
    if known.demand.backlogged:
        return False
    if did.idle:
        return any(known.demand.recent)
    latency_s = did.mean_latency_s
    return latency_s is None or latency_s * (did.read.raw_iops + did.write.raw_iops) >= _WAITING
