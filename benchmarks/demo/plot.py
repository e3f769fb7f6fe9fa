"""The demo's plot: each drive's rate over time, under iokeel and under a static limit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from benchmarks.demo.limits_in_force import Sample, Throttle, changes
from benchmarks.demo.scenario import Guest, Scenario
from benchmarks.demo.stage import Stage

mpl.use("Agg")
from matplotlib import pyplot as plt

_STEP_S = 0.1


def draw(path: Path, scenario: Scenario, stages: Sequence[Stage]) -> None:
    """Draw a row for each guest and a column for each stage."""
    guests = scenario.guests
    figure, axes = plt.subplots(
        len(guests),
        len(stages),
        figsize=(7 * len(stages), 3 * len(guests)),
        sharex=True,
        squeeze=False,
    )
    figure.subplots_adjust(
        left=0.11 / len(stages), bottom=0.06, right=0.99, top=0.91, wspace=0.12, hspace=0.28
    )
    for row, guest in zip(axes, guests, strict=True):
        row[0].set_ylabel("normalized iops")
        for ax, stage in zip(row, stages, strict=True):
            _draw_drive(ax, scenario, guest, stage)
    for ax in axes[0]:
        _name_phases(ax, scenario)
    for ax in axes[-1]:
        ax.set_xlabel("seconds")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="upper center", ncol=3 * len(stages))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_drive(ax: Any, scenario: Scenario, guest: Guest, stage: Stage) -> None:
    end_s = scenario.length_s
    done = stage.completions(guest.name)
    zero_s = float(done.at_s[0])
    done = done.after(zero_s)
    samples = [Sample(s.at_s - zero_s, s.limits) for s in stage.limits[guest.name]]
    throttle = Throttle(done, samples)
    begins = np.arange(0, end_s - 1, _STEP_S)
    rates = np.array([done.rate(begin, begin + 1) for begin in begins])
    used = np.array([throttle.used_ratio(begin, begin + 1) for begin in begins])
    allowed = rates / np.where(used > 0, used, np.nan)
    ax.plot(begins + 0.5, allowed, "C1", lw=1.3, label="allowed by the limits in force")
    ax.plot(begins + 0.5, rates, "C0", lw=1.3, label="rate, window of 1 s")
    times = np.arange(0, end_s, _STEP_S / 10)
    limits = np.full(len(times), float(guest.limit))
    if guest.change is not None and (changed := stage.changes.get(guest.name)):
        limits[times >= changed.end_s - zero_s] = guest.change.limit
    ax.plot(times, limits, "k--", lw=1, label="limit")
    most = scenario.bounds.window_ratio
    ax.fill_between(
        times, limits, most * limits, alpha=0.12, color="k", lw=0, label=f"+{most - 1:.0%}"
    )
    for phase in scenario.phases[:-1]:
        ax.axvline(phase.end_s, color="0.6", lw=0.8, ls=":")
    moments = [sample.at_s for sample in changes(samples) if 0 <= sample.at_s <= end_s]
    ax.plot(moments, [0.0] * len(moments), "r^", ms=6, label="limits set", clip_on=False)
    ax.set_title(f"{guest.name} ({guest.tenant}), {stage.name}", fontsize=10)
    ax.set_ylim(bottom=0)


def _name_phases(ax: Any, scenario: Scenario) -> None:
    start_s = 0.0
    for phase in scenario.phases:
        ax.text(
            (start_s + phase.end_s) / 2,
            0.03,
            phase.name.removesuffix(" again"),
            ha="center",
            fontsize=8,
            transform=ax.get_xaxis_transform(),
        )
        start_s = phase.end_s
