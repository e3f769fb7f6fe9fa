"""Latency and throughput second by second, after steps of the capacity and beside a victim."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np

from benchmarks.law.capacity_figures import (
    BEFORE_S,
    HALF_S,
    HALVED,
    SHARP_KNEE,
    STEP_S,
    TARGET_MS,
    capacity_beside_victim,
    run_steps,
    run_victim,
    used_at,
)

mpl.use("Agg")
from matplotlib import pyplot as plt


@dataclass(frozen=True)
class Series:
    """A row a second: latency over its target, and throughput over the disk's at the target."""

    strain: list[float]
    throughput: list[float]


def series() -> dict[str, Series]:
    """Return the series of both hosts with stock and with exact throttles."""
    found = {}
    for exact in (False, True):
        for name, did, part in (
            ("step", run_steps(HALVED, SHARP_KNEE, exact), HALVED.real),
            ("room", run_victim(SHARP_KNEE, exact), capacity_beside_victim),
        ):
            seconds = range(len(did.served))
            best = np.array([part(at) for at in seconds]) * used_at(1, SHARP_KNEE)
            wait_s = did.latency_s[:, 0] if name == "room" else did.wait_s[:, 0]
            found[f"{name}, {'exact' if exact else 'stock'}"] = Series(
                [round(float(s) * 1000 / TARGET_MS, 3) for s in wait_s],
                [round(float(r), 3) for r in did.served.sum(axis=1) / best],
            )
    return found


def plot(found: dict[str, Series], into: Path) -> None:
    """Draw the series."""
    figure, axes = plt.subplots(2, 2, figsize=(11, 6), sharex="col")
    titles = (
        ("step", f"capacity halved at {BEFORE_S} s, back at {BEFORE_S + STEP_S} s", "the disk's"),
        ("room", f"bursts of a victim, on a disk that does half until {HALF_S} s", "the victim's"),
    )
    for column, (name, title, whose) in enumerate(titles):
        latency, throughput = axes[0, column], axes[1, column]
        for mode, color in (("stock", "tab:orange"), ("exact", "tab:blue")):
            one = found[f"{name}, {mode}"]
            above = np.array(one.strain)
            above[above == 0] = np.nan
            latency.plot(above, ".-", color=color, label=mode, linewidth=1)
            throughput.plot(one.throughput, color=color, label=mode, linewidth=1)
        latency.set_title(title, fontsize=10)
        latency.set_yscale("log")
        latency.set_ylabel(f"{whose} latency / target")
        throughput.set_ylim(0, 1.6)
        throughput.set_xlabel("seconds")
        throughput.set_ylabel("throughput / the disk's at target")
        for one_axes in (latency, throughput):
            one_axes.axhline(1, color="grey", linewidth=0.8)
    axes[0, 0].legend()
    figure.tight_layout()
    figure.savefig(into, dpi=110)
