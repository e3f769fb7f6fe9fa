"""Keeps VMs' cgroups at their drives' shares, beside the ticks."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from iokeel.config.settings import CgroupConfig
from iokeel.core.backstop import vm_orders
from iokeel.core.counters import NS_PER_S
from iokeel.core.state import State
from iokeel.host.cgroup.groups import Cgroups
from iokeel.host.process import Process
from iokeel.observer import Observer
from iokeel.tasks import Tasks

# Cgroups follow changes of limits at most this often, and are checked this often without any.
_INTERVAL_S = 2
_CHECK_AGAIN_S = 10


class Backstop:
    """The limits beneath QEMU's. moved: drives' limits have changed since the last time."""

    def __init__(self, cgroups: Cgroups, observer: Observer, tasks: Tasks) -> None:
        self.moved = False
        self._cgroups, self._observer, self._tasks = cgroups, observer, tasks
        self._at_ns = -(10**12)
        self._is_busy = False

    def look(self, state: State, config: CgroupConfig, now_ns: int) -> None:
        """Begin to bring VMs' cgroups up to date, if that is due."""
        interval_s = _INTERVAL_S if self.moved else _CHECK_AGAIN_S
        if now_ns >= self._at_ns + interval_s * NS_PER_S and not self._is_busy:
            self._is_busy = True
            self._at_ns, self.moved = now_ns, False
            vms, unread = self._observer.vms(), self._observer.unread_vms()  # as the state has them
            processes = {name: vm.process for name, vm in vms.items() if vm.process}
            self._tasks.spawn(self._apply(state, config, processes, unread))

    async def _apply(
        self,
        state: State,
        config: CgroupConfig,
        processes: Mapping[str, Process],
        unread: Collection[str] | None,
    ) -> None:
        try:
            if not config.enabled:  # they may be an earlier agent's, or configuration's
                await asyncio.to_thread(self._cgroups.restore)
                return
            devices = {
                drive: on
                for drive in state.drives
                if (on := self._observer.storages.devices_of(drive)) is not None
            }
            orders = vm_orders(state, devices, config.margin)
            await asyncio.to_thread(self._cgroups.apply, orders, processes, unread=unread)
        finally:
            self._is_busy = False
