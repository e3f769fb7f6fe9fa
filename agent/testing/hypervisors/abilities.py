"""The abilities of the QEMU that this project patches."""

from __future__ import annotations

from iokeel.core.abilities import Abilities

PATCHED = Abilities(cost_curve=True, keeps_levels=True, counts=True, splits=True)
