"""The agent: joins the edges to the core, one tick after another."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import time
from collections import Counter
from collections.abc import Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from iokeel.config.settings import Config
from iokeel.core.backstop import vm_orders
from iokeel.core.counters import NS_PER_S, Counters, DriveId
from iokeel.core.decide import decide, static_limits
from iokeel.core.drive.retune import LOOK_AGAIN_S
from iokeel.core.observation import DriveSeen, Observation, StorageSeen
from iokeel.core.orders import SetLimits
from iokeel.core.sharing.storage import StorageId, StoragePolicy
from iokeel.core.state import DriveState, State
from iokeel.errors import DriveGone, IokeelError, LimitsRejected
from iokeel.host.cgroup.groups import Cgroups
from iokeel.host.disk_counters import DiskStats
from iokeel.host.drive_storages import DriveStorages
from iokeel.hypervisors.source import Source, VmInfo
from iokeel.notices import Notices
from iokeel.report.http import Api, serve
from iokeel.report.prometheus import Metrics
from iokeel.report.snapshot import Known, Snapshot, snapshot_of
from iokeel.state_store import StateStore

log = logging.getLogger(__name__)

_SET_TIMEOUT_S = 5.0
# QEMU will refuse again what it has refused once, so don't ask every second.
_REJECTED_RETRY_S = 30.0
_SAVE_INTERVAL_S = 5.0
# Cgroups follow changes of limits at most this often, and are checked this often without any.
_BOUND_INTERVAL_S = 2
_BOUND_AGAIN_S = 10
# After a start, a saved drive that isn't seen is remembered for so long. Its guest may come yet.
_FIND_AGAIN_S = 60.0


@dataclass
class Agent:
    """The running agent: its sources, the law's state, and its errors."""

    config: Config
    sources: list[Source]
    store: StateStore
    metrics: Metrics
    state: State = field(default_factory=State)
    storages: DriveStorages = field(init=False)
    cgroups: Cgroups | None = None
    drive_errors: Counter[DriveId] = field(default_factory=Counter)
    last_errors: dict[DriveId, IokeelError] = field(default_factory=dict)
    _started: float = field(default_factory=time.monotonic)
    _pending: set[DriveId] = field(default_factory=set)
    _failed: dict[DriveId, float] = field(default_factory=dict)
    _changed: set[str] = field(default_factory=set)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _disk_stats: DiskStats = field(default_factory=DiskStats)
    _bounding: bool = False
    _bound_at_ns: int = -(10**12)
    _moved: bool = False
    _notices: Notices = field(default_factory=Notices)
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.storages = DriveStorages(self.config.storages)

    def vms(self) -> dict[str, VmInfo]:
        """Return all running VMs by name; of two with one name, libvirt's."""
        found: dict[str, VmInfo] = {}
        for source in reversed(self.sources):
            found.update(source.vms())
        return found

    def snapshot(self, domains: Collection[str] | None = None) -> Snapshot:
        """Return a snapshot of these VMs, or of all, for a report. Does no I/O."""
        errors = Counter(self.metrics.errors)
        for source in self.sources:
            errors.update(source.errors)
        if self.cgroups is not None:
            errors.update(self.cgroups.errors)
        known = Known(
            self.state,
            self.vms(),
            self.cgroups.held if self.cgroups is not None else {},
            self.drive_errors,
            self.last_errors,
            errors,
            sum(source.reconnects for source in self.sources),
        )
        return snapshot_of(known, domains)

    def announce(self, domain: str) -> None:
        """Look at a domain at once: a hook says that it comes or goes."""
        for source in self.sources:
            source.announce(domain)

    async def run(self) -> None:
        """Serve until cancelled, then put every drive back to its policy's static limit."""
        self.state = State(self.config.model, self.store.load(), self.config.tenants)
        for source in self.sources:
            source.on_change = self._on_change
        async with contextlib.AsyncExitStack() as stack:
            api = Api(self.config.classes, self.snapshot, self.announce, self.metrics)
            await stack.enter_async_context(serve(api, self.config.agent))
            followers = [asyncio.create_task(source.run()) for source in self.sources]
            watcher = asyncio.create_task(self._look_at_changes())
            try:
                await self._tick_forever([*followers, watcher])
            finally:
                watcher.cancel()
                await self._stop()
                for task in followers:
                    task.cancel()
                await asyncio.gather(watcher, *followers, return_exceptions=True)

    async def look(self, domains: Collection[str] | None) -> None:
        """Sample all VMs' drives, or some domains' only, decide, and send the orders."""
        async with self._looking:
            counters = await self._sample(domains)
            if domains is None:
                await self.storages.follow(self.vms(), self._sample_timeout_s)
            now_ns = time.monotonic_ns()
            drives = dict(self._seen(domains, counters))
            seen = Observation(
                drives,
                partial=domains is not None,
                storages=self._storages_seen(drives.values()) if domains is None else {},
                keep=domains is not None or time.monotonic() < self._started + _FIND_AGAIN_S,
            )
            self.state, orders = decide(self.state, seen, now_ns)
            self.metrics.errors["internal"] += self._notices.tell(self.state)
            self._moved = self._moved or bool(orders)
            if domains is None:
                self._bound_cgroups(now_ns, partial=seen.keep)
            if (
                orders
            ):  # saved before they are carried out, because a restart after a crash needs them
                await self._save({order.drive: self.state.drives[order.drive] for order in orders})
            for order in orders:
                self._send(order)
        if self.state.suspects:
            self._spawn(self._look_again({drive.domain for drive in self.state.suspects}))

    # The cgroups beneath

    def _bound_cgroups(self, now_ns: int, *, partial: bool) -> None:
        """Bring VMs' cgroups up to date, if that is due."""
        interval_s = _BOUND_INTERVAL_S if self._moved else _BOUND_AGAIN_S
        due = now_ns >= self._bound_at_ns + interval_s * NS_PER_S
        if self.cgroups is not None and due and not self._bounding:
            self._bounding = True
            self._bound_at_ns, self._moved = now_ns, False
            self._spawn(self._bound_groups(partial=partial))

    async def _bound_groups(self, *, partial: bool) -> None:
        """Keep VMs' cgroups at their drives' shares, beside the ticks."""
        assert self.cgroups is not None
        try:
            devices = {
                drive: on
                for drive in self.state.drives
                if (on := self.storages.devices_of(drive)) is not None
            }
            orders = vm_orders(self.state, devices, self.config.cgroup.margin)
            processes = {name: vm.process for name, vm in self.vms().items() if vm.process}
            await asyncio.to_thread(self.cgroups.apply, orders, processes, partial=partial)
        finally:
            self._bounding = False

    # The loop

    async def _tick_forever(self, helpers: list[asyncio.Task[None]]) -> None:
        tick_s = self.config.agent.tick_seconds
        due = time.monotonic()
        saved = due
        while True:
            for task in helpers:
                if task.done():
                    task.result()  # a helper never ends by itself: raise what ended it
            started, cpu = time.monotonic(), time.process_time()
            await self.look(None)
            ended = time.monotonic()
            self.metrics.tick(ended - started, time.process_time() - cpu)
            if ended - saved >= _SAVE_INTERVAL_S:
                await self._save(self.state.drives, whole=True)
                saved = ended
            due = max(due + tick_s, ended)
            await asyncio.sleep(due - ended)

    async def _look_at_changes(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            changed, self._changed = self._changed, set()
            await self.look(changed)

    async def _look_again(self, domains: set[str]) -> None:
        await asyncio.sleep(LOOK_AGAIN_S)
        await self.look(domains)

    def _on_change(self, domain: str) -> None:
        self._changed.add(domain)
        self._wake.set()

    # Observing

    async def _sample(self, domains: Collection[str] | None) -> dict[DriveId, Counters]:
        found: dict[DriveId, Counters] = {}
        for part in await asyncio.gather(
            *(source.sample(domains, self._sample_timeout_s) for source in self.sources)
        ):
            found.update(part)
        return found

    @property
    def _sample_timeout_s(self) -> float:
        return 0.8 * self.config.agent.tick_seconds

    def _storages_seen(self, drives: Iterable[DriveSeen]) -> dict[StorageId, StorageSeen]:
        """Return the storages that drives are on, or that configuration names."""
        counters = self._disk_stats.read(self.storages.devices)
        configured = self.config.storages
        names = {*configured, *(drive.storage for drive in drives if drive.storage is not None)}
        return {
            name: StorageSeen(
                configured[name].policy if name in configured else StoragePolicy(),
                counters.get(name),
            )
            for name in names
        }

    def _seen(
        self, domains: Collection[str] | None, counters: Mapping[DriveId, Counters]
    ) -> Iterable[tuple[DriveId, DriveSeen]]:
        now = time.monotonic()
        for name, vm in self.vms().items():
            if domains is not None and name not in domains:
                continue
            for target, info in vm.drives.items():
                drive = DriveId(name, target)
                if drive in self._pending:  # an order is on its way: its limits aren't known
                    in_force, failed = None, False
                else:
                    in_force = info.in_force
                    failed = self._failed.get(drive, float("inf")) <= now
                    if drive in self._failed and not failed:
                        in_force = None
                policy = vm.policy.for_drive(target) if vm.policy else None
                yield (
                    drive,
                    DriveSeen(
                        policy,
                        counters.get(drive),
                        in_force,
                        failed,
                        info.abilities,
                        self.storages.of(drive),
                        vm.policy.tenant if vm.policy else None,
                        vm.policy.vm if vm.policy else None,
                    ),
                )

    # Enforcing

    def _send(self, order: SetLimits) -> None:
        self._pending.add(order.drive)
        self._spawn(self._carry_out(order))

    async def _carry_out(self, order: SetLimits) -> None:
        try:
            await self._set(order)
        except DriveGone as error:
            log.info("%s", error)
        except IokeelError as error:
            rejected = isinstance(error, LimitsRejected)
            retry_s = _REJECTED_RETRY_S if rejected else self.config.agent.tick_seconds
            self._failed[order.drive] = time.monotonic() + retry_s
            self.drive_errors[order.drive] += 1
            self.metrics.errors["rejected" if rejected else "set"] += 1
            if self.last_errors.get(order.drive) != error:
                log.error("%s", error)
            self.last_errors[order.drive] = error
        else:
            self._failed.pop(order.drive, None)
            self.last_errors.pop(order.drive, None)
            log.info("%s: limits set: %s", order.drive, order.reason.value)
        finally:
            self._pending.discard(order.drive)

    async def _set(self, order: SetLimits) -> None:
        for source in self.sources:
            if order.drive.domain in source.vms():
                await source.set_limits(order.drive, order.limits, _SET_TIMEOUT_S)
                return
        raise DriveGone(str(order.drive), "its guest is no longer there")

    async def _stop(self) -> None:
        """Leave every drive at its policy's static limit, and save that."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        async with self._looking:
            orders = static_limits(self.state)
            await asyncio.gather(*(self._carry_out(order) for order in orders))
            left = {
                order.drive: self.state.drives[order.drive].with_sent(order.limits)
                for order in orders
                if order.drive not in self._failed
            }
            await self._save({**self.state.drives, **left}, whole=True)
            if self.cgroups is not None:
                await asyncio.to_thread(self.cgroups.restore)
        log.info("stopped: %d drives are at their policies' static limits", len(left))

    async def _save(self, drives: Mapping[DriveId, DriveState], *, whole: bool = False) -> None:
        try:
            await asyncio.to_thread(self.store.save, drives, whole=whole)
        except IokeelError as error:
            if not self.metrics.errors["store"]:
                log.error("%s", error)
            self.metrics.errors["store"] += 1

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.metrics.errors["internal"] += 1
            log.error("internal error, please report it", exc_info=error)


async def run_agent(config: Config) -> None:
    """Run an agent until SIGTERM or SIGINT, which stop it cleanly.

    Raises IokeelError if it can't start: another agent runs, or its folders can't be used.
    """
    gc.set_threshold(100_000, 20, 50)  # a tick makes many objects, and hardly any cycle
    loop = asyncio.get_running_loop()
    store = StateStore(config.agent.state_dir)
    with store.lock():
        sources: list[Source] = []
        if config.libvirt.enabled:
            from iokeel.hypervisors.libvirt.source import LibvirtSource

            sources.append(LibvirtSource(config.libvirt.uri, config.classes))
        if config.vms:
            from iokeel.hypervisors.qmp.source import QmpSource

            sources.append(QmpSource(config.vms))
        agent = Agent(config, sources, store, Metrics())
        groups = Cgroups(store)
        if config.cgroup.enabled:
            agent.cgroups = groups
        else:
            groups.restore()  # from an agent that was killed
        agent.metrics.watch(agent.snapshot)
        task = asyncio.create_task(agent.run())

        def stop() -> None:
            for number in (signal.SIGTERM, signal.SIGINT):  # more of them don't cut it short
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)
            task.cancel()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        with contextlib.suppress(asyncio.CancelledError):
            await task
