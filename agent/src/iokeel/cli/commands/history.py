"""The command `iokeel history`."""

from __future__ import annotations

from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from iokeel.cli import client
from iokeel.cli.cells import NONE, PlainTable, layouts, ms_cell, name_cell, rate_cell
from iokeel.cli.options import JsonOption, SocketOption, drive_names, out, vm_names
from iokeel.cli.output import say_json
from iokeel.config.paths import DEFAULT_SOCKET
from iokeel.errors import ConfigError, IokeelError
from iokeel.report.records import SPAN_S, HistoryReport, OneHistory
from iokeel.words.quoting import reason, shown_path
from iokeel.words.units import parse_duration, percent

if TYPE_CHECKING:  # matplotlib is optional
    from matplotlib.axes import Axes


COLUMNS = ("ago", "norm. iops", "allowed", "used", "ms", "ms wait", "credit")
app = typer.Typer(add_completion=False)


@app.command()
def history(
    vm: Annotated[str, typer.Argument(help="The VM.", autocompletion=vm_names)],
    drive: Annotated[str, typer.Argument(help="The drive.", autocompletion=drive_names)],
    last: Annotated[
        str, typer.Option("--last", metavar="TIME", help="So far back: 90s, 5m; at most 10m.")
    ] = "10m",
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw it: .png, .svg or .pdf.", readable=False),
    ] = None,
    as_json: JsonOption = False,
    socket: SocketOption = DEFAULT_SOCKET,
) -> None:
    """Show what a drive did in the last ten minutes, every two seconds.

    The agent keeps it in memory: it begins anew when the agent starts.
    """
    seconds = _seconds(last)
    if plot is not None and as_json:
        raise ConfigError("--json", "would print nothing beside --plot", "give one of them")
    if plot is not None:
        from iokeel.calibrate.plot import check_plot_file

        check_plot_file(plot)
    found = client.history(socket, seconds, (vm, drive))
    if plot is not None:
        from iokeel.cli.commands.history import draw_history

        draw_history(found, plot)
    elif as_json:
        (one,) = found.drives
        values = OneHistory(**msgspec.structs.asdict(one), ages_s=found.ages_s)
        say_json(msgspec.to_builtins(values))
    else:
        out.print(
            history_table(found) if found.ages_s else "no sample yet: the agent has just started"
        )


def _seconds(last: str) -> float:
    try:
        seconds = parse_duration(last)
    except ConfigError as error:
        raise ConfigError.of(error, f"--last {error.where}") from None
    if not 0 < seconds <= SPAN_S:
        what = "the agent keeps ten minutes"
        raise ConfigError(f"--last {last}", what, "give a time from 1s to 10m")
    return seconds


def history_table(found: HistoryReport) -> PlainTable:
    """Return a row for each moment, the last one at the end."""
    (one,) = found.drives
    names = ("normalized_iops", "allowed_iops", "latency_s", "wait_s", "credit_s")
    columns = [one.series[name] for name in names]
    rows = [
        (
            _ago(age_s),
            rate_cell(rate),
            rate_cell(allowed),
            percent(rate / allowed) if rate is not None and allowed else NONE,
            ms_cell(latency_s),
            ms_cell(wait_s),
            f"{credit_s:.0f} s" if credit_s else NONE,
        )
        for age_s, rate, allowed, latency_s, wait_s, credit_s in zip(
            found.ages_s, *columns, strict=True
        )
    ]
    return PlainTable(COLUMNS, rows, layouts("used", "credit", "ms wait"))


def _ago(seconds: float) -> str:
    """Return minutes and seconds: 4:08. Samples are two seconds apart."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"


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
