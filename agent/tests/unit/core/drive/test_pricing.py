"""Limits for the mix that a drive does, scaled to its rate."""

from __future__ import annotations

import pytest

from iokeel.core.abilities import STOCK
from iokeel.core.counters import Flow, Mix
from iokeel.core.curve import DEFAULT_CURVE, DEFAULT_MODEL, KIB
from iokeel.core.drive.envelope import OVERSHOOT_RATIO
from iokeel.core.drive.pricing import price
from iokeel.core.orders import Reason
from iokeel.core.policy import DrivePolicy
from iokeel.core.state import DriveState, Pricing

IDLE, BUSY = Flow(0, 0), Flow(1000, 1000 * 64 * KIB)
SIZES = [4 * KIB * 2 ** (i / 4) for i in range(41)]


@pytest.mark.parametrize("idle", ["read", "write"])
@pytest.mark.parametrize("rate", [*range(1, 20), 50, 100])
def test_a_direction_that_is_idle_is_held_to_a_small_budget_of_its_own(
    rate: int, idle: str
) -> None:
    policy = DrivePolicy(limit=rate, separate_budgets=True)
    mix = Mix(BUSY, IDLE) if idle == "write" else Mix(IDLE, BUSY)
    known = DriveState(policy, pricing=Pricing(mix=mix))
    base = price(known, STOCK, policy, DEFAULT_MODEL, None, rate, Reason.POLICY).base
    assert base is not None
    iops, bps = getattr(base, f"iops_{idle}"), getattr(base, f"bps_{idle}")
    for size in SIZES:
        passed = iops / max(1, size / base.iops_size) if base.iops_size else iops
        if bps is not None:
            passed = min(passed, bps / size)
        cost = passed * DEFAULT_CURVE.cost(round(size))
        assert cost <= (1 + OVERSHOOT_RATIO + 0.001) * rate
