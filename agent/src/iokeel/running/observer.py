"""The agent's view of a host: its VMs, what their drives do, and the storages beneath."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from iokeel.config.settings import StorageConfig, VmConfig
from iokeel.core.values.counters import Counters, DriveId
from iokeel.core.values.observation import DriveSeen, StorageSeen
from iokeel.core.values.policy import PolicyInPart
from iokeel.core.values.storage import StorageId, StoragePolicy
from iokeel.host.disk_counters import DiskStats
from iokeel.host.kernel import SYS, is_hard_disk_with_bfq
from iokeel.host.process import Process, process
from iokeel.hypervisors.source import Source, VmInfo
from iokeel.running.outcomes import Outcomes
from iokeel.running.storages import DriveStorages

# If limits are found to be right, there is another reason, such as a storage that catches up, or
# requests that QEMU merges. Such a drive is doubted ever less often.
_LEAST_S, _MOST_S = 1.0, 60.0


@dataclass(frozen=True)
class Observer:
    """Sees a host through its sources of VMs, and through the counters of its disks.

    leaving: VMs that are gone from the configuration, but whose drives can't be set. They count as
    VMs that can't be read. unserved: libvirt's VMs that an earlier agent has limited, while
    [libvirt] is disabled. They may run too. processes: VMs' QEMUs at the last look at each. uuids:
    those of the VMs, by name, as far as they are known. since: the agent's own process.
    """

    sources: list[Source]
    storages: DriveStorages
    leaving: dict[str, VmConfig] = field(default_factory=dict)
    unserved: set[str] = field(default_factory=set)
    processes: dict[str, Process] = field(default_factory=dict)
    uuids: dict[str, str] = field(default_factory=dict)
    since: Process | None = field(default_factory=lambda: process(os.getpid()))
    _booted: dict[str, Process] = field(default_factory=dict)
    _disk_stats: DiskStats = field(default_factory=DiskStats)
    _wrote: dict[DriveId, int] = field(default_factory=dict)  # at the last look
    _writes: Counter[StorageId] = field(default_factory=Counter)  # since the agent's start
    _sys: Path = SYS

    def vms(self) -> dict[str, VmInfo]:
        """Return all running VMs by name; of two with one name, that of the first source."""
        found: dict[str, VmInfo] = {}
        for source in reversed(self.sources):
            found.update(source.vms())
        if not self.leaving:  # nearly always, and this is asked several times a look
            return found
        return {name: vm for name, vm in found.items() if name not in self.leaving}

    def source_of(self, domain: str) -> Source | None:
        """Return the source that serves a VM; None if none has it."""
        return next((source for source in self.sources if domain in source.vms()), None)

    def namesakes(self) -> set[str]:
        """Return the names that VMs of several sources have: only the first one's is served."""
        seen, again = set[str](), set[str]()
        for source in self.sources:
            names = source.vms().keys()
            again |= seen & names
            seen |= names
        return again

    def unread_vms(self) -> Collection[str] | None:
        """Return the names of VMs that can't be read but may run; None if any may."""
        found = [source.unread() for source in self.sources]
        if None in found:
            return None
        leaving = {name for name in self.leaving if self.source_of(name) is not None}
        return leaving.union(self.unserved, *(names or () for names in found))

    def saving(self) -> frozenset[str]:
        """Return the names of VMs that are paused while their memory is written, or read."""
        return frozenset().union(*(source.saving() for source in self.sources))

    def resting(self) -> frozenset[str]:
        """Return the names of VMs whose QEMUs have done nothing since their last reading."""
        return frozenset().union(*(source.resting() for source in self.sources))

    def may_run(self, domain: str) -> bool:
        """Return whether a VM that no source has may run nevertheless."""
        unread = self.unread_vms()
        return unread is None or domain in unread

    def others(self, domains: Collection[str] | None) -> Collection[str]:
        """Return the names, of all or of some VMs, that have passed to another VM since last asked.

        A [[vm]] has no UUID, so it is the same as before unless libvirt had that one.
        """
        found, vms = [], self.vms()
        for name, vm in vms.items():
            uuid = vm.uuid if vm.from_libvirt else ""
            if uuid is None or (domains is not None and name not in domains):
                continue
            if self.uuids.get(name, uuid) != uuid:
                found.append(name)
            self.uuids[name] = uuid
        return found

    def restarted(self, domains: Collection[str] | None) -> Collection[str]:
        """Return the VMs, of all or of some, with another QEMU than when this was last asked.

        One whose QEMU couldn't be told then isn't one: what is in force may be of orders since.
        """
        found, vms = [], self.vms()
        if domains is None:
            for name in (self.processes.keys() | self.uuids.keys()) - vms.keys():
                if not self.may_run(name):
                    self.processes.pop(name, None)
                    self.uuids.pop(name, None)
        for name, vm in vms.items():
            if domains is not None and name not in domains:
                continue
            if vm.process is None:
                self.processes.pop(name, None)
            else:
                if self.processes.get(name, vm.process) != vm.process:
                    found.append(name)
                self.processes[name] = vm.process
        return found

    def booted(self, domains: Collection[str] | None) -> Collection[str]:
        """Return the VMs, of all or of some, whose guests have booted since this was last asked.

        And since the agent's start: of an older QEMU nobody knows what its guest has had.
        """
        vms, found = self.vms(), []
        for name in self._booted.keys() - vms.keys():
            del self._booted[name]
        for name, vm in vms.items():
            if not vm.booted or vm.process is None or self._booted.get(name) == vm.process:
                continue
            if domains is None or name in domains:
                self._booted[name] = vm.process
                if self.since is not None and vm.process.started > self.since.started:
                    found.append(name)
        return found

    def unread(self, known: Mapping[DriveId, object], seen: Collection[DriveId]) -> list[DriveId]:
        """Return the known drives that aren't seen, but whose VMs may run.

        One whose VM is seen is gone, unless it only has no medium.
        """
        missing = known.keys() - seen
        if not missing:
            return []
        vms, unread = self.vms(), self.unread_vms()
        return [
            drive
            for drive in missing
            if (
                drive.target in vms[drive.domain].empty
                if drive.domain in vms
                else unread is None or drive.domain in unread
            )
        ]

    def unplugged(
        self, domains: Collection[str], known: Collection[DriveId], seen: Collection[DriveId]
    ) -> list[DriveId]:
        """Return the known drives that some VMs don't have any more, though they run."""
        vms = self.vms()
        return [
            drive
            for drive in known
            if drive.domain in domains
            and drive not in seen
            and (vm := vms.get(drive.domain)) is not None
            and drive.target not in vm.empty
        ]

    async def sample(
        self, domains: Collection[str] | None, timeout_s: float
    ) -> dict[DriveId, Counters]:
        """Return the counters of all VMs' drives, or of some domains' only."""
        parts = await asyncio.gather(
            *(source.sample(domains, timeout_s) for source in self.sources)
        )
        serves = {name: source for source in reversed(self.sources) for name in source.vms()}
        return {
            drive: counters
            for source, part in zip(self.sources, parts, strict=True)
            for drive, counters in part.items()
            if serves.get(drive.domain) is source
        }

    def drives(
        self,
        domains: Collection[str] | None,
        counters: Mapping[DriveId, Counters],
        outcomes: Outcomes,
        *,
        releasing: bool,
    ) -> Iterator[tuple[DriveId, DriveSeen]]:
        """Yield all drives, or some domains' only. releasing: as if no VM had a policy."""
        for name, vm in self.vms().items():
            if domains is not None and name not in domains:
                continue
            policy = None if releasing else vm.policy
            tenant, promise = (policy.tenant, policy.vm) if policy else (None, None)
            for target, info in vm.drives.items():
                drive = DriveId(name, target)
                read = counters.get(drive)
                in_force, failed, abilities = outcomes.seen(
                    drive, info, vm.process, counted=read is not None
                )
                yield (
                    drive,
                    DriveSeen(
                        policy.for_drive(target) if policy else None,
                        read,
                        in_force,
                        failed,
                        abilities,
                        self.storages.of(drive),
                        tenant,
                        promise,
                        policy.for_new(target) if isinstance(policy, PolicyInPart) else None,
                        info.group,
                        info.found,
                    ),
                )

    def storages_of(
        self,
        drives: Mapping[DriveId, DriveSeen],
        configured: Mapping[StorageId, StorageConfig],
        weighted: Mapping[str, bool] | None,
    ) -> dict[StorageId, StorageSeen]:
        """Return the storages that drives are on, or that configuration names.

        weighted: whether VMs' cgroups have their weights for BFQ; None if the agent sets none.
        """
        self._count_writes(drives)
        counters = self._disk_stats.read(self.storages.devices, self._writes)
        vms: dict[StorageId, set[str]] = {name: set() for name in configured}
        for drive, seen in drives.items():
            if seen.storage is not None:
                there = vms.setdefault(seen.storage, set())
                if seen.policy is not None:
                    there.add(drive.domain)
        return {
            name: StorageSeen(
                configured[name].policy if name in configured else StoragePolicy(),
                counters.get(name),
                self._is_weighted(name, there, weighted),
            )
            for name, there in vms.items()
        }

    def _count_writes(self, drives: Mapping[DriveId, DriveSeen]) -> None:
        """Add up what drives have written since the last look at each, by storage."""
        last = self._wrote
        now = {
            drive: seen.counters.write_requests for drive, seen in drives.items() if seen.counters
        }
        for drive, count in now.items():
            storage = drives[drive].storage
            if storage is not None and (more := count - last.get(drive, count)) > 0:
                self._writes[storage] += more
        for drive in last.keys() - drives.keys():
            del last[drive]
        last |= now

    def _is_weighted(
        self, storage: StorageId, vms: Collection[str], weighted: Mapping[str, bool] | None
    ) -> bool | None:
        """Return whether a scheduler shares a storage out by VMs' weights; None if unknown."""
        facts: list[bool | None] = [False]  # if the agent sets no cgroups
        if weighted is not None:
            facts = [weighted.get(vm) for vm in vms]
        if False in facts:  # as on every host without BFQ: the kernel needn't be asked
            return False
        device = self.storages.devices.get(storage)
        number = device.number if device is not None else None
        facts.append(None if number is None else is_hard_disk_with_bfq(number, self._sys))
        return False if False in facts else None if None in facts else True


class Doubts:
    """The drives that have been doubted: when each may be again, and how long that lasts."""

    def __init__(self) -> None:
        self._again: dict[DriveId, tuple[float, float]] = {}

    def due(self, beyond: Collection[DriveId], now_s: float) -> set[str]:
        """Return the VMs whose limits to read now. beyond: the drives beyond their limits."""
        due: set[str] = set()
        for drive in beyond:
            again_at, wait_s = self._again.get(drive, (now_s, _LEAST_S))
            if now_s >= again_at:
                due.add(drive.domain)
                self._again[drive] = now_s + wait_s, min(2 * wait_s, _MOST_S)
        for drive in [d for d, (at, _) in self._again.items() if now_s > at + _MOST_S]:
            del self._again[drive]
        return due
