"""The abilities of the QEMU that this project patches."""

from __future__ import annotations

from iokeel.core.values.limits import Abilities

#: By the former series.
PATCHED = Abilities(cost_curve=True, keeps_levels=True, counts=True, splits=True)
#: By today's.
TODAYS = PATCHED._replace(measures_latency=True, bounds_in_flight=True, dialect="__iokeel_")
