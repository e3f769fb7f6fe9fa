"""The agent: joins the edges to the core, one tick after another."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from iokeel.config.reload import carried_over
from iokeel.config.settings import Config
from iokeel.core.backstop import vm_orders
from iokeel.core.counters import NS_PER_S, Counters, DriveId
from iokeel.core.decide import decide, static_limits
from iokeel.core.drive.retune import LOOK_AGAIN_S
from iokeel.core.fleet.handover import GuestCredit, with_credit
from iokeel.core.observation import DriveSeen, Observation, StorageSeen
from iokeel.core.orders import SetLimits
from iokeel.core.policy import TenantPolicy
from iokeel.core.sharing.storage import StorageId, StoragePolicy
from iokeel.core.sharing.tenant_part import with_outcome
from iokeel.core.sharing.tenant_sums import (
    Sums,
    by_storage,
    by_tenant,
    storage_sums,
    tenant_sums,
)
from iokeel.core.state import NEW, DriveState, Pricing, State
from iokeel.errors import ConnectionLost, DriveGone, IokeelError, LimitsRejected
from iokeel.host.cgroup.groups import Cgroups
from iokeel.host.disk_counters import DiskStats
from iokeel.host.drive_storages import DriveStorages
from iokeel.hypervisors.source import Source, VmInfo
from iokeel.notices import Notices
from iokeel.outcomes import Outcomes
from iokeel.report.history import History
from iokeel.report.http import Api, serve
from iokeel.report.prometheus import Metrics
from iokeel.report.snapshot import Known, Snapshot, series_values, snapshot_of
from iokeel.state_store import StateStore

if TYPE_CHECKING:  # without [fleet], nothing of it is imported
    from iokeel.fleet.member import Member

log = logging.getLogger(__name__)

_SET_TIMEOUT_S = 5.0
_SAVE_INTERVAL_S = 5.0
# Cgroups follow changes of limits at most this often, and are checked this often without any.
_BOUND_INTERVAL_S = 2
_BOUND_AGAIN_S = 10


@dataclass
class Agent:
    """The running agent: its sources, the law's state, and its errors.

    on_tick: called after each tick. looks: how often drives were looked at. fleet: None without
    [fleet].
    """

    config: Config
    sources: list[Source]
    store: StateStore
    metrics: Metrics
    state: State = field(default_factory=State)
    storages: DriveStorages = field(init=False)
    cgroups: Cgroups | None = None
    fleet: Member | None = None
    releasing: bool = False  # as if no VM had a policy
    on_tick: Callable[[], None] = lambda: None
    outcomes: Outcomes = field(init=False)
    history: History = field(default_factory=History)
    looks: int = 0
    _changed: set[str] = field(default_factory=set)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _disk_stats: DiskStats = field(default_factory=DiskStats)
    _bounding: bool = False
    _bound_at_ns: int = -(10**12)
    _moved: bool = False
    _notices: Notices = field(init=False)
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)
    _stopping: bool = False
    _tasks: set[asyncio.Task[object]] = field(default_factory=set)
    _of_tenants: dict[str, list[tuple[DriveId, DriveState]]] = field(default_factory=dict)
    _on_storages: dict[str, list[tuple[DriveId, DriveState]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.storages = DriveStorages(self.config.storages)
        self.outcomes = Outcomes(self.config.agent.tick_seconds)
        self._notices = Notices(self.config.gone)

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
        if self.fleet is not None:
            errors["fleet"] += self.fleet.errors + self.fleet.handovers.errors
        known = Known(
            self.state,
            self.vms(),
            self.cgroups.held if self.cgroups is not None else {},
            self.outcomes.errors,
            self.outcomes.last,
            errors,
            sum(source.reconnects for source in self.sources),
            self.config.gone,
            self.fleet.snapshot() if self.fleet is not None else None,
        )
        return snapshot_of(known, domains)

    def announce(self, domain: str) -> None:
        """Look at a domain at once: a hook says that it comes or goes."""
        for source in self.sources:
            source.announce(domain)

    async def run(self) -> None:
        """Serve until cancelled, then put every drive back to its policy's static limit."""
        self.remember()
        for source in self.sources:
            source.on_change = self._on_change
        async with contextlib.AsyncExitStack() as stack:
            api = Api(
                lambda: self.config,
                self.snapshot,
                self.announce,
                self.metrics,
                self.history,
                lambda: self.looks,
            )
            await stack.enter_async_context(serve(api, self.config.agent))
            followers = [asyncio.create_task(source.run()) for source in self.sources]
            if self.fleet is not None:
                self.fleet.on_change = self._on_granted
                self.fleet.handovers.on_credit = self._on_credit
                followers.append(asyncio.create_task(self.fleet.run()))
            watcher = asyncio.create_task(self._look_at_changes())
            try:
                await self._tick_forever([*followers, watcher])
            finally:
                watcher.cancel()
                await self.stop()
                for task in followers:
                    task.cancel()
                await asyncio.gather(watcher, *followers, return_exceptions=True)

    async def reconfigure(self, config: Config) -> None:
        """Go on with another configuration, with the next tick.

        What only a start reads has to be the same in both (config/reload.py).
        """
        async with self._looking:
            old = self.config
            self.config = await asyncio.to_thread(self.store.keep_tables, config)
            self.state = carried_over(self.state, old, self.config)
            self._notices.gone = dict(self.config.gone)
            self._moved = True
            for source in self.sources:
                await self._leave(source, source.leaves(self.config))
                source.configure(self.config)
            await self.storages.configure(self.config.storages, self._sample_timeout_s)

    async def _leave(self, source: Source, vms: Collection[str]) -> None:
        """Leave the drives of VMs that a source no longer follows at their static limits.

        One that is at another socket now is priced anew. It may be the same QEMU, so what there was
        before the agent stays known.
        """
        names = {name for name in vms if self._source_of(name) is source}
        leaving = {d: known for d, known in self.state.drives.items() if d.domain in names}
        left, _ = await self._set_static(leaving)
        stay = {vm.name for vm in self.config.vms}  # at another socket
        moved = {
            drive: left.get(drive, known)._replace(pricing=Pricing(mix=known.pricing.mix))
            for drive, known in leaving.items()
            if drive.domain in stay
        }
        others = {d: known for d, known in self.state.drives.items() if d not in leaving}
        self.state = replace(self.state, drives={**others, **moved})

    def remember(self) -> None:
        """Begin with the state that an earlier agent has saved."""
        self.state = State(self.config.model, self.store.load(), self.config.tenants)

    async def look(self, domains: Collection[str] | None) -> None:
        """Sample all VMs' drives, or some domains' only, decide, and send the orders."""
        async with self._looking:
            if self._stopping:  # an order now could be carried out after the last one
                return
            counters = await self._sample(domains)
            if domains is None:
                await self.storages.follow(self.vms(), self._sample_timeout_s)
            now_ns = time.monotonic_ns()
            drives = dict(self._seen(domains, counters))
            seen = Observation(
                drives,
                partial=domains is not None,
                storages=self._storages_seen(drives.values()) if domains is None else {},
                unread=[] if domains is not None else self._unread(drives),
                granted=self._granted(drives.values()),
                granted_storages=self.fleet.granted_storages() if self.fleet is not None else {},
            )
            before = self.state
            self.state, orders = decide(before, seen, now_ns)
            self.looks += 1
            # Before anything else is waited for, so that what was decided counts as held at once.
            self._tell_fleet(whole=domains is None)
            self.metrics.errors["internal"] += self._notices.tell(self.state)
            self.metrics.errors["config"] += self._notices.tell_gone(self.state)
            self._moved = self._moved or bool(orders)
            if domains is None:
                if self.fleet is not None and before.drives.keys() - self.state.drives.keys():
                    # Or their credit would be here too after a crash.
                    await self.save(self.state.drives, whole=True)
                self._hand_over(before, now_ns)
                self._bound_cgroups(now_ns, partial=self._unread_vms() != set())
            changed = [
                drive
                for drive in drives
                if self.state.drives[drive].policy is not before.drives.get(drive, NEW).policy
            ]
            # Saved before orders are carried out, because a restart after a crash needs them.
            if changed or orders:
                names = {*changed, *(order.drive for order in orders)}
                await self.save({drive: self.state.drives[drive] for drive in names})
            for order in orders:
                self.history.add_order(now_ns, order.drive, order.reason)
                self._send(order)
        if self.state.suspects:
            self.spawn(self._look_again({drive.domain for drive in self.state.suspects}))

    # The fleet

    def tenant_sums(self, tenant: str) -> Sums:
        """Return what a tenant's drives here ask of the fleet, and what they are held to."""
        return tenant_sums(self._of_tenants.get(tenant, ()))

    def storage_sums(self, storage: StorageId) -> Sums:
        """Return the same of the drives on a storage, and their load."""
        return storage_sums(self._on_storages.get(storage, ()), self.state.storages.get(storage))

    def _granted(self, drives: Iterable[DriveSeen]) -> Mapping[str, TenantPolicy]:
        """Return what the fleet lets tenants do on this host now."""
        if self.fleet is None:
            return {}
        here = {drive.tenant for drive in drives if drive.tenant is not None}
        return self.fleet.granted(here | self._of_tenants.keys())

    def _tell_fleet(self, *, whole: bool) -> None:
        """Tell the fleet what drives ask and are held to. whole: after a look at all VMs."""
        if self.fleet is not None:
            self._of_tenants = by_tenant(self.state.drives)
            self._on_storages = by_storage(self.state.drives)
            complete = whole and self._knows_all()
            self.fleet.looked(self._of_tenants, self._on_storages, complete=complete)

    def _knows_all(self) -> bool:
        """Return whether all VMs have been read, and which storages their drives are on."""
        found = all(known.storage is not None for known in self.state.drives.values())
        return found and self._unread_vms() == set()

    def _hand_over(self, before: State, now_ns: int) -> None:
        """Let credit follow guests that have come or gone since an earlier look at all drives."""
        if self.fleet is not None:
            moves = self.fleet.handovers
            moves.looked(before.drives, self.state.drives, self.vms(), now_ns)

    def _on_credit(self, domain: str, credit: GuestCredit) -> None:
        """Take over the credit of a guest that has come from another host."""
        self.spawn(self._take_credit(domain, credit))

    async def _take_credit(self, domain: str, credit: GuestCredit) -> None:
        async with self._looking:
            drives = with_credit(self.state.drives, domain, credit)
            self.state = replace(self.state, drives=drives)
        self._on_change(domain)

    def _on_granted(self, tenant: str) -> None:
        """Look again soon: the fleet grants a tenant more or less than before."""
        domains = {drive.domain for drive, _ in self._of_tenants.get(tenant, ())}
        if domains:
            self.spawn(self._look_again(domains))

    # The cgroups beneath

    def _bound_cgroups(self, now_ns: int, *, partial: bool) -> None:
        """Bring VMs' cgroups up to date, if that is due."""
        interval_s = _BOUND_INTERVAL_S if self._moved else _BOUND_AGAIN_S
        due = now_ns >= self._bound_at_ns + interval_s * NS_PER_S
        if self.cgroups is not None and due and not self._bounding:
            self._bounding = True
            self._bound_at_ns, self._moved = now_ns, False
            self.spawn(self._bound_groups(partial=partial))

    async def _bound_groups(self, *, partial: bool) -> None:
        """Keep VMs' cgroups at their drives' shares, beside the ticks."""
        assert self.cgroups is not None
        try:
            if not self.config.cgroup.enabled:  # they may be an earlier agent's, or configuration's
                await asyncio.to_thread(self.cgroups.restore)
                return
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
            if self.history.is_due(now_ns := time.monotonic_ns()):
                self.history.add(now_ns, self.state.drives, series_values(self.state))
            ended = time.monotonic()
            self.metrics.tick(ended - started, time.process_time() - cpu)
            self.on_tick()
            if ended - saved >= _SAVE_INTERVAL_S:
                async with self._looking:  # or a drive that is new meanwhile would be forgotten
                    await self.save(self.state.drives, whole=True)
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

    def _unread(self, seen: Collection[DriveId]) -> list[DriveId]:
        """Return the drives that aren't seen, but whose VMs may run."""
        missing = self.state.drives.keys() - seen
        if not missing:
            return []
        vms, unread = self.vms(), self._unread_vms()
        return [
            drive
            for drive in missing
            if drive.domain not in vms and (unread is None or drive.domain in unread)
        ]

    def _unread_vms(self) -> Collection[str] | None:
        """Return the names of VMs that can't be read but may run; None if any may."""
        found = [source.unread() for source in self.sources]
        return None if None in found else {name for names in found for name in names or ()}

    def _seen(
        self, domains: Collection[str] | None, counters: Mapping[DriveId, Counters]
    ) -> Iterable[tuple[DriveId, DriveSeen]]:
        for name, vm in self.vms().items():
            if domains is not None and name not in domains:
                continue
            policy = None if self.releasing else vm.policy
            tenant, promise = (policy.tenant, policy.vm) if policy else (None, None)
            for target, info in vm.drives.items():
                drive = DriveId(name, target)
                in_force, failed, abilities = self.outcomes.seen(drive, info)
                yield (
                    drive,
                    DriveSeen(
                        policy.for_drive(target) if policy else None,
                        counters.get(drive),
                        in_force,
                        failed,
                        abilities,
                        self.storages.of(drive),
                        tenant,
                        promise,
                    ),
                )

    # Enforcing

    def _send(self, order: SetLimits) -> asyncio.Task[object]:
        self.outcomes.begun(order.drive)
        return self.spawn(self._carry_out(order))

    async def _carry_out(self, order: SetLimits) -> bool:
        """Carry out an order, and return whether that succeeded."""
        try:
            done = await self._is_taken(order)
        finally:
            is_last = self.outcomes.ended(order.drive)
        # Another one that is still on its way may have higher limits.
        if done and is_last and self.fleet is not None:
            self.state = with_outcome(self.state, order)
            self._tell_fleet(whole=False)
        return done

    async def _is_taken(self, order: SetLimits) -> bool:
        """Return whether QEMU has taken an order, and note it."""
        try:
            await self._set(order)
        except DriveGone as error:
            log.info("%s", error)
            return False
        except IokeelError as error:
            self.metrics.errors["rejected" if isinstance(error, LimitsRejected) else "set"] += 1
            if self.outcomes.failed(order, error):
                self._on_change(order.drive.domain)
            return False
        else:
            self.outcomes.succeeded(order)
            return True

    async def _set(self, order: SetLimits) -> None:
        source = self._source_of(order.drive.domain)
        if source is not None:
            await source.set_limits(order.drive, order.limits, _SET_TIMEOUT_S)
            return
        unread = self._unread_vms()
        if unread is None or order.drive.domain in unread:
            raise ConnectionLost(str(order.drive), "its guest can't be reached; its limits stay")
        raise DriveGone(str(order.drive), "its guest is no longer there")

    def _source_of(self, domain: str) -> Source | None:
        """Return the source that serves a VM; None if none has it."""
        return next((source for source in self.sources if domain in source.vms()), None)

    async def stop(self) -> None:
        """Leave every drive at its policy's static limit, and save that."""
        self._stopping = True
        await asyncio.gather(*self._tasks, return_exceptions=True)
        async with self._looking:
            left, lost = await self._set_static(self.state.drives)
            await self.save({**self.state.drives, **left}, whole=True)
            if self.cgroups is not None:
                await asyncio.to_thread(self.cgroups.restore)
        if self.fleet is not None:
            await self.fleet.stop()
        log.info("stopped: %d drives are at their policies' static limits", len(left))
        if lost:
            log.warning("%d drives couldn't be set, and keep the limits that they have", lost)

    async def _set_static(
        self, drives: Mapping[DriveId, DriveState]
    ) -> tuple[dict[DriveId, DriveState], int]:
        """Give drives their static limits. Return those that have them, and how many others.

        If the law fails on a VM, its drives keep the limits that they have.
        """
        vms: dict[str, dict[DriveId, DriveState]] = {}
        for drive, known in drives.items():
            vms.setdefault(drive.domain, {})[drive] = known
        orders = []
        for name, those in vms.items():
            try:
                orders += static_limits(replace(self.state, drives=those))
            except Exception:
                self.metrics.errors["internal"] += 1
                log.exception("%s: no static limits, please report it; its limits stay", name)
        done = await asyncio.gather(
            *(self._send(order) for order in orders), return_exceptions=True
        )
        left = {
            order.drive: drives[order.drive].with_sent(order.limits)
            for order, succeeded in zip(orders, done, strict=True)
            if succeeded is True
        }
        return left, len(orders) - len(left)

    async def save(self, drives: Mapping[DriveId, DriveState], *, whole: bool = False) -> None:
        try:
            await asyncio.to_thread(self.store.save, drives, whole=whole)
        except IokeelError as error:
            if not self.metrics.errors["store"]:
                log.error("%s", error)
            self.metrics.errors["store"] += 1

    def spawn(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
        """Do work beside the ticks. An error of it is logged, and ends nothing."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.metrics.errors["internal"] += 1
            log.error("internal error, please report it", exc_info=error)
