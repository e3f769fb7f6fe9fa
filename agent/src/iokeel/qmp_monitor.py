"""One VM that is reached by its QMP socket: the connection, its drives and their limits.

A task keeps the socket connected and finds the drives anew when QEMU tells of a change, when
counters come from a drive that is not known (a plugged-in drive has no event), and once in a
while. A tick needs no task: queries are written to the sockets of all VMs, replies are taken where
the event loop reads them, and one future is awaited for all (iokeel.qmp says what for).

A VM whose connection is lost stays known, with its drives and what is in force, until it is clear
that its QEMU is gone, which is where nobody listens at its socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from iokeel.backoff import delays
from iokeel.config import Vm
from iokeel.curve import CostModel
from iokeel.errors import DriveGone, IokeelError, LimitsRejected, PolicyError
from iokeel.limits import ThrottleLimits
from iokeel.process import Process
from iokeel.qmp import ANYTHING, CommandFailed, MonitorLost, QmpConnection, Reply, connect, decoder
from iokeel.qmp_drives import Block, BlockStats, QmpDrive, drives_of, object_limits, setting
from iokeel.source import DriveInfo, VmInfo
from iokeel.workload import Counters, DriveId

log = logging.getLogger(__name__)

#: Some changes have no event (limits set over another monitor, say): look again this often.
RECHECK_S = 60.0
_REFRESH_PAUSE_S = 1.0
_ANSWER_TIMEOUT_S = 5.0

_BLOCKS = decoder(list[Block])
_LIMITS = decoder(dict[str, Any])
_COUNTERS = decoder(list[BlockStats])
_QUERY_COUNTERS = b'"execute":"query-blockstats"'


class Reports:
    """What the monitors of a source report to it: errors, and the VMs that run."""

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()
        self.reconnects = 0
        self.on_change: Callable[[str], None] = lambda _: None
        self.known: dict[str, VmInfo] = {}


class Round:
    """What one sample waits for, and what came of it."""

    __slots__ = ("done", "found", "outstanding")

    def __init__(self, done: asyncio.Future[None]) -> None:
        self.found: dict[DriveId, Counters] = {}
        self.outstanding = 1  # one for those that are not asked yet
        self.done = done

    def came(self) -> None:
        """Take note that one of those that were asked has answered, or won't."""
        self.outstanding -= 1
        if not self.outstanding:
            self.end()

    def end(self) -> None:
        """Wait no longer."""
        if not self.done.done():
            self.done.set_result(None)


class Monitor:
    """One VM's socket, kept connected, and what is known of its drives."""

    def __init__(self, vm: Vm, reports: Reports) -> None:
        self._vm = vm
        self._reports = reports
        self._connection: QmpConnection | None = None
        self._process: Process | None = None
        self._drives: dict[str, QmpDrive] = {}
        # By what QEMU calls it, each BlockBackend's drive, or None where it is without a medium.
        self._ids: dict[tuple[str, str], DriveId | None] = {}
        self._asked: Round | None = None
        self._hangs = False
        self._shut_down = False
        self._wake = asyncio.Event()
        self._orders = 0  # changes whenever limits are set, so that older ones are not believed
        self._told = ""

    @property
    def connected(self) -> bool:
        """Whether its drives are known and QEMU can be asked."""
        return self._connection is not None and not self._connection.lost.done()

    # Counters

    def ask(self, round_: Round) -> None:
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

    def _counted(self, round_: Round, reply: Reply[list[BlockStats]] | MonitorLost) -> None:
        self._asked = None
        try:
            if isinstance(reply, MonitorLost) or not isinstance(reply.answer, list):
                if not isinstance(reply, MonitorLost):
                    self._reports.errors["refused"] += 1
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
        self._reports.errors["timeout"] += 1
        if not self._hangs:
            self._hangs = True
            log.error(
                "VM %s: %s: QEMU doesn't answer; see whether it is stopped or its storage hangs",
                self._vm.name,
                self._vm.socket,
            )

    # Limits

    async def set_limits(
        self,
        drive: DriveId,
        limits: ThrottleLimits,
        timeout_s: float,
        curve: CostModel | None = None,
    ) -> None:
        """Put limits in force on one drive."""
        known = self._drives.get(drive.target)
        if known is None:
            raise DriveGone(str(drive), "is not there")
        if known.shares:
            raise LimitsRejected(str(drive), *_shared(known))
        if self._connection is None:
            raise MonitorLost("closed", str(drive), "QEMU can't be reached now", "see the log")
        command, arguments = setting(known, limits, curve)
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
        info = self._reports.known.get(self._vm.name)
        if info is not None and target in info.drives:
            drives = {**info.drives, target: replace(info.drives[target], in_force=limits)}
            self._reports.known[self._vm.name] = replace(info, drives=drives)

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
                await self._rest(next(waits))
                continue
            self._reports.reconnects += before
            before = True
            waits = delays()
            try:
                await self._follow(connection)
            finally:
                self._connection = None
                connection.close()
            if self._shut_down:
                log.info("VM %s: has shut down", self._vm.name)
            else:
                self._unreachable(connection.lost.result())
            await self._rest(next(waits))

    def look_again(self) -> None:
        """Find the drives anew, or connect, at once."""
        self._wake.set()

    async def _rest(self, wait_s: float) -> None:
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._wake.wait()

    async def _connect(self) -> QmpConnection:
        connection = await connect(self._vm.socket, self._event)
        try:
            self._wake.clear()
            self._process = connection.process
            await self._discover(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self._asked, self._hangs, self._shut_down, self._told = None, False, False, ""
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
        if changes or name in ("DEVICE_DELETED", "DEVICE_TRAY_MOVED"):
            self._wake.set()
        self._shut_down = self._shut_down or name == "SHUTDOWN"

    def _unreachable(self, error: MonitorLost | CommandFailed) -> None:
        self._report(error)
        if error.kind in ("missing", "stale") and self._vm.name in self._reports.known:
            del self._reports.known[self._vm.name]
            self._drives, self._ids = {}, {}
            self._reports.on_change(self._vm.name)

    def _report(self, error: MonitorLost | CommandFailed) -> None:
        """Count an error, and log it unless that was what was wrong last time."""
        self._reports.errors[error.kind if isinstance(error, MonitorLost) else "refused"] += 1
        if str(error) != self._told and not (self._hangs and error.kind == "timeout"):
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
        before = self._reports.known.get(name)
        error = self._policy_error()
        told = before.policy_error if before else None
        if error is not None and told is not None and str(error) == str(told):
            error = told
        elif error is not None:
            self._reports.errors["policy"] += 1
            log.error("%s", error)
        drives = {d.target: DriveInfo(d.target, d.path, d.in_force) for d in self._drives.values()}
        info = VmInfo(name, drives, policy, error, self._process)
        if info != before:
            self._reports.known[name] = info
            self._reports.on_change(name)

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
