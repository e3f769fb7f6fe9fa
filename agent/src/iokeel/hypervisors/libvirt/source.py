"""VMs that libvirt runs: discovery, events, counters, and limits through its own API.

Statistics of all domains come in one call, with NOWAIT: it passes over a domain whose job another
call holds, as one does that hangs because its QEMU doesn't answer. Throttle groups of those that
answered are read after that, where QEMU has cost curves and a policy limits a drive.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import libvirt

from iokeel.core.abilities import PATCHED, STOCK
from iokeel.core.counters import Counters, DriveId
from iokeel.core.limits import PATCHED_FIELDS, UNLIMITED, ThrottleLimits
from iokeel.core.policy import DomainPolicy, DrivePolicy
from iokeel.errors import DriveGone, IokeelError, PolicyError, TargetsMissing
from iokeel.host.process import guest
from iokeel.hypervisors.abilities import Abilities, abilities_of
from iokeel.hypervisors.backoff import delays
from iokeel.hypervisors.libvirt.calls import Calls, NoAnswer
from iokeel.hypervisors.libvirt.domain import (
    Domain,
    counters_of,
    describe,
    from_libvirt,
    limits_any,
    own_group,
    read_all,
    to_libvirt,
)
from iokeel.hypervisors.libvirt.passthrough import set_curve
from iokeel.hypervisors.qmp.throttle_groups import Group, group_limits
from iokeel.hypervisors.source import DriveInfo, VmInfo
from iokeel.policy_xml.domain import DomainXml, parse_domain
from iokeel.policy_xml.policy import check_targets, parse_policy

log = logging.getLogger(__name__)

# Some change without an event (a disk's source after a block job, say): look again this often.
RESYNC_S = 60.0
_CALL_TIMEOUT_S = 10.0
_UNREAD = b""
_KEEPALIVE_INTERVAL_S, _KEEPALIVE_COUNT = 5, 3


class LibvirtSource:
    """The VMs of one libvirt connection. Implements iokeel.hypervisors.source.Source."""

    def __init__(self, uri: str, classes: Mapping[str, DrivePolicy]) -> None:
        self.errors: Counter[str] = Counter()
        self.reconnects = 0
        self.on_change: Callable[[str], None] = lambda _: None
        self._uri = uri
        self._is_local = not urlsplit(uri).netloc
        self._classes = classes
        self._domains: dict[str, Domain] = {}
        self._events: Any = None
        self._lost = asyncio.Event()
        self._calls = Calls(uri)
        self._abilities: dict[tuple[str, int, int], asyncio.Future[Abilities]] = {}
        self._limits: dict[DriveId, bytes] = {}  # of the groups that there are, as they came last
        self._orders: Counter[str] = Counter()  # limits set or being set, by domain
        self._stale: asyncio.Queue[str] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        """Connect, keep connected and follow what VMs there are, until cancelled."""
        _start_event_loop()
        waits = delays()
        told = ""
        while True:
            try:
                await self._connect()
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
                self._disconnect()
            log.warning("lost the connection to %s; limits hold, connecting again", self._uri)
            self.reconnects += 1

    def announce(self, domain: str) -> None:
        """Read a domain again."""
        self._stale.put_nowait(domain)

    def vms(self) -> Mapping[str, VmInfo]:
        """Return the running domains by name, as last seen. Does no I/O."""
        return {name: domain.info for name, domain in self._domains.items()}

    async def sample(
        self, domains: Collection[str] | None, timeout_s: float
    ) -> Mapping[DriveId, Counters]:
        """Read all drives' counters in one call, or those of some domains."""
        names = self._domains.keys() if domains is None else self._domains.keys() & set(domains)
        if not names or self._events is None:
            return {}
        groups = {name: d.xml for name, d in self._domains.items() if d.groups and name in names}
        orders = dict(self._orders)
        try:
            readings = await self._calls.call(
                lambda connection: read_all(connection, None if domains is None else names, groups),
                timeout_s,
            )
        except IokeelError as error:
            self.errors["timeout" if isinstance(error, NoAnswer) else "sample"] += 1
            log.warning("%s", error)
            return {}
        found = {}
        for name, reading in readings.items():
            if reading.groups is not None and self._orders[name] == orders.get(name, 0):
                self._note_groups(name, reading.groups)
            for target, counters in counters_of(reading):
                found[DriveId(name, target)] = counters
        return found

    async def set_limits(self, drive: DriveId, limits: ThrottleLimits, timeout_s: float) -> None:
        """Put limits in force through blkdeviotune, or the drive's own throttle group.

        A curve goes to QEMU's monitor after them, since libvirt doesn't know it; libvirt's own
        view of the limits stays true.
        """
        domain = self._domains.get(drive.domain)
        disks = domain.xml.disks if domain else ()
        disk = next((d for d in disks if d.target == drive.target), None)
        if domain is None or disk is None:
            raise DriveGone(str(drive), "is no longer there")
        xml, exact = domain.xml, domain.info.drives[drive.target].abilities.cost_curve
        values = to_libvirt(limits)
        group = own_group(xml, drive) if disk.throttle_groups else None

        def put(connection: Any) -> None:
            handle = connection.lookupByName(drive.domain)
            if group is not None:
                handle.setThrottleGroup(group, values, libvirt.VIR_DOMAIN_AFFECT_LIVE)
            else:
                handle.setBlockIoTune(drive.target, values, libvirt.VIR_DOMAIN_AFFECT_LIVE)
            if exact:
                set_curve(handle, xml, drive, limits)

        self._orders[drive.domain] += 1
        try:
            await self._calls.call(put, timeout_s, str(drive))
        finally:
            self._orders[drive.domain] += 1
            if exact:
                self._limits[drive] = _UNREAD
        self._note_in_force(drive, limits)

    # Connection and events

    async def _connect(self) -> None:
        self._lost.clear()
        self._events = await self._calls.call(lambda _: self._subscribe(), _CALL_TIMEOUT_S)
        await self._resync()

    def _subscribe(self) -> Any:
        """Return a new connection that posts events, and nothing else."""
        connection = self._calls.open()
        connection.setKeepAlive(_KEEPALIVE_INTERVAL_S, _KEEPALIVE_COUNT)

        def post(what: Callable[..., None], *args: object) -> None:
            self._loop.call_soon_threadsafe(what, *args)

        def changed(_connection: Any, domain: Any, *_details: Any) -> None:
            post(self._stale.put_nowait, domain.name())

        def tuned(_connection: Any, domain: Any, values: Mapping[str, Any], _opaque: Any) -> None:
            post(self._tuned, domain.name(), dict(values))

        connection.registerCloseCallback(lambda *_: post(self._lost.set), None)
        for event in (
            libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE,
            libvirt.VIR_DOMAIN_EVENT_ID_METADATA_CHANGE,
            libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_ADDED,
            libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED,
            libvirt.VIR_DOMAIN_EVENT_ID_BLOCK_JOB_2,
        ):
            connection.domainEventRegisterAny(None, event, changed, None)
        connection.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_TUNABLE, tuned, None)
        return connection

    async def _follow(self) -> None:
        """Refresh what events name, and everything once in a while, until the connection ends."""
        lost = asyncio.ensure_future(self._lost.wait())
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
                await self._resync()
            except IokeelError as error:
                self.errors["refresh"] += 1
                log.warning("%s", error)

    def _disconnect(self) -> None:
        events, self._events = self._events, None
        self._calls.close()
        # Closing may take as long as a keepalive.
        threading.Thread(target=_close, args=(events,), daemon=True).start()

    # Domains

    async def _resync(self) -> None:
        flags = libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE
        running = await self._calls.call(
            lambda connection: {domain.name() for domain in connection.listAllDomains(flags)},
            _CALL_TIMEOUT_S,
        )
        for name in self._domains.keys() - running:
            self._forget(name)
        await asyncio.gather(*(self._refresh(name) for name in running))

    async def _refresh(self, name: str) -> None:
        """Read a domain anew. One that can't be read now stays as it is."""
        try:
            text, tunes, paths = await self._calls.call(
                lambda connection: describe(connection, name), _CALL_TIMEOUT_S, name
            )
            process = await asyncio.to_thread(guest, name) if self._is_local else None
        except DriveGone:
            self._forget(name)
            return
        except IokeelError as error:
            self.errors["refresh"] += 1
            log.warning("%s", error)
            return
        xml = parse_domain(text)
        exact = xml.emulator is not None and await self._is_exact(xml.emulator)
        abilities = PATCHED if exact else STOCK
        before = self._domains.get(name)
        policy, bad_policy = self._policy(xml, text, before)
        drives = {}
        for disk in xml.disks:
            drive = DriveId(name, disk.target)
            in_force = self._with_patched(drive, tunes.get(disk.target))
            drives[disk.target] = DriveInfo(disk.target, paths[disk.target], in_force, abilities)
            if drive in self._limits:
                self._limits[drive] = _UNREAD
        info = VmInfo(name, drives, policy, bad_policy, process)
        self._domains[name] = Domain(xml, info, exact and limits_any(info))
        if before is None or before.info != info:
            self.on_change(name)

    async def _is_exact(self, emulator: str) -> bool:
        """Whether a QEMU binary has all that it takes; asked once for each version of it."""
        try:
            status = os.stat(emulator)
        except OSError:
            return False
        key = (emulator, status.st_mtime_ns, status.st_size)
        if key not in self._abilities:
            self._abilities[key] = asyncio.ensure_future(abilities_of(emulator))
        abilities = await self._abilities[key]
        return abilities.cost_curve and abilities.group_statistics

    def _policy(
        self, xml: DomainXml, text: str, before: Domain | None
    ) -> tuple[DomainPolicy | None, IokeelError | None]:
        """Return a domain's policy, or its last good one with what is wrong with the new one."""
        last = before.info if before else None
        try:
            policy = parse_policy(text, self._classes, f"domain {xml.name}")
        except PolicyError as bad:
            self._complain(bad, last, "; the last good policy stays")
            return (last.policy if last else None), bad
        try:
            if policy is not None:
                check_targets(policy, xml.targets, f"domain {xml.name}")
        except TargetsMissing as missing:
            self._complain(missing, last, "; the other drives are served")
            return policy, missing
        return policy, None

    def _complain(self, error: PolicyError, last: VmInfo | None, more: str = "") -> None:
        """Count and log what is wrong with a policy, once and not at each reading."""
        if last is None or str(last.policy_error) != str(error):
            self.errors["policy"] += 1
            log.error("%s%s", error, more)

    def _forget(self, name: str) -> None:
        if self._domains.pop(name, None) is not None:
            self.on_change(name)

    def _tuned(self, name: str, values: Mapping[str, Any]) -> None:
        """Take over what a TUNABLE event says of a disk's limits, ours or somebody else's."""
        target = values.get("blkdeviotune.disk")
        domain = self._domains.get(name)
        if domain is None or target is None:
            return
        limits = from_libvirt({k.removeprefix("blkdeviotune."): v for k, v in values.items()})
        drive = domain.info.drives.get(str(target))
        in_force = self._with_patched(DriveId(name, str(target)), limits)
        if drive is not None and drive.in_force != in_force:
            self._note_in_force(DriveId(name, str(target)), in_force)
            self.on_change(name)

    def _with_patched(self, drive: DriveId, limits: ThrottleLimits | None) -> ThrottleLimits | None:
        """Return limits as libvirt tells them, and what it doesn't tell of them as last seen."""
        domain = self._domains.get(drive.domain)
        known = domain.info.drives.get(drive.target) if domain else None
        if limits is None or known is None or known.in_force is None:
            return limits
        seen = known.in_force
        return limits._replace(**{name: getattr(seen, name) for name in PATCHED_FIELDS})

    def _note_groups(self, name: str, groups: Mapping[str, Group]) -> None:
        """Take over what QEMU itself says of limits, where that has changed."""
        for target, group in groups.items():
            drive, limits = DriveId(name, target), bytes(group.limits)
            if self._limits.get(drive) != limits:
                self._limits[drive] = limits
                self._note_in_force(drive, group_limits(limits))
        for drive in [d for d in self._limits if d.domain == name and d.target not in groups]:
            del self._limits[drive]  # it has left its group, and so has no limits
            self._note_in_force(drive, UNLIMITED)

    def _note_in_force(self, drive: DriveId, limits: ThrottleLimits | None) -> None:
        domain = self._domains.get(drive.domain)
        if domain is None or drive.target not in domain.info.drives:
            return
        known = domain.info.drives[drive.target]
        drives = {**domain.info.drives, drive.target: replace(known, in_force=limits)}
        self._domains[drive.domain] = replace(domain, info=replace(domain.info, drives=drives))


def _close(connection: Any) -> None:
    try:
        connection.close()
    except libvirt.libvirtError as error:
        log.debug("closing a lost connection: %s", error)


_event_loop_started = threading.Event()


def _start_event_loop() -> None:
    """Run libvirt's own event loop in a thread, once in a process."""
    if _event_loop_started.is_set():
        return
    _event_loop_started.set()
    libvirt.registerErrorHandler(lambda *_: None, None)
    libvirt.virEventRegisterDefaultImpl()

    def run() -> None:
        while True:
            libvirt.virEventRunDefaultImpl()

    threading.Thread(target=run, name="libvirt-events", daemon=True).start()
