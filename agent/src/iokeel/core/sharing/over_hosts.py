"""A tenant's weight on a storage that hosts share.

The tenant has it once, for its drives on all hosts together. Each host has the part of it that its
drives get of what all of them get. The coordinator finds that out by the claims of all hosts
(core/fleet/claims.py), and hosts by the level that the ledger tells.
"""

from __future__ import annotations

from collections.abc import Sequence

from iokeel.core.wants import Layer, TenantLevel, given_at


def part_here(layers: Sequence[Layer], weight: float, told: TenantLevel | None) -> float:
    """Return the part of a tenant's weight that its drives on this host have, > 0 and <= 1.

    layers: their demands. weight: the sum of their own weights. told: by the ledger; None if all
    that the tenant's drives demand fits, because then nobody needs its weight. If that is so on
    this host only, the drives have what they would have if they wanted more.
    """
    if told is None:
        return 1.0
    used = given_at(told.level, layers)
    if used == sum(layer.wants for layer in layers):
        used = told.level * weight
        return used / max(used, told.amount) if layers else used / (used + told.amount)
    return min(1.0, used / told.amount)
