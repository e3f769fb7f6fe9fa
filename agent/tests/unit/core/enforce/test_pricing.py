"""Limits for the mix that a drive does, scaled to its rate."""

from __future__ import annotations

from itertools import product

import pytest

from iokeel.core.enforce.envelope import OVERSHOOT_RATIO
from iokeel.core.enforce.pricing import price
from iokeel.core.values.counters import Flow, Mix
from iokeel.core.values.curve import DEFAULT_CURVE, DEFAULT_MODEL, KIB, CostCurve, CostModel
from iokeel.core.values.limits import STOCK, ThrottleLimits
from iokeel.core.values.observation import Reason
from iokeel.core.values.policy import DrivePolicy
from iokeel.core.values.state import DriveState, Pricing

IDLE, BUSY = Flow(0, 0), Flow(1000, 1000 * 64 * KIB)
SIZES = [4 * KIB * 2 ** (i / 4) for i in range(41)]


@pytest.mark.parametrize("idle", ["read", "write"])
@pytest.mark.parametrize("rate", [*range(1, 20), 50, 100])
def test_a_direction_that_is_idle_is_held_to_a_small_budget_of_its_own(
    rate: int, idle: str
) -> None:
    policy = DrivePolicy(limit=rate, separate_budgets=True)
    mix = Mix(BUSY, IDLE) if idle == "write" else Mix(IDLE, BUSY)
    known = DriveState(policy, abilities=STOCK, pricing=Pricing(mix=mix))
    base = price(known, policy, DEFAULT_MODEL, None, rate, Reason.POLICY).base
    assert base is not None
    iops, bps = getattr(base, f"iops_{idle}"), getattr(base, f"bps_{idle}")
    for size in SIZES:
        passed = iops / max(1, size / base.iops_size) if base.iops_size else iops
        if bps is not None:
            passed = min(passed, bps / size)
        cost = passed * DEFAULT_CURVE.cost(round(size))
        assert cost <= (1 + OVERSHOOT_RATIO + 0.001) * rate


def by(times: float) -> CostModel:
    return CostModel(
        DEFAULT_CURVE, CostCurve(tuple((s, times * c) for s, c in DEFAULT_CURVE.points))
    )


def limits_at(model: CostModel, rate: float, mix: Mix) -> ThrottleLimits:
    policy = DrivePolicy(limit=round(rate))
    known = DriveState(policy, abilities=STOCK, pricing=Pricing(mix=mix))
    base = price(known, policy, model, None, rate, Reason.POLICY).base
    assert base is not None
    return base


def passed(limits: ThrottleLimits, mix: Mix) -> float:
    """How many times a second QEMU lets a mix of uniform reads and writes through."""
    assert limits.bps_total is not None
    found = [limits.bps_total / (mix.read.bps + mix.write.bps)]
    for iops, flow in ((limits.iops_read, mix.read), (limits.iops_write, mix.write)):
        if flow.raw_iops:
            size = flow.bps / flow.raw_iops
            units = max(1, size / limits.iops_size) if limits.iops_size else 1
            assert iops is not None
            found.append(iops / (flow.raw_iops * units))
    return min(found)


# QEMU takes no bound of less than one request a second.
@pytest.mark.parametrize(("times", "rate", "most"), [(2, 10, 1.18), (5, 20, 1.38), (50, 100, 1.61)])
def test_requests_are_held_at_rates_of_few_requests(times: float, rate: int, most: float) -> None:
    model = by(times)
    for size in map(round, SIZES[:33:4]):
        limits = limits_at(model, rate, Mix(Flow(1, size), IDLE))
        for other in map(round, SIZES):
            reads, writes = Mix(Flow(1, other), IDLE), Mix(IDLE, Flow(1, other))
            assert passed(limits, reads) * model.read.cost(other) <= most * rate
            assert passed(limits, writes) * model.write.cost(other) <= most * rate


@pytest.mark.parametrize("rate", [1, 3, 10, 50, 100, 1000])
@pytest.mark.parametrize("times", [2, 5, 50])
def test_a_steady_mix_of_few_requests_gets_its_limit(times: float, rate: int) -> None:
    model = by(times)
    sizes = [4 * KIB << i for i in range(9)]
    for reads, writes in product(sizes, sizes):
        mix = Mix(Flow(1, reads), Flow(1, writes))
        cost = model.read.cost(reads) + model.write.cost(writes)
        got = passed(limits_at(model, rate, mix), mix) * cost / rate
        assert got == pytest.approx(1, abs=0.004)
