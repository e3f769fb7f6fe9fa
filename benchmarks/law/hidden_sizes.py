"""How much more than its limit can a drive do by sizes that stock QEMU can't tell apart?

    python -m benchmarks.law.hidden_sizes

Stock QEMU tells the mean size of a drive's requests. Runs the agent's law on a simulated throttle
(agent/testing/sim) that computes as stock QEMU's does, over the curves of CURVES and over random
ones. Each runs with the law's bounds on what may hide in a mean, and without them (if mixes and
single sizes are taken for what they seem to be). Writes results/hidden-sizes.json and prints a
table, of rates over the limit:

- single: the lowest mean of a single size of SINGLE after the first 4 s;
- back: seconds from a shift between two of SHIFTS until each later second is within 5 % of what the
  size gets in the end, the longest;
- mix, second: of MIXES, in turn and in random order, and both also after the first and the last of
  their sizes alone: the highest mean after 4 s, and the highest rate in any window of a second
  after 3 s.

Random curves have one mix each, of which half have a power of two as their mean: percentiles 90, 99
and 100 of both figures, without and with the first and the last size alone before.
"""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import exp, inf
from random import Random

import numpy as np

from benchmarks import result_file
from benchmarks.law.constants import Sweep
from iokeel.core.values.curve import DEFAULT_CURVE, KIB, CostCurve, CostModel
from iokeel.core.values.policy import DrivePolicy
from testing.sim.drive import Phase, Run, Stream, run

RESULT = result_file.RESULTS / "hidden-sizes.json"
COSTS = result_file.BENCHMARKS / "disksim" / "costs.toml"
LIMIT = 3000  # normalized iops
SINGLE = (4, 8, 12, 16, 24, 32, 48, 64, 128, 192, 256)  # KiB
SHIFTS = (4, 16, 64, 256)
MIXES = ((4, 124), (32, 96), (4, 4, 184), (4, 28), (4, 64), (8, 64), (16, 256), (4, 16, 256))
RANDOM_CURVES = 400
RANDOM_SIZES = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
MOST_OF_LIMIT = 0.05  # that a request of a random mix costs
BOUNDS = [
    Sweep("iokeel.core.values.curve", name, (inf,))
    for name in ("TOO_CHEAP_RATIO", "TOO_CHEAP_IF_SEEN_RATIO")
]


@dataclass(frozen=True)
class Row:
    """A curve's figures."""

    curve: str
    bounded: bool
    single_least: float
    back_most_s: float
    mix_most: float
    second_most: float

    def __str__(self) -> str:
        return (
            f"{self.curve:18} {'yes' if self.bounded else 'no':>7} {self.single_least:>6.2f}"
            f" {self.back_most_s:>4.0f} {self.mix_most:>6.2f} {self.second_most:>6.2f}"
        )


@dataclass(frozen=True)
class AtRandom:
    """Figures of the random curves: the 90th and 99th percentile and the highest of each.

    seen: the first and the last size of each mix were there alone before.
    """

    bounded: bool
    seen: bool
    curves: int
    mix: list[float]
    second: list[float]

    def __str__(self) -> str:
        figures = " ".join(f"{ratio:6.2f}" for ratio in (*self.mix, *self.second))
        name = f"{self.curves} random" + (", seen" if self.seen else "")
        return f"{name:18} {'yes' if self.bounded else 'no':>7} {figures}"


def kib_curve(*points: tuple[int, float]) -> CostCurve:
    """Return a curve from sizes in KiB."""
    return CostCurve(tuple((kib * KIB, cost) for kib, cost in points))


def curves() -> dict[str, CostCurve]:
    """Return the curves: the published one, those of the simulated disks, and two that are hard."""
    units = {"k": 1, "m": 1024}
    disks = {
        name: kib_curve(
            *((int(size[:-1]) * units[size[-1]], cost) for size, cost in disk["curve_read"])
        )
        for name, disk in tomllib.loads(COSTS.read_text()).items()
    }
    return {
        "published": DEFAULT_CURVE,
        **disks,
        "flat then steep": kib_curve((4, 1.0), (64, 1.0), (128, 17.0)),
        "steep then flat": kib_curve((4, 1.0), (128, 10.0), (1024, 12.0)),
    }


@contextlib.contextmanager
def bounds(bounded: bool) -> Iterator[None]:
    """Run with the bounds on what may hide in a mean, or without them."""
    with contextlib.ExitStack() as stack:
        for sweep in [] if bounded else BOUNDS:
            stack.enter_context(sweep.at(inf))
        yield


def alone(kib: int, seconds: float) -> Phase:
    """Return a phase of requests that all have one size."""
    return Phase(seconds, (Stream.of(kib * KIB),))


def mixed(sizes: Sequence[int], seconds: float, *, in_turn: bool) -> Phase:
    """Return a phase of requests of some sizes, in turn or in random order."""
    depth = 1 if in_turn else 16
    streams = tuple(Stream(((kib * KIB, 1.0),), depth=depth) for kib in sizes)
    return Phase(seconds, streams, in_turn)


def row(name: str, curve: CostCurve, *, bounded: bool) -> Row:
    """Run a curve."""
    singles = {kib: go(curve, [alone(kib, 12)]).rate(4, 12) / LIMIT for kib in SINGLE}
    mixes = [
        run_mix(curve, sizes, in_turn=in_turn, seen=seen)
        for sizes in MIXES
        for in_turn in (False, True)
        for seen in (False, True)
    ]
    back = max(back_s(curve, a, b, i) for i, (a, b) in enumerate(permutations(SHIFTS, 2)))
    return Row(
        name,
        bounded,
        min(singles.values()),
        back,
        max(mean for mean, _ in mixes),
        max(second for _, second in mixes),
    )


def run_mix(
    curve: CostCurve, sizes: Sequence[int], *, in_turn: bool, seen: bool, seed: int = 1
) -> tuple[float, float]:
    """Return the mean and the worst second of a mix, over the limit."""
    before = [alone(kib, 4) for kib in (sizes[0], sizes[-1])] if seen else []
    start = sum(phase.seconds for phase in before)
    did = go(curve, [*before, mixed(sizes, 12, in_turn=in_turn)], seed)
    end = start + 12
    return did.rate(start + 4, end) / LIMIT, did.worst_window(start + 3, end) / LIMIT


def back_s(curve: CostCurve, before: int, after: int, seed: int) -> float:
    """Return the seconds until a shift is over."""
    did = go(curve, [alone(before, 6), alone(after, 10)], seed)
    rates = [did.rate(second, second + 1) for second in range(6, 16)]
    last = sum(rates[-4:]) / 4
    late = [i + 1 for i, rate in enumerate(rates) if abs(rate / last - 1) > 0.05]
    return max(late, default=0)


def go(curve: CostCurve, phases: Sequence[Phase], seed: int = 1) -> Run:
    """Run a drive, with its ticks at a moment that depends on the seed."""
    offset = 0.05 + 0.1 * (seed % 10)
    model = CostModel(curve, curve)
    return run(phases, DrivePolicy(limit=LIMIT), model=model, tick_offset_s=offset, seed=seed)


def random_curve(chance: Random) -> CostCurve:
    """Return a curve that is flat and then steep, or steep and then flat, or anything."""
    kind, knee = chance.choice(("flat", "steep", "any")), chance.choice((8, 16, 32, 64, 128))
    if kind == "flat":
        return kib_curve((4, 1.0), (knee, 1.0), (2 * knee, chance.uniform(1.5, 30)), (1024, 100.0))
    if kind == "steep":
        height = chance.uniform(2, 20)
        return kib_curve((4, 1.0), (knee, height), (1024, height * chance.uniform(1, 1.5)))
    points = [(4, 1.0)]
    while (kib := points[-1][0]) < 1024:
        cost = points[-1][1] * exp(abs(chance.gauss(0, 1)))
        points.append((min(1024, kib * chance.choice((2, 3, 4))), cost))
    return kib_curve(*points)


def random_mix(chance: Random) -> tuple[int, ...]:
    """Return sizes in KiB: some small ones and a large one with a power of two as mean, or any."""
    if chance.random() < 0.5:
        return tuple(chance.sample(RANDOM_SIZES, chance.randint(2, 4)))
    mean, count = chance.choice((8, 16, 32, 64, 128)), chance.randint(1, 5)
    small = chance.choice([kib for kib in RANDOM_SIZES if kib < mean])
    return (*[small] * count, mean + count * (mean - small))


def over_random_curves(*, bounded: bool, seen: bool) -> AtRandom:
    """Run a mix on each random curve."""
    found = []
    for seed in range(RANDOM_CURVES):
        chance = Random(seed)
        curve, sizes = random_curve(chance), random_mix(chance)
        if curve.cost(max(sizes) * KIB) <= MOST_OF_LIMIT * LIMIT:
            in_turn = chance.random() < 0.7
            found.append(run_mix(curve, sizes, in_turn=in_turn, seen=seen, seed=seed))
    means, seconds = (np.percentile(list(each), (90, 99, 100)) for each in zip(*found, strict=True))
    return AtRandom(bounded, seen, len(found), means.tolist(), seconds.tolist())


def main() -> None:
    """Run all curves."""
    print(f"{'curve':18} bounded single back    mix second")
    rows, at_random = [], []
    for bounded in (True, False):
        with bounds(bounded):
            for name, curve in curves().items():
                rows.append(row(name, curve, bounded=bounded))
                print(rows[-1], flush=True)
            for seen in (False, True):
                at_random.append(over_random_curves(bounded=bounded, seen=seen))
                print(at_random[-1], flush=True)
    result_file.write(RESULT, {"limit": LIMIT, "curves": rows, "random": at_random})


if __name__ == "__main__":
    main()
