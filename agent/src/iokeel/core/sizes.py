"""Tells from a mean request size whether all requests had one size."""

from __future__ import annotations

import math
from collections.abc import Sequence


def is_uniform(mean_size_bytes: float) -> bool:
    """Return whether a mean request size tells that all requests had that size.

    The mean of many requests of different sizes is hardly ever exactly a power of two; the
    size of requests that are all alike nearly always is.
    """
    if mean_size_bytes < 1:
        return False
    mantissa, _ = math.frexp(mean_size_bytes)  # 0.5 up to 1
    return mantissa - 0.5 <= 0.5e-9 or 1 - mantissa <= 1e-9


def is_one_size(mean_size_bytes: float, seen_bytes: Sequence[float]) -> bool:
    """Return whether all requests have one size, going also by those that were seen alone."""
    return is_uniform(mean_size_bytes) or any(
        abs(mean_size_bytes / size - 1) <= 1e-9 for size in seen_bytes
    )
