"""Does a drive get the same of a shared storage, whichever hosts its neighbours run on?

    python -m benchmarks.law.over_hosts

Random fleets of 2 to 6 hosts with 1 to 8 drives each share a storage. Some drives want all they can
get, some a few per cent of the capacity or less, and some nothing. They are of two tenants of the
fleet, whose weights are 1:3, or of none, and have weights of 50 to 400. Hosts divide their part of
the storage by the agent's law, and a coordinator divides the storage by their claims, until nothing
changes. What a drive that wants all gets is compared with what it gets if all drives are on one
host.

- by level: as the agent does it;
- by sums: as if hosts claimed for all drives by the sums of their demands and of their weights, and
  tenants had their whole weight on each host.

Writes results/over-hosts.json and prints a table: what such drives get, over what is due.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from benchmarks import result_file
from iokeel.core.counters import DriveId
from iokeel.core.fleet.claims import HostClaim, needs_above_floors, with_tenants
from iokeel.core.observation import StorageSeen
from iokeel.core.policy import ENDLESS, DrivePolicy, TenantPolicy
from iokeel.core.sharing.allocate import allocate
from iokeel.core.state import Demand, DriveState, Measured, StorageState
from iokeel.core.storage import StoragePolicy
from iokeel.core.wants import NOTHING, TenantLevel, wants_of

RESULT = result_file.RESULTS / "over-hosts.json"
FLEETS, ROUNDS = 400, 6
DISK, CAPACITY = "rbd:vms", 60_000
TENANTS = {"acme": TenantPolicy(weight=100), "umbra": TenantPolicy(weight=300)}
LITTLE_RATIO = 0.03

Levels = Mapping[str, TenantLevel]


@dataclass(frozen=True)
class Drive:
    """A drive. rate: None if it wants all that it can get."""

    name: str
    tenant: str | None
    weight: int
    rate: float | None


@dataclass
class Host:
    """A host, and its last division."""

    drives: Sequence[Drive]
    before: Mapping[str, StorageState] = field(default_factory=dict)

    def divide(self, granted: int | None, levels: Levels) -> StorageState:
        """Divide what is granted among the drives."""
        known = {
            DriveId(drive.name, "vda"): DriveState(
                policy=DrivePolicy(weight=drive.weight),
                storage=DISK,
                tenant=drive.tenant,
                measured=Measured(rate=1.0 if drive.rate is None else drive.rate),
                demand=Demand(rate=drive.rate or 0.0, backlogged=drive.rate is None),
            )
            for drive in self.drives
        }
        seen = {DISK: StorageSeen(StoragePolicy(CAPACITY))}
        self.before, _ = allocate(
            known, seen, self.before, TENANTS, {DISK: granted},
            fleet_tenants=TENANTS, levels={DISK: levels},
        )  # fmt: skip
        return self.before[DISK]


Claims = Mapping[str, HostClaim]
Coordinator = Callable[[Claims, Sequence[Host]], tuple[Claims, Levels]]


def by_level(claims: Claims, _: Sequence[Host]) -> tuple[Claims, Levels]:
    """Return the claims that the coordinator divides, and tenants' levels."""
    return with_tenants(CAPACITY, claims, dict.fromkeys(claims, 0))


def by_sums(claims: Claims, hosts: Sequence[Host]) -> tuple[Claims, Levels]:
    """Return claims by the sums of demands and of weights; no levels."""
    summed = {}
    for (name, claim), host in zip(claims.items(), hosts, strict=True):
        weight = sum(drive.weight for drive in host.drives if drive.rate != 0)
        wants = min(ENDLESS, claim.wants.total)
        summed[name] = HostClaim("i", wants=wants_of([(0, weight or 1, wants)]))
    return summed, {}


def amounts(hosts: Sequence[Host], coordinate: Coordinator) -> dict[str, float]:
    """Return what each drive gets once hosts and coordinator have divided a few times."""
    grants: list[int | None] = [None] * len(hosts)
    levels: Levels = {}
    states: list[StorageState] = []
    for _ in range(ROUNDS):
        states = [host.divide(grant, levels) for host, grant in zip(hosts, grants, strict=True)]
        claims = {
            str(i): HostClaim("i", wants=state.wants or NOTHING) for i, state in enumerate(states)
        }
        asked, levels = coordinate(claims, hosts)
        grants = [
            round(need)
            for need in needs_above_floors(CAPACITY, [*asked.values()], [0] * len(hosts))
        ]
    return {drive.domain: amount for state in states for drive, amount in state.amounts.items()}


def random_fleet(seed: int) -> list[list[Drive]]:
    """Return the drives of each host."""
    draw = Random(seed)

    def drive(name: str) -> Drive:
        little = CAPACITY * LITTLE_RATIO * draw.random() ** 3
        rate = draw.choice([None, None, little, little, 0.0])
        owner = draw.choice([None, None, *TENANTS])
        return Drive(name, owner, draw.choice([50, 100, 100, 100, 400]), rate)

    return [
        [drive(f"h{host}d{i}") for i in range(draw.randint(1, 8))]
        for host in range(draw.randint(2, 6))
    ]


def main() -> None:
    """Divide all fleets, and write what busy drives get."""
    found: dict[str, list[float]] = {"by level": [], "by sums": []}
    for seed in range(FLEETS):
        fleet = random_fleet(seed)
        every = [drive for drives in fleet for drive in drives]
        due = amounts([Host(every)], by_level)
        for name, coordinate in (("by level", by_level), ("by sums", by_sums)):
            got = amounts([Host(drives) for drives in fleet], coordinate)
            found[name] += [
                got[drive.name] / due[drive.name] for drive in every if drive.rate is None
            ]
    rows = {}
    print(f"{'':10}{'drives':>8}{'least':>8}{'5 %':>8}{'median':>8}{'95 %':>8}{'most':>8}")
    for name, ratios in found.items():
        rows[name] = [round(float(q), 3) for q in np.percentile(ratios, [0, 5, 50, 95, 100])]
        print(f"{name:10}{len(ratios):8}" + "".join(f"{ratio:8.2f}" for ratio in rows[name]))
    what = {"fleets": FLEETS, "drives": len(found["by level"])}
    result_file.write(RESULT, {**what, "percentiles": [0, 5, 50, 95, 100], "of_due": rows})


if __name__ == "__main__":
    main()
