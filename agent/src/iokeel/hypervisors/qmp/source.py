"""VMs that are reached by their QMP sockets: QEMU without libvirt."""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from collections.abc import Collection, Mapping, MutableMapping, Sequence

from iokeel.config.settings import Config, VmConfig
from iokeel.core.enforce.jobs import BlockJob
from iokeel.core.values.counters import Counters, DriveId
from iokeel.core.values.limits import ThrottleLimits
from iokeel.core.values.policy import LastGood
from iokeel.errors import DriveGone
from iokeel.host.process import Process
from iokeel.hypervisors.qmp.counters import Round
from iokeel.hypervisors.qmp.discovered import Discovered
from iokeel.hypervisors.qmp.monitor import Monitor
from iokeel.hypervisors.qmp.turns import Others
from iokeel.hypervisors.rests import Rests
from iokeel.hypervisors.source import SourceNews, VmInfo

log = logging.getLogger(__name__)

# How many sockets are connected to at once, and how many are asked before replies are read. A
# reply's time is when it is read, so it has to be read soon.
_CONNECTING = 64
_ASKED_AT_ONCE = 32
# Between looks at the sockets of [[discover]].
_LOOK_S = 2.0
# Open files: a VM's socket, and one for each thread of a QEMU at rest (rests.py may have half of
# all); then those that are no VM's.
_FILES_A_VM = 6
_OTHER_FILES = 100


class QmpSource(SourceNews):
    """The VMs behind some QMP sockets. Implements iokeel.hypervisors.source.Source."""

    def __init__(
        self,
        vms: Sequence[VmConfig],
        ran: Mapping[str, Process] | None = None,
        config: Config | None = None,
        policies: MutableMapping[str, LastGood] | None = None,
    ) -> None:
        """ran: the QEMUs that are known otherwise, as from an earlier agent, by VM.

        config: has [[discover]]; None if there is none. policies: the last good ones of its VMs.
        """
        super().__init__()
        self._config = config or Config()
        self._discovered = Discovered(self._config, {} if policies is None else policies, self)
        self._others = Others()
        self._known: dict[str, VmInfo] = {}
        self._ran = {} if ran is None else ran
        there = self._discovered.vms() | {vm.name: vm for vm in vms}
        self._monitors = {name: self._monitor_of(vm) for name, vm in there.items()}
        self._rests = Rests()
        self._connecting = asyncio.Semaphore(_CONNECTING)
        self._running: asyncio.TaskGroup | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}  # of the monitors, by VM

    async def run(self) -> None:
        """Connect to every socket, stay connected and follow the drives, until cancelled."""
        async with asyncio.TaskGroup() as self._running:
            await self._discovered.read()
            self._start(self._monitors)
            while True:  # others may be configured
                await asyncio.sleep(_LOOK_S)
                if self._config.discover:
                    await self._look()

    def leaves(self, config: Config) -> Mapping[str, VmConfig]:
        """Return the VMs that another configuration lacks, or has at another socket."""
        wanted = self._wanted(config)
        return {
            name: monitor.vm
            for name, monitor in self._monitors.items()
            if name not in wanted or wanted[name].socket != monitor.vm.socket
        }

    def configure(self, config: Config) -> None:
        """Follow the VMs that are configured now. A VM at another socket is another VM."""
        self._config = config
        self._discovered.configure(config)
        wanted, gone = self._discovered.vms() | self._wanted(config), self.leaves(config)
        for name, monitor in [*self._monitors.items()]:
            if name in gone:
                self._end(name)
            else:
                monitor.configure(wanted[name])
        self._add(wanted)

    def sockets(self) -> Mapping[str, str]:
        """Return the sockets of all VMs, by name."""
        return {name: str(monitor.vm.socket) for name, monitor in self._monitors.items()}

    def _wanted(self, config: Config) -> dict[str, VmConfig]:
        """Return the VMs that a configuration names, and those of these that it would find."""
        found = (config.discovered(monitor.vm) for monitor in self._monitors.values())
        return {vm.name: vm for vm in found if vm is not None} | {vm.name: vm for vm in config.vms}

    async def _look(self) -> None:
        """Find the VMs of [[discover]] that have begun or ended, and what is new of the others."""
        there = self._discovered.vms()
        changed = await self._discovered.read()
        for name, monitor in [*self._monitors.items()]:
            if not monitor.vm.by_rules:
                continue
            if name not in there and not monitor.may_run:
                self._discovered.forget(monitor.vm)
                self._end(name)
            elif name in changed:
                monitor.find_anew()
        if self._discovered.facts_changed():
            for monitor in self._monitors.values():
                monitor.configure(monitor.vm)
        self._add(there)

    def _add(self, vms: Mapping[str, VmConfig]) -> None:
        new = vms.keys() - self._monitors.keys()
        self._monitors |= {name: self._monitor_of(vms[name]) for name in new}
        self._start(new)

    def _end(self, name: str) -> None:
        del self._monitors[name]
        if (task := self._tasks.pop(name, None)) is not None:
            task.cancel()
        if self._known.pop(name, None) is not None:
            self.on_change(name)

    def _monitor_of(self, vm: VmConfig) -> Monitor:
        return Monitor(vm, self, self._known, self._ran, self._others, self._discovered)

    def _start(self, names: Collection[str]) -> None:
        if self._running is not None:
            _allow_files(_FILES_A_VM * len(self._monitors) + _OTHER_FILES)
            for name in names:
                run = self._monitors[name].run(self._connecting)
                self._tasks[name] = self._running.create_task(run)

    def announce(self, domain: str) -> None:
        """Connect to a VM, or find its drives anew, at once."""
        if (monitor := self._monitors.get(domain)) is not None:
            monitor.find_anew()

    def vms(self) -> Mapping[str, VmInfo]:
        """Return the running VMs by name, as last seen. Does no I/O."""
        return self._known

    def unread(self) -> Collection[str]:
        """Return the VMs whose QEMU hasn't been asked yet, although it may run."""
        return {name for name, monitor in self._monitors.items() if monitor.may_run} - {
            *self._known
        }

    def resting(self) -> Collection[str]:
        """Return the VMs that have done nothing since their last reading. Does no I/O."""
        return self._rests.names

    def saving(self) -> Collection[str]:
        """Return nothing: a QEMU answers nobody while it writes its memory."""
        return ()

    async def sample(
        self, domains: Collection[str] | None, timeout_s: float
    ) -> Mapping[DriveId, Counters]:
        """Read the counters of all VMs' drives, or of some domains' only.

        A VM that still owes an answer isn't asked again, and one at rest isn't asked among all. An
        answer after the timeout is dropped.
        """
        loop, at_ns = asyncio.get_running_loop(), time.monotonic_ns()
        round_ = Round(loop.create_future())
        deadline = loop.call_later(timeout_s, round_.end)
        monitors, resting = [], dict[DriveId, Counters]()
        if domains is not None:
            self._rests.forget(domains)
        for name in self._monitors if domains is None else domains:
            monitor = self._monitors.get(name)
            if monitor is not None and monitor.connected:
                vm = self._known.get(name)
                if vm is None or not self._rests.take(vm, at_ns, resting):
                    monitors.append(monitor)
        try:
            for number, monitor in enumerate(monitors, 1):
                monitor.ask(round_)
                if number % _ASKED_AT_ONCE == 0:
                    await asyncio.sleep(0)
            round_.came()
            await round_.done
        finally:
            deadline.cancel()
        if round_.outstanding:
            for monitor in monitors:
                monitor.check_answered()
        if domains is None:
            self._rests.came(self._known, round_.found)
        return round_.found | resting

    async def set_limits(self, drive: DriveId, limits: ThrottleLimits, timeout_s: float) -> None:
        """Put limits in force by block_set_io_throttle, or on the drive's throttle-group object.

        Raises DriveGone, LimitsRejected or ConnectionLost. After a timeout the limits in force are
        unknown, and they are read again as soon as QEMU answers.
        """
        monitor = self._monitors.get(drive.domain)
        if monitor is None:
            raise DriveGone(str(drive), "no VM of that name is configured or found")
        await monitor.set_limits(drive, limits, timeout_s)

    async def jobs(self, domain: str, timeout_s: float) -> list[BlockJob]:
        """Return a VM's block jobs. Raises DriveGone, LimitsRejected or ConnectionLost."""
        return await self._monitor(domain).jobs(timeout_s)

    async def set_job_speed(self, domain: str, job: str, bps: int, timeout_s: float) -> None:
        """Set the speed of a VM's block job; 0 for none. Raises as `jobs`."""
        await self._monitor(domain).set_job_speed(job, bps, timeout_s)

    def _monitor(self, domain: str) -> Monitor:
        if (monitor := self._monitors.get(domain)) is None:
            raise DriveGone(domain, "no VM of that name is configured or found")
        return monitor


def _allow_files(wanted: int) -> None:
    """Raise the limit of open files to the number wanted, or to the most that is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    if hard < wanted:
        log.error("only %d files can be open and %d are needed: raise LimitNOFILE", hard, wanted)
