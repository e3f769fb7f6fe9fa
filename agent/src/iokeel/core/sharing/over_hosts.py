"""A tenant's weight on a storage that hosts share.

The tenant has it once, for its drives on all hosts together. Each host has the part of it that its
drives get of what all of them get. The coordinator finds that out by the claims of all hosts
(core/fleet/claims.py), and hosts by the level that the ledger tells.
"""

from __future__ import annotations

from collections.abc import Sequence

from iokeel.core.sharing.claimant import Claimant
from iokeel.core.sharing.vm_limit import SPARE_RATIO
from iokeel.core.wants import TenantLevel, given_at


def part_here(drives: Sequence[Claimant], told: TenantLevel | None) -> float:
    """Return the part of a tenant's weight that its drives on this host have, > 0 and <= 1.

    told: by the ledger. None if all that the tenant's drives demand fits; then nobody needs its
    weight. An idle host has the part that it would have.
    """
    if told is None:
        return 1.0
    used = given_at(told.level, [_beyond_owed(claimant) for claimant in drives])
    if used > 0:
        return min(1.0, used / told.amount)
    would_use = told.level * sum(claimant.policy.weight for claimant in drives)
    return would_use / (would_use + told.amount)


def _beyond_owed(claimant: Claimant) -> tuple[float, float]:
    reservation, weight, wants = claimant.claim
    wanted = min(claimant.most, SPARE_RATIO * wants)
    return weight, wanted - min(reservation, wanted)
