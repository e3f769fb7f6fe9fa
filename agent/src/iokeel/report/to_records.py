"""The API's records of a snapshot."""

from __future__ import annotations

from iokeel.core.limits import ThrottleLimits
from iokeel.report.fleet_snapshot import BudgetInFleet, FleetSnapshot
from iokeel.report.records import (
    DriveReport,
    ErrorReport,
    FleetBudgetReport,
    FleetReport,
    HostReport,
    StorageReport,
    ThrottleReport,
    VmReport,
)
from iokeel.report.snapshot import (
    DriveSnapshot,
    Snapshot,
    StorageSnapshot,
    ThrottleSnapshot,
    VmSnapshot,
)


def host_report(snapshot: Snapshot) -> HostReport:
    """Return the report of a snapshot of the whole host."""
    return HostReport(
        vms=vm_reports(snapshot),
        storages=storage_reports(snapshot),
        fleet=None if snapshot.fleet is None else _fleet(snapshot.fleet),
    )


def vm_reports(snapshot: Snapshot) -> list[VmReport]:
    """Return the reports of a snapshot's VMs, in its order."""
    return [_vm(vm) for vm in snapshot.vms.values()]


def storage_reports(snapshot: Snapshot) -> list[StorageReport]:
    """Return the reports of a snapshot's storages, in its order."""
    return [_storage(storage) for storage in snapshot.storages.values()]


def _vm(vm: VmSnapshot) -> VmReport:
    return VmReport(
        domain=vm.name,
        tenant=vm.tenant,
        limit_iops=vm.policy.limit if vm.policy else None,
        allowed_iops=vm.allowed_iops,
        reservation_iops=vm.policy.reservation if vm.policy else 0,
        credit_s=vm.credit_s,
        burst_open=vm.burst_open,
        policy_error=ErrorReport.of(vm.policy_error) if vm.policy_error else None,
        cgroup=dict(vm.cgroup),
        drives=[_drive(drive, vm.tenant) for drive in vm.drives.values()],
    )


def _drive(drive: DriveSnapshot, tenant: str | None) -> DriveReport:
    policy, read, write = drive.policy, drive.read, drive.write
    return DriveReport(
        domain=drive.id.domain,
        target=drive.id.target,
        tenant=tenant,
        storage=drive.storage,
        mode=drive.mode,
        normalized_iops=drive.normalized_iops,
        limit_iops=policy.limit if policy else None,
        allowed_iops=drive.allowed_iops,
        reservation_iops=policy.reservation if policy else 0,
        raw_read_iops=read.raw_iops,
        raw_write_iops=write.raw_iops,
        read_bps=read.bps,
        write_bps=write.bps,
        mean_read_bytes=read.mean_bytes,
        mean_write_bytes=write.mean_bytes,
        read_latency_s=read.latency_s,
        write_latency_s=write.latency_s,
        read_device_latency_s=read.device_latency_s,
        write_device_latency_s=write.device_latency_s,
        read_requests=read.requests,
        write_requests=write.requests,
        read_bytes=read.bytes,
        write_bytes=write.bytes,
        read=_throttle(read.throttle),
        write=_throttle(write.throttle),
        credit_s=drive.credit_s,
        burst_open=drive.burst_open,
        binding=list(drive.binding),
        throttled_s=drive.throttled_s,
        retunes=drive.retunes,
        overwritten=drive.overwritten,
        errors=drive.errors,
        error=ErrorReport.of(drive.error) if drive.error else None,
        verdict=drive.verdict.value,
        limits_in_force=_in_force(drive.in_force),
    )


def _in_force(limits: ThrottleLimits | None) -> dict[str, int] | None:
    return None if limits is None else {name: value for name, value in limits.items() if value}


def _throttle(throttle: ThrottleSnapshot | None) -> ThrottleReport | None:
    if throttle is None:
        return None
    return ThrottleReport(
        bytes=throttle.bytes,
        cost=throttle.cost,
        waited=throttle.waited,
        wait_s=throttle.wait_s,
        waiting=throttle.waiting,
        sizes=dict(throttle.sizes),
        recent_sizes=dict(throttle.recent_sizes),
    )


def _storage(storage: StorageSnapshot) -> StorageReport:
    return StorageReport(
        storage=storage.name,
        drives=storage.drives,
        capacity_iops=storage.capacity_iops,
        usable_iops=storage.usable_iops,
        normalized_iops=storage.normalized_iops,
        wanted_iops=storage.wanted_iops,
        reserved_iops=storage.reserved_iops,
        reservations_kept=storage.reservations_kept,
        oversold=storage.oversold,
        room_ratio=storage.room_ratio,
        cut_iops=storage.cut_iops,
        latency_s=storage.latency_s,
        latency_target_s=storage.latency_target_s,
        queue=storage.queue,
        busy_ratio=storage.busy_ratio,
        suffering=[str(drive) for drive in storage.suffering],
        exhausted=storage.exhausted,
        by_weight=storage.by_weight,
    )


def _fleet(fleet: FleetSnapshot) -> FleetReport:
    return FleetReport(
        host=fleet.host,
        error=ErrorReport.of(fleet.error) if fleet.error else None,
        tenants=[_fleet_budget(tenant) for tenant in fleet.tenants.values()],
        storages=[_fleet_budget(storage) for storage in fleet.storages.values()],
    )


def _fleet_budget(budget: BudgetInFleet) -> FleetBudgetReport:
    return FleetBudgetReport(
        name=budget.name,
        set_iops=budget.set_iops,
        limit_iops=budget.limit_iops,
        allowed_iops=budget.allowed_iops,
        floor_iops=budget.floor_iops,
        held_iops=budget.held_iops,
        stale_s=budget.stale_s,
        charges=dict(budget.charges),
        silent=list(budget.silent),
        coordinator=budget.coordinator,
        error=ErrorReport.of(budget.error) if budget.error else None,
    )
