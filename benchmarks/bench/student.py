"""Student's t: how far a mean of few values may be off by chance."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

_STEPS = 1_000_000


@lru_cache
def student(freedom: int, odds: float) -> float:
    """Return the t that a mean exceeds by chance, to either side, with these odds (0 to 1).

    freedom: degrees of freedom, 1 or more. With t = sqrt(freedom) tan(a), the odds of a greater
    one are the part of the integral of cos(a)^(freedom - 1) beyond a.
    """
    angles = np.linspace(0, math.pi / 2, _STEPS)
    beyond = np.cumsum(np.cos(angles[::-1]) ** (freedom - 1))
    at = int(np.searchsorted(beyond, odds * beyond[-1]))
    return float(math.sqrt(freedom) / math.tan(angles[at]))
