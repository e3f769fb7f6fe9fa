"""One VM's counters, read over its QMP connection at each tick.

A tick needs no task (connection.py says why): queries are written to the sockets of all VMs,
replies are handled as the event loop reads them, and one future waits for all of them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar, cast

from iokeel.config.settings import VmConfig
from iokeel.core.values.counters import Counters, DriveId, ThrottleCounters
from iokeel.core.values.limits import UNLIMITED, ThrottleLimits
from iokeel.hypervisors.qemu.bounds import MOST_DRIVES_BYTES, MOST_LISTED
from iokeel.hypervisors.qemu.drives import BlockStats
from iokeel.hypervisors.qemu.limits import Group, QemuAbilities, from_group
from iokeel.hypervisors.qmp.connection import Channel, Reply, decoder
from iokeel.hypervisors.qmp.discovery import GROUPS
from iokeel.hypervisors.qmp.faults import MonitorLost
from iokeel.hypervisors.source import SourceNews
from iokeel.words.quoting import shown_path

log = logging.getLogger(__name__)

_COUNTERS = decoder(list[BlockStats], MOST_LISTED)
_UNREAD = b""
_MOST_SAID = 300

_COUNT_DRIVES = "query-blockstats"
_ASK_COUNTERS = b'"execute":"%b"' % _COUNT_DRIVES.encode()
# What follows if QEMU refuses that, or to tell of its groups.
_WITHOUT_DRIVES = "its drives' load isn't known, so they keep the limits that they have"
_WITHOUT_GROUPS = "what its throttle groups count isn't known"

T = TypeVar("T")


class Round:
    """One sample of all VMs: the answers that are still awaited, and the counters found.

    at: when it began, by the monotonic clock.
    """

    __slots__ = ("at", "done", "found", "outstanding")

    def __init__(self, done: asyncio.Future[None]) -> None:
        self.at = time.monotonic()
        self.found: dict[DriveId, Counters] = {}
        self.outstanding = 1  # one for the VMs that are still to be asked
        self.done = done

    def came(self) -> None:
        """Note that one VM has answered, or won't."""
        self.outstanding -= 1
        if not self.outstanding:
            self.end()

    def end(self) -> None:
        """Wait no longer."""
        if not self.done.done():
            self.done.set_result(None)


class DriveCounters:
    """Reads the counters of one VM's drives, and of its throttle groups if they count.

    find_anew: called when the drives aren't those that are known. note_limits: called with a
    target and its limits when those of its throttle group have changed.
    """

    def __init__(
        self,
        vm: VmConfig,
        news: SourceNews,
        find_anew: Callable[[], None],
        note_limits: Callable[[str, ThrottleLimits | None], None],
    ) -> None:
        self.hangs = self._is_shared = False
        self._refusals: dict[str, str] = {}  # as they were told, by command
        self._vm = vm
        self._news = news
        self._find_anew = find_anew
        self._note_limits = note_limits
        self._asked: Round | None = None
        self._abilities = QemuAbilities()
        # Drives by QEMU's names of their BlockBackends; None for one without a medium.
        self._ids: Mapping[tuple[str, str], DriveId | None] = {}
        self._groups: Mapping[str, DriveId] = {}
        self._nodes: Mapping[tuple[str, str], str] = {}
        self._throttles: dict[DriveId, ThrottleCounters] = {}
        self._limits: dict[DriveId, bytes] = {}  # of the groups that there are, as they came last

    def connected(self, abilities: QemuAbilities) -> None:
        """Begin anew on a new connection."""
        self._asked, self.hangs, self._abilities = None, False, abilities

    def learned(self, abilities: QemuAbilities) -> None:
        """Go by these abilities from the next tick on."""
        self._abilities = abilities

    def follow(
        self,
        ids: Mapping[tuple[str, str], DriveId | None],
        groups: Mapping[str, DriveId],
        nodes: Mapping[tuple[str, str], str],
    ) -> None:
        """Count these drives: by (qdev, device), and by their throttle-group objects.

        nodes: by (qdev, device), the names of their topmost nodes. Another one, such as a snapshot,
        may be above the throttle filter, and QEMU sends no event.
        """
        self._ids, self._groups, self._nodes = ids, groups, nodes
        self._limits.clear()

    def forget_limits(self, drive: DriveId) -> None:
        """Decode a drive's limits at the next tick, even if they haven't changed."""
        self._limits[drive] = _UNREAD

    def ask(self, connection: Channel | None, round_: Round) -> None:
        """Ask for the counters of all drives, unless an earlier answer is still owed."""
        self._is_shared = connection is not None and connection.is_shared
        if self._asked is not None or connection is None:
            self._missed()
            return
        groups, devices = self._abilities.counts, self._abilities.guest_devices
        if not groups and not devices:
            return
        self._asked = round_
        round_.outstanding += 1
        if groups:
            command = b'"execute":"%b"' % self._abilities.query_groups.encode()
            connection.ask(command, GROUPS, partial(self._grouped, round_))
        if devices:
            take = partial(self._counted, round_)
            connection.ask(_ASK_COUNTERS, _COUNTERS, take, MOST_DRIVES_BYTES)

    def check_answered(self) -> None:
        """Note that an answer is late, if one is."""
        if self._asked is not None and not self.hangs:
            self._missed()

    def owner(self, group: Group) -> DriveId | None:
        """Return the drive that a throttle group limits; None if it limits others too, or none.

        Of a drive's own group and its object's, that is the object's, which the agent sets.
        """
        drive = self._groups.get(group.name)
        if drive is None and len(group.members) == 1:
            (member,) = group.members
            drive = self._ids.get((member.qdev, member.device))
            if drive in self._groups.values():  # it is limited by its object
                return None
        return drive

    def _grouped(self, round_: Round, reply: Reply[list[Group]] | MonitorLost) -> None:
        self._throttles = {}
        devices = self._abilities.guest_devices
        try:
            groups = self._answer(self._abilities.query_groups, reply)
            if groups is not None:
                self._take_groups(groups)
            if not devices and not round_.done.done():
                for drive, throttle in self._throttles.items():
                    round_.found[drive] = Counters.of_group(throttle)
        finally:
            if not devices:
                self._asked = None
                round_.came()

    def _counted(self, round_: Round, reply: Reply[list[BlockStats]] | MonitorLost) -> None:
        self._asked = None
        try:
            drives = self._answer(_COUNT_DRIVES, reply)
            if drives is not None and not round_.done.done():
                self._take(round_.found, drives)
        finally:
            round_.came()

    def _answer(self, command: str, reply: Reply[T] | MonitorLost) -> T | None:
        if isinstance(reply, MonitorLost):
            return None
        if reply.error is not None:
            self._refused(command, reply.error.text[:_MOST_SAID])
            return None
        self._refusals.pop(command, None)
        if self.hangs:
            self.hangs = False
            self._find_anew()
            log.info("VM %s: QEMU answers again", self._vm.name)
        return cast(T, reply.answer)

    def _take(self, found: dict[DriveId, Counters], drives: list[BlockStats]) -> None:
        now_ns = time.monotonic_ns()
        ids, nodes = self._ids, self._nodes
        if len(drives) != len(ids):
            self._find_anew()
        for drive in drives:
            name = (drive.qdev, drive.device)
            try:
                identity = ids[name]
            except KeyError:
                self._find_anew()
                continue
            if identity is not None:
                if drive.node_name != nodes.get(name, drive.node_name):
                    self._find_anew()
                found[identity] = drive.counters(now_ns, self._throttles.get(identity))

    def _take_groups(self, groups: list[Group]) -> None:
        now_ns = time.monotonic_ns()
        devices = self._abilities.guest_devices
        gone = set(self._limits)
        for group in groups:
            drive = self.owner(group)
            if drive is None:
                if not devices:
                    self._find_anew()
                continue
            gone.discard(drive)
            if len(group.members) == 1 or not devices:  # a daemon's drive is the whole group
                self._throttles[drive] = group.counters(now_ns)
            limits = bytes(group.limits)
            if limits != self._limits.get(drive):
                self._limits[drive] = limits
                self._note_limits(drive.target, from_group(limits))
        for drive in gone:  # without a group, a drive has no limits
            del self._limits[drive]
            self._note_limits(drive.target, UNLIMITED)
            self._find_anew()

    def _refused(self, command: str, said: str) -> None:
        """Count a refusal, and tell it unless the last one of this command was the same."""
        self._news.errors["refused"] += 1
        without = _WITHOUT_DRIVES if command == _COUNT_DRIVES else _WITHOUT_GROUPS
        if self._refusals.get(command) != said:
            self._refusals[command] = said
            log.error(
                "VM %s: %s: %s: %s; %s; see QEMU's own log",
                *(self._vm.name, self._vm.socket, command, shown_path(said), without),
            )

    def _missed(self) -> None:
        if self._is_shared:  # another client may have its turn (turns.py)
            return
        self._news.errors["timeout"] += 1
        if not self.hangs:
            self.hangs = True
            log.error(
                "VM %s: %s: QEMU doesn't answer; see whether it is stopped or its storage hangs",
                self._vm.name,
                self._vm.socket,
            )
