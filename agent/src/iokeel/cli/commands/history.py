"""The command `iokeel history`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from iokeel.cli import client
from iokeel.cli.cells import NONE, PlainTable, layouts, ms_cell, rate_cell
from iokeel.cli.options import JsonOption, SocketOption, drive_names, out, vm_names
from iokeel.cli.output import say_json
from iokeel.config.paths import DEFAULT_SOCKET
from iokeel.errors import ConfigError
from iokeel.report.records import SPAN_S, HistoryReport, OneHistory
from iokeel.words.units import parse_duration, percent

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
        from iokeel.cli.history_plot import draw_history

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
