"""VMs that libvirt runs: discovery, events, counters, and limits through its own API.

Statistics of all domains come in one call, with NOWAIT: it passes over a domain whose job another
call holds, as one does that hangs because its QEMU doesn't answer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import libvirt
import libvirt_qemu

from iokeel.backoff import delays
from iokeel.curve import CostModel
from iokeel.emulator import has_cost_curve
from iokeel.errors import DriveGone, IokeelError, LimitsRejected, PolicyError
from iokeel.libvirt_calls import Calls, NoAnswer
from iokeel.limits import FIELDS, ThrottleLimits
from iokeel.metadata import DomainXml, missing_targets, parse_domain, parse_policy, pool_type
from iokeel.policy import DomainPolicy, DrivePolicy
from iokeel.process import guest
from iokeel.qmp_drives import QmpDrive, setting
from iokeel.source import DriveInfo, VmInfo
from iokeel.workload import Counters, DriveId

log = logging.getLogger(__name__)

# Some change without an event (a disk's source after a block job, say): look again this often.
RESYNC_S = 60.0
_CALL_TIMEOUT_S = 10.0
_KEEPALIVE_INTERVAL_S, _KEEPALIVE_COUNT = 5, 3
_VOLUME = "volume://"
_STATS_FLAGS = (
    libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_RUNNING
    | libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_PAUSED
    | libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT
)


def _libvirt_name(field: str) -> str:
    """Return libvirt's name of a ThrottleLimits field: bps_read_max is read_bytes_sec_max."""
    if field == "iops_size":
        return "size_iops_sec"
    unit, direction, *rest = field.split("_")
    kind = "bytes" if unit == "bps" else "iops"
    return "_".join([direction, kind, "sec", *rest])


_NAMES = {_libvirt_name(field): field for field in FIELDS}


@dataclass(frozen=True, slots=True)
class _Domain:
    xml: DomainXml
    info: VmInfo


class LibvirtSource:
    """The VMs of one libvirt connection. Implements iokeel.source.Source."""

    def __init__(self, uri: str, classes: Mapping[str, DrivePolicy]) -> None:
        self.errors: Counter[str] = Counter()
        self.reconnects = 0
        self.on_change: Callable[[str], None] = lambda _: None
        self._uri = uri
        self._is_local = not urlsplit(uri).netloc
        self._classes = classes
        self._domains: dict[str, _Domain] = {}
        self._events: Any = None
        self._lost = asyncio.Event()
        self._calls = Calls(uri)
        self._curves: dict[tuple[str, int, int], asyncio.Future[bool]] = {}
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
        try:
            at_ns, statistics = await self._calls.call(
                lambda connection: _read(connection, None if domains is None else names), timeout_s
            )
        except IokeelError as error:
            self.errors["timeout" if isinstance(error, NoAnswer) else "sample"] += 1
            log.warning("%s", error)
            return {}
        return {
            DriveId(name, target): counters
            for name, values in statistics
            for target, counters in _counters(values, at_ns)
        }

    async def set_limits(
        self,
        drive: DriveId,
        limits: ThrottleLimits,
        timeout_s: float,
        curve: CostModel | None = None,
    ) -> None:
        """Put limits in force through blkdeviotune, or the drive's own throttle group.

        A curve goes to QEMU's monitor after them, since libvirt doesn't know it; libvirt's own
        view of the limits stays true.
        """
        domain = self._domains.get(drive.domain)
        disks = domain.xml.disks if domain else ()
        disk = next((d for d in disks if d.target == drive.target), None)
        if domain is None or disk is None:
            raise DriveGone(str(drive), "is no longer there")
        values = _to_libvirt(limits)
        group = _own_group(domain.xml, drive) if disk.throttle_groups else None

        def put(connection: Any) -> None:
            handle = connection.lookupByName(drive.domain)
            if group is not None:
                handle.setThrottleGroup(group, values, libvirt.VIR_DOMAIN_AFFECT_LIVE)
            else:
                handle.setBlockIoTune(drive.target, values, libvirt.VIR_DOMAIN_AFFECT_LIVE)
            if curve is not None:
                _set_curve(handle, drive, limits, curve, group)

        await self._calls.call(put, timeout_s, str(drive))
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
                lambda connection: _describe(connection, name), _CALL_TIMEOUT_S, name
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
        before = self._domains.get(name)
        policy, bad_policy = self._policy(xml, text, before)
        drives = {
            disk.target: DriveInfo(disk.target, paths[disk.target], tunes.get(disk.target), exact)
            for disk in xml.disks
        }
        info = VmInfo(name, drives, policy, bad_policy, process)
        self._domains[name] = _Domain(xml, info)
        if before is None or before.info != info:
            self.on_change(name)

    async def _is_exact(self, emulator: str) -> bool:
        """Whether a QEMU binary has cost curves; asked once for each version of it."""
        try:
            status = os.stat(emulator)
        except OSError:
            return False
        key = (emulator, status.st_mtime_ns, status.st_size)
        if key not in self._curves:
            self._curves[key] = asyncio.ensure_future(has_cost_curve(emulator))
        return await self._curves[key]

    def _policy(
        self, xml: DomainXml, text: str, before: _Domain | None
    ) -> tuple[DomainPolicy | None, IokeelError | None]:
        """Return a domain's policy, or its last good one with what is wrong with the new one."""
        last = before.info if before else None
        try:
            policy = parse_policy(text, self._classes, f"domain {xml.name}")
        except PolicyError as bad:
            self._complain(bad, last, "; the last good policy stays")
            return (last.policy if last else None), bad
        missing = missing_targets(policy, [disk.target for disk in xml.disks]) if policy else ()
        if not missing:
            return policy, None
        lacking = PolicyError(
            f"domain {xml.name}",
            f"the policy names {', '.join(missing)}, which the domain has not",
            "correct the target or plug the drive in; the other drives are served",
        )
        self._complain(lacking, last)
        return policy, lacking

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
        limits = _from_libvirt({k.removeprefix("blkdeviotune."): v for k, v in values.items()})
        drive = domain.info.drives.get(str(target))
        if drive is not None and drive.in_force != limits:
            self._note_in_force(DriveId(name, str(target)), limits)
            self.on_change(name)

    def _note_in_force(self, drive: DriveId, limits: ThrottleLimits) -> None:
        domain = self._domains.get(drive.domain)
        if domain is None or drive.target not in domain.info.drives:
            return
        known = domain.info.drives[drive.target]
        drives = {**domain.info.drives, drive.target: replace(known, in_force=limits)}
        self._domains[drive.domain] = replace(domain, info=replace(domain.info, drives=drives))


def _read(
    connection: Any, names: Collection[str] | None
) -> tuple[int, list[tuple[str, Mapping[str, Any]]]]:
    """Return when, and the block statistics of all running domains or of some, by name."""
    kind = libvirt.VIR_DOMAIN_STATS_BLOCK
    if names is None:
        found = connection.getAllDomainStats(kind, _STATS_FLAGS)
    else:
        handles = [connection.lookupByName(name) for name in names]
        found = connection.domainListGetStats(handles, kind, _STATS_FLAGS)
    return time.monotonic_ns(), [(handle.name(), values) for handle, values in found]


def _describe(
    connection: Any, name: str
) -> tuple[str, dict[str, ThrottleLimits], dict[str, str | None]]:
    """Return a running domain's XML, and the limits and the paths of its disks by target."""
    handle = connection.lookupByName(name)
    if not handle.isActive():
        raise DriveGone(name, "does not run")
    text = handle.XMLDesc(0)
    xml = parse_domain(text)
    live = libvirt.VIR_DOMAIN_AFFECT_LIVE
    tunes = {
        disk.target: xml.throttle_groups[disk.throttle_groups[0]]
        if disk.throttle_groups
        else _from_libvirt(handle.blockIoTune(disk.target, live))
        for disk in xml.disks
    }
    return text, tunes, {disk.target: _path(connection, disk.source) for disk in xml.disks}


def _path(connection: Any, source: str | None) -> str | None:
    """Return a disk's path or URL; of a storage pool's volume, that of what it is."""
    if source is None or not source.startswith(_VOLUME):
        return source
    pool_name, _, volume = source.removeprefix(_VOLUME).partition("/")
    try:
        pool = connection.storagePoolLookupByName(pool_name)
        path = str(pool.storageVolLookupByName(volume).path())
        if path.startswith("/"):
            return path
        kind = pool_type(pool.XMLDesc(0))
    except (libvirt.libvirtError, PolicyError) as error:
        log.debug("%s: %s", source, error)  # the pool was stopped or is no longer there
        return source
    return f"rbd:{path}" if kind == "rbd" else source


def _counters(values: Mapping[str, Any], at_ns: int) -> list[tuple[str, Counters]]:
    """Return the counters of each of a domain's disks by target."""
    found = []
    for i in range(values.get("block.count", 0)):
        at = f"block.{i}."
        if at + "rd.reqs" not in values:  # a domain that was busy shows no counters
            continue
        found.append(
            (
                values[at + "name"],
                Counters(
                    at_ns,
                    values[at + "rd.reqs"],
                    values[at + "rd.bytes"],
                    values[at + "wr.reqs"],
                    values[at + "wr.bytes"],
                    values.get(at + "rd.times", 0),
                    values.get(at + "wr.times", 0),
                ),
            )
        )
    return found


def _set_curve(
    handle: Any, drive: DriveId, limits: ThrottleLimits, curve: CostModel, group: str | None
) -> None:
    """Set a drive's curve with its limits, in one command of QEMU's own."""
    tune = handle.blockIoTune(drive.target, libvirt.VIR_DOMAIN_AFFECT_LIVE) if not group else {}
    throttled = QmpDrive(
        target=drive.target,
        qdev=tune.get("group_name", ""),  # libvirt's default is the device's QOM path
        device="",
        path=None,
        throttle_group=f"throttle-{group}" if group else None,
        shares=(),
        in_force=limits,
    )
    name, arguments = setting(throttled, limits, curve)
    command = json.dumps({"execute": name, "arguments": arguments})
    answer = json.loads(libvirt_qemu.qemuMonitorCommand(handle, command, 0))
    if "error" in answer:
        raise LimitsRejected(
            str(drive), f"QEMU took no cost curve: {answer['error']['desc']}", "trying again later"
        )


def _own_group(xml: DomainXml, drive: DriveId) -> str:
    """Return the throttle group that throttles this drive and no other."""
    for disk in xml.disks:
        if disk.target == drive.target:
            groups = disk.throttle_groups
    others = {g for d in xml.disks if d.target != drive.target for g in d.throttle_groups}
    for group in groups:
        if group not in others:
            return group
    raise LimitsRejected(
        str(drive),
        f"its throttle groups ({', '.join(groups)}) throttle other drives too",
        "give it a throttlefilter with a group of its own",
    )


def _to_libvirt(limits: ThrottleLimits) -> dict[str, int]:
    """Return every value, 0 for none: libvirt keeps what it is not given."""
    return {name: getattr(limits, field) or 0 for name, field in _NAMES.items()}


def _from_libvirt(values: Mapping[str, Any]) -> ThrottleLimits:
    return ThrottleLimits.of({_NAMES[k]: int(v) for k, v in values.items() if k in _NAMES})


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
