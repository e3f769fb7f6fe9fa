"""Keeps VMs' cgroups at their drives' shares, beside the ticks."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from iokeel.config.settings import CgroupConfig
from iokeel.core.backstop import CgroupOrder, vm_orders
from iokeel.core.counters import NS_PER_S
from iokeel.core.state import State
from iokeel.host.cgroup.groups import Cgroups
from iokeel.host.process import Process
from iokeel.observer import Observer
from iokeel.tasks import Tasks

# A VM's cgroup follows changes of its drives' limits at most this often.
_INTERVAL_S = 2
# All VMs' are brought up to date this often, and once a VM is new or has another QEMU: it counts
# for others' weights, and what its last QEMU needed may be wrong for this one.
_CHECK_AGAIN_S = 10
_NEVER_NS = -(10**12)


class Backstop:
    """The limits beneath QEMU's. moved: VMs whose limits have changed since the last time."""

    def __init__(self, cgroups: Cgroups, observer: Observer, tasks: Tasks) -> None:
        self.moved: set[str] = set()
        self._cgroups, self._observer, self._tasks = cgroups, observer, tasks
        self._orders: dict[str, CgroupOrder | None] = {}
        self._processes: Mapping[str, Process] = {}
        self._saving = frozenset[str]()
        self._at_ns = self._all_at_ns = _NEVER_NS
        self._is_busy = False

    def reconfigured(self) -> None:
        """Bring all VMs' cgroups up to date the next time."""
        self._all_at_ns = _NEVER_NS

    def look(self, state: State, config: CgroupConfig, now_ns: int) -> None:
        """Begin to bring VMs' cgroups up to date, if that is due."""
        saving = self._observer.saving()
        self.moved |= saving ^ self._saving
        self._saving = saving
        check = now_ns >= self._all_at_ns + _CHECK_AGAIN_S * NS_PER_S
        is_due = (check or self.moved) and now_ns >= self._at_ns + _INTERVAL_S * NS_PER_S
        if is_due and not self._is_busy:
            self._is_busy = True
            vms, unread = self._observer.vms(), self._observer.unread_vms()  # as the state has them
            processes = {name: vm.process for name, vm in vms.items() if vm.process}
            all_anew = check or processes != self._processes or self.moved - self._orders.keys()
            only = None if all_anew else self.moved
            self._at_ns, self.moved, self._processes = now_ns, set(), processes
            if only is None:
                self._all_at_ns = now_ns
            self._tasks.spawn(self._apply(state, config, processes, unread, only, saving))

    async def _apply(
        self,
        state: State,
        config: CgroupConfig,
        processes: Mapping[str, Process],
        unread: Collection[str] | None,
        only: Collection[str] | None,
        saving: Collection[str],
    ) -> None:
        try:
            if not config.enabled:  # they may be an earlier agent's, or configuration's
                await asyncio.to_thread(self._cgroups.restore)
                return
            devices = {
                drive: on
                for drive in state.drives
                if only is None or drive.domain in only
                if (on := self._observer.storages.devices_of(drive)) is not None
            }
            orders = vm_orders(state, devices, config.margin, only, saving)
            if only is not None:
                orders = {vm: o for vm, o in self._orders.items() if vm not in only} | orders
            self._orders = orders
            await asyncio.to_thread(self._cgroups.apply, orders, processes, unread=unread)
        finally:
            self._is_busy = False
