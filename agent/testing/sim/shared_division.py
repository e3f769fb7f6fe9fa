"""Hosts that divide a storage among their drives by the agent's law, with a coordinator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from iokeel.core.divide.everything import allocate
from iokeel.core.fleet.claims import HostClaim, needs_above_floors, with_tenants
from iokeel.core.values.counters import DriveId
from iokeel.core.values.observation import StorageSeen
from iokeel.core.values.policy import DrivePolicy, TenantPolicy
from iokeel.core.values.state import Demand, DriveState, Measured, StorageState
from iokeel.core.values.storage import StoragePolicy
from iokeel.core.values.wants import NOTHING, TenantLevel

_DISK = "rbd:vms"
_ROUNDS = 6  # more than it takes until nothing changes


class Drive(NamedTuple):
    """A drive. rate: its demand; None if it wants all that it can get."""

    name: str
    tenant: str | None
    rate: float | None
    weight: int = 100


Claims: TypeAlias = Mapping[str, HostClaim]
Levels: TypeAlias = Mapping[str, TenantLevel]
#: Returns the claims that are divided, and tenants' levels.
Coordinator: TypeAlias = Callable[[Claims], tuple[Claims, Levels]]


@dataclass
class _Host:
    drives: Sequence[Drive]
    before: Mapping[str, StorageState] = field(default_factory=dict)

    def divide(
        self,
        capacity: int,
        tenants: Mapping[str, TenantPolicy],
        granted: int | None,
        levels: Levels,
    ) -> StorageState:
        known = {
            DriveId(drive.name, "vda"): DriveState(
                policy=DrivePolicy(weight=drive.weight),
                storage=_DISK,
                tenant=drive.tenant,
                measured=Measured(rate=1.0 if drive.rate is None else drive.rate),
                demand=Demand(rate=drive.rate or 0.0, backlogged=drive.rate is None),
            )
            for drive in self.drives
        }
        seen = {_DISK: StorageSeen(StoragePolicy(capacity))}
        self.before, _ = allocate(
            known, seen, self.before, tenants, {_DISK: granted},
            fleet_tenants=tenants, levels={_DISK: levels},
        )  # fmt: skip
        return self.before[_DISK]


def amounts(
    capacity: int,
    tenants: Mapping[str, TenantPolicy],
    fleet: Sequence[Sequence[Drive]],
    coordinate: Coordinator | None = None,
) -> dict[str, float]:
    """Return what each drive gets in the end, by name.

    tenants: the fleet's. fleet: the drives of each host. coordinate: other than the agent's.
    """

    def by_level(claims: Claims) -> tuple[Claims, Levels]:
        return with_tenants(capacity, claims, dict.fromkeys(claims, 0))

    hosts = [_Host(drives) for drives in fleet]
    grants: list[int | None] = [None] * len(hosts)
    levels: Levels = {}
    states: list[StorageState] = []
    for _ in range(_ROUNDS):
        states = [
            host.divide(capacity, tenants, grant, levels)
            for host, grant in zip(hosts, grants, strict=True)
        ]
        wants = [state.wants or NOTHING for state in states]
        claims = {str(i): HostClaim("i", wants=asked) for i, asked in enumerate(wants)}
        divided, levels = (coordinate or by_level)(claims)
        needs = needs_above_floors(capacity, [*divided.values()], [0] * len(hosts))
        grants = [round(need) for need in needs]
    return {drive.domain: amount for state in states for drive, amount in state.amounts.items()}
