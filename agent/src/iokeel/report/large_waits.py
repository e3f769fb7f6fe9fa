"""How long one request of 1 MiB waits at the limits of a policy, and warnings if that is long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from iokeel.config.settings import Config
from iokeel.core.curve import CostModel
from iokeel.core.large_request import LONG_S, large_wait_s, least_limit
from iokeel.core.policy import DomainPolicy
from iokeel.errors import ConfigError, IokeelError
from iokeel.report.promises import limit_of
from iokeel.report.records import DriveReport
from iokeel.words.quoting import shown_path
from iokeel.words.units import duration


def waits_of(
    policy: DomainPolicy, targets: Iterable[str], config: Config, storages: Mapping[str, str | None]
) -> tuple[dict[str, float], list[str]]:
    """Return how long one request of 1 MiB waits at a drive's limit, its VM's or its tenant's.

    By target, in seconds, without the drives that have no limit. The second is what is to be said
    of each limit at which that is long. storages: those of the drives that are known.
    """
    tenant_limit = limit_of(config.tenants.get(policy.tenant or ""))
    vm_limit = limit_of(policy.vm)
    waits: dict[str, float] = {}
    complaints: list[str | None] = []
    for target in targets:
        limit, model = limit_of(policy.for_drive(target)), _model(config, storages.get(target))
        wait_s = large_wait_s(model, limit, vm_limit, tenant_limit)
        if wait_s is not None:
            waits[target] = wait_s
        complaints.append(_complaint(f"the limit of {shown_path(target)}", limit, model))
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
    if wait_s is None or wait_s < LONG_S:
        return None
    return (
        f"at {name}, {limit}, one request of 1 MiB waits {duration(wait_s)}, and all others"
        f" behind it; give {least_limit(model)} or more"
    )


def _model(config: Config, storage: str | None) -> CostModel:
    known = config.storages.get(storage or "")
    own = None if known is None else known.policy.model
    return own or config.model
