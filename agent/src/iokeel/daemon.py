"""The agent: joins the edges to the core, one tick after another."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from iokeel.config.load import carried_over
from iokeel.config.settings import Config, VmConfig
from iokeel.core.decide import decide
from iokeel.core.divide.held import with_outcomes
from iokeel.core.divide.tenant_sums import Sums, by_storage, by_tenant, storage_sums, tenant_sums
from iokeel.core.fleet.handover import GuestCredit, with_credit
from iokeel.core.measure.beyond import beyond_belief, beyond_limits
from iokeel.core.measure.drive import LOOK_AGAIN_S
from iokeel.core.values.counters import Counters, DriveId
from iokeel.core.values.observation import DriveSeen, Observation, SetLimits
from iokeel.core.values.policy import TenantPolicy
from iokeel.core.values.state import NEW, DriveState, State
from iokeel.core.values.storage import StorageId
from iokeel.errors import IokeelError
from iokeel.host.cgroup.groups import Cgroups
from iokeel.host.disk_counters import read_pressure
from iokeel.host.process import Process
from iokeel.hypervisors.source import Source
from iokeel.report.history import History
from iokeel.report.http import Api, serve
from iokeel.report.metrics.prometheus import Metrics
from iokeel.report.snapshot import CgroupKnown, Known, Snapshot, series_values, snapshot_of
from iokeel.rules.tenants import with_every_tenant
from iokeel.running.beneath import BlockJobs
from iokeel.running.cgroups import Backstop
from iokeel.running.enforcer import Enforcer
from iokeel.running.leaving import Leaving
from iokeel.running.minutes import Accounts, Seen
from iokeel.running.notices import Notices
from iokeel.running.observer import Doubts, Observer
from iokeel.running.outcomes import Outcomes
from iokeel.running.recorder import Recorder
from iokeel.running.storages import DriveStorages
from iokeel.running.tasks import Tasks
from iokeel.running.would import Would
from iokeel.store.store import StateStore

if TYPE_CHECKING:  # without [fleet], nothing of it is imported
    from iokeel.fleet.member import Member

log = logging.getLogger(__name__)

# Credit and what storages teach change without an order. A crash forgets this much of it at most,
# and of credit what its rounding in the state file leaves out (store/rows.py).
_SAVE_INTERVAL_S = 5.0
# A write that takes longer is left to itself: guests wait for their limits.
_SAVE_S = 2.0
# At a stop, orders on their way take 5 s at most (enforcer.py), and so do the last ones. All of it
# ends before systemd kills the agent (TimeoutStopSec), but for a write to a disk that hangs.
_STOP_S = 12.0
# Orders that are carried out within this are told to the fleet together: each time costs a pass
# over all drives.
_TELL_S = 0.1
# The part of a tick that a sample may take: a VM that hangs leaves time to decide and to send.
_SAMPLE_RATIO = 0.8


@dataclass
class Agent:
    """The running agent: its sources, the law's state, and its errors.

    on_tick: called after each tick. looks: how often drives were looked at. fleet: None without
    [fleet]. recorder: of the history of weeks; None if there is none.
    """

    config: Config
    sources: list[Source]
    store: StateStore
    metrics: Metrics
    state: State = field(default_factory=State)
    cgroups: Cgroups | None = None
    fleet: Member | None = None
    recorder: Recorder | None = None
    releasing: bool = False  # as if no VM had a policy
    on_tick: Callable[[], None] = lambda: None
    observer: Observer = field(init=False)
    enforcer: Enforcer = field(init=False)
    tasks: Tasks = field(init=False)
    jobs: BlockJobs = field(init=False)
    history: History = field(default_factory=History)
    would: Would = field(default_factory=Would)
    accounts: Accounts = field(default_factory=Accounts)
    looks: int = 0
    _changed: set[str] = field(default_factory=set)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _backstop: Backstop | None = None
    _notices: Notices = field(init=False)
    _leaving: Leaving = field(init=False)
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)
    _stopping: bool = False
    _telling: bool = False
    _carried_out: list[SetLimits] = field(default_factory=list)
    _hung: asyncio.Task[bool] | None = None
    _doubts: Doubts = field(default_factory=Doubts)
    _of_tenants: dict[str, list[tuple[DriveId, DriveState]]] = field(default_factory=dict)
    _on_storages: dict[str, list[tuple[DriveId, DriveState]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tasks = Tasks(self.metrics)
        storages = DriveStorages(self.config.storages)
        leaving = {} if self.releasing else self.store.leaving
        self.observer = Observer(
            self.sources,
            storages,
            leaving,
            processes=self.store.processes,
            uuids=self.store.uuids,
        )
        self.enforcer = Enforcer(
            self.observer,
            self.metrics,
            Outcomes(self.config.agent.tick_seconds),
            self.tasks,
            self._on_success,
            self._on_change,
        )
        self._leaving = Leaving(self.observer, self.enforcer)
        self.jobs = BlockJobs(self.observer, self.tasks, self.metrics)
        self.jobs.default_bps = self.config.jobs.bps
        if self.cgroups is not None:
            self._backstop = Backstop(self.cgroups, self.observer, self.tasks, self.jobs)
            self._backstop.reconfigured(self.config)
        self._notices = Notices(self.config.gone)
        for source in self.sources:
            source.known_of = self._known_of

    def _known_of(self, drive: DriveId, process: Process | None) -> DriveState | None:
        """Return what is known of a drive; None if that is of another QEMU."""
        last = self.observer.processes.get(drive.domain)
        is_other = process is not None and last is not None and last != process
        return None if is_other else self.state.drives.get(drive)

    def snapshot(self, domains: Collection[str] | None = None) -> Snapshot:
        """Return a snapshot of these VMs, or of all, for a report. Waits for nothing."""
        errors = Counter(self.metrics.errors)
        for source in self.sources:
            errors.update(source.errors)
        if self.cgroups is not None:
            errors.update(self.cgroups.errors)
        if self.fleet is not None:
            errors.update(self.fleet.errors)
            errors["fleet"] += self.fleet.handovers.errors
        known = Known(
            self._shown,
            self.observer.vms(),
            self.cgroups.held if self.cgroups is not None else {},
            self.enforcer.outcomes.errors,
            self.enforcer.outcomes.last,
            errors,
            sum(source.reconnects for source in self.sources),
            self.config.gone,
            self.fleet.snapshot() if self.fleet is not None else None,
            read_pressure(),
            self._cgroup_of,
            self.jobs.running,
            self.would.above,
            self.accounts,
        )
        return snapshot_of(known, domains)

    @property
    def _shown(self) -> State:
        """The state, with observed drives as they would be."""
        if not self.would.above:
            return self.state
        return replace(self.state, drives={**self.state.drives, **self.would.drives()})

    def _cgroup_of(self, domain: str) -> CgroupKnown:
        return CgroupKnown() if self._backstop is None else self._backstop.measured.known(domain)

    @property
    def _sample_timeout_s(self) -> float:
        return _SAMPLE_RATIO * self.config.agent.tick_seconds

    def announce(self, domain: str) -> None:
        """Read a domain again at once: a hook says that it comes or goes, or it is in doubt."""
        for source in self.sources:
            source.announce(domain)

    async def run(self) -> None:
        """Serve until cancelled, then leave every drive at its static limits."""
        self.remember()
        for source in self.sources:
            source.on_change = self._on_change
            source.on_job = self.jobs.heard
        self.jobs.on_room = self._follow_jobs
        async with contextlib.AsyncExitStack() as stack:
            api = Api(
                lambda: self.config,
                self.snapshot,
                self.announce,
                self.metrics,
                self.history,
                lambda: self.looks,
                lambda since, until: (
                    self.recorder.hours(since, until) if self.recorder else iter(())
                ),
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

        What only a start reads has to be the same in both (config/load.py).
        """
        async with self._looking:
            old = self.config
            self.config = self.store.with_tables(config)
            self.state = carried_over(self.state, old, self.config)
            self._notices.gone = dict(self.config.gone)
            if self.fleet is not None:
                self.fleet.rules = config.rules.digest
            self.jobs.default_bps = self.config.jobs.bps
            if self.recorder is not None:
                self.recorder.keep_hours = config.history.keep_hours
            self.observer.unserved.difference_update(vm.name for vm in config.vms)
            if self._backstop is not None:
                self._backstop.reconfigured(self.config)
            self._leaving.reconfigured(self.config)
            for source in self.sources:
                tried = await self._leaving.attempt(source, self.config, self.state)
                self.state = self._leaving.settled(tried, self.state)
            await self.save(self.state.drives, whole=True)  # with the VMs that couldn't be left
            await self.observer.storages.configure(self.config.storages, self._sample_timeout_s)

    async def _leave_again(self) -> None:
        """Leave VMs that couldn't be left yet. Ticks go on, and don't look at these VMs."""
        config = self.config
        for source in self.sources:
            if source.leaves(config):
                tried = await self._leaving.attempt(source, config, self.state)
                async with self._looking:
                    if self.config is config:  # else the reload has tried it too
                        self.state = self._leaving.settled(tried, self.state)

    def remember(self) -> None:
        """Begin with the state that an earlier agent has saved."""
        drives, storages = self.store.load(), self.store.load_storages()
        self.state = State(self.config.model, drives, self.config.tenants, storages)
        if not (self.config.libvirt.enabled or self.releasing):
            self._leave_to_libvirt()
        self._go_on_leaving()

    def _leave_to_libvirt(self) -> None:
        """Keep what is known of libvirt's VMs that an earlier agent has limited."""
        vms = {drive.domain for drive in self.state.drives} - self.store.leaving.keys()
        self.observer.unserved.update(vms - {vm.name for vm in self.config.vms})
        if self.observer.unserved:
            log.warning(
                "VMs %s: [libvirt] is disabled, so they keep the limits that they have; enable it"
                " to serve them, or for `iokeel agent --release` to give back what they had before",
                ", ".join(sorted(self.observer.unserved)),
            )

    def _go_on_leaving(self) -> None:
        """Follow the VMs, too, that an earlier agent hasn't left, though they have gone."""
        stuck, config = self.store.leaving, self.config
        served = {value for vm in config.vms for value in (vm.name, vm.socket)}
        limited = {drive.domain for drive in self.state.drives}
        found = list[VmConfig]()
        for name, vm in [*stuck.items()]:
            if name in served or vm.socket in served or name not in limited:
                del stuck[name]
            elif (discovered := config.discovered(vm)) is not None:  # it may have ended since
                found.append(discovered)
                del stuck[name]
            else:
                log.warning("VM %s: has gone from the configuration, but isn't left yet", name)
        if stuck or found:
            for source in self.sources:
                source.configure(replace(config, vms=(*config.vms, *stuck.values(), *found)))

    async def look(self, domains: Collection[str] | None) -> None:
        """Sample all VMs' drives, or some domains' only, decide, and send the orders."""
        async with self._looking:
            if self._stopping:  # an order now could be carried out after the last one
                return
            counters = await self.observer.sample(domains, self._sample_timeout_s)
            if domains is None:
                await self.observer.storages.follow(self.observer.vms(), self._sample_timeout_s)
            now_ns = time.monotonic_ns()
            await self._forget_others(domains)
            seen = self._observation(domains, counters)
            self._note_room()
            owners = (drive.tenant for drive in seen.drives.values())
            before = with_every_tenant(self.state, self.config.tenants, owners)
            after, orders = decide(before, seen, now_ns)
            self.state = after
            self.looks += 1
            self.enforcer.forget_gone(domains, seen.drives)
            self.enforcer.forget_released(before, self.state)
            # Before anything else is waited for, so that what was decided counts as held at once.
            self._tell(whole=domains is None, moved={order.drive.domain for order in orders})
            absurd = beyond_belief(before.drives, self.state.drives, seen.drives)
            self.metrics.errors["absurd"] += self._notices.tell_absurd(absurd)
            if domains is None:
                await self._follow_all(before, now_ns)
            # Saved before orders are carried out, because a restart after a crash needs them.
            await self._save_decided(before, seen.drives, orders)
            for order in orders:
                self.history.add_order(now_ns, order.drive, order.reason)
                self.enforcer.send(order)
            self._count(before, after, seen, now_ns, whole=domains is None)
        if domains is None:
            beyond = beyond_limits(before.drives, self.state.drives, seen.drives)
            for name in self._doubts.due(beyond, time.monotonic()):
                self.announce(name)
        if self.state.suspects:
            self.tasks.spawn(self._look_soon({drive.domain for drive in self.state.suspects}))

    def _count(
        self, before: State, after: State, seen: Observation, now_ns: int, *, whole: bool
    ) -> None:
        """Count what drives did, and what would hold those that are only observed.

        It is only told, so no limits wait for it or fail with it.
        """
        try:
            self.accounts.look(before, after, seen.drives, now_ns)
            if whole:
                self.would.look(before, seen, self.observer.vms(), self.config, now_ns)
        except Exception as error:
            self.metrics.errors["internal"] += 1
            self._notices.tell_uncounted(error)
        else:
            self._notices.tell_uncounted(None)

    async def _forget_others(self, domains: Collection[str] | None) -> None:
        """Forget the drives of VMs whose names have passed to others, as by `virsh domrename`."""
        if others := self.observer.others(domains):
            log.info("VMs %s: others had these names before", ", ".join(sorted(others)))
            drives = {d: known for d, known in self.state.drives.items() if d.domain not in others}
            self.state = replace(self.state, drives=drives)
            await self.save(drives, whole=True)  # or a row would be taken for the new one's

    def _tell(self, *, whole: bool, moved: Collection[str]) -> None:
        """Tell the fleet, the operator and the backstop what was decided. Waits for nothing."""
        self._tell_fleet(whole=whole)
        self.metrics.errors["internal"] += self._notices.tell(self.state)
        self.metrics.errors["config"] += self._notices.tell_gone(self.state)
        self.metrics.errors["config"] += self._notices.tell_namesakes(self.observer.namesakes())
        if self._backstop is not None:
            self._backstop.moved.update(moved)

    async def _follow_all(self, before: State, now_ns: int) -> None:
        """After a look at all drives, let credit and cgroups follow."""
        if self.fleet is not None and before.drives.keys() - self.state.drives.keys():
            # Or their credit would be here too after a crash.
            await self.save(self.state.drives, whole=True)
        self._hand_over(before, now_ns)
        if not self.releasing:
            self.jobs.look(now_ns)
        if self._backstop is not None:
            self._backstop.look(self.state, self.config.cgroup, now_ns)

    def _follow_jobs(self) -> None:
        """Let cgroups follow block jobs at once, or guests would queue behind them."""
        if self._backstop is not None:
            self._backstop.look(self.state, self.config.cgroup, time.monotonic_ns())

    async def _save_decided(
        self, before: State, seen: Iterable[DriveId], orders: Iterable[SetLimits]
    ) -> None:
        """Save the drives that have another policy than before, and those with an order."""
        now, old = self.state.drives, before.drives
        names = {drive for drive in seen if now[drive].policy is not old.get(drive, NEW).policy}
        names |= {order.drive for order in orders}
        if names:
            await self.save({drive: now[drive] for drive in names})

    def _observation(
        self, domains: Collection[str] | None, counters: Mapping[DriveId, Counters]
    ) -> Observation:
        observer, outcomes = self.observer, self.enforcer.outcomes
        drives = dict(observer.drives(domains, counters, outcomes, releasing=self.releasing))
        granted = self._granted(drives.values())
        shared = self.fleet.granted_storages() if self.fleet is not None else {}
        cgroups = self.cgroups if self.config.cgroup.enabled else None
        weighted = cgroups.weighted if cgroups is not None else None
        if domains is not None:
            return Observation(
                drives,
                partial=True,
                gone=observer.unplugged(domains, self.state.drives, drives),
                granted=granted,
                granted_storages=shared,
                restarted=observer.restarted(domains),
                booted=observer.booted(domains),
            )
        return Observation(
            drives,
            storages=observer.storages_of(drives, self.config.storages, weighted),
            unread=observer.unread(self.state.drives, drives),
            complete=observer.unread_vms() == set(),
            granted=granted,
            granted_storages=shared,
            levels=self.fleet.levels() if self.fleet is not None else {},
            restarted=observer.restarted(None),
            booted=observer.booted(None),
        )

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
            self._note_room()
            self._of_tenants = by_tenant(self.state.drives)
            self._on_storages = by_storage(self.state.drives)
            complete = whole and self._knows_all()
            self.fleet.looked(self._of_tenants, self._on_storages, complete=complete)

    def _knows_all(self) -> bool:
        """Return whether all VMs have been read, and which storages their drives are on."""
        found = all(known.storage is not None for known in self.state.drives.values())
        return found and self.observer.unread_vms() == set()

    def _hand_over(self, before: State, now_ns: int) -> None:
        """Let credit follow guests that have come or gone since an earlier look at all drives."""
        if self.fleet is not None:
            moves = self.fleet.handovers
            moves.looked(before.drives, self.state.drives, self.observer.vms(), now_ns)

    def _on_success(self, order: SetLimits) -> None:
        """Note what a drive is held to, and tell the fleet soon. At a stop its claim stays."""
        self._carried_out.append(order)
        if self.fleet is not None and not self._telling and not self._stopping:
            self._telling = True
            self.tasks.spawn(self._tell_soon())

    def _note_room(self) -> None:
        """Go by what drives are held to since orders have been carried out."""
        self.state = with_outcomes(self.state, self._carried_out)
        self._carried_out.clear()

    async def _tell_soon(self) -> None:
        await asyncio.sleep(_TELL_S)
        self._telling = False
        self._tell_fleet(whole=False)

    def _on_credit(self, domain: str, credit: GuestCredit) -> None:
        """Take over the credit of a guest that has come from another host."""
        self.tasks.spawn(self._take_credit(domain, credit))

    async def _take_credit(self, domain: str, credit: GuestCredit) -> None:
        async with self._looking:
            drives = with_credit(self.state.drives, domain, credit)
            self.state = replace(self.state, drives=drives)
        self._on_change(domain)

    def _on_granted(self, tenant: str) -> None:
        """Look soon: the fleet grants a tenant more or less than before."""
        domains = {drive.domain for drive, _ in self._of_tenants.get(tenant, ())}
        if domains:
            self.tasks.spawn(self._look_soon(domains))

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
                self._sample(now_ns)
            ended = time.monotonic()
            self.metrics.tick(ended - started, time.process_time() - cpu)
            if self._leaving.is_due():
                self.tasks.spawn(self._leave_again())
            self.on_tick()
            if ended - saved >= _SAVE_INTERVAL_S:
                async with self._looking:  # or a drive that is new meanwhile would be forgotten
                    await self.save(self.state.drives, whole=True)
                saved = ended
            due = max(due + tick_s, ended)
            await asyncio.sleep(due - ended)

    def _sample(self, now_ns: int) -> None:
        """Add to the history of ten minutes, and to that of weeks."""
        shown, would = self._shown, self.would
        values = array("f", series_values(shown))
        self.history.add(now_ns, self.state.drives, values)
        if self.recorder is not None:
            storages = would.state.storages if would.above else shown.storages
            seen = Seen(
                shown.drives, storages, values, self.observer.uuids, would.above, self.accounts
            )
            if self.recorder.sample(now_ns, time.time(), seen):
                self.tasks.spawn(self.recorder.record())

    async def _look_at_changes(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            changed, self._changed = self._changed, set()
            await self.look(changed)

    async def _look_soon(self, domains: set[str]) -> None:
        """Look at domains after LOOK_AGAIN_S: at suspects anew, or by what the fleet grants now."""
        await asyncio.sleep(LOOK_AGAIN_S)
        await self.look(domains)

    def _on_change(self, domain: str) -> None:
        self._leaving.changed(domain)
        self._changed.add(domain)
        self._wake.set()

    # The end

    async def stop(self) -> None:
        """Leave every drive at its static limits. Cgroups keep their bounds."""
        self._stopping = True
        await self.tasks.wait(_STOP_S)
        async with self._looking:
            drives = self.state.drives
            served = [drive for drive in drives if drive.domain not in self.observer.unserved]
            orders = self.enforcer.static_orders(self.state, served)
            left = {order.drive: drives[order.drive].with_sent(order.limits) for order in orders}
            # Saved before orders are carried out, as in a look: a kill may come while a QEMU hangs.
            await self.save({**drives, **left}, whole=True, exact=True)
            done = await self.enforcer.send_all(orders)
        if self.fleet is not None:
            await self.fleet.stop()
        if self.recorder is not None:
            await self.recorder.stop(_SAVE_S)
        log.info("stopped: %d drives are at their static limits", len(done))
        if lost := sum(known.is_held for known in drives.values()) - len(done):
            log.warning("%d drives couldn't be set, and keep the limits that they have", lost)

    async def save(
        self, drives: Mapping[DriveId, DriveState], *, whole: bool = False, exact: bool = False
    ) -> None:
        """Save the changes of some drives; whole: of all there are. A disk that hangs is told.

        exact: credit to the second.
        """
        if self._hung is not None and not self._hung.done():
            self.metrics.errors["store"] += whole  # every 5 s at least, as faults that last are
            return
        if self._hung is not None and not whole:
            drives, whole = self.state.drives, True  # with all that wasn't saved meanwhile
        self._hung = None
        self.store.sockets = {n: s for source in self.sources for n, s in source.sockets().items()}
        write = partial(self.store.save, drives, self.state.storages, whole=whole, exact=exact)
        saving = asyncio.create_task(asyncio.to_thread(write))
        await asyncio.wait([saving], timeout=_SAVE_S)
        try:
            if not saving.done():
                self._hung = saving  # if it fails, the next one tells it
                saving.add_done_callback(lambda task: task.cancelled() or task.exception())
                raise self.store.hangs()
            if saving.result():
                self._notices.tell_saved(None)
        except Exception as error:  # guests wait for their limits
            self._notices.tell_saved(error)
            self.metrics.errors["store" if isinstance(error, IokeelError) else "internal"] += 1
