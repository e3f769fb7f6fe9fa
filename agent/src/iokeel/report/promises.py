"""Records of promises, and warnings of those by which one large request waits long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict

from iokeel import __version__
from iokeel.config.settings import Config
from iokeel.core.values.curve import LARGE_BYTES, LONG_S, CostModel, large_wait_s, least_limit
from iokeel.core.values.policy import (
    FIGURES,
    DomainPolicy,
    DrivePolicy,
    TenantPolicy,
    VmPolicy,
)
from iokeel.errors import ConfigError, IokeelError
from iokeel.report.records import (
    CurvesReport,
    DriveReport,
    PolicyReport,
    PromiseReport,
    SettingsReport,
)
from iokeel.rules.tenants import EVERY
from iokeel.words.quoting import shown_path
from iokeel.words.units import bytes_rate, duration


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
        classes={name: _promise(policy) for name, policy in config.classes.items()},
        tenants={name: _promise(policy) for name, policy in config.tenants.items()},
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
            target: None if drive is None else _promise(drive) for target, drive in promised.items()
        },
        vm=None if policy.vm is None else _promise(policy.vm),
        job_bps=policy.job_bps,
    )


def limit_of(promise: DrivePolicy | VmPolicy | TenantPolicy | None) -> int | None:
    """Return the lowest limit of a promise; None if it has none, or if there is no promise."""
    if isinstance(promise, DrivePolicy):
        limits = (promise.limit, promise.limit_read, promise.limit_write)
        return min((limit for limit in limits if limit is not None), default=None)
    return None if promise is None else promise.limit


def _to_curves(model: CostModel) -> CurvesReport:
    return CurvesReport(read_curve=list(model.read.points), write_curve=list(model.write.points))


def _promise(policy: DrivePolicy | VmPolicy | TenantPolicy) -> PromiseReport:
    """Return a promise with its rates named by their unit."""
    values = {
        f"{name}_iops" if name in FIGURES and FIGURES[name].unit == "iops" else name: value
        for name, value in asdict(policy).items()
    }
    return PromiseReport(**values)


def waits_of(
    policy: DomainPolicy, targets: Iterable[str], config: Config, storages: Mapping[str, str | None]
) -> tuple[dict[str, float], list[str]]:
    """Return how long one request of 1 MiB waits at a drive's limit, its VM's or its tenant's.

    By target, in seconds, without the drives that have no limit. The second is what is to be said
    of each limit at which that is long. storages: those of the drives that are known.
    """
    owner = EVERY if policy.tenant and policy.tenant not in config.tenants else policy.tenant
    tenant_limit = limit_of(config.tenants.get(owner or ""))
    vm_limit = limit_of(policy.vm)
    waits: dict[str, float] = {}
    complaints: list[str | None] = []
    for target in targets:
        drive, model = policy.for_drive(target), _model(config, storages.get(target))
        limit, most = limit_of(drive), None if drive is None else drive.max_bytes
        wait_s = large_wait_s(model, limit, vm_limit, tenant_limit, max_bytes=most)
        if wait_s is not None:
            waits[target] = wait_s
        complaints.append(_complaint(f"the limit of {shown_path(target)}", limit, model))
        complaints.append(_bytes_complaint(f"the max-bytes of {shown_path(target)}", most))
    complaints += [
        _complaint("the limit of all drives together", vm_limit, config.model),
        _complaint(
            f"the limit of tenant {shown_path(policy.tenant or '')}", tenant_limit, config.model
        ),
    ]
    return waits, [said for said in complaints if said is not None]


def config_complaints(config: Config) -> Iterator[IokeelError]:
    """Yield the limits in the configuration at which a large request waits for long."""
    limits = [(f"classes.{name}", policy.limit) for name, policy in config.classes.items()]
    limits += [(f"tenants.{name}", policy.limit) for name, policy in config.tenants.items()]
    limits += [(f"ceilings.{each.name}", each.most.limit) for each in config.ceilings]
    for vm in config.vms:
        where, policy = f"vm {vm.name}", vm.policy
        limits += [(f"{where}, drive {t}", drive.limit) for t, drive in policy.drives.items()]
        limits.append((where, limit_of(policy.vm)))
    for where, limit in limits:
        if (said := _complaint("the limit", limit, config.model)) is not None:
            yield ConfigError(shown_path(where), said)


def drive_complaints(drives: Iterable[DriveReport]) -> Iterator[str]:
    """Yield a line for each running drive at whose limits a large request waits for long."""
    for drive in drives:
        if drive.large_wait_s is not None and drive.large_wait_s >= LONG_S:
            wait = duration(drive.large_wait_s)
            yield (
                f"{shown_path(drive.target)}: at its lowest limit, its VM's and its tenant's"
                f" included, one request of 1 MiB waits {wait}, and all others behind it; give more"
            )


def _complaint(name: str, limit: int | None, model: CostModel) -> str | None:
    """Return what is to be said of a limit; None if a large request doesn't wait for long."""
    wait_s = large_wait_s(model, limit)
    return _long_wait(f"{name}, {limit}", wait_s, str(least_limit(model)))


def _bytes_complaint(name: str, most: int | None) -> str | None:
    wait_s = None if most is None else LARGE_BYTES / most
    least = bytes_rate(-(-LARGE_BYTES // LONG_S))
    return _long_wait(f"{name}, {bytes_rate(most or 0)}", wait_s, least)


def _long_wait(where: str, wait_s: float | None, least: str) -> str | None:
    if wait_s is None or wait_s < LONG_S:
        return None
    return (
        f"at {where}, one request of 1 MiB waits {duration(wait_s)}, and all others"
        f" behind it; give {least} or more"
    )


def _model(config: Config, storage: str | None) -> CostModel:
    known = config.storages.get(storage or "")
    own = None if known is None else known.policy.model
    return own or config.model
