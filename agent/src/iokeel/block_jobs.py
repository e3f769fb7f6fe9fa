"""Follows VMs' block jobs beside the ticks: gives them their speed, and tells their room below."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from iokeel.core.backstop import NOTHING, Io
from iokeel.core.counters import NS_PER_S
from iokeel.core.jobs import Followed, follow, room, speed_to_set
from iokeel.core.policy import UNKNOWN
from iokeel.errors import IokeelError
from iokeel.hypervisors.pace import Pace
from iokeel.hypervisors.source import VmInfo
from iokeel.observer import Observer
from iokeel.report.prometheus import Metrics
from iokeel.tasks import Tasks
from iokeel.words.sparing import Sparing

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
        for vm in vms:
            wait_s = _AGAIN_S if vm in self.running else _SELDOM_S
            at_ns = self._asked_ns.get(vm)
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
