"""Keeps VMs' cgroups at their drives' shares, beside the ticks."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import NamedTuple

from iokeel.config.settings import Config
from iokeel.config.tables import CgroupConfig
from iokeel.core.enforce.backstop import CgroupOrder, vm_orders
from iokeel.core.values.counters import NS_PER_S
from iokeel.core.values.state import State
from iokeel.host.cgroup.groups import Cgroups
from iokeel.host.process import Process
from iokeel.hypervisors.source import VmInfo
from iokeel.running.beneath import BlockJobs, Measured
from iokeel.running.observer import Observer
from iokeel.running.tasks import Tasks

# A VM's cgroup follows changes of its drives' limits at most this often.
_INTERVAL_S = 2
# All VMs' are brought up to date this often, and once a VM is new or has another QEMU: it counts
# for others' weights, and what its last QEMU needed may be wrong for this one.
_CHECK_AGAIN_S = 10
_NEVER_NS = -(10**12)


class _Look(NamedTuple):
    """What a look goes by: the host's VMs as the state has them."""

    state: State
    config: CgroupConfig
    now_ns: int
    vms: Mapping[str, VmInfo]
    processes: Mapping[str, Process]
    unread: Collection[str] | None
    saving: Collection[str]


class Backstop:
    """The limits beneath QEMU's. moved: VMs whose limits have changed since the last time."""

    def __init__(self, cgroups: Cgroups, observer: Observer, tasks: Tasks, jobs: BlockJobs) -> None:
        self.moved: set[str] = set()
        self.measured = Measured(cgroups, observer.storages, jobs)
        self._cgroups, self._observer, self._tasks, self._jobs = cgroups, observer, tasks, jobs
        self._orders: dict[str, CgroupOrder | None] = {}
        self._processes: Mapping[str, Process] = {}
        self._without = frozenset[str]()
        self._at_ns = self._all_at_ns = _NEVER_NS
        self._is_busy = False

    def reconfigured(self, config: Config) -> None:
        """Bring all VMs' cgroups up to date the next time, by another configuration."""
        self._cgroups.configured = {vm.name for vm in config.vms}
        self._all_at_ns = _NEVER_NS

    def look(self, state: State, config: CgroupConfig, now_ns: int) -> None:
        """Begin to measure VMs' cgroups, and to bring them up to date if that is due."""
        if self._is_busy:
            return
        self._is_busy = True
        vms, unread = self._observer.vms(), self._observer.unread_vms()  # as the state has them
        processes = {name: vm.process for name, vm in vms.items() if vm.process}
        saving = self._observer.saving()
        look = _Look(state, config, now_ns, vms, processes, unread, saving)
        self._tasks.spawn(self._follow(look))

    async def _follow(self, look: _Look) -> None:
        try:
            widened: Collection[str] = ()
            if look.config.enabled:
                bounded = [vm for vm, order in self._orders.items() if order is not None]
                widened = await self.measured.look(look.state, bounded)
            await self._bring_up_to_date(look, widened)
        finally:
            self._is_busy = False

    async def _bring_up_to_date(self, look: _Look, widened: Collection[str]) -> None:
        """Set VMs' cgroups if that is due. widened: VMs that wait for wider bounds."""
        without = frozenset({*look.saving, *self.measured.uncounted, *self._jobs.endless})
        self.moved |= (without ^ self._without) | {*widened} | self._jobs.take_moved()
        urgent = widened or without - self._without
        self._without = without
        check = look.now_ns >= self._all_at_ns + _CHECK_AGAIN_S * NS_PER_S
        is_due = look.now_ns >= self._at_ns + _INTERVAL_S * NS_PER_S
        if not (urgent or ((check or self.moved) and is_due)):
            return
        all_anew = check or look.processes != self._processes or self.moved - self._orders.keys()
        only = None if all_anew else self.moved
        self._at_ns, self.moved, self._processes = look.now_ns, set(), look.processes
        if only is None:
            self._all_at_ns = look.now_ns
        await self._apply(look, only, without)

    async def _apply(
        self, look: _Look, only: Collection[str] | None, without: Collection[str]
    ) -> None:
        if not look.config.enabled:  # they may be an earlier agent's, or configuration's
            await asyncio.to_thread(self._cgroups.restore)
            self.measured.forget()
            return
        devices = {
            drive: on
            for drive in look.state.drives
            if only is None or drive.domain in only
            if (on := self._observer.storages.devices_of(drive)) is not None
        }
        margin = look.config.margin
        copying = {
            (drive.domain, device)
            for drive, on in devices.items()
            if (vm := look.vms.get(drive.domain)) and drive.target in vm.drives
            if vm.drives[drive.target].beneath
            for device in on
        }
        added, room = self.measured.added(copying), self._jobs.room(margin)
        orders = vm_orders(look.state, devices, margin, only, without, added, room)
        if only is not None:
            orders = {vm: o for vm, o in self._orders.items() if vm not in only} | orders
        self._orders = orders
        await asyncio.to_thread(self._cgroups.apply, orders, look.processes, unread=look.unread)
