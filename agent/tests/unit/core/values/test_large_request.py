"""How long one request of 1 MiB waits: figures by the published table, where it costs 150."""

from __future__ import annotations

import pytest

from iokeel.core.values.curve import (
    DEFAULT_CURVE,
    DEFAULT_MODEL,
    LONG_S,
    CostCurve,
    CostModel,
    large_wait_s,
    least_limit,
)


@pytest.mark.parametrize(("limits", "wait_s"), [((1,), 150), ((1000,), 0.15), ((1000, 50), 3),
                                               ((None, 50, None), 3)])  # fmt: skip
def test_the_lowest_limit_counts(limits: tuple[int | None, ...], wait_s: float) -> None:
    assert large_wait_s(DEFAULT_MODEL, *limits) == pytest.approx(wait_s)


def test_without_a_limit_nothing_waits() -> None:
    assert large_wait_s(DEFAULT_MODEL) is None
    assert large_wait_s(DEFAULT_MODEL, None, None) is None


def test_the_dearer_direction_counts() -> None:
    model = CostModel(DEFAULT_CURVE, CostCurve(((4096, 1.0), (1 << 20, 600.0))))
    assert large_wait_s(model, 100) == 6
    assert least_limit(model) == 121


def test_at_the_least_limit_the_wait_is_short_and_below_it_long() -> None:
    least = least_limit(DEFAULT_MODEL)
    at, below = large_wait_s(DEFAULT_MODEL, least), large_wait_s(DEFAULT_MODEL, least - 1)
    assert at is not None
    assert below is not None
    assert at < LONG_S <= below
