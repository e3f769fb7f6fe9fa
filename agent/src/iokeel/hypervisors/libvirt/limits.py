"""The limits of running domains' drives: put in force, told by QEMU and libvirt, set past libvirt.

libvirt knows no curve, and puts its own limits in force in each new QEMU: when a guest is restored,
or when it arrives by migration. So libvirt's own limits have to hold the drive without a curve.

At each tick one domain's QEMU is asked for limits that somebody set past libvirt, so that costs the
same with any number of domains. With many, it takes long to come round. A drive that does more than
its limits let through is read again at once (core/measure/beyond.py).
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import libvirt

from iokeel.core.enforce.pricing import BYTES, FALLBACK_LEAST_RATIO, fallback_of
from iokeel.core.values.counters import DriveId
from iokeel.core.values.limits import UNLIMITED, Abilities, ThrottleLimits
from iokeel.core.values.policy import ToldPolicy
from iokeel.errors import DriveGone, IokeelError
from iokeel.hypervisors.libvirt.calls import Calls
from iokeel.hypervisors.libvirt.domain import Domain, group_of, has_policy, put_limits
from iokeel.hypervisors.libvirt.passthrough import (
    ask_abilities,
    is_migrating,
    put_past,
    query_blocks,
    read_limits,
)
from iokeel.hypervisors.qemu.drives import QmpDrive
from iokeel.hypervisors.qemu.limits import Group, from_group, keep_patched
from iokeel.hypervisors.source import DriveInfo, SourceNews
from iokeel.libvirt_xml.domain import LIBVIRT_NAMES, Disk, DomainXml, from_libvirt

log = logging.getLogger(__name__)

_UNREAD = b""
# Before the names of the limits in a TUNABLE event.
_TUNABLE = "blkdeviotune."
_RATES = ("iops_total", "iops_read", "iops_write")
_ALL_LIMITS = frozenset(LIBVIRT_NAMES.values())
# As long as a tick's sample: a QEMU that hangs is found by that.
_TIMEOUT_S = 1.0


class Fallback(NamedTuple):
    """Limits for stock QEMU, and the limits with a curve that they stand in for."""

    limits: ThrottleLimits
    exact: ThrottleLimits


def fallback_for(exact: ThrottleLimits, before: Fallback | None) -> Fallback:
    """Return the fallback of limits with a curve; the one before if it is still good.

    One for somewhat less is: telling libvirt anew at each small change would empty QEMU's buckets
    each time. No request size gets more by it than by `exact`.
    """
    if before is not None and _is_good(before.exact, exact):
        return before
    return Fallback(fallback_of(exact), exact)


def _is_good(before: ThrottleLimits, exact: ThrottleLimits) -> bool:
    """Return whether a fallback that was made for other limits is good for these, too."""
    pairs = [(getattr(before, name) or 0, getattr(exact, name) or 0) for name in _RATES]
    close = all(FALLBACK_LEAST_RATIO * rate <= was <= rate for was, rate in pairs)
    return close and _shape(before) == _shape(exact)


def _shape(exact: ThrottleLimits) -> tuple[object, ...]:
    return exact.cost_read, exact.cost_write, *(getattr(exact, name) for name in BYTES)


class LimitsInForce:
    """Sets the limits of domains' drives, and notes in the domains which are in force.

    domains: those that run, by name, as their reader keeps them. changed: called with the name of a
    domain that has to be read again. follows_platform: whether a drive's limit is what others than
    the agent set.
    """

    def __init__(
        self,
        domains: dict[str, Domain],
        calls: Calls,
        news: SourceNews,
        changed: Callable[[str], None],
        follows_platform: Callable[[DriveId], bool] = lambda _: False,
    ) -> None:
        self._domains = domains
        self._calls = calls
        self._news = news
        self._changed = changed
        self._follows_platform = follows_platform
        self._last: dict[DriveId, ThrottleLimits] = {}  # those that were set last in its QEMU
        self._failed: dict[DriveId, set[ThrottleLimits]] = {}  # those that may be set late
        # By domain and target, of the groups that there are, as they came last.
        self._limits: dict[str, dict[str, bytes]] = {}
        self._reached: dict[DriveId, QmpDrive] = {}  # as QMP reaches them; by set_limits
        self._fallbacks: dict[DriveId, Fallback] = {}  # as libvirt was told them
        self._orders: Counter[str] = Counter()  # limits set or being set, by domain
        # Those being set now, each with its fallback.
        self._setting: dict[DriveId, list[tuple[ThrottleLimits, ThrottleLimits | None]]] = {}
        self._tunings: Counter[str] = Counter()  # TUNABLE events with other limits, by domain
        self._others: dict[str, dict[str, dict[str, int]]] = {}  # these limits, by domain and disk

    async def set_limits(self, drive: DriveId, limits: ThrottleLimits, timeout_s: float) -> None:
        """Put limits in force through blkdeviotune, or through the drive's own throttle group.

        Limits with a curve go to QEMU's monitor. libvirt's own limits are a fallback then. libvirt
        isn't told any while the domain migrates: it would wait until that ends, which may take
        hours. Raises as `Source.set_limits`.
        """
        domain, disk = self._find(drive)
        group = group_of(domain.xml, drive, disk)
        # If it is stale (another device has the target now), QEMU knows no such device and
        # refuses. The next try then looks for it again.
        reached = self._reached.pop(drive, None)
        before = self._fallbacks.pop(drive, None)
        if drive in self._setting:  # those may never be set
            before = None
        fallback = None if limits.cost_read is None else fallback_for(limits, before)
        told = None if fallback is None or fallback is before else fallback.limits

        def put(connection: Any) -> tuple[Abilities | None, QmpDrive | None, bool]:
            handle = connection.lookupByName(drive.domain)
            # Not known of one that was too busy to answer, or if its policy went while no agent ran
            abilities = domain.abilities or _asked(handle)
            where = handle, drive, disk, group, limits, abilities, reached
            if disk.hidden or is_migrating(handle):
                return abilities, put_past(*where), told is None
            return abilities, put_limits(*where, told), True

        tunings = self._tunings[drive.domain]
        with self._being_set(drive, limits, fallback, domain.abilities):
            abilities, reached, has_fallback = await self._calls.call_domain(
                drive.domain, put, timeout_s, str(drive)
            )
        self._last[drive] = limits
        if reached is not None:
            self._reached[drive] = reached
        self._fallbacks.pop(drive, None)
        if fallback is not None and has_fallback and self._tunings[drive.domain] == tunings:
            self._fallbacks[drive] = fallback
        self._note(drive, limits)
        if domain.abilities is None and abilities is not None:
            self._learn(domain, abilities)
        elif self._tunings[drive.domain] != tunings:
            self._changed(drive.domain)  # somebody else's may have come after these

    def _find(self, drive: DriveId) -> tuple[Domain, Disk]:
        """Return a drive's domain and disk. Raises DriveGone."""
        domain = self._domains.get(drive.domain)
        if domain is not None:
            for disk in domain.xml.disks:
                if disk.target == drive.target:
                    return domain, disk
        raise DriveGone(str(drive), "is no longer there")

    @contextlib.contextmanager
    def _being_set(
        self,
        drive: DriveId,
        limits: ThrottleLimits,
        fallback: Fallback | None,
        abilities: Abilities | None,
    ) -> Iterator[None]:
        """Have limits count as being set. Readings from meanwhile may be older than these."""
        self._orders[drive.domain] += 1
        setting = self._setting.setdefault(drive, [])
        both = limits, None if fallback is None else fallback.limits
        setting.append(both)
        try:
            yield
        except IokeelError:
            self._fallbacks.pop(drive, None)
            self._failed.setdefault(drive, set()).update(each.stock for each in both if each)
            raise
        else:
            self._failed.pop(drive, None)  # any that was late came before
        finally:
            self._orders[drive.domain] += 1
            setting.remove(both)
            if not setting:
                del self._setting[drive]
            if abilities is not None and abilities.counts:
                self._limits.setdefault(drive.domain, {})[drive.target] = _UNREAD

    def forget(self, name: str) -> None:
        """Forget a domain that no longer runs."""
        self._limits.pop(name, None)
        self._tunings.pop(name, None)
        self._others.pop(name, None)
        kept = (self._last, self._failed, self._reached, self._fallbacks)
        for drive in {drive for each in kept for drive in each if drive.domain == name}:
            for each in kept:
                each.pop(drive, None)
        if not any(drive.domain == name for drive in self._setting):
            self._orders.pop(name, None)

    def may_be_set(self, drive: DriveId, limits: ThrottleLimits | None) -> bool:
        """Return whether an order that failed may have set these limits after all."""
        return limits is not None and limits.stock in self._failed.get(drive, ())

    def last(self, name: str, disks: Iterable[Disk]) -> Mapping[str, ThrottleLimits]:
        """Return the limits that were set last for a domain's disks in its QEMU, by target."""
        drives = (DriveId(name, disk.target) for disk in disks)
        return {drive.target: self._last[drive] for drive in drives if drive in self._last}

    def orders(self) -> Mapping[str, int]:
        """Return a count by domain, which is another one once limits are set or being set."""
        return dict(self._orders)

    def changes(self, name: str) -> tuple[int, int]:
        """Return counts, which are others once a domain's limits are set, by whomever."""
        return self._orders[name], self._tunings[name]

    def note_groups(
        self, name: str, groups: Mapping[str, Group | None], orders: Mapping[str, int]
    ) -> None:
        """Take over limits from a domain's QEMU itself, if they have changed.

        groups: by target; None if disks share it, whose limits stay known as they were set last.
        orders: those before the groups were read. If there has been another one since, the groups
        may be older than its limits, and are left alone.
        """
        if name not in self._domains or self._orders[name] != orders.get(name, 0):
            return
        known = self._limits.setdefault(name, {})
        for target, group in groups.items():
            if group is None:
                continue
            limits = bytes(group.limits)
            if known.get(target) != limits:
                known[target] = limits
                self._found(DriveId(name, target), from_group(limits))
        for target in [target for target in known if target not in groups]:
            del known[target]  # it has left its group, and so has no limits
            self._found(DriveId(name, target), UNLIMITED)

    def tuned(self, name: str, values: Mapping[str, object]) -> None:
        """Take over a disk's limits from a TUNABLE event, whoever set them.

        It has the disk by the name, and only the fields, that were given to libvirt
        (qemuDomainSetBlockIoTune): the disk may go by its path, and other fields stay as they are.
        Then the domain is read again, and also if the disk may have moved to another group.
        """
        told = {key.removeprefix(_TUNABLE): value for key, value in values.items()}
        if "disk" not in told:
            return
        drive = DriveId(name, str(told["disk"]))
        known = self._known(drive)
        if known is None or "group_name" in told or not told.keys() >= _ALL_LIMITS:
            self._note_others(name, told)
            self._changed(name)
            return
        limits = from_libvirt(told)
        fallback, setting = self._fallbacks.get(drive), self._setting.get(drive, [])
        if any(limits == told for _, told in setting):
            return  # from set_limits
        if fallback is not None and fallback.limits == limits:
            return  # from set_limits, but late
        self._fallbacks.pop(drive, None)
        in_force = self._with_patched(drive, limits)
        changed = known.in_force != in_force
        if all(limits != ours for ours, _ in setting) if setting else changed:
            self._note_others(name, told)
        if changed and self._follows_platform(drive):
            self._changed(name)  # not to be put back before it is read
        elif changed:
            self._reached.pop(drive, None)  # its group may be another one now
            self._note(drive, in_force)
            self._news.on_change(name)

    def _note_others(self, name: str, told: Mapping[str, object]) -> None:
        self._tunings[name] += 1
        drive, limits = DriveId(name, str(told["disk"])), from_libvirt(told)
        last = self._last.get(drive)
        is_late = self.may_be_set(drive, limits) or (last is not None and last.stock == limits)
        if not is_late and "group_name" not in told:  # a disk that has moved has its new group's
            others = self._others.setdefault(name, {}).setdefault(drive.target, {})
            names = LIBVIRT_NAMES.items()
            others |= {k: n for k, of in names if isinstance(n := told.get(of), int)}

    def by_others(self, name: str) -> Mapping[str, Mapping[str, int]]:
        """Return the limits that others have set since the last call, as events told them.

        They are by target or path. The agent's own may have overwritten them.
        """
        return self._others.pop(name, {})

    def read_again(
        self,
        name: str,
        disks: Sequence[Disk],
        policy: ToldPolicy | None,
        told: Mapping[str, ThrottleLimits | None],
        abilities: Abilities | None,
        changes: tuple[int, int],
        *,
        same_qemu: bool,
    ) -> dict[str, ThrottleLimits | None]:
        """Return the limits in force of a domain that is read again, by target.

        disks, policy: those that it has now. told: their limits as libvirt tells them. abilities:
        QEMU's; None if they aren't known. changes: those before it was read. If there has been
        another one since, known limits are newer. same_qemu: whether the QEMU runs it that did when
        it was last read; another one has libvirt's own limits.
        """
        in_force = {}
        overtaken = self.changes(name) != changes
        for disk in disks:
            drive, limits = DriveId(name, disk.target), told.get(disk.target)
            known = self._known(drive) if same_qemu else None
            if known is None:
                self._last.pop(drive, None)
            if known is not None and overtaken:
                # Those of a disk without a policy may have changed with its group's.
                is_its = not disk.iotune_group or has_policy(policy, [disk.target])
                in_force[disk.target] = known.in_force if is_its else None
                continue
            if known is not None and limits in self._set_for_others(name, disk, disks, policy):
                in_force[disk.target] = known.in_force
            else:
                in_force[disk.target] = self._of_disk(drive, disk, limits, abilities, known)
            self._reached.pop(drive, None)
            if not self._has_fallback(drive, limits, known):
                self._fallbacks.pop(drive, None)
            if disk.target in self._limits.get(name, {}):
                self._limits[name][disk.target] = _UNREAD
        return in_force

    def _set_for_others(
        self, name: str, disk: Disk, disks: Sequence[Disk], policy: ToldPolicy | None
    ) -> set[ThrottleLimits]:
        """Return the limits that were set last, or are being set, for others of a disk's group.

        libvirt tells the last ones of its <iotune> group. If they are another disk's, nobody has
        overwritten this one's, and to set these again would overwrite the other's. Disks without a
        policy don't count: no limits are set for them.
        """
        found: set[ThrottleLimits] = set()
        if disk.iotune_group is None or not has_policy(policy, [disk.target]):
            return found
        for other in disks:
            drive = DriveId(name, other.target)
            known = self._known(drive)
            if known is None or other == disk or other.iotune_group != disk.iotune_group:
                continue
            if has_policy(policy, [other.target]):
                found |= {limits.stock for limits, _ in self._setting.get(drive, ())}
                if known.in_force is not None:
                    found.add(known.in_force.stock)
        return found

    def _of_disk(
        self,
        drive: DriveId,
        disk: Disk,
        told: ThrottleLimits | None,
        abilities: Abilities | None,
        known: DriveInfo | None,
    ) -> ThrottleLimits | None:
        """Return a disk's limits in force: libvirt's, unless the last known ones tell more."""
        if known is None:
            return told
        if disk.throttle_groups and abilities and abilities.counts:
            return known.in_force  # QEMU tells at each tick; libvirt tells of its own
        if abilities is None and _has_curve(known.in_force):
            return known.in_force  # libvirt tells of the fallback
        return self._with_patched(drive, told)

    def _has_fallback(
        self, drive: DriveId, told: ThrottleLimits | None, known: DriveInfo | None
    ) -> bool:
        """Return whether libvirt still has a disk's fallback.

        It has another's if a device was attached at the target since. told: as libvirt tells the
        limits now, those of QEMU or its own. known: the drive as last read; None if it is new.
        """
        fallback = self._fallbacks.get(drive)
        if fallback is None or known is None or known.in_force is None:
            return False
        return told in (fallback.limits, known.in_force.stock)

    def _with_patched(self, drive: DriveId, limits: ThrottleLimits | None) -> ThrottleLimits | None:
        """Return limits read from libvirt, with the patches' fields as last known."""
        known = self._known(drive)
        if limits is None or known is None or known.in_force is None:
            return limits
        return keep_patched(limits, known.in_force)

    def _learn(self, domain: Domain, abilities: Abilities) -> None:
        """Note what a domain's QEMU has told, and read it again: the law may want other limits."""
        name = domain.xml.name
        now = self._domains.get(name)
        if now is not None and now.id == domain.id and now.info.process == domain.info.process:
            self._domains[name] = replace(now, abilities=abilities)
        self._changed(name)

    def _found(self, drive: DriveId, limits: ThrottleLimits | None) -> None:
        """Note limits that QEMU has. Others than those known are perhaps of another device."""
        known = self._known(drive)
        if known is None or known.in_force != limits:
            self._reached.pop(drive, None)
            self._fallbacks.pop(drive, None)
        self._note(drive, limits)

    def _known(self, drive: DriveId) -> DriveInfo | None:
        domain = self._domains.get(drive.domain)
        return domain.info.drives.get(drive.target) if domain is not None else None

    def _note(self, drive: DriveId, limits: ThrottleLimits | None) -> None:
        known = self._known(drive)
        if known is None:
            return
        domain = self._domains[drive.domain]
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


class SetPast:
    """Asks domains for their limits in turn.

    domains: those that run, by name, as their reader keeps them. changed: called with the name of a
    domain that has others than are known, to be read again.
    """

    def __init__(
        self,
        domains: Mapping[str, Domain],
        calls: Calls,
        limits: LimitsInForce,
        changed: Callable[[str], None],
    ) -> None:
        self._domains = domains
        self._calls = calls
        self._limits = limits
        self._changed = changed
        self._turn = 0

    def next(self, answered: Collection[str]) -> Coroutine[Any, Any, None] | None:
        """Return the question to one of the domains that have just answered; None if none needs it.

        A QEMU that counts is asked at each tick anyway, and one without a policy never.
        """
        names = [n for n in answered if (d := self._domains.get(n)) is not None and d.is_held]
        if not names:
            return None
        self._turn += 1
        name = names[self._turn % len(names)]
        return self._ask(name, self._domains[name])

    async def _ask(self, name: str, domain: Domain) -> None:
        changes = self._limits.changes(name)
        try:
            told = await self._calls.call_domain(
                name,
                lambda connection: _limits(connection, name, domain.xml),
                _TIMEOUT_S,
                reading=True,
            )
        except IokeelError as error:
            log.debug("%s", error)
            return
        if self._limits.changes(name) == changes and self._domains.get(name) is domain:
            if any(limits not in self._known(domain, target) for target, limits in told.items()):
                self._changed(name)

    def _known(self, domain: Domain, target: str) -> set[ThrottleLimits | None]:
        """Return the limits that a drive may have: its own, or the last ones of its group."""
        disks = {disk.target: disk for disk in domain.xml.disks}
        group = disks[target].iotune_group
        return {
            drive.in_force and drive.in_force.stock
            for name, drive in domain.info.drives.items()
            if name == target or (group is not None and disks[name].iotune_group == group)
        }


def _limits(connection: Any, name: str, xml: DomainXml) -> dict[str, ThrottleLimits | None]:
    """Return the limits that a domain's QEMU has, by target. Blocks."""
    handle = connection.lookupByName(name)
    blocks = query_blocks(handle, name)
    return {} if blocks is None else read_limits(handle, xml, blocks)
