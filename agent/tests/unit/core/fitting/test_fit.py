"""The fit of capacity and curves, against devices whose capacity and curves are known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.core.fitting import TOLERANCE_RATIO, fit
from iokeel.core.values.curve import DEFAULT_CURVE, KIB, CostCurve

SIZES = tuple(KIB << power for power in range(2, 11))
# Costs are given with four digits and capacities with three.
ROUNDING = 0.006


def rates(curve: CostCurve, capacity: float, noise: tuple[float, ...] = ()) -> dict[int, float]:
    """Return what a device serves that has a capacity and a curve."""
    factors = noise or (0.0,) * len(SIZES)
    return {
        size: capacity / curve.cost(size) * (1 + error)
        for size, error in zip(SIZES, factors, strict=True)
    }


def affine(first: float, slope: float) -> CostCurve:
    """Return the curve of a device that takes a time for a request and a time for each byte."""
    return CostCurve(((SIZES[0], first), (SIZES[-1], first + slope * (SIZES[-1] - SIZES[0]))))


@st.composite
def devices(draw: st.DrawFn) -> CostCurve:
    """A device with up to six points, at sizes that are measured; 4 KiB costs 1."""
    inner = draw(st.lists(st.sampled_from(SIZES[1:-1]), max_size=4, unique=True))
    points, cost = [(SIZES[0], 1.0)], 1.0
    for size in (*sorted(inner), SIZES[-1]):
        cost += draw(st.floats(0, 100))
        points.append((size, cost))
    return CostCurve(tuple(points))


@given(devices(), st.floats(50, 1e6))
def test_a_device_with_a_handful_of_points_is_found_exactly(
    curve: CostCurve, capacity: float
) -> None:
    found = fit(rates(curve, capacity), {}, tolerance_ratio=1e-9)
    assert found.capacity == pytest.approx(capacity, rel=ROUNDING, abs=0.6)
    for size in SIZES:
        assert found.read.cost(size) == pytest.approx(curve.cost(size), rel=0.001)
    assert found.write is None
    assert found.model.write == found.read


def test_no_point_is_given_that_is_not_needed() -> None:
    curve = CostCurve(((4 * KIB, 1.0), (64 * KIB, 1.0), (1024 * KIB, 16.0)))
    assert fit(rates(curve, 1000), {}).read == curve
    flat = CostCurve(((4 * KIB, 1.0), (1024 * KIB, 1.0)))
    assert fit(rates(flat, 1000), {}).read == flat


def test_the_published_curve_is_met_within_the_tolerance_by_a_handful() -> None:
    found = fit(rates(DEFAULT_CURVE, 50_000), {})
    assert len(found.read.points) <= 6
    for size in SIZES:
        assert abs(found.error_ratio(size, 50_000 / DEFAULT_CURVE.cost(size))) < 0.036


@given(
    st.floats(0.5, 2),
    st.floats(1e-6, 1e-3),
    st.tuples(*[st.floats(-0.02, 0.02) for _ in SIZES]),
)
def test_noise_is_not_made_larger(first: float, slope: float, noise: tuple[float, ...]) -> None:
    curve = affine(first, slope)
    found = fit(rates(curve, 10_000, noise), {})
    bound = (1 + TOLERANCE_RATIO) * (1 + 0.021) * (1 + ROUNDING) - 1
    for size in SIZES:
        assert abs(found.error_ratio(size, 10_000 / curve.cost(size))) <= bound


def test_writes_are_priced_in_reads() -> None:
    reads, writes = affine(1, 0.0001), affine(2.5, 0.0003)
    found = fit(rates(reads, 8000), rates(writes, 8000))
    assert found.capacity == 8000
    assert found.write is not None
    for size in SIZES:
        assert found.write.cost(size) == pytest.approx(writes.cost(size), rel=0.001)
    assert found.error_ratio(4 * KIB, 3000, write=True) == pytest.approx(3200 / 3000 - 1)


def test_writes_may_cost_less_than_reads() -> None:
    found = fit(rates(affine(1, 0.0001), 80), rates(affine(0.25, 0.0001), 80))
    assert found.write is not None
    assert found.write.cost(4 * KIB) == 0.25


def test_larger_requests_that_are_faster_cost_the_same() -> None:
    found = fit({4 * KIB: 900, 8 * KIB: 1100, 16 * KIB: 1000}, {})
    assert {cost for _, cost in found.read.points} == {1.0}
    assert 900 < found.capacity < 1100


@given(
    st.dictionaries(st.sampled_from(SIZES), st.floats(0.01, 1e8), min_size=1),
    st.dictionaries(st.sampled_from(SIZES), st.floats(0.01, 1e8)),
)
def test_any_rates_make_valid_curves(reads: dict[int, float], writes: dict[int, float]) -> None:
    found = fit(reads, writes)  # CostCurve refuses what is none
    assert found.capacity >= 1
    assert found.read.points[0] == (min(reads), 1.0)
    assert [size for size, _ in found.read.points][-1] == max(reads)
    assert (found.write is None) is (not writes)
