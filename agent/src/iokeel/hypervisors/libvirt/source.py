"""VMs that libvirt runs: discovery, events, counters, and limits through its own API."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Collection, Mapping, MutableMapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import libvirt

from iokeel.config.settings import Config
from iokeel.core.abilities import Abilities
from iokeel.core.counters import Counters, DriveId
from iokeel.core.limits import UNLIMITED, ThrottleLimits
from iokeel.core.policy import UNKNOWN, DomainPolicy, DrivePolicy, PolicyInPart, ToldPolicy
from iokeel.errors import ConnectionLost, DriveGone, IokeelError, PolicyError, TargetsMissing
from iokeel.host.process import guest
from iokeel.hypervisors.backoff import delays
from iokeel.hypervisors.libvirt.calls import Calls, NoAnswer
from iokeel.hypervisors.libvirt.domain import (
    Domain,
    describe,
    has_policy,
    has_volumes,
    own_group,
    put_limits,
    real_paths,
)
from iokeel.hypervisors.libvirt.events import Events
from iokeel.hypervisors.libvirt.fallback import Fallback, fallback_for
from iokeel.hypervisors.libvirt.passthrough import ask_abilities
from iokeel.hypervisors.libvirt.readings import Reading, counters_of, read_all
from iokeel.hypervisors.qmp.drives import QmpDrive
from iokeel.hypervisors.qmp.limits import from_group
from iokeel.hypervisors.qmp.throttle_groups import Group, keep_patched
from iokeel.hypervisors.source import DriveInfo, Reports, VmInfo
from iokeel.policy_xml.domain import DomainXml, parse_domain
from iokeel.policy_xml.iotune import from_libvirt
from iokeel.policy_xml.policy import check_targets, parse_policy

log = logging.getLogger(__name__)

# Some changes have no event (a disk's path after a block job, say). Look again this often.
RESYNC_S = 60.0
_AGAIN_S = 5.0
_CALL_TIMEOUT_S = 10.0
_UNREAD = b""
# Before the names of the limits in a TUNABLE event.
_TUNABLE = "blkdeviotune."


class LibvirtSource(Reports):
    """The VMs of one libvirt connection. Implements iokeel.hypervisors.source.Source."""

    def __init__(
        self,
        uri: str,
        classes: Mapping[str, DrivePolicy],
        policies: MutableMapping[str, DomainPolicy],
    ) -> None:
        """policies: the last good policy of each domain that runs or is defined, by its name."""
        super().__init__()
        self._policies = policies
        self._uri = uri
        self._is_local = not urlsplit(uri).netloc
        self._classes = classes
        self._domains: dict[str, Domain] = {}
        self._running: set[str] | None = None  # as libvirtd lists them; None before the first list
        self._stale: asyncio.Queue[str] = asyncio.Queue()
        self._calls = Calls(uri)
        self._events = Events(self._calls, self._stale.put_nowait, self._tuned)
        self._limits: dict[DriveId, bytes] = {}  # of the groups that there are, as they came last
        self._reached: dict[DriveId, QmpDrive] = {}  # as QMP reaches them; by set_limits
        self._fallbacks: dict[DriveId, Fallback] = {}  # as libvirt was told them
        self._find_again_at = 0.0  # by the monotonic clock
        self._asking: set[asyncio.Task[None]] = set()
        self._orders: Counter[str] = Counter()  # limits set or being set, by domain
        self._reading: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def run(self) -> None:
        """Connect, stay connected and follow the VMs, until cancelled."""
        waits = delays()
        told = ""
        while True:
            try:
                await self._events.connect(_CALL_TIMEOUT_S)
                # libvirtd may have started again, and counts domains anew.
                self._domains = {
                    name: domain if domain.info.process else replace(domain, abilities=None)
                    for name, domain in self._domains.items()
                }
                await self.resync()
            except IokeelError as error:
                self.errors["connect"] += 1
                if str(error) != told:
                    log.error("%s", error)
                    told = str(error)
                await asyncio.sleep(next(waits))
                continue
            log.info("connected to %s: %d running domains", self._uri, len(self._domains))
            waits, told = delays(), ""
            try:
                await self._follow()
            finally:
                for task in self._asking:
                    task.cancel()
                self._events.disconnect()
                self._calls.close()
            log.warning("lost the connection to %s; limits hold, connecting again", self._uri)
            self.reconnects += 1

    def leaves(self, config: Config) -> Collection[str]:
        """Return nothing: libvirt says which domains there are."""
        return ()

    def configure(self, config: Config) -> None:
        """Read all policies again, with the configuration's classes."""
        self._classes = config.classes
        for name in self._domains:
            self.announce(name)

    def announce(self, domain: str) -> None:
        """Read a domain again."""
        self._stale.put_nowait(domain)

    def vms(self) -> Mapping[str, VmInfo]:
        """Return the running domains by name, as last seen. Does no I/O."""
        return {name: domain.info for name, domain in self._domains.items()}

    def unread(self) -> Collection[str] | None:
        """Return the domains that run but haven't been read; None before libvirtd lists them."""
        return None if self._running is None else self._running - self._domains.keys()

    async def sample(
        self, domains: Collection[str] | None, timeout_s: float
    ) -> Mapping[DriveId, Counters]:
        """Read the counters of all domains' drives (None), or of some domains', in one call."""
        names = self._domains.keys() if domains is None else self._domains.keys() & set(domains)
        if not names or not self._events.connected:
            return {}
        groups = {
            name: d.xml for name, d in self._domains.items() if d.reads_groups and name in names
        }
        orders = dict(self._orders)
        try:
            readings = await self._calls.call(
                lambda connection: read_all(connection, None if domains is None else names, groups),
                timeout_s,
            )
        except IokeelError as error:
            self.errors["timeout" if isinstance(error, NoAnswer) else "sample"] += 1
            log.warning("%s", error)
            if isinstance(error, NoAnswer):
                self._find_silent()
            return {}
        self._hear_of(readings)
        found = {}
        for name, reading in readings.items():
            if reading.groups is not None and self._orders[name] == orders.get(name, 0):
                self._note_groups(name, reading.groups)
            for target, counters in counters_of(reading):
                found[DriveId(name, target)] = counters
        return found

    async def set_limits(self, drive: DriveId, limits: ThrottleLimits, timeout_s: float) -> None:
        """Put limits in force through blkdeviotune, or through the drive's own throttle group.

        Limits with a curve go to QEMU's monitor. libvirt's own limits are a fallback then.
        """
        domain = self._domains.get(drive.domain)
        disks = domain.xml.disks if domain else ()
        disk = next((d for d in disks if d.target == drive.target), None)
        if domain is None or disk is None:
            raise DriveGone(str(drive), "is no longer there")
        group = own_group(domain.xml, drive, disk)
        # If it is stale (another device has the target now), QEMU knows no such device and
        # refuses. The next try then looks for it again.
        reached = self._reached.pop(drive, None)
        before, fallback = self._fallbacks.pop(drive, None), None
        if limits.cost_read is not None:
            fallback = self._fallbacks[drive] = fallback_for(limits, before)
        new = None if fallback is None or fallback is before else fallback.limits

        def put(connection: Any) -> tuple[Abilities | None, QmpDrive | None]:
            handle = connection.lookupByName(drive.domain)
            # Not known of one that was too busy to answer, or if its policy went while no agent ran
            abilities = domain.abilities or _asked(handle)
            return abilities, put_limits(
                handle, drive, disk, group, limits, abilities, reached, new
            )

        self._orders[drive.domain] += 1
        try:
            abilities, reached = await self._calls.call_domain(
                drive.domain, put, timeout_s, str(drive)
            )
        except IokeelError:
            self._fallbacks.pop(drive, None)
            raise
        finally:
            self._orders[drive.domain] += 1
            if domain.abilities is not None and domain.abilities.counts:
                self._limits[drive] = _UNREAD
        if reached is not None:
            self._reached[drive] = reached
        self._note_in_force(drive, limits)
        if domain.abilities is None and abilities is not None:
            self._learn(domain, abilities)

    def _learn(self, domain: Domain, abilities: Abilities) -> None:
        """Note what a domain's QEMU has told, and read it again: the law may want other limits."""
        name = domain.xml.name
        now = self._domains.get(name)
        if now is not None and now.id == domain.id and now.info.process == domain.info.process:
            self._domains[name] = replace(now, abilities=abilities)
        self.announce(name)

    # Following changes

    def _hear_of(self, readings: Mapping[str, Reading]) -> None:
        """Read the domains again that didn't answer, and do now."""
        for name in self._calls.heard_of([n for n, r in readings.items() if not r.is_busy]):
            log.info("%s: answers again", name)
            self.announce(name)

    def _find_silent(self) -> None:
        """Ask each domain by itself, unless that was just done: a sample of all of them hung.

        A sample asks one QEMU after the other, waits for each, and leaves out those that another
        call waits for. So each of many that hang at once would cost a sample.
        """
        if time.monotonic() >= self._find_again_at:
            self._find_again_at = time.monotonic() + _CALL_TIMEOUT_S
            for name in self._domains:
                asking = asyncio.create_task(self._ask_one(name))
                self._asking.add(asking)
                asking.add_done_callback(self._asking.discard)

    async def _ask_one(self, name: str) -> None:
        """Ask a domain for its counters, and drop them."""
        with contextlib.suppress(IokeelError):
            await self._calls.call_domain(
                name, lambda connection: read_all(connection, [name], {}), _CALL_TIMEOUT_S
            )

    async def _follow(self) -> None:
        """Read domains again that have changed, and all every RESYNC_S, until libvirtd is lost."""
        lost = asyncio.ensure_future(self._events.lost())
        resync = asyncio.create_task(self._resync_forever())
        refreshes: set[asyncio.Task[None]] = set()
        try:
            while not lost.done():
                stale = asyncio.ensure_future(self._stale.get())
                await asyncio.wait({stale, lost}, return_when=asyncio.FIRST_COMPLETED)
                if stale.done():  # a domain that hangs must not delay the next
                    refresh = asyncio.create_task(self._refresh(stale.result()))
                    refreshes.add(refresh)
                    refresh.add_done_callback(refreshes.discard)
                stale.cancel()
        finally:
            for task in (lost, resync, *refreshes):
                task.cancel()

    async def _resync_forever(self) -> None:
        while True:
            await asyncio.sleep(RESYNC_S)
            try:
                await self.resync()
            except IokeelError as error:
                self.errors["refresh"] += 1
                log.warning("%s", error)

    async def resync(self) -> None:
        """Read all running domains again. Raises IokeelError if libvirtd doesn't list them."""
        running = await self._list(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)
        self._running = running
        for name in self._domains.keys() - running:
            self._forget(name)
        if self._policies.keys() - running:
            for name in self._policies.keys() - await self._list(0):  # neither runs nor is defined
                del self._policies[name]
        await asyncio.gather(*(self._refresh(name) for name in running))

    async def _list(self, flags: int) -> set[str]:
        """Return the names of the domains that flags ask for. Raises IokeelError."""
        return await self._calls.call(
            lambda connection: {domain.name() for domain in connection.listAllDomains(flags)},
            _CALL_TIMEOUT_S,
        )

    async def _refresh(self, name: str) -> None:
        """Read a domain again. One that can't be read now stays as it is.

        Of several readings each begins after the one before, so that the latest is what stays.
        """
        async with self._reading.setdefault(name, asyncio.Lock()):
            await self._read(name)

    async def _read(self, name: str) -> None:
        try:
            text, number, limits = await self._calls.call_domain(
                name, lambda connection: describe(connection, name), _CALL_TIMEOUT_S
            )
            process = await asyncio.to_thread(guest, name) if self._is_local else None
        except DriveGone:
            self._forget(name)
            return
        except IokeelError as error:
            self._failed(name, error)
            return
        xml = parse_domain(text)
        paths = await self._paths(xml)
        before = self._domains.get(name)
        policy, policy_error = self._policy(xml, text, before)
        if before is not None and (before.id != number or before.info.process != process):
            before = None  # another QEMU, with libvirt's own limits
        abilities = before.abilities if before is not None else None
        if abilities is None and has_policy(policy, xml.targets):
            try:
                abilities = await self._calls.call_domain(
                    name,
                    lambda connection: ask_abilities(connection.lookupByName(name)),
                    _CALL_TIMEOUT_S,
                )
            except IokeelError as error:  # they stay unknown until it is read again
                if self._failed(name, error):
                    return
        drives = {}
        for disk in xml.disks:
            target, drive = disk.target, DriveId(name, disk.target)
            in_force, known = limits.get(target), before and before.info.drives.get(target)
            if known and disk.throttle_groups and abilities and abilities.counts:
                in_force = known.in_force  # QEMU tells at each tick; libvirt tells of its own
            elif known and abilities is None and _has_curve(known.in_force):
                in_force = known.in_force  # libvirt tells of the fallback
            elif known:
                in_force = self._with_patched(drive, in_force)
            drives[target] = DriveInfo(target, paths[target], in_force, abilities)
            self._reached.pop(drive, None)
            if before is None:
                self._fallbacks.pop(drive, None)
            if drive in self._limits:
                self._limits[drive] = _UNREAD
        info = VmInfo(name, drives, policy, policy_error, process, xml.uuid)
        self._domains[name] = Domain(xml, info, number, abilities)
        if self._running is not None:
            self._running.add(name)
        if before is None or before.info != info:
            self.on_change(name)

    async def _paths(self, xml: DomainXml) -> dict[str, str | None]:
        """Return the paths of a domain's disks by target; as last known if a storage pool hangs."""
        if not has_volumes(xml):
            return {disk.target: disk.path for disk in xml.disks}
        try:  # apart from the domain's calls: its QEMU may answer while a pool hangs
            return await self._calls.call_domain(
                f"storage pools of {xml.name}",
                lambda connection: real_paths(connection, xml),
                _CALL_TIMEOUT_S,
            )
        except IokeelError as error:
            self.errors["refresh"] += 1
            log.warning("%s", error)
        before = self._domains.get(xml.name)
        known = before.info.drives if before is not None else {}
        return {
            disk.target: known[disk.target].path if disk.target in known else disk.path
            for disk in xml.disks
        }

    def _failed(self, name: str, error: IokeelError) -> bool:
        """Count and log a call that a reading failed with.

        Returns True if the connection broke, which says nothing about the domain: it is read again
        soon. After a call that hangs, it is read again once it is heard of (`_hear_of`), or with
        the next resync.
        """
        self.errors["refresh"] += 1
        log.warning("%s", error)
        broke = isinstance(error, ConnectionLost) and not isinstance(error, NoAnswer)
        if broke:
            asyncio.get_running_loop().call_later(_AGAIN_S, self.announce, name)
        return broke

    def _policy(
        self, xml: DomainXml, text: str, before: Domain | None
    ) -> tuple[ToldPolicy | None, IokeelError | None]:
        """Return a domain's policy, or its last good one, and what is wrong with the new one."""
        last = before.info if before else None
        where = f"domain {xml.name}"
        bad = None
        try:
            policy = parse_policy(text, self._classes, where)
        except PolicyError as error:
            bad = error
            self._complain(bad, last, "; the last good policy stays")
            policy = self._policies.get(xml.name)
            if policy is None:
                return UNKNOWN, bad
        if policy is None:
            self._policies.pop(xml.name, None)
            return None, None
        if self._policies.get(xml.name) != policy:
            self._policies[xml.name] = policy
        try:
            check_targets(policy, xml.targets, where)
        except TargetsMissing as missing:
            if bad is None:
                self._complain(missing, last, "; the other drives are served")
            return PolicyInPart(policy), bad or missing
        return policy, bad

    def _complain(self, error: PolicyError, last: VmInfo | None, more: str) -> None:
        """Count and log a fault of a policy, once and not at each reading."""
        if last is None or last.policy_error != error:
            self.errors["policy"] += 1
            log.error("%s%s", error, more)

    def _forget(self, name: str) -> None:
        if self._running is not None:
            self._running.discard(name)
        if self._domains.pop(name, None) is not None:
            self.on_change(name)

    # Limits in force

    def _tuned(self, name: str, values: Mapping[str, object]) -> None:
        """Take over a disk's limits from a TUNABLE event, whoever set them."""
        target = values.get(_TUNABLE + "disk")
        domain = self._domains.get(name)
        if domain is None or target is None:
            return
        limits = from_libvirt({k.removeprefix(_TUNABLE): v for k, v in values.items()})
        drive = DriveId(name, str(target))
        fallback = self._fallbacks.get(drive)
        if fallback is not None and fallback.limits == limits:
            return  # from set_limits
        self._fallbacks.pop(drive, None)
        known = domain.info.drives.get(drive.target)
        in_force = self._with_patched(drive, limits)
        if known is not None and known.in_force != in_force:
            self._reached.pop(drive, None)  # its group may be another one now
            self._note_in_force(drive, in_force)
            self.on_change(name)

    def _with_patched(self, drive: DriveId, limits: ThrottleLimits | None) -> ThrottleLimits | None:
        """Return limits read from libvirt, with the patches' fields as last known."""
        domain = self._domains.get(drive.domain)
        known = domain.info.drives.get(drive.target) if domain else None
        if limits is None or known is None or known.in_force is None:
            return limits
        return keep_patched(limits, known.in_force)

    def _note_groups(self, name: str, groups: Mapping[str, Group]) -> None:
        """Take over limits from QEMU itself, if they have changed."""
        for target, group in groups.items():
            drive, limits = DriveId(name, target), bytes(group.limits)
            if self._limits.get(drive) != limits:
                self._limits[drive] = limits
                self._note_in_force(drive, from_group(limits))
        for drive in [d for d in self._limits if d.domain == name and d.target not in groups]:
            del self._limits[drive]  # it has left its group, and so has no limits
            self._reached.pop(drive, None)
            self._note_in_force(drive, UNLIMITED)

    def _note_in_force(self, drive: DriveId, limits: ThrottleLimits | None) -> None:
        domain = self._domains.get(drive.domain)
        if domain is None or drive.target not in domain.info.drives:
            return
        known = domain.info.drives[drive.target]
        drives = {**domain.info.drives, drive.target: replace(known, in_force=limits)}
        self._domains[drive.domain] = replace(domain, info=replace(domain.info, drives=drives))


def _asked(handle: Any) -> Abilities | None:
    """Return the abilities of the QEMU that runs a domain; None if it doesn't tell now. Blocks."""
    try:
        return ask_abilities(handle)
    except libvirt.libvirtError as error:
        log.warning("%s: its QEMU doesn't tell its abilities: %s", handle.name(), error)
        return None


def _has_curve(limits: ThrottleLimits | None) -> bool:
    return limits is not None and limits.cost_read is not None
