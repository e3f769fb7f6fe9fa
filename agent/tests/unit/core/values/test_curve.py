"""The cost curve, against the published table and its stated check values."""

import csv
import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iokeel.core.values.curve import (
    DEFAULT_CURVE,
    KIB,
    CostCurve,
    CostModel,
    is_one_size,
    is_uniform,
)
from iokeel.errors import CurveError

# SolidFire Element's published table: size in KiB, cost in hundredths of a 4 KiB I/O.
PUBLISHED = """size_kib,cost
4,100
8,160
16,270
32,500
64,1000
128,1950
256,3900
512,7600
1024,15000
"""


@st.composite
def curves(draw: st.DrawFn) -> CostCurve:
    steps = draw(st.lists(st.integers(1, 1 << 20), min_size=1, max_size=12))
    rises = draw(st.lists(st.floats(0, 100), min_size=len(steps), max_size=len(steps)))
    points, size, cost = [], 0, draw(st.floats(0.01, 10))
    for step, rise in zip(steps, rises, strict=True):
        size += step
        points.append((size, cost))
        cost += rise
    return CostCurve(tuple(points))


@pytest.mark.parametrize("row", list(csv.DictReader(io.StringIO(PUBLISHED))))
def test_default_curve_is_the_published_table(row: dict[str, str]) -> None:
    assert DEFAULT_CURVE.cost(int(row["size_kib"]) * KIB) == float(row["cost"]) / 100


@pytest.mark.parametrize(("kib", "hundredths"), [(5, 115), (12, 215), (24, 385), (40, 625)])
def test_cost_is_linear_between_points(kib: int, hundredths: int) -> None:
    assert DEFAULT_CURVE.cost(kib * KIB) == pytest.approx(hundredths / 100)


@pytest.mark.parametrize("size", [1, 512, 4095])
def test_cost_is_flat_below_the_first_point(size: int) -> None:
    assert DEFAULT_CURVE.cost(size) == 1.0


def test_last_slope_goes_on_beyond_the_last_point() -> None:
    assert DEFAULT_CURVE.cost(2048 * KIB) == pytest.approx(150 + 2 * 74)


@pytest.mark.parametrize("size", [0, -1, float("nan")])
def test_a_request_of_no_bytes_has_no_cost(size: float) -> None:
    with pytest.raises(ValueError, match="has no cost"):
        DEFAULT_CURVE.cost(size)


@given(curves(), st.integers(1, 1 << 24), st.integers(1, 1 << 24))
def test_cost_never_decreases_with_size(curve: CostCurve, a: int, b: int) -> None:
    small, large = sorted((a, b))
    assert curve.cost(small) <= curve.cost(large) * (1 + 1e-12)


@given(
    curves(),
    st.floats(1, 2.0**64),
    st.lists(st.floats(1, 2.0**64), max_size=2).map(sorted),
)
def test_whatever_mean_a_qemu_tells_has_a_cost(
    curve: CostCurve, mean: float, seen: list[float]
) -> None:
    assert 0 < curve.mean_cost(mean, seen) < math.inf


@given(curves(), st.lists(st.tuples(st.integers(4096, 1 << 22), st.integers(1, 1000)), min_size=1))
def test_mean_cost_is_within_the_hulls_of_any_mix(
    curve: CostCurve, mix: list[tuple[int, int]]
) -> None:
    count = sum(n for _, n in mix)
    mean = sum(size * n for size, n in mix) / count
    true = sum(curve.cost(size) * n for size, n in mix) / count
    if is_uniform(mean):
        return
    low, high = curve.mean_cost_bounds(mean)
    assert low * (1 - 1e-9) <= true <= high * (1 + 1e-9)


@pytest.mark.parametrize(
    "mix",
    [
        {4: 0.5, 64: 0.5},
        {8: 0.5, 64: 0.5},
        {4: 0.9, 64: 0.1},
        {4: 0.99, 1024: 0.01},
        {16: 0.3, 32: 0.3, 256: 0.4},
        {4: 0.5, 1024: 0.5},
    ],
)
def test_mean_cost_of_real_mixes_is_right_within_two_percent(mix: dict[int, float]) -> None:
    mean = sum(kib * KIB * part for kib, part in mix.items())
    true = sum(DEFAULT_CURVE.cost(kib * KIB) * part for kib, part in mix.items())
    assert DEFAULT_CURVE.mean_cost(mean) == pytest.approx(true, rel=0.02)


@pytest.mark.parametrize(("large", "part"), [(1024 * KIB, 0.003), (64 * KIB, 0.03)])
def test_large_requests_that_were_seen_count_also_if_the_mean_is_small(
    large: int, part: float
) -> None:
    mean = (1 - part) * 512 + part * large
    assert mean < 4 * KIB
    true = (1 - part) + part * DEFAULT_CURVE.cost(large)
    assert DEFAULT_CURVE.mean_cost(mean, (512.0, float(large))) == pytest.approx(true)


@pytest.mark.parametrize("seen", [(), (512.0,), (4096.0,), (1048576.0,), (512.0, 1024.0)])
def test_requests_of_a_small_mean_are_taken_for_small_ones(seen: tuple[float, ...]) -> None:
    assert DEFAULT_CURVE.mean_cost(3000.0, seen) == 1.0


@pytest.mark.parametrize("kib", [4, 8, 16, 32, 64, 128, 256, 512, 1024])
def test_mean_cost_of_requests_all_alike_is_exact(kib: int) -> None:
    requests, elapsed = 137, 0.937
    mean = (requests * kib * KIB / elapsed) / (requests / elapsed)
    assert DEFAULT_CURVE.mean_cost(mean) == pytest.approx(DEFAULT_CURVE.cost(kib * KIB), rel=1e-6)


@given(curves(), st.integers(4096, 1 << 22))
def test_no_mix_is_taken_to_be_much_too_cheap(curve: CostCurve, mean: int) -> None:
    _, most = curve.mean_cost_bounds(mean)
    assert is_uniform(mean) or most <= 1.1 * curve.mean_cost(mean) * (1 + 1e-9)


@given(curves(), st.integers(4096, 1 << 22), st.lists(st.integers(512, 1 << 23), min_size=2))
def test_nor_by_sizes_on_both_sides_to_be_less_than_half_as_dear(
    curve: CostCurve, mean: int, seen: list[int]
) -> None:
    _, most = curve.mean_cost_bounds(mean)
    sizes = tuple(map(float, seen))
    assert is_one_size(mean, sizes) or most <= 2 * curve.mean_cost(mean, sizes) * (1 + 1e-9)


@given(curves(), st.integers(8192, 1 << 22), st.lists(st.integers(512, 4096), min_size=1))
def test_nor_by_sizes_on_one_side_that_may_be_gone(
    curve: CostCurve, mean: int, seen: list[int]
) -> None:
    for sizes in (seen, [size << 11 for size in seen if size << 11 > mean]):
        _, most = curve.mean_cost_bounds(mean)
        cost = curve.mean_cost(mean, tuple(map(float, sizes)))
        assert is_uniform(mean) or most <= 1.1 * cost * (1 + 1e-9)


@pytest.mark.parametrize("size", [12 * KIB, 96 * KIB, 100 * KIB])
def test_a_mean_that_was_seen_alone_is_a_size(size: int) -> None:
    mean = float(size)
    assert DEFAULT_CURVE.mean_cost(mean, (mean,)) == DEFAULT_CURVE.cost(mean)
    assert DEFAULT_CURVE.mean_cost(mean) != DEFAULT_CURVE.cost(mean)


@pytest.mark.parametrize(
    ("points", "match"),
    [
        ((), "0 points"),
        (((4096, 0.0),), "a cost from 1e-12 to 1e\\+12"),
        (((4096, 1e-320),), "a cost from 1e-12 to 1e\\+12"),
        (((4096, float("nan")),), "a cost from 1e-12 to 1e\\+12"),
        (((0, 1.0),), "a size greater than 0"),
        (((4096, float("inf")),), "point 1 is out of range"),
        (((4096, 1.0), (8192, 1e300)), "point 2 is out of range"),
        (((4096, 1.0), (1 << 40, 2.0)), "point 2 is out of range"),
        (((4096, 1.0), (10**5000, 2.0)), "point 2 is out of range"),
        (((8192, 1.0), (4096, 2.0)), "ascending"),
        (((4096, 1.0), (4096, 2.0)), "ascending"),
        (((4096, 2.0), (8192, 1.0)), "falls"),
        (tuple((i, 1.0) for i in range(1, 66)), "65 points"),
    ],
)
def test_points_that_make_no_curve_are_refused(
    points: tuple[tuple[int, float], ...], match: str
) -> None:
    with pytest.raises(CurveError, match=match):
        CostCurve(points)


EVEN = CostCurve(((4 * KIB, 1.0), (16 * KIB, 2.25), (64 * KIB, 9.0), (1024 * KIB, 144.0)))
PAGES = CostCurve(((4 * KIB, 1.0), (16 * KIB, 1.06), (64 * KIB, 3.75), (1024 * KIB, 60.0)))
SEEKS = CostCurve(((4 * KIB, 1.0), (1024 * KIB, 2.2)))
STEEP = CostCurve(((4 * KIB, 1.0), (1024 * KIB, 300.0)))


@pytest.mark.parametrize(
    ("read", "write", "size"),
    [
        (PAGES, PAGES, 32 * KIB),  # 16 KiB would cost 1.13 times as much by the byte
        (EVEN, EVEN, 16 * KIB),
        (SEEKS, SEEKS, 1024 * KIB),
        (STEEP, STEEP, 4 * KIB),
        (DEFAULT_CURVE, DEFAULT_CURVE, 128 * KIB),
        (EVEN, PAGES, 16 * KIB),  # writes pass as a whole
        (SEEKS, EVEN, 1024 * KIB),
    ],
)
def test_parts_are_as_small_as_is_hardly_dearer_by_the_byte(
    read: CostCurve, write: CostCurve, size: int
) -> None:
    assert CostModel(read, write).split_size == size
