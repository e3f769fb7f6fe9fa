"""How stable are the capacity's feedback and the room for latency targets, and what do they cost?

Runs the agent's real law on a simulated host (testing/sim), once for each value of each constant
of core/sharing/capacity.py with the others as they are: on disks with a soft and with a sharp knee,
with stock and with exact throttles. Writes results/capacity-feedback.json and
docs/capacity-feedback.png, and prints a table. Of the ratio, eight guests want all they can get of
a disk whose capacity is halved and comes back, or is configured too high or too low:

- settle_s: seconds from a step until latency stays below 1.5 times its target and throughput above
  85 % of what the disk does at its target, the worst step;
- over_s: seconds with a latency above twice its target, the sum over the steps;
- lost: what is lost to the throughput at the target, from a step until the next, its mean;
- noise_lost, noise_over: what is lost, and the part of the seconds above 1.5 times the target, at
  constant capacity, where the mean latency of a second is seen with lognormal noise of sigma 0.2;
- retunes: changes of limits for a drive and hour, then.

Of the room, a victim does 2 s of 4K reads every 10 s beside seven that want all they can get, on a
disk that does only half at first:

- victim: its mean latency over its target, in the last bursts;
- others: the throughput of all then, over the disk's at the victim's target;
- back_s: seconds from when the disk does all until that is above 80 %.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from math import inf
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

import iokeel.core.sharing.capacity as capacity
from iokeel.core.policy import DrivePolicy
from iokeel.core.sharing.storage import StoragePolicy
from testing.sim.fleet import Fleet, Record
from testing.sim.guests import Guest, Kind, Phase, idle
from testing.sim.storage import Disk

BENCHMARKS = Path(__file__).resolve().parents[1]
RESULT = BENCHMARKS / "results/capacity-feedback.json"
PLOT = BENCHMARKS.parent / "docs/capacity-feedback.png"
CAPACITY = 20_000
BASE_S = 0.0002
TARGET_MS = 1.0
KNEES = (1.0, 4.0)
STEP_S = 80
BEFORE_S = 40
NOISE = 0.2
NOISE_S = 240
HALF_S = 100
ROOM_S = 300
SWEEPS: dict[str, Sequence[float]] = {
    "POWER": (0.05, 0.1, 0.2, 0.5),
    "STEP": (0.7, 0.8, 0.9, 0.95),
    "SLACK": (1.0, 1.05, 1.2, 10.0),
    "DOWN_MOST": (0.5, 0.7, 0.85),
    "UP_RATIO": (0.02, 0.04, 0.08, 0.16, 0.32),
    "CALM_RATIO": (0.5, 0.6, 0.7, 0.8, 0.9, 0.99),
}
ROOM_SWEEPS: dict[str, Sequence[float]] = {
    "HEADROOM_RATIO": (0.7, 0.8, 0.85, 0.9, 1.0),
    "UP_RATIO": (0.02, 0.04, 0.08, 0.16),
    "CALM_RATIO": (0.5, 0.6, 0.7, 0.8, 0.9),
    "POWER": (0.05, 0.1, 0.2, 0.5),
}


@dataclass(frozen=True)
class Case:
    """A disk whose real capacity follows `parts` of CAPACITY, a step each."""

    name: str
    configured: int
    parts: tuple[float, ...]

    def real(self, at_s: float) -> float:
        step = int(max(0.0, at_s - BEFORE_S) // STEP_S) + (at_s >= BEFORE_S)
        return CAPACITY * self.parts[min(step, len(self.parts) - 1)]


CASES = (
    Case("halved and back", CAPACITY, (1.0, 0.5, 1.0)),
    Case("30 % too high", round(1.3 * CAPACITY), (1.0, 1.0)),
    Case("30 % too low", round(CAPACITY / 1.3), (1.0, 1.0)),
)


def used_at(strain: float, knee: float) -> float:
    """Return the part of a disk that is used where its latency is `strain` times its target."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        over = 1 + middle**knee / (1 - middle) > strain * TARGET_MS / BASE_S / 1000
        low, high = (low, middle) if over else (middle, high)
    return low


def greedy(count: int, exact: bool) -> list[Guest]:
    """Return guests that want all they can get, by weight, of different sizes."""
    sizes = (4, 8, 16, 64)
    return [
        Guest(
            f"g{i}",
            DrivePolicy(weight=100 * (1 + i % 4), reservation=500 * (i % 3)),
            iter([Phase(inf, inf, Kind.of(sizes[i % 4]), 32)]),
            exact=exact,
        )
        for i in range(count)
    ]


def step(case: Case, knee: float, exact: bool, noise: float = 0.0, seconds: int = 0) -> Record:
    """Run a case, or the last of its capacities for so many seconds."""
    policy = StoragePolicy(case.configured, TARGET_MS)
    disk = Disk(policy, case.real, BASE_S, knee, noise)
    fleet = Fleet(greedy(8, exact), [disk], seed=3)
    return fleet.run(seconds or BEFORE_S + STEP_S * (len(case.parts) - 1))


def ratio_figures(knee: float, exact: bool) -> dict[str, float]:
    """Return what the module's docstring says of the ratio."""
    settle, over, lost = [], 0, []
    for case in CASES:
        did = step(case, knee, exact)
        starts = [0] if len(case.parts) == 2 else [BEFORE_S, BEFORE_S + STEP_S]
        for start in starts:
            part = case.parts[-1] if start != BEFORE_S else case.parts[1]
            end = start + STEP_S
            best = used_at(1, knee) * CAPACITY * part
            throughput = did.served[start:end].sum(axis=1)
            strain = did.wait_s[start:end, 0] * 1000 / TARGET_MS
            bad = np.flatnonzero((strain > 1.5) | (throughput < 0.85 * best))
            settle.append(int(bad[-1]) + 1 if len(bad) else 0)
            over += int((strain > 2).sum())
            lost.append(1 - min(1.0, float(np.minimum(throughput, best).mean()) / best))
    noisy = step(Case("noise", CAPACITY, (1.0, 1.0)), knee, exact, NOISE, NOISE_S)
    throughput = noisy.served[BEFORE_S:].sum(axis=1)
    best = used_at(1, knee) * CAPACITY
    real = noisy.wait_s[BEFORE_S:, 0] * 1000 / TARGET_MS
    changes = sum(noisy.retunes(BEFORE_S).values())
    return {
        "settle_s": max(settle),
        "over_s": over,
        "lost": mean(lost),
        "noise_lost": 1 - min(1.0, float(np.minimum(throughput, best).mean()) / best),
        "noise_over": float((real > 1.5).mean()),
        "retunes": changes / 8 / (NOISE_S - BEFORE_S) * 3600,
    }


def bursts() -> Iterator[Phase]:
    """Yield bursts of 2 s every 10 s."""
    return cycle((idle(8), Phase(2, inf, Kind.of(4), 1)))


def room(knee: float, exact: bool) -> Record:
    """Run a victim beside seven that want all they can get."""
    victim = Guest("victim", DrivePolicy(latency_target_ms=TARGET_MS), bursts(), exact=exact)
    disk = Disk(StoragePolicy(CAPACITY), room_capacity, BASE_S, knee)
    return Fleet([victim, *greedy(7, exact)], [disk]).run(ROOM_S)


def room_capacity(at_s: float) -> float:
    """Return what the disk beside a victim really does."""
    return CAPACITY * (0.5 if at_s < HALF_S else 1.0)


def room_figures(knee: float, exact: bool) -> dict[str, float]:
    """Return what the module's docstring says of the room."""
    did = room(knee, exact)
    late = slice(ROOM_S - 100, None)
    busy = did.latency_s[late, 0] > 0
    strain = did.latency_s[late, 0][busy] * 1000 / TARGET_MS
    throughput = did.served.sum(axis=1) / (used_at(1, knee) * CAPACITY)
    low = np.flatnonzero(throughput[HALF_S:] < 0.8)
    return {
        "victim": float(strain.mean()),
        "others": float(throughput[late].mean()),
        "back_s": int(low[-1]) + 1 if len(low) else 0,
        "retunes": sum(did.retunes(ROOM_S - 100).values()) / 8 / 100 * 3600,
    }


def all_of(figures: Callable[[float, bool], dict[str, float]]) -> dict[str, dict[str, float]]:
    return {
        f"{'exact' if exact else 'stock'}, {'soft' if knee == 1 else 'sharp'}": figures(knee, exact)
        for exact in (False, True)
        for knee in KNEES
    }


def sweep(
    names: dict[str, Sequence[float]], figures: Callable[[float, bool], dict[str, float]]
) -> list[dict[str, Any]]:
    """Return the figures for each value of each constant."""
    rows: list[dict[str, Any]] = []
    for name, values in names.items():
        usual = getattr(capacity, name)
        for value in sorted({*values, usual}):
            setattr(capacity, name, value)
            try:
                found = all_of(figures)
            finally:
                setattr(capacity, name, usual)
            rows.append({"constant": name, "value": value, "usual": value == usual, **found})
            show(rows[-1])
    return rows


def show(row: dict[str, Any]) -> None:
    """Print a row: each figure for stock, soft; stock, sharp; exact, soft; exact, sharp."""
    setups = [value for value in row.values() if isinstance(value, dict)]
    cells = "  ".join(
        f"{figure} " + " ".join(f"{setup[figure]:.3g}" for setup in setups) for figure in setups[0]
    )
    mark = "*" if row["usual"] else ""
    print(f"{row['constant']:14} {row['value']:5g}{mark:1} {cells}", flush=True)


def series() -> dict[str, dict[str, list[float]]]:
    """Return what the plot shows: latency over its target and throughput over the disk's at it."""
    found = {}
    for exact in (False, True):
        for name, did, part in (
            ("step", step(CASES[0], 4.0, exact), CASES[0].real),
            ("room", room(4.0, exact), room_capacity),
        ):
            best = np.array([part(at) for at in range(len(did.served))]) * used_at(1, 4.0)
            wait_s = did.latency_s[:, 0] if name == "room" else did.wait_s[:, 0]
            found[f"{name}, {'exact' if exact else 'stock'}"] = {
                "strain": [round(float(s) * 1000 / TARGET_MS, 3) for s in wait_s],
                "throughput": [round(float(r), 3) for r in did.served.sum(axis=1) / best],
            }
    return found


def plot(result: dict[str, Any]) -> None:
    """Draw the series of a result."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(11, 6), sharex="col")
    for column, (name, title) in enumerate(
        (
            ("step", f"capacity halved at {BEFORE_S} s, back at {BEFORE_S + STEP_S} s"),
            ("room", f"bursts of a victim, on a disk that does half until {HALF_S} s"),
        )
    ):
        for mode, color in (("stock", "tab:orange"), ("exact", "tab:blue")):
            values = result["series"][f"{name}, {mode}"]
            above = np.array(values["strain"])
            above[above == 0] = np.nan
            axes[0, column].plot(above, ".-", color=color, label=mode, linewidth=1)
            axes[1, column].plot(values["throughput"], color=color, label=mode, linewidth=1)
        axes[0, column].set_title(title, fontsize=10)
        axes[0, column].set_yscale("log")
        axes[0, column].axhline(1, color="grey", linewidth=0.8)
        axes[1, column].axhline(1, color="grey", linewidth=0.8)
        axes[1, column].set_ylim(0, 1.6)
        axes[1, column].set_xlabel("seconds")
    whose = ("the disk's latency", "the victim's latency")
    for column in (0, 1):
        axes[0, column].set_ylabel(f"{whose[column]} / target")
        axes[1, column].set_ylabel("throughput / the disk's at target")
    axes[0, 0].legend()
    figure.tight_layout()
    figure.savefig(PLOT, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", help="one constant, and no files")
    args = parser.parse_args()
    if args.only:
        sweep({n: v for n, v in SWEEPS.items() if n == args.only}, ratio_figures)
        sweep({n: v for n, v in ROOM_SWEEPS.items() if n == args.only}, room_figures)
        return 0
    result: dict[str, Any] = {
        "constants": {n: getattr(capacity, n) for n in {**SWEEPS, **ROOM_SWEEPS}},
        "ratio": sweep(SWEEPS, ratio_figures),
        "room": sweep(ROOM_SWEEPS, room_figures),
        "series": series(),
    }
    plot(result)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
