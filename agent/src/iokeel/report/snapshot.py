"""A snapshot of the agent, for all reports.

The daemon makes one when a report is asked for, so a tick pays nothing for it. Only this file and
explain.py read the control law's memory. It fills the records that the API sends; metrics and
explanations are made from them too. Beside them it has what the API doesn't send.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, nan
from types import MappingProxyType
from typing import NamedTuple, Protocol

from iokeel.core.enforce.beneath import Beneath
from iokeel.core.enforce.jobs import Followed
from iokeel.core.measure.demand import full_beside, full_bounds
from iokeel.core.promises import promises_of
from iokeel.core.values.counters import NS_PER_S, DriveId, Rates, at_most_s
from iokeel.core.values.curve import large_wait_s
from iokeel.core.values.limits import ThrottleLimits
from iokeel.core.values.policy import DrivePolicy, ToldPolicy, VmPolicy
from iokeel.core.values.state import (
    NEW,
    DriveState,
    Measured,
    Share,
    State,
    StorageState,
    Zeroes,
)
from iokeel.errors import IokeelError
from iokeel.host.disk_counters import Pressure
from iokeel.hypervisors.source import DriveInfo, VmInfo
from iokeel.report.promises import limit_of
from iokeel.report.records import (
    Above,
    Account,
    DriveReport,
    ErrorReport,
    FleetSnapshot,
    HostReport,
    Kept,
    StorageReport,
    ThrottleReport,
    VmReport,
)
from iokeel.rules.compose import ByRules, class_of_drive, rules_of_drive


class Decision(NamedTuple):
    """The last decision on a drive, as far as its record doesn't tell it.

    known: the law's memory of the drive. in_force: its limits as QEMU or libvirt last reported
    them. now_ns: when it was asked for.
    """

    known: DriveState
    in_force: ThrottleLimits | None
    now_ns: int

    def age_s(self, at_ns: int) -> float:
        """Return how long ago something was, in seconds."""
        return (self.now_ns - at_ns) / NS_PER_S

    @property
    def zeroes(self) -> Zeroes | None:
        """The zeroes that its limits pay for; None once they are forgiven."""
        zeroes = self.known.measured.zeroes
        return None if zeroes is None or self.known.sent.at_ns > zeroes.at_ns else zeroes


class CgroupKnown(NamedTuple):
    """What is known of a VM's group.

    devices: what it did there, and what its images add, by device. holding: the bounds that have
    just held its drives, by target. uncounted: the kernel's counters can't be read.
    """

    devices: Mapping[str, Beneath] = MappingProxyType({})
    holding: Mapping[str, Sequence[str]] = MappingProxyType({})
    uncounted: bool = False


class VmSnapshot(NamedTuple):
    """A running VM: its record, and the error in its policy, if any.

    policy: the promise in force to all its drives together; None if there is none. cgroup: what is
    known of its group. jobs: its block jobs. told: its policy; None if it has none. by_rules: what
    the rules make of it; None if they know nothing of it.
    """

    report: VmReport
    policy: VmPolicy | None
    policy_error: IokeelError | None
    cgroup: CgroupKnown = CgroupKnown()
    jobs: tuple[Followed, ...] = ()
    told: ToldPolicy | None = None
    by_rules: ByRules | None = None

    @property
    def ceiling(self) -> str | None:
        """The name of the host's ceiling that changes its policy."""
        return self.told.ceiling if self.told else None


class StorageSnapshot(NamedTuple):
    """A storage: its record, and what only an explanation tells.

    capacity_ratio: how far latency has corrected its capacity. protected: drives for which the
    others' large reads wait in pieces. divided: its drives are held to their shares.
    """

    report: StorageReport
    capacity_ratio: float
    protected: tuple[DriveId, ...]
    divided: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The agent's knowledge at one moment.

    vms, drives, storages: sorted by name. errors: by kind, since the agent started. reconnects:
    connections to libvirtd or a QMP socket that were made again. fleet: None without [fleet].
    pressure: None if the kernel doesn't tell. decisions: on the drives of VMs that were asked for;
    a snapshot of all VMs has none, because nobody asks why for all at once. set_aside: the number
    of drives and storages on which the law fails.
    """

    vms: Mapping[str, VmSnapshot]
    drives: Mapping[DriveId, DriveReport]
    storages: Mapping[str, StorageSnapshot]
    errors: Mapping[str, int]
    reconnects: int
    fleet: FleetSnapshot | None = None
    pressure: Pressure | None = None
    decisions: Mapping[DriveId, Decision] = field(default_factory=dict)
    set_aside: int = 0

    def vm_reports(self) -> list[VmReport]:
        """Return the VMs' records."""
        return [vm.report for vm in self.vms.values()]

    def storage_reports(self) -> list[StorageReport]:
        """Return the storages' records."""
        return [storage.report for storage in self.storages.values()]

    def host_report(self) -> HostReport:
        """Return the record of the whole."""
        return HostReport(
            vms=self.vm_reports(),
            storages=self.storage_reports(),
            fleet=None if self.fleet is None else self.fleet.report,
        )


class TakeSnapshot(Protocol):
    """How the daemon offers snapshots."""

    def __call__(self, domains: Collection[str] | None = None) -> Snapshot:
        """Return a snapshot of these VMs, or of all."""


@dataclass(frozen=True, slots=True)
class Known:
    """References to the daemon's knowledge, from which a snapshot is made.

    state: observed drives are in it as they would be; above: what they did that would have been
    held. cgroups: settings in VMs' cgroups, by VM, file and device. cgroup_of: what is known of a
    VM's group. jobs: VMs' block jobs by VM and name. drive_errors: orders that failed, by drive;
    last_errors: of drives whose last order failed. gone: tables of tenants and storages that have
    gone from the configuration (Config.gone). accounts: what drives did.
    """

    state: State
    vms: Mapping[str, VmInfo]
    cgroups: Mapping[str, Mapping[str, str]]
    drive_errors: Mapping[DriveId, int]
    last_errors: Mapping[DriveId, IokeelError]
    errors: Mapping[str, int]
    reconnects: int
    gone: Mapping[tuple[str, str], IokeelError] = field(default_factory=dict)
    fleet: FleetSnapshot | None = None
    pressure: Pressure | None = None
    cgroup_of: Callable[[str], CgroupKnown] = lambda _: CgroupKnown()
    jobs: Mapping[str, Mapping[str, Followed]] = field(default_factory=dict)
    above: Mapping[DriveId, Above] = field(default_factory=dict)
    accounts: Mapping[DriveId, Account] = field(default_factory=dict)

    def error_of(self, drive: DriveId, state: DriveState) -> IokeelError | None:
        """Return a drive's error, if it has one."""
        return (
            self.last_errors.get(drive)
            or self.gone.get(("tenants", state.tenant or ""))
            or self.gone.get(("storage", state.storage or ""))
        )


def snapshot_of(
    known: Known, domains: Collection[str] | None = None, now_ns: int | None = None
) -> Snapshot:
    """Return a snapshot of some VMs, or of all.

    now_ns: the monotonic clock; None reads it.
    """
    now_ns = time.monotonic_ns() if now_ns is None else now_ns
    infos = [vm for name, vm in sorted(known.vms.items()) if domains is None or name in domains]
    vms = {info.name: _vm(info, known) for info in infos}
    drives = {
        DriveId(drive.domain, drive.target): drive
        for vm in vms.values()
        for drive in vm.report.drives
    }
    decisions = {}
    if domains is not None:
        for info in infos:
            for target, drive in info.drives.items():
                name = DriveId(info.name, target)
                state = known.state.drives.get(name, NEW)
                decisions[name] = Decision(state, drive.in_force, now_ns)
    return Snapshot(
        vms,
        drives,
        _storages(known.state),
        known.errors,
        known.reconnects,
        known.fleet,
        known.pressure,
        decisions,
        len(known.state.failures),
    )


def series_values(state: State) -> list[float]:
    """Return the values that the history keeps of each drive, one drive after another.

    They are those of records.SERIES; NaN: not known, or nothing limits it. Every tick pays for it.
    """
    values: list[float] = []
    for drive in state.drives.values():
        did, rate, allowed = drive.measured.rates, drive.measured.rate, _allowed(drive)
        latency_s = did.mean_latency_s if did is not None else None
        wait_s = did.mean_wait_s if did is not None else None
        for value in (rate, allowed, latency_s, wait_s, drive.credit.seconds):
            values.append(nan if value is None else value)
    return values


def _vm(vm: VmInfo, known: Known) -> VmSnapshot:
    tenant = vm.told.tenant if vm.told else None
    states = [known.state.drives.get(DriveId(vm.name, target), NEW) for target in vm.drives]
    part = next((state.vm for state in states if state.vm is not None), None)
    policy = part.policy if part else None
    cgroup = known.cgroup_of(vm.name)
    report = VmReport(
        domain=vm.name,
        tenant=tenant,
        limit_iops=policy.limit if policy else None,
        allowed_iops=part.ceiling if part else None,
        reservation_iops=policy.reservation if policy else 0,
        credit_s=part.credit.seconds if part else 0.0,
        burst_open=part is not None and part.credit.open,
        has_policy=vm.told is not None,
        observed=vm.would is not None,
        from_libvirt=vm.from_libvirt,
        uuid=vm.uuid or (vm.by_rules and vm.by_rules.facts.vm.get("uuid")),
        policy_error=ErrorReport.of(vm.policy_error) if vm.policy_error else None,
        cgroup=dict(known.cgroups.get(vm.name, {})),
        drives=[
            _drive(DriveId(vm.name, target), vm, vm.drives[target], known, cgroup)
            for target in sorted(vm.drives)
        ],
    )
    jobs = tuple(known.jobs.get(vm.name, {}).values())
    return VmSnapshot(report, policy, vm.policy_error, cgroup, jobs, vm.told, vm.by_rules)


def _drive(
    drive: DriveId, vm: VmInfo, info: DriveInfo, known: Known, cgroup: CgroupKnown
) -> DriveReport:
    state = known.state.drives.get(drive, NEW)
    policy, measured, sent = state.policy, state.measured, state.sent
    error = known.error_of(drive, state)
    mode = None
    if state.pricing.rate is not None:
        mode = "exact" if state.abilities and state.abilities.cost_curve else "retune"
    binding = [*full_bounds(state)]
    binding += [f"cgroup {bound}" for bound in cgroup.holding.get(drive.target, ())]
    if vm.would is not None:
        mode, binding = "observe", ["would"] if _would_hold(state) else []
    above = known.above.get(drive, Above())
    account = known.accounts.get(drive, Account())
    promised = promises_of(policy) if vm.would is None else ()
    did, counted = measured.rates, measured.counters
    raw_read_iops, read_bps, mean_read_bytes = _flow(did, write=False)
    raw_write_iops, write_bps, mean_write_bytes = _flow(did, write=True)
    return DriveReport(
        domain=drive.domain,
        target=drive.target,
        tenant=vm.told.tenant if vm.told else None,
        storage=state.storage,
        mode=mode,
        normalized_iops=measured.rate,
        limit_iops=_limit(policy),
        allowed_iops=_allowed(state),
        reservation_iops=policy.reservation if policy else 0,
        raw_read_iops=raw_read_iops,
        raw_write_iops=raw_write_iops,
        read_bps=read_bps,
        write_bps=write_bps,
        mean_read_bytes=mean_read_bytes,
        mean_write_bytes=mean_write_bytes,
        read_latency_s=did.read_latency_s if did else None,
        write_latency_s=did.write_latency_s if did else None,
        read_device_latency_s=did.device_latency_s(write=False) if did else None,
        write_device_latency_s=did.device_latency_s(write=True) if did else None,
        read_requests=counted.read_requests if counted else None,
        write_requests=counted.write_requests if counted else None,
        read_bytes=counted.read_bytes if counted else None,
        write_bytes=counted.write_bytes if counted else None,
        read=_throttle(measured, write=False),
        write=_throttle(measured, write=True),
        credit_s=state.credit.seconds,
        burst_open=state.credit.open,
        bursts=_bursts(state),
        binding=binding,
        throttled_s=0.0 if mode == "observe" else state.demand.throttled_s,
        retunes=0 if mode == "observe" else sent.retunes,
        overwritten=0 if mode == "observe" else sent.overwritten,
        errors=known.drive_errors.get(drive, 0),
        error=ErrorReport.of(error) if error else None,
        verdict=state.finding.verdict.value,
        has_policy=vm.told is not None and vm.told.for_drive(drive.target) is not None,
        limits_in_force=_set(info.in_force),
        raw_flush_iops=did.flush_raw_iops if did else None,
        raw_discard_iops=did.discards.raw_iops if did and did.discards else None,
        discard_bps=did.discards.bps if did and did.discards else None,
        flush_requests=counted.flushes if counted else None,
        flush_s=_seconds(counted.flush_time_ns) if counted else None,
        discard_requests=counted.discards if counted else None,
        discard_bytes=counted.discard_bytes if counted else None,
        discard_s=_seconds(counted.discard_time_ns) if counted else None,
        large_wait_s=_large_wait_s(state, known.state),
        rule=next(iter(rules_of_drive(vm.by_rules, drive.target)), None) if vm.by_rules else None,
        above_s=above.seconds,
        above_operations=above.operations,
        read_operations=account.reads,
        write_operations=account.writes,
        promises={name: account.promises.get(name, Kept()) for name in promised},
        class_name=class_of_drive(vm.by_rules, drive.target) if vm.by_rules else None,
    )


def _would_hold(state: DriveState) -> bool:
    """Return whether an observed drive does more than it would be held to."""
    rate, held = state.measured.budget_rate, state.pricing.rate
    if rate is not None and held is not None and rate > held:
        return True
    policy, did, limits = state.policy, state.measured.rates, state.sent.limits
    if policy is None or not policy.has_bounds or did is None or limits is None:
        return False
    return bool(full_beside(limits, state.pricing.base, policy, did, rate, 1.0))


def _large_wait_s(drive: DriveState, state: State) -> float | None:
    storage = state.storages.get(drive.storage or "")
    own = None if storage is None else storage.policy.model
    vm, tenant = drive.vm and drive.vm.policy, state.tenants.get(drive.tenant or "")
    limits = map(limit_of, (drive.policy, vm, tenant))
    most = None if drive.policy is None else drive.policy.max_bytes
    return large_wait_s(own or state.model, *limits, max_bytes=most)


def _seconds(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / NS_PER_S


def _allowed(state: DriveState) -> float | None:
    """Return the rate that a drive may have now, over both budgets; None if nothing limits it."""
    allowed, policy, share = state.allowed, state.policy, state.share
    if allowed is None or policy is None:
        return allowed
    shared = share.most if isinstance(share, Share) else inf
    return min(_over_both(policy, allowed), max(allowed, shared))


def _limit(policy: DrivePolicy | None) -> int | None:
    """Return a drive's limit, over both budgets; None if it has none."""
    if policy is None or policy.limit is None:
        return None
    return round(_over_both(policy, policy.limit))


def _over_both(policy: DrivePolicy, rate: float) -> float:
    """Return what both budgets let through together. rate: of each without its own lower limit."""
    if not policy.separate_budgets:
        return rate
    most = max(rate, policy.limit or 0)
    return sum(min(rate, part * most) for part in policy.parts)


def _bursts(state: DriveState) -> bool:
    """Return whether a drive spends burst credit; with separate budgets, in one of the two."""
    policy, rate = state.policy, state.measured.budget_rate
    if not state.credit.open or policy is None or policy.limit is None or rate is None:
        return False
    return rate > policy.limit


def _flow(did: Rates | None, write: bool) -> tuple[float | None, float | None, float | None]:
    """Return the requests a second of one direction, bytes a second, and mean size in bytes."""
    if did is None:
        return None, None, None
    flow = did.write if write else did.read
    return flow.raw_iops, flow.bps, flow.mean_size_bytes


def _throttle(measured: Measured, write: bool) -> ThrottleReport | None:
    group = measured.counters.throttle if measured.counters else None
    if group is None:
        return None
    count = group.write if write else group.read
    recent = measured.rates.throttled if measured.rates else None
    times = recent.times(write) if recent else {}
    return ThrottleReport(
        bytes=count.bytes,
        cost=count.cost,
        waited=count.waited,
        wait_s=count.wait_ns / NS_PER_S,
        waiting=count.waiting,
        sizes=dict(count.sizes),
        recent_sizes=recent.sizes(write) if recent else {},
        recent_half_s=at_most_s(times, 0.5),
        recent_most_s=at_most_s(times, 0.99),
    )


def _set(limits: ThrottleLimits | None) -> dict[str, int] | None:
    """Return the limits that are set."""
    return None if limits is None else {name: value for name, value in limits.items() if value}


def _storages(state: State) -> dict[str, StorageSnapshot]:
    drives: dict[str, list[DriveState]] = {name: [] for name in state.storages}
    for drive in state.drives.values():
        if drive.storage in drives:
            drives[drive.storage].append(drive)
    return {
        name: _storage(name, storage, drives[name])
        for name, storage in sorted(state.storages.items())
    }


def _storage(name: str, storage: StorageState, drives: list[DriveState]) -> StorageSnapshot:
    feedback, division, activity = storage.feedback, storage.division, storage.activity
    target_ms = storage.policy.latency_target_ms
    protects = any(drive.policy and drive.policy.latency_target_ms for drive in drives)
    report = StorageReport(
        storage=name,
        drives=len(drives),
        capacity_iops=storage.policy.capacity,
        usable_iops=usable(storage),
        normalized_iops=sum(drive.measured.rate or 0.0 for drive in drives),
        wanted_iops=storage.wanted if isfinite(storage.wanted) else None,
        reserved_iops=storage.promised,
        reservations_kept=division.kept,
        oversold=storage.oversold,
        room_ratio=feedback.room if protects else None,
        cut_iops=division.cut,
        latency_s=activity.latency_s if activity else None,
        latency_target_s=target_ms / 1000 if target_ms is not None else None,
        queue=activity.queue if activity else None,
        busy_ratio=activity.busy_ratio if activity else None,
        suffering=[str(drive) for drive in storage.suffering],
        exhausted=division.exhausted,
        by_weight=storage.by_weight,
    )
    divided = division.usable is not None
    return StorageSnapshot(report, feedback.ratio, storage.protected, divided)


def usable(storage: StorageState) -> float | None:
    """Return the rate that a storage's drives share once it is full; None if it isn't known."""
    if storage.division.usable is None and storage.policy.capacity and not storage.by_weight:
        return storage.policy.capacity * storage.feedback.ratio
    return storage.division.usable
