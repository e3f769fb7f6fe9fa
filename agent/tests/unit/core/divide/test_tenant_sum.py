"""The sum of the limits of a tenant's drives, while they do little and when they wake together."""

from __future__ import annotations

from random import Random

import pytest

from iokeel.core.decide import decide
from iokeel.core.values.counters import NS_PER_S, Counters, DriveId
from iokeel.core.values.limits import STOCK, UNLIMITED, Abilities, ThrottleLimits
from iokeel.core.values.observation import DriveSeen, Observation
from iokeel.core.values.policy import DrivePolicy, TenantPolicy
from iokeel.core.values.state import State
from testing.hypervisors.abilities import PATCHED

LIMIT = 1000
DRIVES = [DriveId(f"db{i}", "vda") for i in range(10)]


@pytest.mark.parametrize("abilities", [PATCHED, STOCK])
@pytest.mark.parametrize("busy", [1, 3])
def test_limits_of_drives_that_may_wake_together_never_add_up_to_a_quarter_more(
    busy: int, abilities: Abilities
) -> None:
    random = Random(busy)
    state = State(tenants={"acme": TenantPolicy(limit=LIMIT)})
    in_force: dict[DriveId, ThrottleLimits] = dict.fromkeys(DRIVES, UNLIMITED)
    held: dict[DriveId, float] = dict.fromkeys(DRIVES, float("inf"))
    done = dict.fromkeys(DRIVES, 0)
    for second in range(1, 60):
        seen = {}
        for i, drive in enumerate(DRIVES):
            wants = random.uniform(100, 280) if second > 5 and i < busy else 0
            done[drive] += int(min(wants, held[drive]))
            counters = Counters(second * NS_PER_S, done[drive], 4096 * done[drive], 0, 0, 0, 0)
            seen[drive] = DriveSeen(
                DrivePolicy(), counters, in_force[drive], abilities=abilities, tenant="acme"
            )
        state, orders = decide(state, Observation(seen), second * NS_PER_S)
        for order in orders:
            in_force[order.drive] = order.limits
            held[order.drive] = state.drives[order.drive].pricing.rate or 0.0
        assert sum(held.values()) <= 1.26 * LIMIT
