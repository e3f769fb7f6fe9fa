"""One VM that is reached by its QMP socket: the connection, its drives and their limits.

A task keeps the socket connected. It finds the drives anew when QEMU sends an event, when counters
come from an unknown drive (there is no event for a drive that is plugged in), and once a minute.

If the connection is lost, the VM stays known, with its drives and their limits, until its QEMU is
certainly gone: until nobody listens at the socket, and its process has ended. A QEMU may unlink its
socket and run on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from iokeel.config.settings import VmConfig
from iokeel.core.enforce.jobs import BlockJob
from iokeel.core.values.counters import DriveId
from iokeel.core.values.limits import STOCK, ThrottleLimits
from iokeel.core.values.policy import OBSERVE, DomainPolicy, PolicyInPart, ToldPolicy
from iokeel.errors import DriveGone, IokeelError, LimitsRejected, PolicyError, TargetsMissing
from iokeel.host.process import ENDED, Process, process
from iokeel.hypervisors.pace import delays
from iokeel.hypervisors.qemu.bounds import MOST_DRIVES, Budget, is_hashed
from iokeel.hypervisors.qemu.drives import (
    QmpDrive,
    clearing,
    empty_of,
    setting,
    shared,
    spelled_out,
    unthrottled_of,
)
from iokeel.hypervisors.qemu.jobs import JOB_EVENT, QUERY_JOBS, JobInfo, jobs_of
from iokeel.hypervisors.qemu.jobs import setting as setting_speed
from iokeel.hypervisors.qemu.limits import QemuAbilities, for_curve, from_group, keep_patched
from iokeel.hypervisors.qmp.connection import (
    ANYTHING,
    Channel,
    Decoder,
    connect,
    decoder,
)
from iokeel.hypervisors.qmp.counters import DriveCounters, Round
from iokeel.hypervisors.qmp.discovered import Discovered, Told
from iokeel.hypervisors.qmp.discovery import (
    query_abilities,
    query_devices,
    query_drives,
    query_groups,
)
from iokeel.hypervisors.qmp.faults import CommandFailed, MonitorLost
from iokeel.hypervisors.qmp.turns import Others, Turns
from iokeel.hypervisors.source import DriveInfo, SourceNews, VmInfo
from iokeel.libvirt_xml.domain import Disk
from iokeel.libvirt_xml.policy import check_throttled
from iokeel.words.log_lines import Sparing

log = logging.getLogger(__name__)
T = TypeVar("T")

_JOBS = decoder(list[JobInfo], MOST_DRIVES)
#: Some changes have no event (limits set over another monitor, say). Look again this often, in the
#: mean: at the next tick. With few VMs it is more often, about one of them a second.
RECHECK_S = 60.0
_LEAST_RECHECK_S, _LEAST_SHARED_S = 2.0, 10.0
# A QEMU with 2,000 throttle groups tells all in 3 s. One that takes longer holds up itself alone.
_DISCOVERY_S = 10.0
# A flood of events doesn't have the drives found more often than this.
_REFRESH_PAUSE_S = 1.0
# Nor do file names that take long to read. One character of them takes 50 ns, so that is a fiftieth
# of a core.
_PAUSE_S_A_CHARACTER = 2.5e-6
# A VM of [[discover]] begins and ends by itself.
_ENDED = ("missing", "stale", "closed")
# Lines of the log a minute, of each kind that comes with words of QEMU's.
_MOST_LINES = 20


class Monitor:
    """One VM's socket, kept connected, and its drives.

    known: where all VMs' monitors keep their VmInfo, by name. ran: the QEMUs that are known
    otherwise, as from an earlier agent, by VM. others: the clients of all VMs' monitors.
    discovered: has the policy of a VM of [[discover]].
    """

    def __init__(
        self,
        vm: VmConfig,
        news: SourceNews,
        known: dict[str, VmInfo],
        ran: Mapping[str, Process],
        others: Others,
        discovered: Discovered,
    ) -> None:
        self._vm = vm
        self._news = news
        self._known = known
        self._connection: Channel | None = None
        self._process: Process | None = None
        self._has_booted = False
        self._ran, self._others, self._discovered = ran, others, discovered
        self._served_by: set[Process] = set()  # the QEMUs that were here, until they have ended
        self._abilities = QemuAbilities()
        self._drives: dict[str, QmpDrive] = {}
        self._empty: frozenset[str] = frozenset()
        self._unthrottled: dict[str, str] = {}  # the reasons by target
        self._shut_down = False
        self._is_wrong = False  # what it sent ended its last connection
        self.may_run = True  #: False once nobody listens at its socket, and no QEMU of it runs
        self._wake = asyncio.Event()
        self._counters = DriveCounters(vm, news, self._wake.set, self._note_in_force)
        self._orders = 0  # changes whenever limits are set: those read before are stale then
        self._told = ""
        self._spelled_out = 0  # characters of file names, when the drives were found last
        self._told_named = False
        self._budget, self._lines = Budget(), Sparing(_MOST_LINES, 60.0)
        self._told_below: dict[str, tuple[str, ...]] = {}  # groups in drives' backing files
        self._looked_at = self._recheck_at = 0.0  # by the monotonic clock

    @property
    def connected(self) -> bool:
        """Whether its drives are known and QEMU can be asked."""
        return self._connection is not None and not self._connection.lost.done()

    @property
    def vm(self) -> VmConfig:
        """The VM, and where it is connected to."""
        return self._vm

    def configure(self, vm: VmConfig) -> None:
        """Take over another policy for the same VM at the same socket."""
        if vm.shared != self._vm.shared and self._connection is not None:
            self._connection.close()
        self._vm = vm
        if vm.name in self._known:
            self._publish()

    def ask(self, round_: Round) -> None:
        """Ask for the counters of all drives, unless an earlier answer is still owed."""
        if round_.at >= self._recheck_at:  # it costs least while QEMU is asked anyway
            self._wake.set()
        self._counters.ask(self._connection, round_)

    def check_answered(self) -> None:
        """Note that an answer is late, if one is."""
        self._counters.check_answered()

    # Limits

    async def set_limits(self, drive: DriveId, limits: ThrottleLimits, timeout_s: float) -> None:
        """Put limits in force on one drive. Raises DriveGone, LimitsRejected or MonitorLost."""
        known = self._drives.get(drive.target)
        if known is None:
            raise DriveGone(str(drive), "is not there")
        if known.shares:
            raise LimitsRejected(str(drive), *shared(known))
        if self._connection is None:
            raise MonitorLost("closed", str(drive), "no connection", "see `journalctl -u iokeel`")
        abilities = self._abilities.throttle
        if limits.cost_read is not None:
            abilities = for_curve(drive, abilities)
        steps = setting(known, limits, abilities or STOCK), clearing(known, abilities or STOCK)
        deadline = time.monotonic() + timeout_s
        self._orders += 1
        try:
            for command, arguments in filter(None, steps):
                left_s = round(deadline - time.monotonic(), 1)
                await self._connection.execute(command, arguments, ANYTHING, left_s)
        except CommandFailed as error:
            if error.kind == "DeviceNotFound":
                self._wake.set()
                raise DriveGone(str(drive), error.description) from None
            raise LimitsRejected(
                str(drive), error.what, "the old limits still hold", said=error.description
            ) from None
        except MonitorLost:
            self._note_in_force(drive.target, None)
            self._wake.set()
            raise
        finally:
            self._orders += 1
            self._counters.forget_limits(drive)
        if (now := self._drives.get(drive.target)) is not None:
            self._drives[drive.target] = replace(now, own=None)
        self._note_in_force(drive.target, ThrottleLimits.of(limits._asdict()))

    def _note_in_force(self, target: str, limits: ThrottleLimits | None) -> None:
        if (drive := self._drives.get(target)) is not None:
            limits = drive.with_own(limits)
            self._drives[target] = replace(drive, in_force=limits)
        info = self._known.get(self._vm.name)
        if info is not None and target in info.drives and info.drives[target].in_force != limits:
            drives = {**info.drives, target: replace(info.drives[target], in_force=limits)}
            self._known[self._vm.name] = replace(info, drives=drives)

    # Block jobs

    async def jobs(self, timeout_s: float) -> list[BlockJob]:
        """Return the block jobs. Raises LimitsRejected or MonitorLost."""
        infos = await self._execute(QUERY_JOBS, {}, _JOBS, timeout_s)
        return jobs_of(infos)

    async def set_job_speed(self, job: str, bps: int, timeout_s: float) -> None:
        """Set the speed of a block job; 0 for none.

        Raises DriveGone, LimitsRejected or MonitorLost.
        """
        command, arguments = setting_speed(job, bps)
        await self._execute(command, arguments, ANYTHING, timeout_s)

    async def _execute(
        self, command: str, arguments: Mapping[str, object], decoder: Decoder[T], timeout_s: float
    ) -> T:
        where = f"VM {self._vm.name}"
        if self._connection is None:
            raise MonitorLost("closed", where, "no connection", "see `journalctl -u iokeel`")
        try:
            return await self._connection.execute(command, arguments, decoder, timeout_s)
        except CommandFailed as error:
            if error.kind in ("DeviceNotFound", "DeviceNotActive"):
                raise DriveGone(where, error.description) from None
            raise LimitsRejected(where, error.what, "", said=error.description) from None

    # The connection

    async def run(self, connecting: asyncio.Semaphore) -> None:
        """Connect, stay connected and follow the drives, until cancelled."""
        waits = delays()
        while True:
            try:
                await self._run(connecting)
            except Exception as error:  # or one VM would end the agent
                self._news.errors["internal"] += 1
                if repr(error) != self._told:
                    self._told = repr(error)
                    log.exception("VM %s: internal error, please report it", self._vm.name)
            await asyncio.sleep(next(waits))

    async def _run(self, connecting: asyncio.Semaphore) -> None:
        waits = delays()
        before = False
        while True:
            try:
                connection = await self._connect(connecting)
            except (MonitorLost, CommandFailed) as error:
                self._unreachable(error)
                await self._rest(_pause_s(error, waits))
                continue
            self._news.reconnects += before
            before = True
            try:
                await self._follow(connection)
            finally:
                self._connection = None
                connection.close()
            lost = connection.lost.result()
            self._is_wrong = lost.kind == "protocol"
            if not self._is_wrong:  # else it will be, once more
                waits = delays()
            if self._shut_down:
                log.info("VM %s: has shut down", self._vm.name)
            else:
                self._unreachable(lost)
            await self._rest(_pause_s(lost, waits))

    def find_anew(self) -> None:
        """Find the drives anew, or connect, at once."""
        self._wake.set()

    async def _rest(self, wait_s: float) -> None:
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._wake.wait()

    async def _connect(self, connecting: asyncio.Semaphore) -> Channel:
        connection: Channel
        if self._vm.shared:
            connection = Turns(self._vm.socket, self._event, self._budget, self._others)
        else:
            async with connecting:
                connection = await connect(self._vm.socket, self._event, self._budget)
        try:
            self._wake.clear()
            await self._discover(connection, anew=True)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self._recheck_later()
        self._counters.connected(self._abilities)
        self._shut_down = False
        if not self._is_wrong:
            self._told = ""
        self.may_run = True
        log.info("VM %s: connected, %d drives", self._vm.name, len(self._drives))
        return connection

    async def _follow(self, connection: Channel) -> None:
        """Find drives anew when woken, until the connection ends."""
        connection.lost.add_done_callback(lambda _: self._wake.set())
        while True:
            await self._wake.wait()
            least_s = max(_REFRESH_PAUSE_S, self._spelled_out * _PAUSE_S_A_CHARACTER)
            pause_s = self._looked_at + least_s - time.monotonic()
            if pause_s > 0:
                await asyncio.wait((connection.lost,), timeout=pause_s)
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
            self._looked_at = time.monotonic()
            self._recheck_later()

    def _event(self, name: str) -> None:
        # BLOCK_IO_ERROR comes with each request on a failing disk, and changes no drive.
        changes = name.startswith("BLOCK_") and name != "BLOCK_IO_ERROR"
        if changes or name in ("DEVICE_DELETED", "DEVICE_TRAY_MOVED"):
            self._wake.set()
        if name == JOB_EVENT:
            self._news.on_job(self._vm.name)
        self._shut_down = self._shut_down or name == "SHUTDOWN"

    def _unreachable(self, error: MonitorLost | CommandFailed) -> None:
        if not self._vm.by_rules or error.kind not in _ENDED:
            self._report(error)
        self._served_by.add(self._ran.get(self._vm.name, ENDED))
        self._served_by = {each for each in self._served_by if process(each.pid) == each}
        self.may_run = error.kind not in ("missing", "stale") or bool(self._served_by)
        if not self.may_run and self._vm.name in self._known:
            if self._vm.by_rules:
                log.info("VM %s: has ended", self._vm.name)
            del self._known[self._vm.name]
            self._drives = {}
            self._counters.follow({}, {}, {})
            self._news.on_change(self._vm.name)

    def _report(self, error: MonitorLost | CommandFailed) -> None:
        """Count an error, and log it unless the last one was the same."""
        self._news.errors[error.kind if isinstance(error, MonitorLost) else "refused"] += 1
        if str(error) != self._told and not (self._counters.hangs and error.kind == "timeout"):
            self._told = str(error)
            if self._lines.may("error"):
                log.error("VM %s: %s", self._vm.name, error)

    # Drives

    def _recheck_later(self) -> None:
        # Not all VMs in the same tick, although they were all found at once when the agent started.
        least_s = _LEAST_SHARED_S if self._vm.shared else _LEAST_RECHECK_S
        mean_s = min(RECHECK_S, max(least_s, len(self._known)))
        self._recheck_at = time.monotonic() + mean_s * random.uniform(0.5, 1.5)

    async def _discover(self, connection: Channel, *, anew: bool = False) -> None:
        """Ask QEMU for its drives and the limits in force. Raises MonitorLost, CommandFailed.

        anew: ask for its abilities, too.
        """
        try:
            with connection.together():
                async with asyncio.timeout(_DISCOVERY_S):
                    await self._find_drives(connection, anew=anew)
        except TimeoutError:
            what = f"it hasn't told all its drives in {_DISCOVERY_S:g} s"
            mend = "see whether QEMU is stopped or its storage hangs"
            raise MonitorLost("timeout", str(self._vm.socket), what, mend) from None

    async def _find_drives(self, connection: Channel, *, anew: bool) -> None:
        if anew or self._abilities.throttle is None:
            self._abilities = await query_abilities(connection)
            self._counters.learned(self._abilities)
        devices = await query_devices(connection) if self._abilities.guest_devices else []
        orders = -1
        while orders != self._orders:
            orders = self._orders
            blocks, drives, left_out = await query_drives(
                connection, guest_devices=self._abilities.guest_devices
            )
            self._spelled_out = spelled_out(blocks)
            unthrottled = left_out | unthrottled_of(devices, blocks)
            drives = {t: d for t, d in drives.items() if t not in unthrottled and self._is_disk(t)}
            name = self._vm.name
            of = {(d.qdev, d.device): DriveId(name, d.target) for d in drives.values()}
            groups = {d.throttle_group: DriveId(name, d.target) for d in drives.values()}
            self._counters.follow(
                {(b.qdev, b.device): of.get((b.qdev, b.device)) for b in blocks},
                {group: drive for group, drive in groups.items() if group is not None},
                {(b.qdev, b.device): b.inserted.node_name for b in blocks if b.inserted},
            )
            await self._add_patched(connection, drives)
        connection.charge(names=len(_named(drives) - _named(self._drives)))
        if connection.lost.done():
            raise connection.lost.result()
        self._check_alone(connection)
        self._drives, self._process = drives, connection.process
        self._has_booted = connection.has_booted
        if connection.process is not None:
            self._served_by.add(connection.process)
        self._empty, self._unthrottled = empty_of(blocks) - drives.keys(), unthrottled
        self._tell_hashed()
        self._publish()
        self._tell_below(self._known[self._vm.name].policy)

    def _is_disk(self, target: str) -> bool:
        return not self._vm.by_rules or not self._discovered.is_no_disk(self._vm, target)

    def _check_alone(self, connection: Channel) -> None:
        """Raise MonitorLost, and end the connection, if its QEMU is another VM's."""
        process = connection.process
        for name, info in self._known.items():
            if name != self._vm.name and process is not None and process == info.process:
                what = f"process {process.pid} is the QEMU of VM {name}"
                connection.close("busy", what, "give each [[vm]] a QEMU of its own")
                raise connection.lost.result()

    async def _add_patched(self, connection: Channel, drives: dict[str, QmpDrive]) -> None:
        """Add the patches' fields to limits, which query-block lacks.

        A QEMU that doesn't count doesn't tell them either: they are taken to be as they were last
        set, or stock QEMU's. Another QEMU, which may have come unseen, has stock QEMU's.
        """
        if self._abilities.counts:
            for group in await query_groups(connection, self._abilities):
                if (owner := self._counters.owner(group)) is not None:
                    drive = drives[owner.target]
                    limits = drive.with_own(from_group(group.limits))
                    drives[drive.target] = replace(drive, in_force=limits)
        elif (info := self._known.get(self._vm.name)) is not None and (
            connection is self._connection or connection.process == info.process
        ):
            for target, drive in drives.items():
                last = info.drives[target].in_force if target in info.drives else None
                if drive.throttle_group is None and drive.in_force is not None and last is not None:
                    limits = keep_patched(drive.in_force, last)
                    drives[target] = replace(drive, in_force=limits)

    def _tell_below(self, policy: ToldPolicy | None) -> None:
        """Tell of filters in backing files, whose limits the agent doesn't set."""
        below = {drive.target: drive.below for drive in self._drives.values() if drive.below}
        for target, groups in below.items():
            is_new = self._told_below.get(target) != groups
            held = policy is not None and policy.for_drive(target) is not None
            if is_new and held and self._lines.may("below"):
                log.warning(
                    "VM %s, drive %s: a snapshot is above its throttle filter, so the filter's"
                    " limits (%s) hold what is read from below; the agent's hold all",
                    *(self._vm.name, target, ", ".join(groups)),
                )
        self._told_below = below

    def _tell_hashed(self) -> None:
        """Tell of names that can't be shown."""
        named = any(map(is_hashed, self._drives))
        if named and not self._told_named:
            self._news.errors["protocol"] += 1
            log.error(
                "VM %s: a drive's name is too long or not ASCII, so it goes by unnamed-...; give it"
                " an id of its own",
                self._vm.name,
            )
        self._told_named = named

    def _publish(self) -> None:
        name = self._vm.name
        before = self._known.get(name)
        disks = [
            *(Disk(drive.target, drive.path) for drive in self._drives.values()),
            *(Disk(target, unthrottled=why) for target, why in self._unthrottled.items()),
        ]
        if self._vm.by_rules:
            told = self._discovered.policy(self._vm, disks, before)
        else:
            told = self._configured(self._vm.policy, disks)
            if self._vm.policy.mode == OBSERVE:
                told = told._replace(policy=None, would=told.policy)
        error = told.error or self._fault(told.policy)
        is_told = told.error is not None and self._vm.by_rules  # by who reads policies
        is_news = before is None or before.policy_error != error
        if error is not None and is_news and not is_told:
            self._news.errors["policy"] += 1
            if self._lines.may("policy"):
                log.error("%s", error)
        drives = {
            d.target: DriveInfo(
                d.target, d.path, d.in_force, self._abilities.throttle, d.beneath, d.group
            )
            for d in self._drives.values()
        }
        info = VmInfo(
            name,
            drives,
            told.policy,
            error,
            self._process,
            empty=self._empty,
            from_libvirt=False,
            by_rules=told.by_rules,
            would=told.would,
            booted=self._has_booted and self._abilities.guest_devices,
        )
        if info != before or told.by_rules != before.by_rules:
            self._known[name] = info
            self._news.on_change(name)

    def _configured(self, policy: DomainPolicy, disks: Sequence[Disk]) -> Told:
        """Return the policy of a [[vm]], and what is wrong with it."""
        where = f"VM {self._vm.name}"
        there = {*self._drives, *self._empty, *self._unthrottled}
        if missing := sorted(policy.drives.keys() - there):  # whatever else is wrong with it
            return Told(PolicyInPart(policy), TargetsMissing(where, missing, [*self._drives]), None)
        try:
            check_throttled(policy, disks, where)
        except PolicyError as error:
            return Told(policy, error, None)
        return Told(policy, None, None)

    def _fault(self, policy: ToldPolicy | None) -> IokeelError | None:
        """Return why a policy can't hold all drives as it says; None if it can."""
        where = f"VM {self._vm.name}"
        if not self._abilities.guest_devices and not self._abilities.counts:
            return IokeelError(where, *_COUNTS_NOTHING)
        for drive in self._drives.values():
            if drive.shares and policy is not None and policy.for_drive(drive.target) is not None:
                return PolicyError(f"{where}, drive {drive.target}", *shared(drive))
        return None


def _named(drives: Mapping[str, QmpDrive]) -> set[tuple[object, ...]]:
    """Return drives by what QEMU names of each: another name of a drive or a file is a new one."""
    return {(drive.target, drive.path, drive.beneath, drive.below) for drive in drives.values()}


def _pause_s(lost: MonitorLost | CommandFailed, waits: Iterator[float]) -> float:
    """Return how long to leave a QEMU alone after an error."""
    return Budget.PAUSE_S if lost.kind == "flood" else next(waits)


_COUNTS_NOTHING = (
    "this storage daemon counts nothing, so its drives have no rates and no bursts, and their"
    " limits fit the cost curve less closely than those of a guest's drives",
    "use one with the patches in qemu-patches",
)
