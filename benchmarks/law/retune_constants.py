"""What do the retune law's constants cost and gain?

Runs the agent's real law on a simulated throttle (sim/), once for each value of each constant with
the others as they are, over shifts between request sizes and over steady mixes. Writes
results/retune-constants.json and prints a table:

- recovery: seconds from a shift until no later second of the phase is off its limit by more than
  5 %, the worst and the mean over all shifts;
- worst: the highest rate in any window of a second, over the limit;
- served: the mean rate over the limit in the 2 s after a shift;
- steady error: the largest mean error of any steady mix after its first 5 s;
- retunes: changes of limits an hour in steady mixes (each a tenth of a second for nothing).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from statistics import mean
from typing import Any

import iokeel.core.drive.envelope as envelope
import iokeel.core.drive.mix as estimate
import iokeel.core.drive.retune as retune
from iokeel.core.counters import Flow
from iokeel.core.curve import DEFAULT_MODEL
from iokeel.core.drive.mix import Mix
from iokeel.core.policy import DrivePolicy
from testing.sim.drive import Phase, Run, Stream, run

RESULT = Path(__file__).resolve().parents[1] / "results/retune-constants.json"
KIB = 1024
LIMIT = 10_000
PHASE_S = 6.0
ENVELOPE_SIZES = [4 * KIB, 8 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 1024 * KIB]
SIZES = [4 * KIB, 16 * KIB, 64 * KIB, 1024 * KIB]
MIXES = {
    "8K + 64K": Stream(((8 * KIB, 0.5), (64 * KIB, 0.5))),
    "90 % 4K + 10 % 64K": Stream(((4 * KIB, 0.9), (64 * KIB, 0.1))),
    "4K + 16K + 256K": Stream(((4 * KIB, 0.4), (16 * KIB, 0.4), (256 * KIB, 0.2))),
    "99 % 4K + 1 % 1M": Stream(((4 * KIB, 0.99), (1024 * KIB, 0.01))),
}
SWEEPS: dict[str, tuple[object, Sequence[float]]] = {
    "OVERSHOOT_RATIO": (envelope, (0.0, 0.04, 0.08, 0.12, 0.16)),
    "SHIFT_RATIO": (retune, (0.0, 0.007, 0.015, 0.03)),
    "SIZE_RATIO": (estimate, (0.02, 0.05, 0.1, 0.2)),
    "DEADBAND_RATIO": (estimate, (0.005, 0.015, 0.025, 0.05)),
    "NOISE_FACTOR": (estimate, (0.0, 1.0, 2.0, 4.0)),
    "DRIFT_RATIO": (retune, (0.0, 0.005, 0.015, 0.05)),
    "DRIFT_COST_S": (retune, (0.1, 0.2, 0.45, 1.0, 2.0)),
    "LOOK_AGAIN_S": (retune, (0.1, 0.2, 0.4, 0.8)),
    "MIN_INTERVAL_S": (retune, (0.0, 0.5, 1.0, 2.0)),
    "MIX_HALF_LIFE_S": (estimate, (1.0, 2.0, 4.0, 8.0)),
}


def shifts() -> dict[str, float]:
    """Run every shift between two of SIZES, with ticks at different moments after it."""
    recovery, worst, served = [], [], []
    for i, (a, b) in enumerate(permutations(SIZES, 2)):
        phases = [Phase(PHASE_S, (Stream.of(a),)), Phase(PHASE_S, (Stream.of(b),))]
        offset = 0.05 + 0.1 * (i % 10)
        did = run(phases, DrivePolicy(limit=LIMIT), tick_offset_s=offset, seed=i)
        recovery.append(recovered_s(did, PHASE_S, 2 * PHASE_S))
        worst.append(did.worst_window(2.5, 2 * PHASE_S) / LIMIT)
        served.append(did.rate(PHASE_S, PHASE_S + 2) / LIMIT)
    return {
        "recovery_worst_s": max(recovery),
        "recovery_mean_s": mean(recovery),
        "worst_window_ratio": max(worst),
        "served_least_ratio": min(served),
        "served_mean_ratio": mean(served),
    }


def steady(limits: Sequence[int] = (500, 2_000), seconds: float = 60.0) -> dict[str, float]:
    """Run steady mixes, at limits that give few and many requests a second."""
    errors, changes = [], 0
    for seed, (limit, mix) in enumerate((limit, mix) for limit in limits for mix in MIXES.values()):
        did = run([Phase(seconds, (mix,))], DrivePolicy(limit=limit), seed=seed)
        errors.append(abs(did.rate(5, seconds) / limit - 1))
        changes += sum(at > 5 for at, _ in did.changes)
    hours = len(limits) * len(MIXES) * (seconds - 5) / 3600
    return {
        "steady_error_worst_ratio": max(errors),
        "steady_error_mean_ratio": mean(errors),
        "retunes_an_hour": changes / hours,
    }


def envelope_rows() -> list[list[float]]:
    """Return, for limits made for no mix and for each size, what each size gets of its limit."""
    rows = []
    for made_for in (None, *ENVELOPE_SIZES):
        mix = Mix(Flow(1.0, float(made_for)), Flow(0.0, 0.0)) if made_for else None
        limits = envelope.limits_for(DEFAULT_MODEL, LIMIT, mix)
        row = []
        for size in ENVELOPE_SIZES:
            units = max(1.0, size / limits.iops_size) if limits.iops_size else 1.0
            passed = [limits.iops_total / units] if limits.iops_total else []
            passed += [limits.bps_total / size] if limits.bps_total else []
            row.append(round(min(passed) * DEFAULT_MODEL.read.cost(size) / LIMIT, 3))
        rows.append(row)
    return rows


def recovered_s(did: Run, start: float, end: float, within: float = 0.05) -> float:
    """Return when the last second that is off by more than `within` ends, after start."""
    bad = [
        second + 1
        for second in range(int(end - start))
        if abs(did.rate(start + second, start + second + 1) / LIMIT - 1) > within
    ]
    return float(max(bad, default=0))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", choices=SWEEPS, help="sweep this constant alone")
    only = parser.parse_args().only
    results = []
    envelopes = envelope_rows()
    for made_for, served in zip(["no mix", *ENVELOPE_SIZES], envelopes, strict=True):
        print(f"made for {made_for!s:>8}: " + " ".join(f"{ratio:5.2f}" for ratio in served))
    columns = f"{'constant':18} {'value':>6} {'recovery s':>11} {'worst':>6} {'served':>11}"
    print(f"{columns} {'steady error':>13} {'retunes/h':>9}")
    for name, (module, values) in SWEEPS.items():
        if only not in (None, name):
            continue
        chosen = getattr(module, name)
        for value in sorted({*values, chosen}):
            setattr(module, name, value)
            row: dict[str, Any] = {"constant": name, "value": value, "chosen": value == chosen}
            row |= shifts() | steady()
            results.append(row)
            print(
                f"{name:18} {value:>5g}{'*' if row['chosen'] else ' '}"
                f" {row['recovery_worst_s']:>5.0f} {row['recovery_mean_s']:>5.1f}"
                f" {row['worst_window_ratio']:>6.3f}"
                f" {row['served_least_ratio']:>5.2f} {row['served_mean_ratio']:>5.2f}"
                f" {row['steady_error_worst_ratio']:>6.1%} {row['steady_error_mean_ratio']:>6.1%}"
                f" {row['retunes_an_hour']:>9.0f}"
            )
        setattr(module, name, chosen)
    if only is None:
        RESULT.write_text(
            json.dumps({"limit": LIMIT, "envelope": envelopes, "rows": results}, indent=1) + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
