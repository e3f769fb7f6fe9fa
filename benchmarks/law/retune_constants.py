"""What do the retune law's constants cost and gain?

    python -m benchmarks.law.retune_constants [--only CONSTANT]

Runs the agent's law on a simulated throttle (agent/testing/sim), once for each value of each
constant of SWEEPS with the others as they are, over shifts between request sizes and over steady
mixes. Writes results/retune-constants.json, unless --only is given, and prints a table:

- recovery: seconds from a shift until no later second of the phase is off its limit by more than
  5 %, the worst and the mean over all shifts;
- worst: the highest rate in any window of a second, over the limit;
- served: the mean rate over the limit in the 2 s after a shift, the lowest and the mean;
- steady error: the mean error of a steady mix after its first 5 s, the largest and the mean;
- retunes: changes of limits an hour in steady mixes (each a tenth of a second for nothing);
- late: of 1,000 seconds that begin 3 s or more after a shift, while guests send a few requests of
  their own (own_requests.py), how many are off by more than 5 %.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations, product
from statistics import mean
from typing import NamedTuple

from benchmarks import result_file
from benchmarks.law import own_requests
from benchmarks.law.constants import Sweep
from iokeel.core.enforce.envelope import limits_for
from iokeel.core.values.counters import Flow, Mix
from iokeel.core.values.curve import DEFAULT_MODEL, KIB
from iokeel.core.values.policy import DrivePolicy
from testing.sim.drive import Phase, Run, Stream, run

RESULT = result_file.RESULTS / "retune-constants.json"
LIMIT = 10_000  # normalized iops
PHASE_S = 6.0
OWN_LIMIT, OWN_RATES, OWN_RUNS = 1_000, (1.0, 3.0), 4
ENVELOPE_SIZES = [4 * KIB, 8 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 1024 * KIB]
SIZES = [4 * KIB, 16 * KIB, 64 * KIB, 1024 * KIB]
MIXES = {
    "8K + 64K": Stream(((8 * KIB, 0.5), (64 * KIB, 0.5))),
    "90 % 4K + 10 % 64K": Stream(((4 * KIB, 0.9), (64 * KIB, 0.1))),
    "4K + 16K + 256K": Stream(((4 * KIB, 0.4), (16 * KIB, 0.4), (256 * KIB, 0.2))),
    "99 % 4K + 1 % 1M": Stream(((4 * KIB, 0.99), (1024 * KIB, 0.01))),
}
ENVELOPE = "iokeel.core.enforce.envelope"
MEASURE = "iokeel.core.measure.drive"
MIX = "iokeel.core.values.mix"
RETUNE = "iokeel.core.enforce.retune"
SWEEPS = (
    Sweep(ENVELOPE, "OVERSHOOT_RATIO", (0.0, 0.04, 0.08, 0.12, 0.16)),
    Sweep(RETUNE, "DEADBAND_RATIO", (0.005, 0.015, 0.025, 0.04, 0.08)),
    Sweep(RETUNE, "SHIFT_RATIO", (0.0, 0.007, 0.015, 0.03)),
    Sweep(RETUNE, "SHIFT_LOOKS", (1, 2, 3, 5)),
    Sweep(MIX, "SIZE_RATIO", (0.02, 0.05, 0.1, 0.2)),
    Sweep(MIX, "NOISE_RATIO", (0.0125, 0.025, 0.04)),
    Sweep(MIX, "NOISE_FACTOR", (0.0, 1.0, 2.0, 4.0)),
    Sweep(RETUNE, "DRIFT_COST_S", (0.2, 0.5, 1.0, 2.0, 4.0)),
    Sweep(MEASURE, "LOOK_AGAIN_S", (0.1, 0.2, 0.4, 0.8)),
    Sweep(RETUNE, "MIN_INTERVAL_S", (0.0, 0.5, 1.0, 2.0)),
    Sweep(MIX, "LOOK_WEIGHT", (0.05, 0.1, 0.2, 0.4)),
)


class Shifts(NamedTuple):
    """Figures of the shifts."""

    recovery_worst_s: float
    recovery_mean_s: float
    worst_window_ratio: float
    served_least_ratio: float
    served_mean_ratio: float


class Steady(NamedTuple):
    """Figures of the steady mixes."""

    error_worst_ratio: float
    error_mean_ratio: float
    retunes_an_hour: float


@dataclass(frozen=True)
class Row:
    """A value of a constant, and its figures. chosen: the value is the constant's own."""

    constant: str
    value: float
    chosen: bool
    recovery_worst_s: float
    recovery_mean_s: float
    worst_window_ratio: float
    served_least_ratio: float
    served_mean_ratio: float
    steady_error_worst_ratio: float
    steady_error_mean_ratio: float
    retunes_an_hour: float
    late_ratio: float

    def __str__(self) -> str:
        return (
            f"{self.constant:18} {self.value:>5g}{'*' if self.chosen else ' '}"
            f" {self.recovery_worst_s:>5.0f} {self.recovery_mean_s:>5.1f}"
            f" {self.worst_window_ratio:>6.3f}"
            f" {self.served_least_ratio:>5.2f} {self.served_mean_ratio:>5.2f}"
            f" {self.steady_error_worst_ratio:>6.1%} {self.steady_error_mean_ratio:>6.1%}"
            f" {self.retunes_an_hour:>9.0f} {1000 * self.late_ratio:>4.0f}"
        )


def figures() -> tuple[float, ...]:
    """Return the figures of a row."""
    return (*shifts(), *steady(), late())


def shifts() -> Shifts:
    """Run every shift between two of SIZES, with ticks at different moments after it."""
    recovery, worst, served = [], [], []
    for i, (a, b) in enumerate(permutations(SIZES, 2)):
        phases = [Phase(PHASE_S, (Stream.of(a),)), Phase(PHASE_S, (Stream.of(b),))]
        offset = 0.05 + 0.1 * (i % 10)
        did = run(phases, DrivePolicy(limit=LIMIT), tick_offset_s=offset, seed=i)
        recovery.append(recovered_s(did, PHASE_S, 2 * PHASE_S))
        worst.append(did.worst_window(2.5, 2 * PHASE_S) / LIMIT)
        served.append(did.rate(PHASE_S, PHASE_S + 2) / LIMIT)
    return Shifts(max(recovery), mean(recovery), max(worst), min(served), mean(served))


def steady(limits: Sequence[int] = (500, 2_000), seconds: float = 60.0, runs: int = 3) -> Steady:
    """Run steady mixes, at limits that give few and many requests a second."""
    errors, changes = [], 0
    for seed, (_, limit, mix) in enumerate(product(range(runs), limits, MIXES.values())):
        did = run([Phase(seconds, (mix,))], DrivePolicy(limit=limit), seed=seed)
        errors.append(abs(did.rate(5, seconds) / limit - 1))
        changes += sum(at > 5 for at, _ in did.changes)
    hours = runs * len(limits) * len(MIXES) * (seconds - 5) / 3600
    return Steady(max(errors), mean(errors), changes / hours)


def late() -> float:
    """Return the part of the seconds that are late, while guests send requests of their own."""
    found = [
        phase
        for own_rate in OWN_RATES
        for phase in own_requests.figures(OWN_LIMIT, own_rate, range(OWN_RUNS))
    ]
    return sum(phase.late for phase in found) / sum(phase.seconds for phase in found)


def envelope_rows() -> list[list[float]]:
    """Return each size's rate over its limit: a row for limits without a mix and for each size."""
    rows = []
    for made_for in (None, *ENVELOPE_SIZES):
        mix = Mix(Flow(1.0, float(made_for)), Flow(0.0, 0.0)) if made_for else None
        limits = limits_for(DEFAULT_MODEL, LIMIT, mix)
        row = []
        for size in ENVELOPE_SIZES:
            units = max(1.0, size / limits.iops_size) if limits.iops_size else 1.0
            passed = [limits.iops_total / units] if limits.iops_total else []
            passed += [limits.bps_total / size] if limits.bps_total else []
            row.append(round(min(passed) * DEFAULT_MODEL.read.cost(size) / LIMIT, 3))
        rows.append(row)
    return rows


def recovered_s(did: Run, start: float, end: float) -> float:
    """Return the end of the last second that is off by more than 5 %, counted from start."""
    bad = [
        second + 1
        for second in range(int(end - start))
        if abs(did.rate(start + second, start + second + 1) / LIMIT - 1) > 0.05
    ]
    return float(max(bad, default=0))


def main() -> None:
    """Try the constants."""
    parser = argparse.ArgumentParser(description=result_file.question(__doc__))
    names = [sweep.name for sweep in SWEEPS]
    parser.add_argument("--only", choices=names, help="one constant, and no file")
    only = parser.parse_args().only
    envelopes = envelope_rows()
    for made_for, served in zip(["no mix", *ENVELOPE_SIZES], envelopes, strict=True):
        print(f"made for {made_for!s:>8}: " + " ".join(f"{ratio:5.2f}" for ratio in served))
    columns = f"{'constant':18} {'value':>6} {'recovery s':>11} {'worst':>6} {'served':>11}"
    print(f"{columns} {'steady error':>13} {'retunes/h':>9} late")
    rows, usual = [], figures()
    for sweep in SWEEPS:
        if only not in (None, sweep.name):
            continue
        chosen = sweep.chosen
        for value in sweep.all_values():
            with sweep.at(value):
                found = usual if value == chosen else figures()
            rows.append(Row(sweep.name, value, value == chosen, *found))
            print(rows[-1], flush=True)
    if only is None:
        result_file.write(RESULT, {"limit": LIMIT, "envelope": envelopes, "rows": rows})


if __name__ == "__main__":
    main()
