"""A result for a terminal: the formula of each metric, then a table."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.bench.controllers import title
from benchmarks.bench.records import PREFIX, read
from benchmarks.bench.report.figures import Figures
from benchmarks.bench.scenario import load


def summary(path: Path) -> str:
    """Return a result file's figures."""
    figures = Figures(load(path.stem.removeprefix(PREFIX)), read(path))
    assert figures.result is not None
    setup = figures.result.setup
    out = Console(highlight=False, width=160)
    with out.capture() as text:
        out.print(f"\n[bold]{figures.suite.question}[/]")
        where = f"{setup.device}, times x {setup.slowdown:g}"
        begin = f"figures from second {setup.begin_s:.3g} on"
        out.print(f"{where}, {begin}; median (least to most) ± of 95 %")
        if setup.shortened != 1:
            out.print(f"[yellow]all times were shortened {setup.shortened:g} times: a trial[/]")
        for what in figures.shown:
            out.print(f"  {what.title}: {what.metric.formula}")
        table = Table("case", "controller", *(what.title for what in figures.shown))
        for case in figures.cases:
            for i, name in enumerate(figures.controllers):
                spreads = [figures.spread(what, name, case) for what in figures.shown]
                cells = ["-" if spread is None else str(spread) for spread in spreads]
                table.add_row(case if i == 0 else "", title(name), *cells)
            table.add_section()
        out.print(table)
        for name, why in figures.result.lacking.items():
            out.print(f"{title(name)} did not run: {why}.")
    return text.get()
