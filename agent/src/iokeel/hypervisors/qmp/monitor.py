"""One VM that is reached by its QMP socket: the connection, its drives and their limits.

A task keeps the socket connected and finds the drives anew when QEMU tells of a change, when
counters come from a drive that is not known (a plugged-in drive has no event), and once in a
while.

A VM whose connection is lost stays known, with its drives and what is in force, until it is clear
that its QEMU is gone, which is where nobody listens at its socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from dataclasses import replace
from typing import Any

from iokeel.config.settings import VmConfig
from iokeel.core.abilities import PATCHED, STOCK
from iokeel.core.counters import DriveId
from iokeel.core.limits import ThrottleLimits
from iokeel.errors import DriveGone, IokeelError, LimitsRejected, PolicyError
from iokeel.host.process import Process
from iokeel.hypervisors.abilities import Abilities, SchemaEntry
from iokeel.hypervisors.backoff import delays
from iokeel.hypervisors.qmp.connection import (
    ANYTHING,
    CommandFailed,
    MonitorLost,
    QmpConnection,
    connect,
    decoder,
)
from iokeel.hypervisors.qmp.counters import GROUPS, DriveCounters, Round
from iokeel.hypervisors.qmp.drives import Block, Object, QmpDrive, drives_of, groups_of, setting
from iokeel.hypervisors.qmp.throttle_groups import Limits, group_limits, object_limits
from iokeel.hypervisors.source import DriveInfo, Reports, VmInfo

log = logging.getLogger(__name__)

#: Some changes have no event (limits set over another monitor, say): look again this often.
RECHECK_S = 60.0
_REFRESH_PAUSE_S = 1.0
_ANSWER_TIMEOUT_S = 5.0

_BLOCKS = decoder(list[Block])
_LIMITS = decoder(Limits)
_OBJECTS = decoder(list[Object])
_NODES = decoder(list[dict[str, Any]])
_SCHEMA = decoder(list[SchemaEntry])


class Monitor:
    """One VM's socket, kept connected, and what is known of its drives."""

    def __init__(self, vm: VmConfig, reports: Reports) -> None:
        self._vm = vm
        self._reports = reports
        self._connection: QmpConnection | None = None
        self._process: Process | None = None
        self._abilities = Abilities()
        self._drives: dict[str, QmpDrive] = {}
        self._shut_down = False
        self._wake = asyncio.Event()
        self._counters = DriveCounters(vm, reports, self._wake.set, self._note_in_force)
        self._orders = 0  # changes whenever limits are set, so that older ones are not believed
        self._told = ""

    @property
    def connected(self) -> bool:
        """Whether its drives are known and QEMU can be asked."""
        return self._connection is not None and not self._connection.lost.done()

    def ask(self, round_: Round) -> None:
        """Ask for the counters of all drives, unless an earlier answer is still owed."""
        self._counters.ask(self._connection, round_)

    def check_answered(self) -> None:
        """Take note where the answer has not come in time."""
        self._counters.check_answered()

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
        command, arguments = setting(known, limits, exact=self._abilities.cost_curve)
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
            self._counters.forget_limits(drive)
        self._note_in_force(drive.target, ThrottleLimits.of(limits._asdict()))

    def _note_in_force(self, target: str, limits: ThrottleLimits | None) -> None:
        info = self._reports.known.get(self._vm.name)
        if info is not None and target in info.drives and info.drives[target].in_force != limits:
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
            self._abilities = await _abilities(connection)
            await self._discover(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self._counters.connected(self._abilities)
        self._shut_down, self._told = False, ""
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
            self._drives = {}
            self._counters.follow({}, {})
            self._reports.on_change(self._vm.name)

    def _report(self, error: MonitorLost | CommandFailed) -> None:
        """Count an error, and log it unless that was what was wrong last time."""
        self._reports.errors[error.kind if isinstance(error, MonitorLost) else "refused"] += 1
        if str(error) != self._told and not (self._counters.hangs and error.kind == "timeout"):
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
            if not self._abilities.guest_devices:
                drives = await _groups(connection)
            for target, drive in drives.items():
                drives[target] = await self._with_object(connection, drive)
            name = self._vm.name
            of = {(d.qdev, d.device): DriveId(name, d.target) for d in drives.values()}
            groups = {d.throttle_group: DriveId(name, d.target) for d in drives.values()}
            self._counters.follow(
                {(b.qdev, b.device): of.get((b.qdev, b.device)) for b in blocks},
                {group: drive for group, drive in groups.items() if group is not None},
            )
            if self._abilities.cost_curve:
                await self._with_patched(connection, drives)
        self._drives = drives
        self._publish()

    async def _with_patched(self, connection: QmpConnection, drives: dict[str, QmpDrive]) -> None:
        """Put in limits with what query-block doesn't tell of them."""
        groups = await connection.execute("query-throttle-groups", {}, GROUPS, _ANSWER_TIMEOUT_S)
        for group in groups:
            if (drive := self._counters.owner(group)) is not None:
                known = drives[drive.target]
                drives[drive.target] = replace(known, in_force=group_limits(group.limits))

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
        abilities = PATCHED if self._abilities.cost_curve else STOCK
        drives = {
            d.target: DriveInfo(d.target, d.path, d.in_force, abilities)
            for d in self._drives.values()
        }
        info = VmInfo(name, drives, policy, error, self._process)
        if info != before:
            self._reports.known[name] = info
            self._reports.on_change(name)

    def _policy_error(self) -> IokeelError | None:
        where, policy = f"VM {self._vm.name}", self._vm.policy
        if not self._abilities.guest_devices and not self._abilities.group_statistics:
            return IokeelError(where, *_COUNTS_NOTHING)
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


_COUNTS_NOTHING = (
    "this storage daemon counts nothing, so its limits hold for requests of any size, less well"
    " than by what they are, and there are no rates, no bursts and nothing to see",
    "use one with the patches in qemu-patches",
)


async def _abilities(connection: QmpConnection) -> Abilities:
    try:
        schema = await connection.execute("query-qmp-schema", {}, _SCHEMA, _ANSWER_TIMEOUT_S)
    except CommandFailed:
        return Abilities()
    return Abilities.of(schema)


async def _groups(connection: QmpConnection) -> dict[str, QmpDrive]:
    """Return a storage daemon's drives by target."""
    where = {"path": "/objects"}
    objects = await connection.execute("qom-list", where, _OBJECTS, _ANSWER_TIMEOUT_S)
    flat = {"flat": True}
    nodes = await connection.execute("query-named-block-nodes", flat, _NODES, _ANSWER_TIMEOUT_S)
    return groups_of(objects, nodes)


def _shared(drive: QmpDrive) -> tuple[str, str]:
    return (
        f"its throttle group holds {', '.join(drive.shares)} too, so limits would hold them all",
        "give each drive a group of its own",
    )
