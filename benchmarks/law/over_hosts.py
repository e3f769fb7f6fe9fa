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

from collections.abc import Sequence
from functools import partial
from random import Random

import numpy as np

from benchmarks import result_file
from iokeel.core.fleet.claims import HostClaim
from iokeel.core.values.policy import TenantPolicy
from iokeel.core.values.wants import wants_of
from testing.sim.shared_division import Claims, Drive, Levels, amounts

RESULT = result_file.RESULTS / "over-hosts.json"
FLEETS = 400
CAPACITY = 60_000
TENANTS = {"acme": TenantPolicy(weight=100), "umbra": TenantPolicy(weight=300)}
LITTLE_RATIO = 0.03


def by_sums(fleet: Sequence[Sequence[Drive]], claims: Claims) -> tuple[Claims, Levels]:
    """Return claims by the sums of demands and of weights; no levels."""
    summed = {}
    for (name, claim), drives in zip(claims.items(), fleet, strict=True):
        weight = sum(drive.weight for drive in drives if drive.rate != 0)
        summed[name] = HostClaim("i", wants=wants_of([(0, weight or 1, claim.wants.total)]))
    return summed, {}


def random_fleet(seed: int) -> list[list[Drive]]:
    """Return the drives of each host."""
    draw = Random(seed)

    def drive(name: str) -> Drive:
        little = CAPACITY * LITTLE_RATIO * draw.random() ** 3
        rate = draw.choice([None, None, little, little, 0.0])
        owner = draw.choice([None, None, *TENANTS])
        return Drive(name, owner, rate, draw.choice([50, 100, 100, 100, 400]))

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
        due = amounts(CAPACITY, TENANTS, [every])
        for name, coordinate in (("by level", None), ("by sums", partial(by_sums, fleet))):
            got = amounts(CAPACITY, TENANTS, fleet, coordinate)
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
