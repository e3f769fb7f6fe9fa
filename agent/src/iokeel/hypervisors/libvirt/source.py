"""VMs that libvirt runs: discovery, changes and counters."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection, Coroutine, Mapping, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import libvirt

from iokeel.config.settings import Config
from iokeel.core.enforce.jobs import BlockJob
from iokeel.core.values.counters import Counters, DriveId
from iokeel.core.values.limits import Abilities, ThrottleLimits
from iokeel.core.values.policy import DrivePolicy, LastGood
from iokeel.errors import ConnectionLost, DriveGone, IokeelError
from iokeel.host.process import Process, guest, has_booted, process
from iokeel.hypervisors.libvirt.calls import Calls, NoAnswer
from iokeel.hypervisors.libvirt.changes import Changes, Uncounted
from iokeel.hypervisors.libvirt.domain import (
    Description,
    Domain,
    describe,
    has_policy,
    is_volume,
    volume_paths,
)
from iokeel.hypervisors.libvirt.events import Events
from iokeel.hypervisors.libvirt.jobs import put_speed, read_jobs
from iokeel.hypervisors.libvirt.limits import LimitsInForce, SetPast
from iokeel.hypervisors.libvirt.passthrough import (
    QueryRefused,
    ask_abilities,
    query_blocks,
    read_limits,
)
from iokeel.hypervisors.libvirt.readings import (
    HiddenCounters,
    Reading,
    counters_of,
    hidden_of,
    read_all,
    sizes_of,
)
from iokeel.hypervisors.libvirt.record import free, held, set_by_platform
from iokeel.hypervisors.pace import delays
from iokeel.hypervisors.policies import Policies
from iokeel.hypervisors.qemu.bounds import Budget
from iokeel.hypervisors.rests import Rests
from iokeel.hypervisors.source import DriveInfo, SourceNews, VmInfo
from iokeel.libvirt_xml.ceiling import Ceiling
from iokeel.libvirt_xml.domain import Disk, DomainXml
from iokeel.rules.facts_folder import FactsFolder
from iokeel.rules.platform import KEY
from iokeel.rules.platform import NAMESPACE as FOUND
from iokeel.rules.rule import Rules
from iokeel.words.log_lines import Sparing

log = logging.getLogger(__name__)

# Some changes have no event (a disk's path after a block job, say). Look again this often.
RESYNC_S = 60.0
# After a reading that the connection broke in, unless libvirtd is reached anew before.
_READ_AGAIN_S = 5.0
# Longer than an order's time (enforcer.py), because nothing waits for a reading but the next one.
_CALL_TIMEOUT_S = 10.0
_MANY_NAMES = Sparing(1, 3600.0)
# The time for counters that libvirt lacks, however late libvirt's own came.
_LEAST_S = 0.1


class LibvirtSource(SourceNews):
    """The VMs of one libvirt connection. Implements iokeel.hypervisors.source.Source."""

    def __init__(
        self,
        uri: str,
        classes: Mapping[str, DrivePolicy],
        policies: MutableMapping[str, LastGood],
        ceilings: Sequence[Ceiling] = (),
        rules: Rules | None = None,
        facts_dir: Path | None = None,
        *,
        passes_on: bool = True,
    ) -> None:
        """policies: the last good policy of each domain that runs or is defined, by its UUID.

        passes_on: whether commands may be sent past libvirt.
        """
        super().__init__()
        self._uri = uri
        self._domains: dict[str, Domain] = {}
        self._running: set[str] | None = None  # as libvirtd lists them; None before the first list
        self._saving: set[str] = set()
        self._changes = Changes(self._read)
        self._calls = Calls(uri, passes_on=passes_on)
        self._policies = Policies(classes, policies, self)
        follows = self._policies.follows_platform
        self._limits = LimitsInForce(self._domains, self._calls, self, self.announce, follows)
        self._budgets: dict[str, Budget] = {}  # of new hidden drives
        self._unwritten: set[str] = set()  # domains whose record can't be written so far
        self._policies.ceilings = ceilings
        if rules is not None:
            self._policies.rules = rules
        self._policies.files = None if facts_dir is None else FactsFolder(facts_dir)
        self._hidden = HiddenCounters(self._domains, self._calls)
        self._set_past = SetPast(self._domains, self._calls, self._limits, self.announce)
        self._events = Events(
            self._calls, self.announce, self._limits.tuned, lambda name: self.on_job(name)
        )
        self._uncounted = Uncounted()
        self._rests = Rests()
        self._find_again_at = 0.0  # by the monotonic clock
        self._asking: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Connect, stay connected and follow the VMs, until cancelled."""
        waits = delays()
        told = ""
        while True:
            try:
                await self._events.connect(_CALL_TIMEOUT_S)
                # libvirtd may have started again, and counts domains anew.
                self._domains |= {
                    name: domain if domain.info.process else replace(domain, abilities=None)
                    for name, domain in self._domains.items()
                }
                running = await self._find_running()
            except IokeelError as error:
                self._events.disconnect()
                self.errors["connect"] += 1
                if str(error) != told:
                    log.error("%s", error)
                    told = str(error)
                await asyncio.sleep(next(waits))
                continue
            log.info("connected to %s: %d running domains", self._uri, len(running))
            waits, told = delays(), ""
            for name in running:  # beside the events: one that hangs must not hold them up
                self.announce(name)
            try:
                await self._follow()
            finally:
                for task in self._asking:
                    task.cancel()
                self._events.disconnect()
                self._calls.close()
            log.warning("lost the connection to %s; limits hold, connecting again", self._uri)
            self.reconnects += 1

    def configure(self, config: Config) -> None:
        """Read all policies again, with the configuration's classes, ceilings and rules."""
        self._policies.classes, self._policies.ceilings = config.classes, config.ceilings
        self._policies.rules = config.rules
        files = self._policies.files
        if files is None or files.folder != config.facts_dir:
            self._policies.files = FactsFolder(config.facts_dir)
        for name in self._domains:
            self.announce(name)

    def announce(self, domain: str) -> None:
        """Read a domain again soon."""
        self._changes.add(domain)

    def vms(self) -> Mapping[str, VmInfo]:
        """Return the running domains by name, as last seen. Does no I/O."""
        return {name: domain.info for name, domain in self._domains.items()}

    def unread(self) -> Collection[str] | None:
        """Return the domains that run but haven't been read; None before libvirtd lists them."""
        return None if self._running is None else self._running - self._domains.keys()

    def resting(self) -> Collection[str]:
        """Return the VMs that have done nothing since their last reading. Does no I/O."""
        return self._rests.names

    def saving(self) -> Collection[str]:
        """Return the domains that are paused while their memory is written, or read. No I/O.

        One that a sample leaves out stays what it was: nobody but libvirtd has it run on.
        """
        return self._saving

    async def sample(
        self, domains: Collection[str] | None, timeout_s: float
    ) -> Mapping[DriveId, Counters]:
        """Read the counters of all domains' drives (None), or of some domains', in one call.

        All are those that run, also if none has been read yet: a silent one is heard of by this.
        But those at rest aren't asked for.
        """
        running = self._running or set()
        names = running if domains is None else self._domains.keys() & {*domains}
        if not names or not self._events.connected:
            return {}
        found: dict[DriveId, Counters] = {}
        asked: Collection[str] | None = names
        if domains is None:
            names = self._awake(running, found)
            asked = names if found else None
        else:
            self._rests.forget(names)
        if not names:
            return found
        groups = {name: d for name, d in self._domains.items() if d.reads_groups and name in names}
        orders, began_s = self._limits.orders(), time.monotonic()
        try:
            readings = await self._calls.call(
                lambda connection: read_all(connection, asked, groups), timeout_s
            )
        except IokeelError as error:
            self.errors["timeout" if isinstance(error, NoAnswer) else "sample"] += 1
            log.warning("%s", error)
            if isinstance(error, NoAnswer):
                self._find_silent()
            return found
        self._hear_of(readings)
        if domains is None:
            self._beside(self._set_past.next([n for n, r in readings.items() if not r.is_busy]))
            busy = [
                name
                for name, reading in readings.items()
                if reading.is_busy
                and (domain := self._domains.get(name)) is not None
                and domain.has_policy
                and len(domain.xml.hidden) < len(domain.xml.disks)  # or it always seems busy
                and not self._calls.is_silent(name)
            ]
            self.errors["sample"] += self._uncounted.note(busy, time.monotonic())
        read: dict[DriveId, Counters] = {}
        for name, reading in readings.items():
            (self._saving.add if reading.is_saving else self._saving.discard)(name)
            if reading.groups is not None:
                self._limits.note_groups(name, reading.groups, orders)
            for target, counters in counters_of(reading):
                read[DriveId(name, target)] = counters
        left_s = max(_LEAST_S, timeout_s - (time.monotonic() - began_s))
        read |= await self._hidden.read(readings, left_s)
        if domains is None:
            self._rests.came(self.vms(), read)
        return found | read

    def _awake(self, names: Collection[str], found: dict[DriveId, Counters]) -> set[str]:
        """Return the domains to read, and put the counters of the others into `found`."""
        at_ns = time.monotonic_ns()
        return {
            name
            for name in names
            if (domain := self._domains.get(name)) is None
            or not self._rests.take(domain.info, at_ns, found)
        }

    async def set_limits(self, drive: DriveId, limits: ThrottleLimits, timeout_s: float) -> None:
        """Put limits in force: see LimitsInForce."""
        await self._limits.set_limits(drive, limits, timeout_s)
        if drive.domain not in self._unwritten and self._policies.changes_record(drive, limits):
            self.announce(drive.domain)

    async def jobs(self, domain: str, timeout_s: float) -> list[BlockJob]:
        """Return a domain's block jobs: see read_jobs."""
        if (known := self._domains.get(domain)) is None:
            raise DriveGone(domain, "is not there")
        return await self._calls.call_domain(
            domain,
            lambda connection: read_jobs(connection.lookupByName(domain), known.xml),
            timeout_s,
        )

    async def set_job_speed(self, domain: str, job: str, bps: int, timeout_s: float) -> None:
        """Set the speed of a domain's block job: see put_speed."""
        await self._calls.call_domain(
            domain,
            lambda connection: put_speed(connection.lookupByName(domain), job, bps),
            timeout_s,
        )

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
            for name in self._running or ():
                self._beside(self._ask_one(name))

    def _beside(self, asks: Coroutine[Any, Any, None] | None) -> None:
        """Let a question to a domain, if there is one, hold up nothing else."""
        if asks is not None:
            asking = asyncio.create_task(asks)
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)

    async def _ask_one(self, name: str) -> None:
        """Ask a domain for its counters, and drop them."""
        with contextlib.suppress(IokeelError):
            await self._calls.call_domain(
                name,
                lambda connection: read_all(connection, [name], {}),
                _CALL_TIMEOUT_S,
                reading=True,
            )

    async def _follow(self) -> None:
        """Read domains again that have changed, and all every RESYNC_S, until libvirtd is lost."""
        lost = asyncio.ensure_future(self._events.lost())
        resync = asyncio.create_task(self._resync_forever())
        changes = asyncio.create_task(self._changes.follow())
        try:
            await lost
        finally:
            for task in (lost, resync, changes):
                task.cancel()

    async def _resync_forever(self) -> None:
        while True:
            await asyncio.sleep(RESYNC_S)
            try:
                await self.resync()
            except IokeelError as error:
                self.errors["refresh"] += 1
                log.warning("%s", error)
            except Exception:  # or domains would be read again by their events only, for good
                self.errors["internal"] += 1
                log.exception("reading the domains again failed, please report it")

    async def resync(self) -> None:
        """Read all running domains again. Raises IokeelError if libvirtd doesn't list them."""
        running = await self._find_running()
        await asyncio.gather(*(self._changes.read(name) for name in running))

    async def _find_running(self) -> Collection[str]:
        """Have libvirtd list the running domains, and return their names. Raises IokeelError.

        A domain that starts meanwhile, for the first time or again, may be read before the list
        comes that lacks it.
        """
        before, read = {*(self._running or ())}, dict(self._domains)
        listed = await self._list(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)
        running = listed.keys()
        self._running = running | (self._running or set())
        for name in before - running:
            if self._domains.get(name) is read.get(name):
                self._forget(name)
        if self._policies.others(listed):
            self._policies.forget_others(await self._list(0))
        return running

    async def _list(self, flags: int) -> dict[str, str]:
        """Return the UUIDs of the domains that flags ask for, by name. Raises IokeelError."""
        return await self._calls.call(
            lambda connection: {d.name(): d.UUIDString() for d in connection.listAllDomains(flags)},
            _CALL_TIMEOUT_S,
        )

    async def _read(self, name: str) -> None:
        """Read a domain again. One that can't be read now stays as it is."""
        changes = self._limits.changes(name)
        try:
            (xml, text, number, told), process, booted = await self._calls.call_domain(
                name,
                lambda connection: self._describe(connection, name),
                _CALL_TIMEOUT_S,
                reading=True,
            )
        except DriveGone:
            self._forget(name)
            return
        except IokeelError as error:
            self._failed(name, error)
            return
        last_read = before = self._domains.get(name)
        if before is not None and (before.id != number or before.info.process != process):
            before = None  # another QEMU, with libvirt's own limits
        known = {
            disk.target: drive
            for disk in xml.disks
            if (drive := self.known_of(DriveId(name, disk.target), process)) is not None
        }
        self._policies.held[name] = held(xml, known)
        if before is None:
            self._policies.adopted.pop(name, None)
        hidden = before.xml.hidden if before is not None else ()
        if before is None and xml.has_arguments and self._policies.may_have(xml, text):
            try:
                hidden = (await self._ask_drives(name, xml))[1]
            except IokeelError as error:
                if self._failed(name, error):
                    return
        xml = xml.with_hidden(hidden)
        paths = await self._paths(xml)
        last = last_read.info if last_read is not None else None
        if self._policies.rules.ask_sizes:
            try:
                self._policies.sizes[name] = await self._sizes(name)
            except IokeelError as error:
                self._failed(name, error)
                return
        policy, policy_error = self._policies.read(xml, text, last)
        would = None
        if self._policies.observes(policy):
            policy, would = None, policy
        abilities = before.abilities if before is not None else None
        if abilities is None and has_policy(policy, [drive.target for drive in xml.drives]):
            try:
                abilities = await self._ask_abilities(name)
            except ConnectionLost:
                return
        refused = None
        in_qemu: Mapping[str, ThrottleLimits | None] = {}
        if abilities is not None:  # libvirt may not know what its QEMU has
            try:
                in_qemu, hidden = await self._ask_drives(name, xml)
                told |= in_qemu
            except QueryRefused as error:
                refused = error
                self.errors["refused"] += 1
                if before is None or before.refused != error:
                    log.error("%s", error)
            except IokeelError as error:
                self._failed(name, error)
                return
        in_force = self._limits.read_again(
            name, xml.drives, policy, told, abilities, changes, same_qemu=before is not None
        )
        # If limits are newer than the reading, they may be of the group before.
        overtaken = before is not None and self._limits.changes(name) != changes
        if not overtaken:
            told_since = self._limits.by_others(name)
            new = set_by_platform(
                xml,
                known,
                self._limits.last(name, xml.disks),
                in_qemu,
                self._policies.given(name),
                told_since if before is not None else {},
            )
            late = {t for t in new if self._limits.may_be_set(DriveId(name, t), told[t])}
            if self._policies.adopt(name, {t: new[t] for t in new.keys() - late}):
                policy, policy_error = self._policies.read(xml, text, last)
        newer = before.info.drives if before is not None and overtaken else {}
        found = self._policies.found(name)
        drives = {
            disk.target: DriveInfo(
                disk.target,
                paths[disk.target],
                in_force[disk.target],
                abilities,
                disk.beneath,
                newer[disk.target].group if disk.target in newer else disk.group,
                found.get(disk.target),
            )
            for disk in xml.drives
        }
        by_rules = self._policies.by_rules(name)
        info = VmInfo(
            name,
            drives,
            policy,
            policy_error,
            process,
            xml.uuid,
            by_rules=by_rules,
            would=would,
            booted=booted,
        )
        was_hidden, xml = xml.hidden, xml.with_hidden(hidden)
        self._note(Domain(xml, info, number, abilities, refused), before)
        if self._limits.changes(name) != changes or hidden != was_hidden:
            self.announce(name)  # limits may have changed after they were read, or drives come
        if (record := self._policies.record(name, free(known))) is not None:
            await self._put_on_record(name, record)

    async def _sizes(self, name: str) -> Mapping[str, int]:
        """Return the sizes of a domain's disks in bytes, by target."""
        readings = await self._calls.call_domain(
            name,
            lambda connection: read_all(connection, [name], {}),
            _CALL_TIMEOUT_S,
            reading=True,
        )
        if (reading := readings.get(name)) is None or reading.is_busy:
            asyncio.get_running_loop().call_later(_READ_AGAIN_S, self.announce, name)
            raise IokeelError(name, "is busy, so the sizes of its disks can't be read yet")
        return sizes_of(reading)

    async def _put_on_record(self, name: str, record: str) -> None:
        """Write the limits that a domain has from its platform into its live metadata.

        record: "" for none. If it can't be written, the next reading tries again.
        """
        element, live = libvirt.VIR_DOMAIN_METADATA_ELEMENT, libvirt.VIR_DOMAIN_AFFECT_LIVE
        try:
            await self._calls.call_domain(
                name,
                lambda connection: connection.lookupByName(name).setMetadata(
                    element, record or None, KEY, FOUND, live
                ),
                _CALL_TIMEOUT_S,
            )
        except IokeelError as error:
            if name not in self._unwritten:
                self._unwritten.add(name)
                log.warning(
                    "%s: the limits from before the agent can't be written into its metadata,"
                    " so only this host knows them: %s",
                    name,
                    error.what,
                )
        else:
            self._unwritten.discard(name)

    async def forget_records(self) -> None:
        """Remove the records of what was found."""
        element, live = libvirt.VIR_DOMAIN_METADATA_ELEMENT, libvirt.VIR_DOMAIN_AFFECT_LIVE

        def forget(connection: Any) -> None:
            for domain in connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE):
                try:
                    domain.metadata(element, FOUND, live)
                except libvirt.libvirtError:  # it has none, or has ended
                    continue
                domain.setMetadata(element, None, KEY, FOUND, live)

        await self._calls.call(forget, _CALL_TIMEOUT_S)

    def _describe(self, connection: Any, name: str) -> tuple[Description, Process | None, bool]:
        """Return a domain as libvirt describes it, its QEMU, and whether its guest booted there.

        Blocks, as long as libvirt or /proc does.
        """
        description = describe(connection, name)
        found = guest(name, uuid=description.xml.uuid)
        before = self._domains.get(name)
        if found is None and before is not None and before.id == description.id:
            known = before.info.process  # it may have overwritten its command line
            found = known if known is not None and process(known.pid) == known else None
        return description, found, found is not None and has_booted(found.pid)

    async def _ask_drives(
        self, name: str, xml: DomainXml
    ) -> tuple[Mapping[str, ThrottleLimits | None], tuple[Disk, ...]]:
        """Return the limits that a domain's QEMU has by target, and the drives that XML lacks."""

        def ask(connection: Any) -> tuple[Mapping[str, ThrottleLimits | None], tuple[Disk, ...]]:
            handle = connection.lookupByName(name)
            blocks = query_blocks(handle, name)
            if blocks is None:
                return {}, xml.hidden
            return read_limits(handle, xml, blocks), hidden_of(handle, xml, blocks)

        limits, hidden = await self._calls.call_domain(name, ask, _CALL_TIMEOUT_S, reading=True)
        new = len({*hidden} - {*xml.hidden})
        if (much := self._budgets.setdefault(name, Budget()).spend(names=new)) is None:
            return limits, hidden
        if _MANY_NAMES.may(name):
            log.error("%s: its QEMU tells of %s; those that were known stay", name, much)
        return limits, xml.hidden

    async def _ask_abilities(self, name: str) -> Abilities | None:
        """Return the abilities of a domain's QEMU; None until it is read again if it doesn't tell.

        Raises ConnectionLost if the connection broke.
        """
        try:
            return await self._calls.call_domain(
                name,
                lambda connection: ask_abilities(connection.lookupByName(name)),
                _CALL_TIMEOUT_S,
                reading=True,
            )
        except IokeelError as error:
            if self._failed(name, error):
                raise
            return None

    def _note(self, domain: Domain, before: Domain | None) -> None:
        """Take over a domain that was read. before: as last read; None if it is another QEMU."""
        name = domain.info.name
        self._domains[name] = domain
        if self._running is not None:
            self._running.add(name)
        if before is None or before.info != domain.info:
            self.on_change(name)

    async def _paths(self, xml: DomainXml) -> dict[str, str | None]:
        """Return the paths of a domain's disks by target.

        A volume whose storage pool is stopped or hangs has the one last known; None if unknown.
        """
        paths = {disk.target: disk.path for disk in xml.disks}
        volumes = {disk.target for disk in xml.disks if is_volume(disk)}
        if not volumes:
            return paths
        found: dict[str, str] = {}
        try:  # apart from the domain's calls: its QEMU may answer while a pool hangs
            found = await self._calls.call_domain(
                f"storage pools of {xml.name}",
                lambda connection: volume_paths(connection, xml),
                _CALL_TIMEOUT_S,
                reading=True,
            )
        except IokeelError as error:
            self.errors["refresh"] += 1
            log.warning("%s", error)
        before = self._domains.get(xml.name)
        known: dict[str, str | None] = {}
        if before is not None:
            known = {
                disk.target: before.info.drives[disk.target].path
                for disk in before.xml.drives
                # A drive that libvirt doesn't know has no record before the next reading.
                if disk.target in before.info.drives and disk.path == paths.get(disk.target)
            }
        return paths | {target: found.get(target, known.get(target)) for target in volumes}

    def _failed(self, name: str, error: IokeelError) -> bool:
        """Count and log a call that a reading failed with.

        Returns True if the connection broke, which says nothing about the domain: it is read again
        soon. After a call that hangs, it is read again once it is heard of (`_hear_of`), or with
        the next resync.
        """
        self.errors["refresh"] += 1
        log.warning("%s", error)
        if self._running is not None:
            self._running.add(name)  # one that has started since the last list, perhaps
        broke = isinstance(error, ConnectionLost) and not isinstance(error, NoAnswer)
        if broke:
            asyncio.get_running_loop().call_later(_READ_AGAIN_S, self.announce, name)
        return broke

    def _forget(self, name: str) -> None:
        if self._running is not None:
            self._running.discard(name)
        self._saving.discard(name)
        self._changes.forget(name)
        self._limits.forget(name)
        self._budgets.pop(name, None)
        self._unwritten.discard(name)
        if self._domains.pop(name, None) is not None:
            self.on_change(name)
