"""VMs that are reached by their QMP sockets: QEMU without libvirt.

Each VM has a task, which keeps its socket connected and finds its drives anew when QEMU tells of
a change, when counters come from a drive that is not known (a plugged-in drive has no event), and
once in a while. A tick needs no task: it writes a query to every socket, the replies are taken
where the event loop reads them, and one future is awaited for all (iokeel.qmp says what for).

A VM whose connection is lost stays known, with its drives and what is in force, until it is clear
that its QEMU is gone, which is where nobody listens at its socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import resource
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from iokeel.backoff import delays
from iokeel.config import Vm
from iokeel.errors import DriveGone, IokeelError, LimitsRejected, PolicyError
from iokeel.limits import ThrottleLimits
from iokeel.qmp import ANYTHING, CommandFailed, MonitorLost, QmpConnection, Reply, connect, decoder
from iokeel.qmp_drives import Block, BlockStats, QmpDrive, drives_of, object_limits, setting
from iokeel.source import DriveInfo, VmInfo
from iokeel.workload import Counters, DriveId

log = logging.getLogger(__name__)

#: Some changes have no event (limits set over another monitor, say): look again this often.
RECHECK_S = 60.0
_REFRESH_PAUSE_S = 1.0
_ANSWER_TIMEOUT_S = 5.0
# How many sockets are connected at once, and how many asked before replies are read: replies that
# are read soon after they were made carry a time that is right.
_CONNECTING = 64
_ASKED_AT_ONCE = 32
# Descriptors that are not sockets of VMs.
_OTHER_FILES = 100

_BLOCKS = decoder(list[Block])
_LIMITS = decoder(dict[str, Any])
_COUNTERS = decoder(list[BlockStats])
_QUERY_COUNTERS = b'"execute":"query-blockstats"'


class QmpSource:
    """The VMs behind some QMP sockets. Implements iokeel.source.Source."""

    def __init__(self, vms: Sequence[Vm]) -> None:
        self.errors: Counter[str] = Counter()
        self.reconnects = 0
        self.on_change: Callable[[str], None] = lambda _: None
        self._monitors = {vm.name: _Monitor(vm, self) for vm in vms}
        self.known: dict[str, VmInfo] = {}

    async def run(self) -> None:
        """Connect to every socket, keep connected and follow the drives, until cancelled."""
        _allow_files(len(self._monitors) + _OTHER_FILES)
        connecting = asyncio.Semaphore(_CONNECTING)
        async with asyncio.TaskGroup() as group:
            for monitor in self._monitors.values():
                group.create_task(monitor.run(connecting))

    def vms(self) -> Mapping[str, VmInfo]:
        """Return the running VMs by name, as last seen. Does no I/O."""
        return self.known

    async def sample(
        self, domains: Collection[str] | None, timeout_s: float
    ) -> Mapping[DriveId, Counters]:
        """Read the counters of all VMs' drives, or of some domains' only.

        A VM that still owes the answer to an earlier query is not asked again, and what it
        answers after its timeout is dropped.
        """
        loop = asyncio.get_running_loop()
        round_ = _Round(loop.create_future())
        deadline = loop.call_later(timeout_s, round_.end)
        monitors = [
            monitor
            for name in (self._monitors if domains is None else domains)
            if (monitor := self._monitors.get(name)) is not None and monitor.connected
        ]
        try:
            for number, monitor in enumerate(monitors, 1):
                monitor.ask(round_)
                if number % _ASKED_AT_ONCE == 0:
                    await asyncio.sleep(0)
            round_.came()
            await round_.done
        finally:
            deadline.cancel()
            round_.end()
        if round_.outstanding:
            for monitor in monitors:
                monitor.check_answered()
        return round_.found

    async def set_limits(self, drive: DriveId, limits: ThrottleLimits, timeout_s: float) -> None:
        """Put limits in force by block_set_io_throttle, or on the drive's throttle-group object.

        Raises DriveGone, LimitsRejected or ConnectionLost. After a timeout it is not known which
        limits hold, and they are read again as soon as QEMU answers.
        """
        monitor = self._monitors.get(drive.domain)
        if monitor is None:
            raise DriveGone(str(drive), "no VM of that name is configured")
        await monitor.set_limits(drive, limits, timeout_s)


class _Round:
    """What one sample waits for, and what came of it."""

    __slots__ = ("done", "found", "outstanding")

    def __init__(self, done: asyncio.Future[None]) -> None:
        self.found: dict[DriveId, Counters] = {}
        self.outstanding = 1  # one for those that are not asked yet
        self.done = done

    def came(self) -> None:
        self.outstanding -= 1
        if not self.outstanding:
            self.end()

    def end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class _Monitor:
    """One VM: its socket, kept connected, and what is known of its drives."""

    def __init__(self, vm: Vm, source: QmpSource) -> None:
        self._vm = vm
        self._source = source
        self._connection: QmpConnection | None = None
        self._drives: dict[str, QmpDrive] = {}
        # By what QEMU calls it, each BlockBackend's drive, or None where it is without a medium.
        self._ids: dict[tuple[str, str], DriveId | None] = {}
        self._asked: _Round | None = None
        self._hangs = False
        self._wake = asyncio.Event()
        self._orders = 0  # changes whenever limits are set, so that older ones are not believed
        self._told = ""

    @property
    def connected(self) -> bool:
        """Whether its drives are known and QEMU can be asked."""
        return self._connection is not None and not self._connection.lost.done()

    # Counters

    def ask(self, round_: _Round) -> None:
        """Ask for the counters of all drives, unless an earlier answer is still owed."""
        if self._asked is None and self._connection is not None:
            self._asked = round_
            round_.outstanding += 1
            self._connection.ask(_QUERY_COUNTERS, _COUNTERS, partial(self._counted, round_))
        else:
            self._missed()

    def check_answered(self) -> None:
        """Take note where the answer has not come in time."""
        if self._asked is not None and not self._hangs:
            self._missed()

    def _counted(self, round_: _Round, reply: Reply[list[BlockStats]] | MonitorLost) -> None:
        self._asked = None
        try:
            if isinstance(reply, MonitorLost) or not isinstance(reply.answer, list):
                if not isinstance(reply, MonitorLost):
                    self._source.errors["refused"] += 1
                return
            if self._hangs:
                self._hangs = False
                self._wake.set()
                log.info("VM %s: QEMU answers again", self._vm.name)
            if not round_.done.done():
                self._take(round_.found, reply.answer)
        finally:
            round_.came()

    def _take(self, found: dict[DriveId, Counters], drives: list[BlockStats]) -> None:
        now_ns = time.monotonic_ns()
        ids = self._ids
        if len(drives) != len(ids):
            self._wake.set()
        for drive in drives:
            stats = drive.stats
            try:
                identity = ids[drive.qdev, drive.device]
            except KeyError:
                self._wake.set()
                continue
            if identity is not None:
                found[identity] = Counters(
                    now_ns,
                    stats.rd_operations,
                    stats.rd_bytes,
                    stats.wr_operations,
                    stats.wr_bytes,
                    stats.rd_total_time_ns,
                    stats.wr_total_time_ns,
                )

    def _missed(self) -> None:
        self._source.errors["timeout"] += 1
        if not self._hangs:
            self._hangs = True
            log.error(
                "VM %s: %s: QEMU doesn't answer; see whether it is stopped or its storage hangs",
                self._vm.name,
                self._vm.socket,
            )

    # Limits

    async def set_limits(self, drive: DriveId, limits: ThrottleLimits, timeout_s: float) -> None:
        """Put limits in force on one drive."""
        known = self._drives.get(drive.target)
        if known is None:
            raise DriveGone(str(drive), "is not there")
        if known.shares:
            raise LimitsRejected(str(drive), *_shared(known))
        if self._connection is None:
            raise MonitorLost("closed", str(drive), "QEMU can't be reached now", "see the log")
        command, arguments = setting(known, limits)
        self._orders += 1
        try:
            await self._connection.execute(command, arguments, ANYTHING, timeout_s)
        except CommandFailed as error:
            if error.kind == "DeviceNotFound":
                self._wake.set()
                raise DriveGone(str(drive), error.what) from None
            raise LimitsRejected(
                str(drive), f"{command}: {error.what}", "the limits that held still hold"
            ) from None
        except MonitorLost:
            self._note_in_force(drive.target, None)
            self._wake.set()
            raise
        finally:
            self._orders += 1
        self._note_in_force(drive.target, ThrottleLimits.of(dict(limits.items())))

    def _note_in_force(self, target: str, limits: ThrottleLimits | None) -> None:
        info = self._source.known.get(self._vm.name)
        if info is not None and target in info.drives:
            drives = {**info.drives, target: replace(info.drives[target], in_force=limits)}
            self._source.known[self._vm.name] = replace(info, drives=drives)

    # The connection

    async def run(self, connecting: asyncio.Semaphore) -> None:
        """Connect, keep connected and follow the drives, until cancelled."""
        waits = delays()
        before = False
        while True:
            try:
                async with connecting:
                    connection = await self._connect()
            except (MonitorLost, CommandFailed) as error:
                self._unreachable(error)
                await asyncio.sleep(next(waits))
                continue
            self._source.reconnects += before
            before = True
            waits = delays()
            try:
                await self._follow(connection)
            finally:
                self._connection = None
                connection.close()
            self._unreachable(connection.lost.result())
            await asyncio.sleep(next(waits))

    async def _connect(self) -> QmpConnection:
        connection = await connect(self._vm.socket, self._event)
        try:
            self._wake.clear()
            await self._discover(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self._asked, self._hangs, self._told = None, False, ""
        log.info("VM %s: connected, %d drives", self._vm.name, len(self._drives))
        return connection

    async def _follow(self, connection: QmpConnection) -> None:
        """Find drives anew when told to, and once in a while, until the connection ends."""
        connection.lost.add_done_callback(lambda _: self._wake.set())
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RECHECK_S * random.uniform(0.9, 1.1)):
                    await self._wake.wait()
            self._wake.clear()
            if connection.lost.done():
                return
            try:
                await self._discover(connection)
            except (MonitorLost, CommandFailed) as error:
                if not connection.lost.done():
                    self._report(error)
            else:
                self._told = ""
            # However many events come, drives are not asked for more often than this.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_REFRESH_PAUSE_S):
                    await asyncio.shield(connection.lost)

    def _event(self, name: str) -> None:
        # BLOCK_IO_ERROR comes with each request on a failing disk, and changes no drive.
        changes = name.startswith("BLOCK_") and name != "BLOCK_IO_ERROR"
        if changes or name in ("DEVICE_DELETED", "DEVICE_TRAY_MOVED", "SHUTDOWN"):
            self._wake.set()

    def _unreachable(self, error: MonitorLost | CommandFailed) -> None:
        self._report(error)
        if error.kind in ("missing", "stale") and self._source.known.pop(self._vm.name, None):
            self._drives, self._ids = {}, {}
            self._source.on_change(self._vm.name)

    def _report(self, error: MonitorLost | CommandFailed) -> None:
        """Count an error, and log it unless that was what was wrong last time."""
        self._source.errors[error.kind if isinstance(error, MonitorLost) else "refused"] += 1
        if str(error) != self._told:
            self._told = str(error)
            log.error("VM %s: %s", self._vm.name, error)

    # Drives

    async def _discover(self, connection: QmpConnection) -> None:
        """Ask QEMU for its drives and the limits in force. Raises MonitorLost, CommandFailed."""
        orders = -1
        while orders != self._orders:
            orders = self._orders
            blocks = await connection.execute("query-block", {}, _BLOCKS, _ANSWER_TIMEOUT_S)
            drives = drives_of(blocks)
            for target, drive in drives.items():
                drives[target] = await self._with_object(connection, drive)
        self._drives = drives
        of = {(d.qdev, d.device): DriveId(self._vm.name, d.target) for d in drives.values()}
        self._ids = {(b.qdev, b.device): of.get((b.qdev, b.device)) for b in blocks}
        self._publish()

    async def _with_object(self, connection: QmpConnection, drive: QmpDrive) -> QmpDrive:
        """Return a drive with the limits of its throttle-group object, where it has one."""
        if drive.throttle_group is None:
            return drive
        arguments = {"path": f"/objects/{drive.throttle_group}", "property": "limits"}
        try:
            found = await connection.execute("qom-get", arguments, _LIMITS, _ANSWER_TIMEOUT_S)
        except CommandFailed:  # a group that is no object can't be set: limit above it
            return replace(drive, throttle_group=None)
        return replace(drive, in_force=object_limits(found))

    def _publish(self) -> None:
        name, policy = self._vm.name, self._vm.policy
        before = self._source.known.get(name)
        error = self._policy_error()
        told = before.policy_error if before else None
        if error is not None and told is not None and str(error) == str(told):
            error = told
        elif error is not None:
            self._source.errors["policy"] += 1
            log.error("%s", error)
        drives = {d.target: DriveInfo(d.target, d.path, d.in_force) for d in self._drives.values()}
        info = VmInfo(name, drives, policy, error)
        if info != before:
            self._source.known[name] = info
            self._source.on_change(name)

    def _policy_error(self) -> IokeelError | None:
        where, policy = f"VM {self._vm.name}", self._vm.policy
        for drive in self._drives.values():
            if drive.shares and policy.for_drive(drive.target) is not None:
                return PolicyError(f"{where}, drive {drive.target}", *_shared(drive))
        if missing := sorted(policy.drives.keys() - self._drives.keys()):
            return PolicyError(
                where,
                f"the policy names {', '.join(missing)}, which the VM has not",
                f"it has {', '.join(self._drives) or 'no drive'}",
            )
        return None


def _shared(drive: QmpDrive) -> tuple[str, str]:
    return (
        f"its throttle group holds {', '.join(drive.shares)} too, so limits would hold them all",
        "give each drive a group of its own",
    )


def _allow_files(wanted: int) -> None:
    """Raise the limit of open files as far as it has to and may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    if hard < wanted:
        log.error("%d files can be open, %d are needed: raise LimitNOFILE", hard, wanted)
