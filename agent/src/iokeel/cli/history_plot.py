"""Draws a drive's history: its rate and what it may do, its latency, its credit."""

from __future__ import annotations

from math import nan
from pathlib import Path
from typing import TYPE_CHECKING

from iokeel.cli.cells import name_cell
from iokeel.errors import IokeelError
from iokeel.report.records import HistoryReport
from iokeel.words.quoting import reason, shown_path

if TYPE_CHECKING:  # matplotlib is optional
    from matplotlib.axes import Axes

_RATE_COLOUR, _LIMIT_COLOUR, _WAIT_COLOUR = "#1f6fb4", "#c8552b", "#8a8a8a"
_GRID_COLOUR = "#dddddd"


def draw_history(found: HistoryReport, file: Path) -> None:
    """Draw the history of one drive. Raises IokeelError if the file can't be written."""
    from matplotlib.figure import Figure

    (drive,) = found.drives
    minutes = [-age_s / 60 for age_s in found.ages_s]
    figure = Figure(figsize=(10, 7), layout="constrained")
    # A dollar sign would begin a formula.
    figure.suptitle(name_cell(f"{drive.domain}/{drive.target}"), parse_math=False)
    rates, latencies, credits = figure.subplots(3, 1, sharex=True, height_ratios=(3, 2, 1))

    def line(axes: Axes, name: str, label: str, colour: str, style: str, factor: float) -> None:
        values = [nan if v is None else factor * v for v in drive.series[name]]
        axes.plot(minutes, values, style, color=colour, linewidth=1.4, label=label)

    line(rates, "normalized_iops", "rate", _RATE_COLOUR, "-", 1)
    line(rates, "allowed_iops", "allowed", _LIMIT_COLOUR, "--", 1)
    line(latencies, "latency_s", "latency", _RATE_COLOUR, "-", 1e3)
    line(latencies, "wait_s", "wait for the throttle", _WAIT_COLOUR, ":", 1e3)
    line(credits, "credit_s", "credit", _RATE_COLOUR, "-", 1)
    for axes, unit in ((rates, "normalized iops"), (latencies, "ms"), (credits, "burst, s")):
        axes.set_ylabel(unit)
        axes.set_ylim(bottom=0)
        axes.grid(True, color=_GRID_COLOUR, linewidth=0.6)
        axes.legend(framealpha=0.8, edgecolor="none", fontsize="small", loc="upper left")
        axes.spines[["top", "right"]].set_visible(False)
    credits.set_xlabel("minutes ago")
    credits.xaxis.set_major_formatter(lambda minute, _: f"{abs(minute):g}")
    try:
        figure.savefig(file, dpi=120)
    except OSError as error:
        what = f"can't be written, {reason(error)}"
        raise IokeelError(shown_path(file), what, "give another file to --plot") from None
