"""Is a shifting drive held to its limit while its guest sends a few requests of its own?

    python -m benchmarks.law.own_requests

A guest's own reads and writes (4K to 16K, at random moments) fall among the requests of one size
or of two that fill the drive's queue. So the mean size is a power of two in one look and none in
the next. The agent's law runs on a simulated throttle (agent/testing/sim), with ticks at any moment
after the shifts, half of the runs with ticks up to 0.1 s late.

Writes results/own-requests.json and prints a row for each limit and rate of own requests:

- late: the part of the seconds that are off by more than 5 %, of those that begin 3 s or more after
  a shift;
- phases: the part of the phases with such a second;
- sets: changes of limits an hour in that time;
- worst: the highest rate in any window of a second, over the limit;
- error: of the mean rate of a phase from 3 s after the shift on, the mean and the largest.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import mean

from benchmarks import result_file
from iokeel.core.values.curve import DEFAULT_MODEL, KIB
from iokeel.core.values.policy import DrivePolicy
from testing.sim.drive import Phase, Run, Stream, run

RESULT = result_file.RESULTS / "own-requests.json"
LIMITS = (300, 1_000, 3_000, 10_000)  # normalized iops
OWN_RATES = (0.0, 0.1, 1.0, 3.0)  # requests a second
SIZES = ((4,), (8,), (16,), (64,), (1024,), (4, 16), (8, 64))  # KiB, of a phase
OWN_SIZES = ((4 * KIB, 0.6), (8 * KIB, 0.2), (16 * KIB, 0.2))
WRITE_RATIOS = (0.0, 0.0, 0.4)
PHASES_S = (8, 12, 15)
PHASES, RUNS = 10, 6
SETTLED_S, WITHIN = 3, 0.05
# A second has to hold so many requests for its rate to tell much.
LEAST_REQUESTS = 30


@dataclass(frozen=True)
class PhaseFigures:
    """Figures of a phase after the shift that begins it; seconds, late, sets: once it settled."""

    seconds: int
    late: int
    sets: int
    worst_ratio: float
    error_ratio: float


@dataclass(frozen=True)
class Row:
    """Figures of a limit and a rate of own requests."""

    limit: int
    own_rate: float
    seconds: int
    late: int
    phases: int
    late_phases: int
    sets_an_hour: float
    worst_ratio: float
    error_mean_ratio: float
    error_most_ratio: float

    @classmethod
    def of(cls, limit: int, own_rate: float, found: list[PhaseFigures]) -> Row:
        """Return the figures of all phases together."""
        seconds = sum(phase.seconds for phase in found)
        return cls(
            limit,
            own_rate,
            seconds,
            sum(phase.late for phase in found),
            len(found),
            sum(phase.late > 0 for phase in found),
            sum(phase.sets for phase in found) / seconds * 3600,
            max(phase.worst_ratio for phase in found),
            mean(phase.error_ratio for phase in found),
            max(phase.error_ratio for phase in found),
        )

    def __str__(self) -> str:
        return (
            f"{self.limit:>6} {self.own_rate:>5g} {self.late / self.seconds:>6.2%}"
            f" {self.late_phases / self.phases:>6.1%} {self.sets_an_hour:>5.0f}"
            f" {self.worst_ratio:>6.3f} {self.error_mean_ratio:>6.2%} {self.error_most_ratio:>6.2%}"
        )


def figures(limit: int, own_rate: float, seeds: Iterable[int]) -> list[PhaseFigures]:
    """Return the figures of all phases but each run's first."""
    found = []
    for seed in seeds:
        chance = random.Random(seed)
        phases = _phases(limit, own_rate, chance)
        did = run(
            phases,
            DrivePolicy(limit=limit),
            tick_offset_s=chance.uniform(0.01, 1),
            tick_late_s=chance.choice((0.0, 0.1)),
            seed=seed,
        )
        start_s = phases[0].seconds
        for phase in phases[1:]:
            found.append(_phase_figures(did, limit, start_s, start_s + phase.seconds))
            start_s += phase.seconds
    return found


def _phases(limit: int, own_rate: float, chance: random.Random) -> list[Phase]:
    cost = DEFAULT_MODEL.read.cost
    fitting = [sizes for sizes in SIZES if LEAST_REQUESTS * cost(sizes[-1] * KIB) <= limit]
    write_ratio = chance.choice(WRITE_RATIOS)
    own = Stream(OWN_SIZES, 0.5, depth=1, rate=own_rate, at_random=True)
    phases, last = [], fitting[0]
    for _ in range(PHASES):
        last = chance.choice([sizes for sizes in fitting if sizes != last])
        streams = [Stream(((kib * KIB, 1.0),), write_ratio) for kib in last]
        if own_rate:
            streams.append(own)
        phases.append(Phase(chance.choice(PHASES_S), tuple(streams), in_turn=True))
    return phases


def _phase_figures(did: Run, limit: int, start_s: float, end_s: float) -> PhaseFigures:
    settled_s = start_s + SETTLED_S
    seconds = int(end_s - settled_s)
    rates = [did.rate(settled_s + i, settled_s + i + 1) / limit for i in range(seconds)]
    return PhaseFigures(
        seconds,
        sum(abs(rate - 1) > WITHIN for rate in rates),
        sum(settled_s <= at_s < end_s for at_s, _ in did.changes),
        did.worst_window(start_s - 1, end_s) / limit,
        abs(mean(rates) - 1),
    )


def main() -> None:
    """Run all limits and rates."""
    print(" limit   own   late phases  sets  worst   error   most")
    rows = []
    for limit in LIMITS:
        for own_rate in OWN_RATES:
            rows.append(Row.of(limit, own_rate, figures(limit, own_rate, range(RUNS))))
            print(rows[-1], flush=True)
    seconds, late = sum(row.seconds for row in rows), sum(row.late for row in rows)
    print(f"late: {late} of {seconds} seconds")
    result_file.write(RESULT, {"seconds": seconds, "late": late, "rows": rows})


if __name__ == "__main__":
    main()
