"""The API's records of promises: those in the configuration, and those of a policy."""

from __future__ import annotations

from collections.abc import Iterable

from iokeel import __version__
from iokeel.config.settings import Config
from iokeel.core.curve import CostModel
from iokeel.core.policy import DomainPolicy, DrivePolicy, TenantPolicy, VmPolicy
from iokeel.report.records import CurvesReport, PolicyReport, PromiseReport, SettingsReport


def settings_report(config: Config) -> SettingsReport:
    """Return the settings that give a policy its meaning."""
    default = _to_curves(config.model)
    own = {name: storage.policy.model for name, storage in config.storages.items()}
    return SettingsReport(
        version=__version__,
        libvirt_uri=config.libvirt.uri if config.libvirt.enabled else None,
        read_curve=default.read_curve,
        write_curve=default.write_curve,
        storages={name: _to_curves(model) for name, model in own.items() if model is not None},
        classes={name: _to_drive(policy) for name, policy in config.classes.items()},
        tenants={name: _to_tenant(policy) for name, policy in config.tenants.items()},
    )


def policy_report(policy: DomainPolicy | None, targets: Iterable[str]) -> PolicyReport:
    """Return the promises of a valid policy to a VM with these drives."""
    if policy is None:
        return PolicyReport(error=None)
    promised = {target: policy.for_drive(target) for target in targets}
    return PolicyReport(
        error=None,
        tenant=policy.tenant,
        drives={
            target: None if drive is None else _to_drive(drive)
            for target, drive in promised.items()
        },
        vm=None if policy.vm is None else _to_vm(policy.vm),
        job_bps=policy.job_bps,
    )


def limit_of(promise: DrivePolicy | VmPolicy | TenantPolicy | None) -> int | None:
    """Return the limit of a promise; None if it has none, or if there is no promise."""
    return None if promise is None else promise.limit


def _to_curves(model: CostModel) -> CurvesReport:
    return CurvesReport(read_curve=list(model.read.points), write_curve=list(model.write.points))


def _to_drive(policy: DrivePolicy) -> PromiseReport:
    return PromiseReport(
        reservation_iops=policy.reservation,
        limit_iops=policy.limit,
        burst_iops=policy.burst,
        burst_seconds=policy.burst_seconds,
        weight=policy.weight,
        latency_target_ms=policy.latency_target_ms,
        separate_budgets=policy.separate_budgets,
    )


def _to_vm(policy: VmPolicy) -> PromiseReport:
    return PromiseReport(
        reservation_iops=policy.reservation,
        limit_iops=policy.limit,
        burst_iops=policy.burst,
        burst_seconds=policy.burst_seconds,
    )


def _to_tenant(policy: TenantPolicy) -> PromiseReport:
    return PromiseReport(
        reservation_iops=policy.reservation, limit_iops=policy.limit, weight=policy.weight
    )
