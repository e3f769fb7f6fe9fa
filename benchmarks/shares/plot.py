"""The plot of the shares' results: weights, a reservation, and latencies."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import matplotlib as mpl

from benchmarks.shares.measured import (
    VICTIM,
    controls,
    latencies_ms,
    latency_scenarios,
    weights_of,
)
from benchmarks.shares.one_run import CONTROLS

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

COLOURS = dict(zip(("alone", *CONTROLS), ("gray", "red", "orange", "green", "blue"), strict=True))


def draw(into: Path) -> None:
    """Draw all three."""
    figure, axes = plt.subplots(1, 3, figsize=(16, 4.5))
    for part, where in zip((_weights, _reservation, _latency), axes, strict=True):
        part(where)
    figure.tight_layout()
    figure.savefig(into, dpi=90)


def _weights(axes: Axes) -> None:
    """Shares of four backlogged drives, and the weights as lines."""
    found = controls("weights")
    wanted = weights_of(found)
    for place, control in enumerate(c for c in CONTROLS if c in found):
        heights = [median(run.drives[name].share for run in found[control]) for name in wanted]
        at = [i + 0.2 * (place - 1.5) for i in range(len(wanted))]
        axes.bar(at, heights, 0.2, color=f"tab:{COLOURS[control]}", label=control)
    for i, weight in enumerate(wanted.values()):
        due = weight / sum(wanted.values())
        axes.hlines(due, i - 0.4, i + 0.4, "black", linestyles="dashed")
    axes.set_xticks(range(len(wanted)), [f"weight {weight}" for weight in wanted.values()])
    axes.set(title="Share of the disk (dashed: by weight)", ylabel="part of all cost")
    axes.legend()


def _reservation(axes: Axes) -> None:
    """A drive's rate over its reservation, second by second."""
    for control, runs in controls("reservation").items():
        for i, run in enumerate(runs):
            seconds = run.drives[VICTIM].of_reservation_by_second or []
            label = control if not i else None
            axes.plot(seconds, color=f"tab:{COLOURS[control]}", alpha=0.7, label=label)
    axes.axhline(1, color="black", linestyle="dashed")
    axes.set(title="A reservation of 30 % beside 15 others", xlabel="seconds", ylabel="of it")
    axes.set_ylim(bottom=0)
    axes.legend()


def _latency(axes: Axes) -> None:
    """Mean and 99th percentile of the drive with a latency target, by scenario."""
    names = latency_scenarios()
    found = [controls(f"latency-{name}") for name in names]
    for place, control in enumerate(("alone", *CONTROLS)):
        at = [i + 0.16 * (place - 2) for i in range(len(names))]
        for figure, (alpha, label) in enumerate(((1.0, control), (0.4, None))):
            heights = [median(latencies_ms(one[control])[figure]) for one in found]
            color = f"tab:{COLOURS[control]}"
            axes.bar(at, heights, 0.16, log=True, color=color, alpha=alpha, label=label)
    axes.set_xticks(range(len(names)), [name.replace("-", "\n") for name in names])
    axes.set(title="Latency beside 15 others (pale: 99th percentile)", ylabel="ms")
    axes.legend(loc="upper center")
