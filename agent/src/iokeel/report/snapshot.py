"""A snapshot of the agent, for all reports.

The daemon makes one when a report is asked for, so a tick pays nothing for it. Only this file reads
the control law's memory; reports read the fields below. Drives and VMs are NamedTuples, because a
scrape makes thousands of them and a dataclass costs more.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import NamedTuple, Protocol

from iokeel.core.counters import NS_PER_S, DriveId, Flow, ThrottleCount
from iokeel.core.drive.binding import full_bounds
from iokeel.core.drive.mix import Mix
from iokeel.core.limits import ThrottleLimits
from iokeel.core.orders import Reason
from iokeel.core.policy import DrivePolicy, VmPolicy
from iokeel.core.state import (
    NEW,
    NOT_DIVIDED,
    DriveState,
    Measured,
    Share,
    State,
    StorageState,
    Verdict,
)
from iokeel.errors import IokeelError
from iokeel.host.disk_counters import Pressure
from iokeel.hypervisors.source import DriveInfo, VmInfo
from iokeel.report.fleet_snapshot import FleetSnapshot


class ThrottleSnapshot(NamedTuple):
    """The statistics of a drive's throttle group in one direction, since it was created.

    cost: charged, in operations of the iops limits. waited: requests that had to wait, and wait_s
    how long in all. waiting: requests that wait now. sizes: requests by size, as the largest power
    of two that is not above it. recent_sizes, mean_wait_s: of the last interval; mean_wait_s is per
    request, and None if there was none.
    """

    bytes: int
    cost: float
    waited: int
    wait_s: float
    waiting: int
    sizes: Mapping[int, int]
    recent_sizes: Mapping[int, int]
    mean_wait_s: float | None


class DirectionSnapshot(NamedTuple):
    """A drive's reads, or its writes. None: not known.

    Rates and mean values are of the last interval; latencies are in seconds a request, with the
    throttle's wait and, as device_latency_s, without it. requests, bytes: since the guest started.
    throttle: None unless QEMU counts.
    """

    raw_iops: float | None
    bps: float | None
    mean_bytes: float | None
    latency_s: float | None
    device_latency_s: float | None
    requests: int | None
    bytes: int | None
    throttle: ThrottleSnapshot | None


class DriveSnapshot(NamedTuple):
    """A drive. Rates are of the last interval, elapsed_s seconds long; None: not known.

    normalized_iops: its rate; allowed_iops: the rate it may have, None: nothing limits it. share:
    of its storage or tenant's limit; vm_iops: its part of its VM's limit; tenant_iops,
    fleet_storage_iops: its parts of the fleet's grants here, to its tenant and to its storage.
    mode: "exact" if its QEMU charges by the cost curve, "retune" if the agent adjusts its limits;
    None if it is not held. limits: those that the agent decided on limits_age_s ago for
    limits_reason; in_force: as QEMU or libvirt last reported them; None: not known. priced_for: the
    mix of requests that they were made for; None if it was not known. pricing_error_ratio: how far
    above its rate they would hold the present mix. binding: the fields of limits that the last
    interval used up. throttled_s: the time in which a limit held it, since the agent started.
    errors: orders that failed; error: the last order's, or else its tenant's or storage's.
    """

    id: DriveId
    storage: str | None
    policy: DrivePolicy | None
    elapsed_s: float | None
    read: DirectionSnapshot
    write: DirectionSnapshot
    normalized_iops: float | None
    allowed_iops: float | None
    share: Share | None
    vm_iops: float | None
    tenant_iops: float | None
    fleet_storage_iops: float | None
    mode: str | None
    limits: ThrottleLimits | None
    in_force: ThrottleLimits | None
    limits_reason: Reason | None
    limits_age_s: float | None
    priced_for: Mix | None
    pricing_error_ratio: float | None
    verdict: Verdict
    binding: tuple[str, ...]
    credit_s: float
    burst_open: bool
    throttled_s: float
    retunes: int
    overwritten: int
    errors: int
    error: IokeelError | None


class VmSnapshot(NamedTuple):
    """A running VM: its drives by target, and the error in its policy, if any.

    policy: the promise in force to all its drives together; None if there is none. allowed_iops:
    its limit, or its burst while that is open; credit_s: burst that it has saved. cgroup: the
    agent's settings in its cgroup, by file and device.
    """

    name: str
    tenant: str | None
    policy: VmPolicy | None
    allowed_iops: int | None
    credit_s: float
    burst_open: bool
    policy_error: IokeelError | None
    cgroup: Mapping[str, str]
    drives: Mapping[str, DriveSnapshot]


@dataclass(frozen=True, slots=True)
class StorageSnapshot:
    """A storage. Rates are normalized I/O operations a second; None: not known.

    usable_iops: the rate that its drives may share now. capacity_ratio: how far latency has
    corrected its capacity. reserved_iops: the sum of its drives' reservations; reservations_kept:
    the part of those asked for that fits. room_ratio: the part that drives without a latency target
    may use; None if no drive has one. cut_iops: the rate that this takes from them now. suffering:
    drives above their latency target; exhausted: whether nothing more can be taken for them.
    protected: drives for which the others' large reads wait in pieces. by_weight: its scheduler
    shares it out by VMs' weights, so its capacity isn't used.
    """

    name: str
    drives: int
    capacity_iops: int | None
    capacity_ratio: float
    usable_iops: float | None
    normalized_iops: float
    wanted_iops: float | None
    reserved_iops: float
    reservations_kept: float
    oversold: bool
    room_ratio: float | None
    cut_iops: float
    latency_s: float | None
    latency_target_s: float | None
    queue: float | None
    busy_ratio: float | None
    suffering: tuple[DriveId, ...]
    exhausted: bool
    protected: tuple[DriveId, ...]
    by_weight: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The agent's knowledge at one moment.

    vms, storages: sorted by name; vms are all, or those that were asked for. errors: by kind, since
    the agent started. reconnects: connections to libvirtd or a QMP socket that were made again.
    fleet: None without [fleet]. pressure: None if the kernel doesn't tell.
    """

    vms: Mapping[str, VmSnapshot]
    storages: Mapping[str, StorageSnapshot]
    errors: Mapping[str, int]
    reconnects: int
    fleet: FleetSnapshot | None = None
    pressure: Pressure | None = None


class TakeSnapshot(Protocol):
    """How the daemon offers snapshots."""

    def __call__(self, domains: Collection[str] | None = None) -> Snapshot:
        """Return a snapshot of these VMs, or of all."""


@dataclass(frozen=True, slots=True)
class Known:
    """References to the daemon's knowledge, from which a snapshot is made.

    cgroups: settings in VMs' cgroups, by VM, file and device. drive_errors: orders that failed,
    by drive; last_errors: of drives whose last order failed. gone: tables of tenants and storages
    that have gone from the configuration (Config.gone).
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
    vms = {
        name: _vm(vm, known, now_ns)
        for name, vm in sorted(known.vms.items())
        if domains is None or name in domains
    }
    return Snapshot(
        vms,
        _storages(known.state),
        known.errors,
        known.reconnects,
        known.fleet,
        known.pressure,
    )


def series_values(state: State) -> list[float]:
    """Return the values that the history keeps of each drive, one drive after another.

    They are those of records.SERIES; NaN: not known, or nothing limits it. Every tick pays for it.
    """
    values: list[float] = []
    for drive in state.drives.values():
        did, rate, allowed = drive.measured.rates, drive.measured.rate, drive.allowed
        latency_s = did.mean_latency_s if did is not None else None
        wait_s = did.mean_wait_s if did is not None else None
        for value in (rate, allowed, latency_s, wait_s, drive.credit.seconds):
            values.append(nan if value is None else value)
    return values


def _vm(vm: VmInfo, known: Known, now_ns: int) -> VmSnapshot:
    drives = {
        target: _drive(DriveId(vm.name, target), vm.drives[target], known, now_ns)
        for target in sorted(vm.drives)
    }
    tenant = vm.policy.tenant if vm.policy else None
    states = (known.state.drives.get(DriveId(vm.name, target), NEW) for target in vm.drives)
    part = next((state.vm for state in states if state.vm is not None), None)
    return VmSnapshot(
        name=vm.name,
        tenant=tenant,
        policy=part.policy if part else None,
        allowed_iops=part.ceiling if part else None,
        credit_s=part.credit.seconds if part else 0.0,
        burst_open=part is not None and part.credit.open,
        policy_error=vm.policy_error,
        cgroup=known.cgroups.get(vm.name, {}),
        drives=drives,
    )


def _drive(drive: DriveId, info: DriveInfo, known: Known, now_ns: int) -> DriveSnapshot:
    state = known.state.drives.get(drive, NEW)
    measured, sent, rates = state.measured, state.sent, state.measured.rates
    mode = None
    if state.pricing.rate is not None:
        mode = "exact" if state.abilities and state.abilities.cost_curve else "retune"
    return DriveSnapshot(
        id=drive,
        storage=state.storage,
        policy=state.policy,
        elapsed_s=rates.elapsed_s if rates else None,
        read=_direction(measured, write=False),
        write=_direction(measured, write=True),
        normalized_iops=measured.rate,
        allowed_iops=state.allowed,
        share=None if state.share is NOT_DIVIDED else state.share,
        vm_iops=state.vm_most,
        tenant_iops=state.tenant_most,
        fleet_storage_iops=state.storage_most,
        mode=mode,
        limits=sent.limits,
        in_force=info.in_force,
        limits_reason=sent.reason,
        limits_age_s=(now_ns - sent.at_ns) / NS_PER_S if sent.at_ns else None,
        priced_for=state.pricing.mix,
        pricing_error_ratio=state.finding.error_ratio,
        verdict=state.finding.verdict,
        binding=tuple(full_bounds(state)),
        credit_s=state.credit.seconds,
        burst_open=state.credit.open,
        throttled_s=state.demand.throttled_s,
        retunes=sent.retunes,
        overwritten=sent.overwritten,
        errors=known.drive_errors.get(drive, 0),
        error=known.error_of(drive, state),
    )


def _direction(measured: Measured, write: bool) -> DirectionSnapshot:
    did, counted = measured.rates, measured.counters
    flow = raw_iops = bps = mean_bytes = latency_s = device_latency_s = None
    if did is not None:
        flow, latency_s = did.read, did.read_latency_s
        if write:
            flow, latency_s = did.write, did.write_latency_s
        raw_iops, bps, _ = flow
        mean_bytes = bps / raw_iops if raw_iops > 0 else None
        device_latency_s = did.device_latency_s(write)
    requests = count = None
    if counted is not None:
        requests, count = counted.read_requests, counted.read_bytes
        if write:
            requests, count = counted.write_requests, counted.write_bytes
    throttle = _throttle(measured, flow, write)
    return DirectionSnapshot(
        raw_iops, bps, mean_bytes, latency_s, device_latency_s, requests, count, throttle
    )


def _throttle(measured: Measured, flow: Flow | None, write: bool) -> ThrottleSnapshot | None:
    group = measured.counters.throttle if measured.counters else None
    if group is None:
        return None
    count: ThrottleCount = group.write if write else group.read
    recent_sizes: Mapping[int, int] = {}
    mean_wait_s = None
    did = measured.rates
    recent = did.throttled if did else None
    if did is not None and recent is not None:
        recent_sizes = recent.sizes(write)
        if flow is not None and flow.raw_iops:
            mean_wait_s = recent.wait_s(write) / (flow.raw_iops * did.elapsed_s)
    return ThrottleSnapshot(
        bytes=count.bytes,
        cost=count.cost,
        waited=count.waited,
        wait_s=count.wait_ns / NS_PER_S,
        waiting=count.waiting,
        sizes=dict(count.sizes),
        recent_sizes=recent_sizes,
        mean_wait_s=mean_wait_s,
    )


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
    return StorageSnapshot(
        name=name,
        drives=len(drives),
        capacity_iops=storage.policy.capacity,
        capacity_ratio=feedback.ratio,
        usable_iops=division.usable,
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
        suffering=storage.suffering,
        exhausted=division.exhausted,
        protected=storage.protected,
        by_weight=storage.by_weight,
    )
