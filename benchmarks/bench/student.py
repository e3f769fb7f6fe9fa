"""Student's t: how far means of few values may be off, or apart, by chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import variance

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


def noise(freedom: int, odds: float, *samples: tuple[float, int]) -> float:
    """Return how far a mean is off by chance with these odds, or two are apart.

    samples: of each mean the standard deviation and the number of its values.
    """
    return student(freedom, odds) * math.sqrt(sum(one**2 / count for one, count in samples))


def welch(one: Sequence[float], other: Sequence[float]) -> int:
    """Return the degrees of freedom of two means' difference, 1 or more.

    The samples, of two values or more, may vary differently (Welch, Satterthwaite); rounded down.
    """
    parts = [(variance(each) / len(each), len(each) - 1) for each in (one, other)]
    squares = sum(part**2 / freedom for part, freedom in parts)
    return int(sum(part for part, _ in parts) ** 2 / squares) if squares else 1
