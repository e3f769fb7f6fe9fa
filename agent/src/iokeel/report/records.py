"""What the agent shows of its drives: one record each, as the API sends it."""

from __future__ import annotations

from math import isfinite
from typing import Any

from pydantic import BaseModel

from iokeel.core.counters import NS_PER_S, DriveId, Flow
from iokeel.core.drive.binding import full_bounds
from iokeel.core.state import DriveState, StorageState


class ThrottleReport(BaseModel):
    """What a drive's throttle group has done in one direction since it was created.

    cost: charged, in operations of the iops limits. waiting: requests that wait now. sizes: how
    many requests had which size, by the least size of a power of two. recent_sizes: those of the
    last interval.
    """

    bytes: int
    cost: float
    waited: int
    wait_s: float
    waiting: int
    sizes: dict[int, int]
    recent_sizes: dict[int, int]


class DriveReport(BaseModel):
    """One drive. Rates are of the last interval; None where they are not known.

    normalized_iops against allowed_iops (its burst while that is open, else its limit, and not more
    than its share of its storage and tenant); latencies in seconds, the throttle's wait included,
    and of the device without it; limits_in_force in QEMU's words. read, write: None where QEMU
    doesn't tell what its throttle groups do. Requests and bytes are counted from the guest's start.
    """

    domain: str
    target: str
    tenant: str | None
    storage: str | None
    mode: str | None
    normalized_iops: float | None
    limit_iops: int | None
    allowed_iops: float | None
    reservation_iops: int
    raw_read_iops: float | None
    raw_write_iops: float | None
    read_bps: float | None
    write_bps: float | None
    mean_read_bytes: float | None
    mean_write_bytes: float | None
    read_latency_s: float | None
    write_latency_s: float | None
    read_device_latency_s: float | None
    write_device_latency_s: float | None
    read_requests: int | None
    write_requests: int | None
    read_bytes: int | None
    write_bytes: int | None
    read: ThrottleReport | None
    write: ThrottleReport | None
    credit_s: float
    burst_open: bool
    binding: list[str]
    throttled_s: float
    retunes: int
    overwritten: int
    errors: int
    error: str | None
    verdict: str
    limits_in_force: dict[str, int]


class StorageReport(BaseModel):
    """One storage. Rates are normalized I/O operations a second; None where they are not known.

    usable_iops: what its drives may do together now. reserved_iops: what is promised of it;
    reservations_kept: which part of that fits. room_ratio: the part that drives without a latency
    target may use, where others have one; cut_iops: what they give up for that now.
    """

    storage: str
    drives: int
    capacity_iops: int | None
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
    suffering: list[str]
    exhausted: bool


class VmReport(BaseModel):
    """One VM: its drives, and what is wrong with its policy, if anything is.

    cgroup: what the agent has set in its cgroup, by file and device.
    """

    domain: str
    tenant: str | None
    policy_error: str | None
    cgroup: dict[str, str]
    drives: list[DriveReport]


def vm_reports(agent: Any) -> list[VmReport]:
    """Return all VMs' reports, by name. agent: the running iokeel.daemon.Agent."""
    reports = []
    for name, vm in sorted(agent.vms().items()):
        tenant = vm.policy.tenant if vm.policy else None
        drives = [
            drive_report(DriveId(name, target), agent, tenant) for target in sorted(vm.drives)
        ]
        error = str(vm.policy_error) if vm.policy_error else None
        held = agent.cgroups.held.get(name, {}) if agent.cgroups is not None else {}
        reports.append(
            VmReport(
                domain=name, tenant=tenant, policy_error=error, cgroup=dict(held), drives=drives
            )
        )
    return reports


def storage_reports(agent: Any) -> list[StorageReport]:
    """Return all storages' reports, by name. agent: the running iokeel.daemon.Agent."""
    does: dict[str | None, list[DriveState]] = {}
    for known in agent.state.drives.values():
        does.setdefault(known.storage, []).append(known)
    return [
        _storage_report(name, storage, does.get(name, []))
        for name, storage in sorted(agent.state.storages.items())
    ]


def _storage_report(name: str, storage: StorageState, there: list[DriveState]) -> StorageReport:
    target_ms, load = storage.policy.latency_target_ms, storage.activity
    protects = any(known.policy and known.policy.latency_target_ms for known in there)
    return StorageReport(
        storage=name,
        drives=len(there),
        capacity_iops=storage.policy.capacity,
        usable_iops=storage.division.usable,
        normalized_iops=sum(known.measured.rate or 0.0 for known in there),
        wanted_iops=storage.wanted if isfinite(storage.wanted) else None,
        reserved_iops=storage.promised,
        reservations_kept=storage.division.kept,
        oversold=storage.oversold,
        room_ratio=storage.feedback.room if protects else None,
        cut_iops=storage.division.cut,
        latency_s=load.latency_s if load else None,
        latency_target_s=target_ms / 1000 if target_ms is not None else None,
        queue=load.queue if load else None,
        busy_ratio=load.busy_ratio if load else None,
        suffering=[str(drive) for drive in storage.suffering],
        exhausted=storage.division.exhausted,
    )


def drive_report(drive: DriveId, agent: Any, tenant: str | None) -> DriveReport:
    """Return one drive's report."""
    known: DriveState = agent.state.drives.get(drive, DriveState())
    did, policy, counted = known.measured.rates, known.policy, known.measured.counters

    def size(flow: Flow | None) -> float | None:
        return flow.mean_size_bytes if flow else None

    return DriveReport(
        domain=drive.domain,
        target=drive.target,
        tenant=tenant,
        storage=known.storage,
        mode=("exact" if known.abilities.cost_curve else "retune")
        if known.pricing.rate is not None
        else None,
        normalized_iops=known.measured.rate,
        limit_iops=policy.limit if policy else None,
        allowed_iops=known.allowed,
        reservation_iops=policy.reservation if policy else 0,
        raw_read_iops=did.read.raw_iops if did else None,
        raw_write_iops=did.write.raw_iops if did else None,
        read_bps=did.read.bps if did else None,
        write_bps=did.write.bps if did else None,
        mean_read_bytes=size(did.read if did else None),
        mean_write_bytes=size(did.write if did else None),
        read_latency_s=did.read_latency_s if did else None,
        write_latency_s=did.write_latency_s if did else None,
        read_device_latency_s=did.device_latency_s(write=False) if did else None,
        write_device_latency_s=did.device_latency_s(write=True) if did else None,
        read_requests=counted.read_requests if counted else None,
        write_requests=counted.write_requests if counted else None,
        read_bytes=counted.read_bytes if counted else None,
        write_bytes=counted.write_bytes if counted else None,
        read=_throttle(known, write=False),
        write=_throttle(known, write=True),
        credit_s=known.credit.seconds,
        burst_open=known.credit.open,
        binding=full_bounds(known),
        throttled_s=known.demand.throttled_s,
        retunes=known.sent.retunes,
        overwritten=known.sent.overwritten,
        errors=agent.drive_errors[drive],
        error=agent.last_error.get(drive),
        verdict=known.finding.verdict.value,
        limits_in_force={k: v for k, v in known.sent.limits.items() if v}
        if known.sent.limits
        else {},
    )


def _throttle(known: DriveState, write: bool) -> ThrottleReport | None:
    group = known.measured.counters.throttle if known.measured.counters else None
    if group is None:
        return None
    count = group.write if write else group.read
    recent = known.measured.rates.throttled if known.measured.rates else None
    return ThrottleReport(
        bytes=count.bytes,
        cost=count.cost,
        waited=count.waited,
        wait_s=count.wait_ns / NS_PER_S,
        waiting=count.waiting,
        sizes=dict(count.sizes),
        recent_sizes=recent.sizes(write) if recent else {},
    )
