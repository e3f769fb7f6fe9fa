"""Loads of a week: what guests ask for over time, with their days and their noise."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, pi, sin

DAY_S = 24 * 3600


@dataclass(frozen=True)
class Load:
    """A guest's demand in normalized I/O operations a second, which is another in each step.

    mean_iops: about its mean. day: how much of it comes and goes with the day, 0 to 1. spread: of
    its noise, as a standard deviation of the logarithm. memory: what is left of the noise after a
    step, 0 to 1.
    """

    seed: int
    mean_iops: float
    day: float = 0.8
    spread: float = 0.5
    memory: float = 0.9

    def demands(self, step_s: float) -> Iterator[float]:
        """Yield its demand in each step, without an end. The same again each time it is asked."""
        chance = random.Random(self.seed)
        phase, noise, at_s = chance.uniform(0, 2 * pi), 0.0, 0.0
        fresh = self.spread * (1 - self.memory**2) ** 0.5
        while True:
            noise = self.memory * noise + chance.gauss(0, fresh)
            yield self.mean_iops * (1 + self.day * sin(2 * pi * at_s / DAY_S + phase)) * exp(noise)
            at_s += step_s


def loads(seed: int, count: int) -> list[Load]:
    """Return loads of a host: most are small, and some are steady, or without days."""
    chance = random.Random(seed)
    return [
        Load(
            chance.randrange(1 << 32),
            mean_iops=300 * chance.lognormvariate(0, 1),
            day=chance.choice([0.0, 0.3, 0.8, 0.95]),
            spread=chance.choice([0.1, 0.3, 0.6, 1.0]),
            memory=chance.choice([0.0, 0.9, 0.99]),
        )
        for _ in range(count)
    ]
