"""What the demo judges a drive by."""

import numpy as np
import pytest

from benchmarks.demo.conformance import Completions, phase_conformance

WITHIN = {"within_ratio": 0.05, "settled_s": 3.0, "mean_ratio": 0.03, "window_ratio": 1.25}


def _late(from_s: float, to_s: float) -> Completions:
    """100 requests a second, of which those of a span all end when it does."""
    at_s = np.arange(0, 8, 0.01) + 0.005
    at_s[(from_s <= at_s) & (at_s < to_s)] = to_s
    return Completions(at_s, np.ones(len(at_s)))


@pytest.mark.parametrize(
    ("stolen", "recovered_s"),
    [
        ([], 6.0),
        ([(4.5, 5.0)], 0.0),
        ([(4.9, 5.1)], 0.0),
        ([(3.0, 4.0)], 6.0),  # of the two that are off, only the first comes after it
        ([(6.0, 7.0)], 6.0),
    ],
)
def test_requests_late_for_the_machine_do_not_count(
    stolen: list[tuple[float, float]], recovered_s: float
) -> None:
    found = phase_conformance(_late(4.9, 5.0), "late", 0.0, 8.0, 100.0, WITHIN, stolen=stolen)
    assert found.recovered_s == recovered_s
    assert found.seconds_ratio == [1, 1, 1, 1, 0.9, 1.1, 1, 1]
